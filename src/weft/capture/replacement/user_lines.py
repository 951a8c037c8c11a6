"""Replacements and their operations look as if they ran at the user's own lines.

Place in the pipeline: used by the replacement at a graph break. Code that an operation calls may
look at its callers: logging shows a file and a line, warnings are counted in a module's globals, a
profiler shows the stack. So the replacement's code claims the user's file and lines, and the
operation of an inlined frame runs in a function that claims that frame's place::

    c3_f(c4_g, v[0], t0)     # def g(v_0, t0): return v_0.warning(t0), in the user's file, at that
                             # line; called by f(function, *arguments), at the line that calls g
"""

from __future__ import annotations

import builtins
import re
import types
from collections.abc import Callable, Mapping
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Final

from weft import _frame
from weft.capture.bytecode import PerCode
from weft.capture.bytecode.locations import encode_spans
from weft.capture.core.frame import is_polyfill
from weft.capture.core.tracebacks import hide
from weft.storable import made_by

if TYPE_CHECKING:
    from weft.capture.core.frame import Frame
    from weft.capture.core.protocols import Emitter

_NAMES: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?<![\w.])([A-Za-z_]\w*)""")
_OURS: Final = re.compile(r"(v_\d+|[tc]\d+\w*|out\d+)\Z")
_SLOTS: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|\bv\[(\d+)\]""")
_SLOT_NAMES: Final = re.compile(r"\bv_(\d+)\b")


def relocate_code(code: types.CodeType, user: types.CodeType, first: int, lines: Mapping[int, int]
             ) -> types.CodeType:
    """The code with the user's file and names.

    `first` is its first line; `lines` maps its own lines to the user's, each also for the lines
    after it.
    """
    line = first
    spans = []
    for start, end, own in code.co_lines():
        line = lines.get(own or 0, line)
        spans.append(((line, line, None, None), (end - start) // 2))
    nested = (relocate_code(part, user, first, lines) if isinstance(part, types.CodeType) else part
              for part in code.co_consts)
    code = code.replace(
        co_filename=user.co_filename, co_firstlineno=first, co_name=user.co_name,
        co_qualname=user.co_qualname, co_consts=tuple(nested),
        co_linetable=encode_spans(spans, first))
    _frame.skip(code)
    return code


def operation_in_frames(emit: Emitter, frame: Frame, text: str) -> str:
    """The expression of a frame's operation, evaluated under stand-ins for the frame and its
    callers. The outermost frame is the replacement's own."""
    if frame.caller is None or is_polyfill(frame.code):
        return text
    text = _SLOTS.sub(lambda m: m[1] or f"v_{m[2]}", text)  # not in literals
    names = ", ".join(dict.fromkeys(
        m[2] for m in _NAMES.finditer(text) if m[2] and _is_ours(m[2])))
    function = emit.constant(operation_at(
        frame.code, frame.current.line, frame.globals.original, names, text))
    return call_in_frames(emit, frame.caller, function, _SLOT_NAMES.sub(r"v[\1]", names))


def operation_at(code: types.CodeType, line: int, globals: dict[str, Any], names: str, text: str
                 ) -> types.FunctionType:
    """A function of `names` that returns `text`, and claims a place in the code."""
    space: dict[str, types.FunctionType] = {}
    exec(f"def operation({names}): return {text}", space)
    own = relocate_code(space["operation"].__code__, code, line, {})
    hide(own)
    return made_by(types.FunctionType(own, globals), operation_at, code, line, globals, names, text)


def call_in_frames(emit: Emitter, frame: Frame, function: str, arguments: str) -> str:
    """An expression that calls a function from the frame, under stand-ins for its callers."""
    through: list[str] = []
    at = frame
    while at.caller is not None and len(through) < _MOST_FRAMES:
        if not is_polyfill(at.code):
            through.append(emit.constant(passing_on(
                at.code, at.current.line, at.globals.original)))
        at = at.caller
    first, *others = [*reversed(through), function]
    return f"{first}({', '.join(filter(None, [*others, arguments]))})"


_MOST_FRAMES: Final = 24
"""The most callers that are shown: in a recursion, a replacement may call at each level."""

_PASSING_ON: Final[PerCode[dict[int, types.CodeType]]] = PerCode()


def passing_on(code: types.CodeType, line: int, globals: dict[str, Any]) -> types.FunctionType:
    """A function that claims a place in the code and calls its first argument with the others."""
    lines = _PASSING_ON.get(code)
    if lines is None:
        lines = _PASSING_ON[code] = {}
    own = lines.get(line)
    if own is None:
        own = lines[line] = relocate_code(_pass_on.__code__, code, line, {})
        hide(own)
    return made_by(types.FunctionType(own, globals), passing_on, code, line, globals)


def _pass_on(function: Callable[..., object], *arguments: object) -> object:
    return function(*arguments)


def _is_ours(name: str) -> bool:
    """Whether the name means something in the replacement (the user's module may have the same
    name)."""
    if name == "math" or _OURS.match(name) is not None:
        return True
    return hasattr(builtins, name) and not iskeyword(name)
