"""Replacements and their operations run as if the user's own lines ran them.

Place in the pipeline: used by the replacement at a graph break. Code that an operation calls may
look at its callers: logging names a file and line, warnings are counted in a module's globals, a
profiler shows the stack. So the replacement's code lies in the user's file, at the user's lines,
and the operation of an inlined frame runs in a function that lies where that frame is::

    c3_f(v[0], t0)     # def f(v_0, t0): return v_0.warning(t0), in the user's file, at that line
"""

from __future__ import annotations

import builtins
import re
import types
from collections.abc import Mapping
from keyword import iskeyword
from typing import TYPE_CHECKING, Final

from weft import _frame
from weft.capture.bytecode.locations import encode_spans
from weft.capture.frame import POLYFILLS
from weft.capture.tracebacks import hide

if TYPE_CHECKING:
    from weft.capture.frame import Frame
    from weft.capture.replacement import Emitter

_NAMES: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?<![\w.])([A-Za-z_]\w*)""")
_OURS: Final = re.compile(r"(v_\d+|[tc]\d+\w*|out\d+)\Z")
_SLOTS: Final = re.compile(r"\bv\[(\d+)\]")
_SLOT_NAMES: Final = re.compile(r"\bv_(\d+)\b")


def lying_at(code: types.CodeType, user: types.CodeType, first: int, lines: Mapping[int, int]
             ) -> types.CodeType:
    """The code as if it were the user's, from the line `first` on; `lines`: of it to the user's,
    each also for those that follow."""
    line = first
    spans = []
    for start, end, own in code.co_lines():
        line = lines.get(own or 0, line)
        spans.append(((line, line, None, None), (end - start) // 2))
    nested = (lying_at(part, user, first, lines) if isinstance(part, types.CodeType) else part
              for part in code.co_consts)
    code = code.replace(
        co_filename=user.co_filename, co_firstlineno=first, co_name=user.co_name,
        co_qualname=user.co_qualname, co_consts=tuple(nested),
        co_linetable=encode_spans(spans, first))
    _frame.skip(code)
    return code


def in_frames(emit: Emitter, frame: Frame, text: str) -> str:
    """The expression evaluated where the frame is, which the replacement's own frame calls: with
    a frame for this one and for each of its callers but the outermost."""
    at: Frame = frame
    while at.caller is not None:
        if not at.code.co_filename.startswith(POLYFILLS):
            text = _at_user_line(emit, at, text)
        at = at.caller
    return text


def _at_user_line(emit: Emitter, frame: Frame, text: str) -> str:
    """The expression evaluated in a function that lies where the frame is."""
    text = _SLOTS.sub(r"v_\1", text)
    names = ", ".join(dict.fromkeys(
        m[2] for m in _NAMES.finditer(text) if m[2] and _is_ours(m[2])))
    space: dict[str, types.FunctionType] = {}
    exec(f"def operation({names}): return {text}", space)
    code = lying_at(space["operation"].__code__, frame.code, frame.current.line, {})
    hide(code)
    function = types.FunctionType(code, frame.globals.original)
    arguments = _SLOT_NAMES.sub(r"v[\1]", names)
    return f"{emit.constant(function)}({arguments})"


def _is_ours(name: str) -> bool:
    """Whether the name means something in the replacement (the user's module may have the same)."""
    if name == "math" or _OURS.match(name) is not None:
        return True
    return hasattr(builtins, name) and not iskeyword(name)
