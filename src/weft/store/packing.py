"""Data as the content of a file: compressed JSON.

    packed(["list", 0, [1]])      # bytes
    unpacked(content)             # ["list", 0, [1]]; raises ValueError if it is none
"""

from __future__ import annotations

import json
import zlib
from typing import Final

from weft.store.identity import Data

_LONGEST: Final = 1 << 28
"""Characters of the longest entry: a file of some kilobytes may claim any number."""


def packed(data: Data) -> bytes:
    """Data as a file's content."""
    return zlib.compress(json.dumps(data, separators=(",", ":")).encode(), 1)


def unpacked(content: bytes) -> Data:
    """The data in a file; raises ValueError if it is none."""
    packer = zlib.decompressobj()
    try:
        text = packer.decompress(content, _LONGEST)
        if not packer.eof:
            raise ValueError("it is cut, or too long")
        return json.loads(text.decode())
    except (zlib.error, RecursionError) as error:
        raise ValueError(str(error)) from None
