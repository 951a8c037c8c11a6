"""Why a frame was captured again: which guard of each earlier variant fails, and on what value.

Place in the pipeline: beside the compiler, at misses only; nothing here runs on a hit.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Final, final

from weft import _frame
from weft.capture.guards import Guard, GuardSet, explain_failure
from weft.capture.source import Source
from weft.capture.values.base import MISSING


@final
class Variant:
    """What is remembered of a compiled variant to explain its failing guards."""

    def __init__(self, guards: list[Guard]) -> None:
        self.guards = guards

    @staticmethod
    def attach(replacement: Any, guards: GuardSet) -> None:
        """Keeps the guards with the function that they guard."""
        replacement.__weft_variant__ = Variant(guards.all)

    def explain(self, guard_id: Any, locals: list[Any], cells: tuple[Any, ...],
                globals: dict[str, Any]) -> str:
        """The failing guard in words."""
        if not isinstance(guard_id, int) or not 0 <= guard_id < len(self.guards):
            return "a value that was read is gone"
        guard = self.guards[guard_id]
        if guard.source is None:
            return explain_failure(guard, None)
        actual = read(guard.source, locals, cells, globals)
        return explain_failure(guard, actual, actual is not MISSING)


def fitting_entry(code: types.CodeType, locals: list[Any], cells: tuple[Any, ...],
                  globals: dict[str, Any]) -> Any:
    """The entry of the code whose guards hold for a frame, or None."""
    for entry in _frame.entries(code):
        here = entry.globals is None or entry.globals is globals
        if here and entry.guards.check(locals, cells, globals) is not None:
            return entry
    return None


def recompile_reasons(entries: list[Any], locals: list[Any], cells: tuple[Any, ...],
                      globals: dict[str, Any]) -> list[str]:
    """For each earlier variant, the first guard that fails."""
    reasons = []
    for entry in entries:
        variant = getattr(entry.fn, "__weft_variant__", None)
        if variant is None:
            continue
        guard_id = entry.guards.explain(locals, cells, globals)
        if guard_id is not None:
            reasons.append(variant.explain(guard_id, locals, cells, globals))
    return list(dict.fromkeys(reasons))


Reader = Callable[[Any, Any], Any]

_READERS: Final[dict[str, Reader]] = {
    "attr": getattr,
    "instance_dict": lambda value, _: value.__dict__,
    "dict_item": dict.__getitem__,
    "list_item": list.__getitem__,
    "tuple_item": tuple.__getitem__,
    "type": lambda value, _: type(value),
    "call": lambda value, function: function(value),
}


def read(source: Source, locals: list[Any], cells: tuple[Any, ...], globals: dict[str, Any]) -> Any:
    """The value of a source in a frame, or MISSING."""
    kind, *operand = source.accessor
    if source.base is None:
        roots = {"local": locals, "cell_object": cells}
        return operand[0] if kind == "object" else roots[kind][operand[0]]
    base = read(source.base, locals, cells, globals)
    if base is MISSING:
        return MISSING
    try:
        return _READERS[kind](base, operand[0] if operand else None)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return MISSING


__all__ = ["Variant", "fitting_entry", "read", "recompile_reasons"]
