"""The version of weft: part of the disk cache's key, and read by the build."""

from typing import Final

__version__: Final = "0.1.0"
