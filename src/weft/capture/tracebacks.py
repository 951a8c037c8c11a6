"""Tracebacks of exceptions that captured code raised and caught: the program's frames and lines.

Place in the pipeline: run by replacements. No frame of the program exists for what was captured, so
its exceptions are given tracebacks made of frame objects that are over already::

    t0 = ValueError(3)
    t0.__traceback__ = traceback_entry(None, place)     # File "model.py", line 7, in forward
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from types import CodeType, TracebackType
from typing import Any, Final, final

from weft import _frame
from weft.capture.bytecode import PerCode
from weft.capture.continuation import original_position

_VARIABLES: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
_BARE: Final[PerCode[CodeType]] = PerCode()


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where an exception passed a frame, and where the frame ended."""

    code: CodeType
    globals: dict[str, Any]
    offset: int
    line: int
    last_line: int


def traceback_entry(rest: TracebackType | None, place: Place) -> TracebackType:
    """The traceback of an exception that passed a frame after those of `rest`."""
    code, offset = original_position(place.code, place.offset)
    frame = _frame.frame_object(_bare(code), place.globals, place.last_line)
    return TracebackType(rest, frame, offset, place.line)


def _bare(code: CodeType) -> CodeType:
    """The code without variables, so that nobody looks for them in its frame."""
    found = _BARE.get(code)
    if found is None:
        found = _BARE[code] = code.replace(
            co_argcount=0, co_posonlyargcount=0, co_kwonlyargcount=0, co_varnames=(), co_nlocals=0,
            co_cellvars=(), co_freevars=(), co_flags=code.co_flags & ~_VARIABLES)
    return found


