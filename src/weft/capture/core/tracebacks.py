"""Tracebacks of exceptions in captured code: the program's frames and lines.

Place in the pipeline: run by replacements. Captured code has no frames of its own, so its
exceptions get tracebacks of finished frame objects that weft makes::

    t0 = ValueError(3)
    t0.__traceback__ = traceback_entry(None, place)     # File "model.py", line 7, in forward

In tracebacks of errors that operations between graphs raise, the frames of the replacement are
replaced by the frames of the program that its instructions stand for.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, final

from weft import _frame
from weft.capture.bytecode import PerCode
from weft.capture.bytecode.continuation import original_position
from weft.config import config
from weft.errors import CompilationFailed, InternalError, WeftError, is_ours

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
    """The traceback `rest`, extended by a frame that the exception passed."""
    code, offset = original_position(place.code, place.offset)
    frame = _frame.frame_object(_bare(code), place.globals, place.last_line)
    return TracebackType(rest, frame, offset, place.line)


_HIDDEN: Final[PerCode[bool]] = PerCode()
"""Code whose frames tracebacks do not show."""

_PLACES: Final[PerCode[dict[int, tuple[Place, ...]]]] = PerCode()
"""By the code of a replacement and an offset in it: the frames of the program that the instruction
stands for, outermost first."""


def hide(code: CodeType) -> None:
    """Do not show frames of the code in tracebacks."""
    _HIDDEN[code] = True


def stand_for(code: CodeType, places: dict[int, tuple[Place, ...]]) -> None:
    """Set the frames of the program that tracebacks show for the instructions of a replacement."""
    _PLACES[code] = places
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            hide(inner)


def shown(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback that the program should see, with the outermost entries of replacements
    replaced.

    Frames refer to those that called them, so their variables would live as long as the error: what
    they hold of the program's stack must not.
    """
    ours: list[TracebackType] = []
    while traceback is not None and _is_ours(traceback.tb_frame.f_code):
        ours.append(traceback)
        traceback = traceback.tb_next
    for entry in reversed(ours):
        _frame.end_frame(entry.tb_frame)
        traceback = _instead_of(entry, traceback)
    return traceback


def _caught(error: BaseException, callers: int) -> BaseException:
    """The error with its traceback as the handling frame should see it: without that frame's
    callers."""
    entry = error.__traceback__
    assert entry is not None
    known = entry.tb_lasti in (_PLACES.get(entry.tb_frame.f_code) or ())
    entry = shown(entry)
    for _ in range(callers if known else 0):
        entry = entry and entry.tb_next
    error.__traceback__ = entry
    return error


caught: Final = partial(_frame.ours, _caught)


def under_way() -> Iterator[tuple[str, int, dict[str, object]]]:
    """File, line and globals of the running frames, innermost first; for a replacement, those of
    the program's frames that it stands for."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        for place in reversed((_PLACES.get(code) or {}).get(frame.f_lasti) or ()):
            yield place.code.co_filename, place.line, place.globals
        if not _is_ours(code):
            yield code.co_filename, frame.f_lineno, frame.f_globals
        frame = frame.f_back


def _is_ours(code: CodeType) -> bool:
    return _HIDDEN.get(code) is not None or _PLACES.get(code) is not None


def _instead_of(entry: TracebackType, rest: TracebackType | None) -> TracebackType | None:
    code = entry.tb_frame.f_code
    if _HIDDEN.get(code) is not None:
        return rest
    places = (_PLACES.get(code) or {}).get(entry.tb_lasti)
    if places is None:  # a frame of weft itself: keep it, it may be needed
        return TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    for place in reversed(places):
        rest = traceback_entry(rest, place)
    return rest


def _leaving(error: BaseException, traceback: TracebackType | None) -> TracebackType | None:
    """The traceback of an error that leaves weft's code, as the program should see it.

    What weft says to the user has no frames inside of weft, unless they are asked for; a failure of
    weft itself keeps them.
    """
    if not isinstance(error, WeftError) or isinstance(error, InternalError | CompilationFailed):
        return shown(traceback)
    if config.full_traceback:
        return traceback
    if error.__cause__ is not None:
        error.__cause__.__traceback__ = _outside(error.__cause__.__traceback__)
    error.__context__ = error.__cause__
    return None


def _outside(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame on that is not weft's."""
    while traceback is not None and is_ours(traceback.tb_frame.f_code.co_filename):
        traceback = traceback.tb_next
    return traceback


_frame.clean_tracebacks(_leaving)


def _bare(code: CodeType) -> CodeType:
    """The code without arguments and cells: in its frame, no variable has a value. (The names are
    there for "did you mean ...?" of a NameError.)"""
    bare = _BARE.get(code)
    if bare is None:
        bare = _BARE[code] = code.replace(
            co_argcount=0, co_posonlyargcount=0, co_kwonlyargcount=0, co_cellvars=(),
            co_freevars=(), co_flags=code.co_flags & ~_VARIABLES)
    return bare


def warn(message: Any, category: Any = None, stacklevel: Any = 1, source: Any = None,
         **others: Any) -> None:
    """`warnings.warn` with a `stacklevel` that counts frames of the program."""
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    plain = isinstance(kind, type) and issubclass(kind, Warning) and isinstance(stacklevel, int)
    places = islice(under_way(), max(stacklevel - 1, 0), None) if plain and not others else iter(())
    for file, line, space in places:
        _warn_at_line(message, kind, file, line, space, source)
        return
    warnings.warn(message, category, stacklevel, source, **others)


def warn_at(message: str, category: type[Warning], place: Place) -> None:
    """A warning that names a place of the program."""
    _warn_at_line(message, category, place.code.co_filename, place.line, place.globals)


def _warn_at_line(
    message: Any, category: Any, file: str, line: int, space: dict[str, Any], source: Any = None
) -> None:
    registry = space.setdefault("__warningregistry__", {})
    module = space.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, file, line, module, registry, source=source)


for _function in (warn, warn_at, _warn_at_line):
    hide(_function.__code__)
