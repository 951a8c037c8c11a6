"""Frames of inlined calls, as `sys._getframe` gives them to the program.

Place in the pipeline: a value family. A function that asks who called it, for a warning or a log,
is inlined if all frames that it looks at are inlined, too; of these capture knows the code, the
line and the globals. Any other question breaks the graph, in the frame that calls the asking
function, which then runs as a whole in a frame of its own::

    def warn(text):
        frame = sys._getframe(1)                        # an inlined caller
        warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
"""

from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, final

from weft.capture.bytecode.continuation import original_position
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.constant import ZERO, constant, python_object
from weft.capture.core.frame import Frame, is_polyfill
from weft.capture.library.functions.functions import rule

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@final
class FrameValue(SymbolicValue):
    """A frame under interpretation."""

    __slots__ = ("frame",)

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame

    def python_type(self) -> type:
        return types.FrameType

    def __repr__(self) -> str:
        return f"the frame of {self.frame.code.co_qualname}"

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "f_code":
            code, _ = original_position(self.frame.code, self.frame.current.offset)
            return tx.wrap_fixed(code, code.co_qualname)
        if name == "f_lineno":
            return constant(self.frame.current.line)
        if name == "f_globals":
            return self.frame.globals
        if name == "f_back":
            return frame_value(tx, _caller(self.frame))
        raise _observed(f"{name} of {self!r}")


def frame_value(tx: Interpreter, frame: Frame) -> SymbolicValue:
    """The value of a frame, the same each time."""
    if frame.value is None:
        frame.value = FrameValue(frame)
    return frame.value


def _caller(frame: Frame) -> Frame:
    """The frame that called this one."""
    if frame.caller is None or not frame.called_here or is_polyfill(frame.caller.code):
        raise _observed(f"the caller of {frame.code.co_qualname}")
    return frame.caller


def _observed(what: str) -> GraphBreak:
    return graph_break("observed-interpreter", f"a look at {what}")


@rule(sys._getframe)
def _getframe(tx: Interpreter, depth: SymbolicValue = ZERO, /) -> SymbolicValue:
    steps, frame = python_object(tx, depth), tx.frame
    if frame is None or type(steps) is not int or steps < 0 or frame.caller is None:
        raise _observed("the frames of callers")
    for _ in range(steps):
        frame = _caller(frame)
    return frame_value(tx, frame)
