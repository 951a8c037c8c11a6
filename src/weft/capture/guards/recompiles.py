"""Why a frame was captured again: which guard of each earlier variant fails, and on what value.

Place in the pipeline: beside the compiler, at misses only; nothing here runs on a hit.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, Final, final

import torch

from weft import _frame
from weft.capture.core.base import MISSING
from weft.capture.core.source import FrameState, Reference, Source
from weft.capture.guards.guard_changes import change_of
from weft.capture.guards.guard_set import Guard, GuardSet
from weft.config import config
from weft.diagnostics import events
from weft.diagnostics.changes import Change, summary
from weft.diagnostics.explanation import code_name
from weft.errors import CALLS_OF_MODULES, RecompileLimitWarning, is_ours, users_level
from weft.quoting import one_line
from weft.shapes.policy import DynamicPolicy


@final
class Variant:
    """The guards of a compiled variant, kept to explain why they fail, and the policy of its
    sizes, for those that are compiled for equal code."""

    def __init__(self, guards: list[Guard], policy: DynamicPolicy) -> None:
        self.guards = guards
        self.policy = policy

    @staticmethod
    def attach(replacement: Any, guards: GuardSet, policy: DynamicPolicy) -> None:
        """Keep the guards with the function that they guard."""
        replacement.__weft_variant__ = Variant(guards.all, policy)

    def texts(self) -> list[str]:
        """The guards, as messages show them."""
        return [str(guard) for guard in self.guards]

    def runs_the_same(self, state: FrameState) -> bool:
        """Whether a frame runs the same code, on objects of the same types: it may differ in
        numbers and sizes, and in functions that were made anew."""
        return all(self._holds(guard, state) for guard in self.guards
                   if guard.kind in ("is", "type_is") and guard.source is not None)

    def _holds(self, guard: Guard, state: FrameState) -> bool:
        assert guard.source is not None
        actual, expected = read(guard.source, state), guard.args[0]
        if type(expected) is Reference:
            expected = expected()
        if guard.kind == "type_is":
            return type(actual) is expected
        return actual is expected or (
            type(actual) is type(expected) is types.FunctionType
            and actual.__code__ is expected.__code__)

    @staticmethod
    def attach_texts(replacement: Any, guards: list[str]) -> None:
        """Keep the texts of the guards of an entry that another process has compiled."""
        replacement.__weft_variant__ = StoredVariant(guards)

    def change(self, guard_id: object, state: FrameState) -> Change:
        """Why the guard of this number fails for a frame."""
        if not isinstance(guard_id, int) or not 0 <= guard_id < len(self.guards):
            return Change("", "", "a value that was read", "there", "gone", "",
                          "keep what the program reads in place")
        guard = self.guards[guard_id]
        if guard.source is None:
            return change_of(guard, None)
        actual = read(guard.source, state)
        return change_of(guard, actual, actual is not MISSING)


def fitting_entry(state: FrameState, owner: object) -> Any:
    """The first entry of the frame's code, for these settings, whose guards hold for the frame, or
    None."""
    for entry in _frame.entries(state.code, owner):
        same_globals = entry.globals is None or entry.globals is state.globals
        if same_globals and entry.guards.check(*state[1:]) is not None:
            return entry
    return None


def changes_since(entries: list[Any], state: FrameState) -> list[Change]:
    """What the first failing guard of each earlier variant says; equal changes once."""
    changes = []
    for entry in entries:
        variant = getattr(entry.fn, "__weft_variant__", None)
        if variant is None:
            continue
        guard_id = entry.guards.explain(*state[1:])
        if guard_id is not None:
            changes.append(variant.change(guard_id, state))
    return list(dict.fromkeys(changes))


def policy_of_equal_code(entries: list[Any], state: FrameState) -> DynamicPolicy | None:
    """The policy of the latest of these entries that was compiled for a frame like this one."""
    for entry in entries:
        variant = getattr(entry.fn, "__weft_variant__", None)
        if variant is not None and variant.runs_the_same(state):
            policy: DynamicPolicy = variant.policy
            return policy
    return None


def recompile_reasons(entries: list[Any], state: FrameState) -> list[str]:
    """What changed since the earlier variants, one sentence for each change."""
    return summary(changes_since(entries, state))


def note_recompile(code: types.CodeType, changes: list[Change]) -> None:
    """Record that another variant is about to be compiled, and why."""
    events.count("recompiles")
    events.record("recompile", code=code, reason="; ".join(summary(changes)), stack=(),
                  changes=changes)


def _subject(state: FrameState) -> str:
    """The function of the program that a frame runs: of PyTorch's or weft's call of a module or
    another object, that object's."""
    code = state.code
    arguments = [*state.locals[:1], *(cell.cell_contents for cell in state.cells[:1])]
    if code.co_name in CALLS_OF_MODULES or is_ours(code.co_filename):
        for value in arguments:
            if isinstance(value, torch.nn.Module):
                code = getattr(type(value).forward, "__code__", code)
                place = f"{code.co_filename}:{code.co_firstlineno}"
                return one_line(f"{type(value).__qualname__} ({place})")
    return code_name(code)


def report_limit(state: FrameState, changes: list[Change], limit: str, *, warn: bool) -> None:
    """Report that no more variants of the code are compiled; `limit` is the name of the setting
    that says so."""
    code = state.code
    reasons = summary(changes)
    events.record("limit", code=code, reason="; ".join(reasons))
    if not warn:
        return
    shown = "\n".join(f"  {reason}" for reason in reasons)
    hints = "\n".join(f"  {hint}" for hint in dict.fromkeys(c.hint for c in changes))
    warnings.warn(
        f"{_subject(state)} has reached "
        f"weft.config.{limit} = {getattr(config, limit)} and runs eagerly for further variants; "
        f"what kept changing:\n{shown}\ndo:\n{hints}\n  or raise weft.config.{limit}",
        RecompileLimitWarning, stacklevel=users_level())


@final
class StoredVariant:
    """The guards of a variant that another process has compiled: their texts."""

    def __init__(self, guards: list[str]) -> None:
        self.guards = guards

    def texts(self) -> list[str]:
        """The guards, as messages show them."""
        return self.guards

    def runs_the_same(self, state: FrameState) -> bool:
        """False: what its captures have learned of sizes is not here."""
        return False

    def change(self, guard_id: Any, state: FrameState) -> Change:
        """Why the guard of this number fails for a frame."""
        known = isinstance(guard_id, int) and 0 <= guard_id < len(self.guards)
        text = self.guards[guard_id] if known else "a value that was read"
        return Change(text, "", text, "true", "not true", "", "call with what was there before")


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


def read(source: Source, state: FrameState) -> Any:
    """The value of a source in a frame, or MISSING."""
    kind, *operand = source.accessor
    if source.base is None:
        roots = {"local": state.locals, "cell_object": state.cells}
        if kind == "alive":
            return operand[0]()
        return operand[0] if kind == "object" else roots[kind][operand[0]]
    base = read(source.base, state)
    if base is MISSING:
        return MISSING
    try:
        return _READERS[kind](base, operand[0] if operand else None)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return MISSING
