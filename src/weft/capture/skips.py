"""Code that is never captured as a frame of its own: the standard library, torch, weft.

Place in the pipeline: asked by the frame hook's miss path. (Inlining such code is fine; a frame of
it that runs by itself between graphs is not worth a capture.)
"""

from __future__ import annotations

import os
import sysconfig
import types
from pathlib import Path
from typing import Final

import torch

_PREFIXES: Final = tuple(
    f"{path}{os.sep}" for path in {
        sysconfig.get_paths()["stdlib"],
        str(Path(torch.__file__).parent),
        str(Path(__file__).parent.parent),
    }
)
_SITE: Final = f"{sysconfig.get_paths()['purelib']}{os.sep}"
_CAPTURED: Final = (str(Path(torch.__file__).parent / "nn" / "modules"),
                    str(Path(torch.__file__).parent / "optim"))


def is_skipped_code(code: types.CodeType) -> bool:
    """Whether frames of the code are left to Python."""
    file = code.co_filename
    if file.startswith("<"):
        return True
    if file.startswith(_CAPTURED):
        return False
    if file.startswith(_SITE):
        return file.startswith(_PREFIXES[1:]) or f"{os.sep}torch{os.sep}" in file
    return file.startswith(_PREFIXES)
