"""Why a guard failed: the place in the user's words, old and new value, and what avoids it.

Place in the pipeline: beside the compiler; runs at misses only. `_KINDS` has one function for each
kind of guard::

    change_of(guard, 13)            # 'n' was 12, now 13
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from weft.capture.core.base import MISSING
from weft.capture.core.source import Reference
from weft.capture.core.state import readable_modes
from weft.capture.guards.class_guards import BASES, defined
from weft.capture.guards.guard_set import Guard, short, tensor_guard
from weft.diagnostics.changes import Change

Difference = tuple[str, str, str, str]
"""Aspect, old value, new value, hint."""


def change_of(guard: Guard, actual: object, exists: bool = True) -> Change:
    """The change that made a guard fail.

    `actual` is what is at the guard's source now; `exists` is False if nothing is.
    """
    if exists:
        difference = _KINDS.get(guard.kind, _any)(guard, actual)
    else:
        difference = ("value", _expected(guard), "gone", "keep what the program reads in place")
    aspect, old, new, hint = difference
    source = "" if guard.source is None else str(guard.source)
    line = str(guard.stack[-1]) if guard.stack else ""
    return Change(str(guard), source, aspect, old, new, line, hint)


def _expected(guard: Guard) -> str:
    return short(guard.args[0]) if guard.args else "there"


def _any(guard: Guard, actual: object) -> Difference:
    return "value", "such that " + str(guard), short(actual), "keep it as it was"


# -- tensors --------------------------------------------------------------------------------------

_TENSOR_HINTS: Final = {
    "type": "pass tensors of one class",
    "dtype": "convert to one dtype before the call (each dtype is compiled once)",
    "device": "move to one device before the call (each device is compiled once)",
    "device index": "move to one device before the call (each device is compiled once)",
    "layout": "pass tensors of one layout",
    "requires_grad": "call with or without gradients, not both (each is compiled once)",
    "size": "let the size be symbolic from the first call: weft.mark_dynamic, or "
            "weft.compile(dynamic=True)",
    "stride": "pass tensors of one memory layout, for example through .contiguous()",
    "rank": "pass tensors with one number of dimensions",
}


def _tensor(guard: Guard, actual: object) -> Difference:
    if not isinstance(actual, torch.Tensor):
        return "value", "a tensor", short(actual), "pass a tensor each time"
    for aspect, old, new in _fields(guard, actual):
        if not _same(old, new):
            return aspect, _plain(old), _plain(new), _TENSOR_HINTS[aspect]
    return "value", "a plain tensor", "a wrapped, conjugated or negated one", "pass plain tensors"


_FIELDS: Final = ("type", "dtype", "device", "device index", "layout", "requires_grad", "size",
                  "stride")


def _fields(guard: Guard, actual: torch.Tensor) -> Iterator[tuple[str, Any, Any]]:
    for aspect, old, new in zip(_FIELDS, guard.args, tensor_guard(actual), strict=True):
        ranks = aspect == "size" and old is not None and len(old) != len(new)
        yield "rank" if ranks else aspect, old, new


def _same(old: object, new: object) -> bool:
    """Whether two values of a field are equal; None in the old one matches any size or stride."""
    if not isinstance(old, tuple) or not isinstance(new, tuple) or len(old) != len(new):
        return bool(old == new)
    return all(a is None or a == b for a, b in zip(old, new, strict=True))


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join("any" if v is None else str(v) for v in value) + "]"
    return value.__qualname__ if isinstance(value, type) else str(value).removeprefix("torch.")


# -- Python values --------------------------------------------------------------------------------


def _equal(guard: Guard, actual: object) -> Difference:
    number = type(actual) in (int, float) and type(guard.args[0]) in (int, float)
    hint = ("pass it as a tensor, or let weft make it symbolic (weft.compile(dynamic=True))"
            if number else "each value is compiled once: keep the number of values small")
    return "value", short(guard.args[0]), short(actual), hint


def _identical(guard: Guard, actual: object) -> Difference:
    kind = "function" if callable(actual) else "object"
    return ("value", short(guard.args[0]), _other(actual, guard.args[0]),
            f"make the {kind} once, outside of what is called again and again")


def _other(actual: object, old: object) -> str:
    text = short(actual)
    return f"another {text}" if text == short(old) else text


def _length(guard: Guard, actual: Any) -> Difference:
    length = str(len(actual)) if hasattr(type(actual), "__len__") else short(actual)
    return ("length", str(guard.args[0]), length,
            "pass one number of items (each number is compiled once)")


def _keys(guard: Guard, actual: object) -> Difference:
    keys = short(list(actual)) if isinstance(actual, dict) else short(actual)
    return "keys", short(list(guard.args[0])), keys, "pass the same keys in the same order"


def _new_key(guard: Guard, actual: object) -> Difference:
    return ("keys", f"without {guard.args[0]!r}", f"{guard.args[0]!r} among them",
            "set it before the first call")


def _type(guard: Guard, actual: object) -> Difference:
    return ("type", short(guard.args[0]), _other(type(actual), guard.args[0]),
            "pass values of one type (each type is compiled once)")


# -- classes --------------------------------------------------------------------------------------

_KEEP_CLASSES: Final = "change classes before the first call"


def _class_attribute(guard: Guard, actual: Any) -> Difference:
    name = guard.args[0]
    now = defined(actual, name)[1]
    was = "absent" if guard.args[1] is None else "what it was"
    return f"attribute {name!r}", was, "absent" if now is MISSING else short(now), _KEEP_CLASSES


def _class_data(guard: Guard, actual: Any) -> Difference:
    name, owner = guard.args
    place, now = defined(actual, name)
    if place is not owner():
        return f"class that defines {name!r}", short(owner), short(place), _KEEP_CLASSES
    return f"attribute {name!r}", "no descriptor", short(now), _KEEP_CLASSES


def _bases(guard: Guard, actual: object) -> Difference:
    before = tuple(base() for base in guard.args[0])
    if type(actual) is not before[0]:
        return "metaclass", short(before[0]), short(type(actual)), _KEEP_CLASSES
    return "bases", short(before[2:]), short(BASES(actual)[1:]), _KEEP_CLASSES


# -- checks of the whole frame --------------------------------------------------------------------


def _modes(guard: Guard, actual: object) -> Difference:
    before, now = guard.args[0], readable_modes()
    changed = [name for name, value in before.items() if now.get(name) != value]
    if not changed:
        return "a global mode", "another", "not as then", "call under the same modes"
    return (" and ".join(changed), ", ".join(before[n] for n in changed),
            ", ".join(now[n] for n in changed),
            "call under the same modes (each combination is compiled once)")


def _sizes(guard: Guard, actual: object) -> Difference:
    return ("size condition", str(guard.args[0]), "",
            "each side of the condition is compiled once")


def _data(guard: Guard, actual: object) -> Difference:
    return "data", str(guard.args[0]), "", "each way of the branch is compiled once"


def _distinct(guard: Guard, actual: object) -> Difference:
    return (", ".join(guard.args), "different objects", "partly the same object",
            "pass the same object twice always or never")


def _absent(guard: Guard, actual: object) -> Difference:
    key, owner = guard.args
    return "keys", f"{owner} without {key}", f"{key} among them", "set it before the first call"


def _functions(guard: Guard, actual: object) -> Difference:
    for referred, *before in guard.args:
        function: Any = referred() if type(referred) is Reference else referred
        now = (function.__code__, function.__defaults__, function.__kwdefaults__)
        for name, old, new in zip(("code", "defaults", "defaults"), before, now, strict=True):
            if old is not new:
                return (f"{name} of {function.__qualname__}", short(old), short(new),
                        "change functions before the first call")
    return "defaults", "a function's", "others", "change functions before the first call"


def _same_object(guard: Guard, actual: object) -> Difference:
    return ("value", "the same object as another argument", "another object",
            "pass the same object twice always or never")


_KINDS: Final[dict[str, Callable[[Guard, Any], Difference]]] = {
    "tensor": _tensor,
    "eq": _equal,
    "is": _identical,
    "type_is": _type,
    "len": _length,
    "dict_keys": _keys,
    "missing_key": _new_key,
    "global_state": _modes,
    "shape": _sizes,
    "data": _data,
    "distinct": _distinct,
    "absent": _absent,
    "class_attribute": _class_attribute,
    "class_data": _class_data,
    "bases": _bases,
    "same_as_slot": _same_object,
    "functions": _functions,
}
