"""Operations that run as if the user's own line ran them.

Place in the pipeline: used by the replacement at a graph break. Code that the operation calls may
look at its caller: logging names its file and line, warnings are counted in its globals, a
traceback shows it::

    c3_f(v[0], t0)     # def f(v_0, t0): return v_0.warning(t0), in the user's file, at that line
"""

from __future__ import annotations

import builtins
import re
import types
from keyword import iskeyword
from typing import TYPE_CHECKING, Final

from weft import _frame
from weft.capture.tracebacks import hide

if TYPE_CHECKING:
    from weft.capture.frame import Frame
    from weft.capture.replacement import Emitter

_NAMES: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?<![\w.])([A-Za-z_]\w*)""")
_OURS: Final = re.compile(r"(v_\d+|[tc]\d+\w*|out\d+)\Z")
_SLOTS: Final = re.compile(r"\bv\[(\d+)\]")
_SLOT_NAMES: Final = re.compile(r"\bv_(\d+)\b")
_NO_COLUMNS: Final = 0x80 | 13 << 3
"""Head of an entry of a location table that gives a line and no columns; the low bits count code
units less one."""


def at_user_line(emit: Emitter, frame: Frame, text: str) -> str:
    """The expression evaluated in a function that lies where the frame is."""
    text = _SLOTS.sub(r"v_\1", text)
    names = ", ".join(dict.fromkeys(
        m[2] for m in _NAMES.finditer(text) if m[2] and _is_ours(m[2])))
    space: dict[str, types.FunctionType] = {}
    exec(f"def operation({names}): return {text}", space)
    code = space["operation"].__code__
    units = len(code.co_code) // 2
    table = b"".join(
        bytes((_NO_COLUMNS | min(units - at, 8) - 1, 0)) for at in range(0, units, 8))
    code = code.replace(
        co_filename=frame.code.co_filename, co_firstlineno=frame.current.line,
        co_name=frame.code.co_name, co_qualname=frame.code.co_qualname, co_linetable=table)
    _frame.skip(code)
    hide(code)
    function = types.FunctionType(code, frame.globals.original)
    arguments = _SLOT_NAMES.sub(r"v[\1]", names)
    return f"{emit.constant(function)}({arguments})"


def _is_ours(name: str) -> bool:
    """Whether the name means something in the replacement (the user's module may have the same)."""
    if name == "math" or _OURS.match(name) is not None:
        return True
    return hasattr(builtins, name) and not iskeyword(name)
