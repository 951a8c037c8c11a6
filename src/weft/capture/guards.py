"""Guards: what must still hold for a captured frame to be used again.

Place in the pipeline: written by the interpreter onto `Source`s, lowered here to the tuple tree
that the C extension evaluates (contract 1). A guard knows its text and the line that asked for it;
`guard_changes.py` tells why one fails::

    guards.add(source, "eq", 12)
    nodes, tree_checks, n_slots = guards.lower()
    str(guards.all[0])                           # 'n == 12'
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, final

import torch
from torch.autograd import forward_ad

from weft.capture.source import Source, SourceTree, describe, is_library
from weft.capture.state import readable_modes
from weft.errors import SourceLine


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """One check on one source, and the user's line that asked for it."""

    source: Source | None
    kind: str
    args: tuple[Any, ...]
    stack: tuple[SourceLine, ...]

    def __str__(self) -> str:
        return _TEXT.get(self.kind, _default_text)(self)


def _default_text(guard: Guard) -> str:
    return f"{guard.kind}({guard.source}, {', '.join(short(a) for a in guard.args)})"


def short(value: Any) -> str:
    """An object for messages, in at most 60 characters."""
    if isinstance(value, type):
        return value.__qualname__
    text = describe(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _tensor_text(guard: Guard) -> str:
    kind, dtype, device_type, _index, _layout, grad, sizes, strides = guard.args
    shape = list(sizes)
    extra = ", requires_grad" if grad else ""
    return (f"{guard.source} is a {kind.__name__} of {dtype}, {shape}, strides {list(strides)} "
            f"on {device_type}{extra}")


_TEXT: dict[str, Callable[[Guard], str]] = {
    "type_is": lambda g: f"type({g.source}) is {short(g.args[0])}",
    "is": lambda g: f"{g.source} is {short(g.args[0])}",
    "eq": lambda g: f"{g.source} == {short(g.args[0])}",
    "len": lambda g: f"len({g.source}) == {g.args[0]}",
    "dict_keys": lambda g: f"list({g.source}) == {short(list(g.args[0]))}",
    "missing_key": lambda g: f"{g.args[0]!r} not in {g.source}",
    "same_as_slot": lambda g: f"{g.source} is the same object as before",
    "tensor": _tensor_text,
    "content": lambda g: f"{g.source} {g.args[1]!r}",
    "shape": lambda g: str(g.args[0]),
    "data": lambda g: str(g.args[0]),
    "absent": lambda g: f"{g.args[0]} not in {g.args[1]}",
    "distinct": lambda g: f"{', '.join(g.args)} are different objects",
    "functions": lambda g: f"code and defaults of {short([row[0] for row in g.args])}",
    "global_state": lambda g: "global modes (gradient, autocast, ...) are as they were",
}


def _itself(obj: Any) -> Any:
    return obj


@final
class GuardSet:
    """The guards of one capture, each once."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.all: list[Guard] = []
        self.stack: Callable[[], tuple[SourceLine, ...]] = tuple
        self._seen: set[tuple[int, str]] = set()
        self._distinct: list[tuple[Any, ...]] = []
        self._known_distinct: set[tuple[Source, ...]] = set()
        self._same: list[tuple[Source, Source]] = []
        self._functions: dict[int, tuple[FunctionType, Any, Any, Any]] = {}

    def add(self, source: Source, kind: str, *args: Any) -> None:
        """Require a check of `source`; the same check twice is one."""
        key = (kind, *map(_key, args))
        if key in source.checks or _implied(source, kind):
            return
        source.checks[key] = (kind, *args, len(self.all))
        self.all.append(Guard(source, kind, args, self.stack()))

    def alike(self, source: Source, obj: Any, key: Callable[[Any], Any] = repr) -> None:
        """Require an object of the same type and with the same `key`: equal objects may differ
        (`Decimal("1.0") == Decimal("1.00")`, `{1} == {True}`)."""
        expected = key(obj)
        self.add(source, "type_is", type(obj))
        self.add(source, "py", lambda other: key(other) == expected)

    def identity(self, source: Source | None, obj: object) -> None:
        """Require that this very object is found there, if it comes from outside."""
        if source is not None and not source.is_fixed:
            self.add(source, "is", obj)

    def function(self, obj: FunctionType) -> None:
        """Require that the function, which is guarded itself, keeps its code and its defaults."""
        name = str(obj.__globals__.get("__name__"))
        if not is_library(name) and not name.startswith("weft."):
            self._functions[id(obj)] = (obj, obj.__code__, obj.__defaults__, obj.__kwdefaults__)

    def seen(self, cls: type, name: str) -> bool:
        """Whether a class's attribute was asked about before."""
        known = (id(cls), name) in self._seen
        self._seen.add((id(cls), name))
        return known

    def distinct(self, sources: Sequence[Source]) -> None:
        """Require that the sources' objects are pairwise different."""
        key = tuple(sources)
        if len(key) < 2 or key in self._known_distinct:
            return
        self._known_distinct.add(key)
        slots = tuple(s.collect() for s in sources)
        self._distinct.append(("distinct", slots, len(self.all)))
        self.all.append(Guard(None, "distinct", tuple(map(str, sources)), self.stack()))

    def all_different(self, sources: Sequence[Source]) -> None:
        """Require that the sources' objects are pairwise different, unless other guards say so."""
        if not all(map(_is_fixed, sources)):
            self.distinct(sources)

    def absent(self, key: Source, owner: Source, *, weakly: bool) -> None:
        """Require that an object is none of the keys of a dictionary, or items of a set; `weakly`:
        nor a weak reference to it."""
        at, place = key.collect(), owner.collect()
        kept = weakref.ref if weakly else _itself
        self._distinct.append(("shape", lambda v: kept(v[at]) not in v[place], len(self.all)))
        self.all.append(Guard(None, "absent", (str(key), str(owner)), self.stack()))

    def same(self, first: Source, second: Source) -> None:
        """Require that two sources give the same object."""
        if (first, second) not in self._same:
            self._same.append((first, second))

    def _attach_same(self) -> None:
        """Puts each identity check on the source that the walk reaches later."""
        order: dict[int, int] = {}
        for root in self.tree.roots():
            _number(root, order)
        for first, second in self._same:
            if order[id(first)] > order[id(second)]:
                first, second = second, first
            self.add(second, "same_as_slot", first.collect())

    def _outside_forward_ad(self) -> None:
        """No level of forward-mode AD is active, whose tensors carry tangents unseen."""
        module = forward_ad.__dict__
        self.add(self.tree.object(module, "torch.autograd.forward_ad").dict_item("_current_level"),
                 "eq", -1)

    def _attach_functions(self) -> None:
        if self._functions:
            kept = tuple(self._functions.values())
            self._distinct.append(("functions", tuple(row[0] for row in kept), len(self.all)))
            self.all.append(Guard(None, "functions", kept, ()))

    def shape(self, test: Any, told: Any, line: SourceLine | None) -> None:
        """Require a condition on collected sizes: a postfix program, or a callable of the list."""
        self._of_slots("shape", test, told, line)

    def data(self, test: Any, sources: Sequence[Source], line: SourceLine | None) -> None:
        """Require what a test (`values/input_tests.py`) says of the objects at some sources."""
        slots = [source.collect() for source in sources]
        self._of_slots("data", lambda v: test.holds(*[v[slot] for slot in slots]), test, line)

    def _of_slots(self, kind: str, test: Any, told: Any, line: SourceLine | None) -> None:
        """A check of the whole list of collected values."""
        self._distinct.append(("shape", test, len(self.all)))
        self.all.append(Guard(None, kind, (told,), () if line is None else (line,)))

    def lower(self, modes: Any = None) -> tuple[tuple[Any, ...], tuple[Any, ...], int]:
        """`(nodes, tree_checks, n_slots)` for `GuardTree`; `modes` as when the frame began."""
        self._attach_same()
        self._outside_forward_ad()
        self._attach_functions()
        nodes = tuple(n for n in map(_lower, self.tree.roots()) if n is not None)
        given = () if modes is None else (modes,)
        state = ("global_state", *given, len(self.all))
        self.all.append(Guard(None, "global_state", (readable_modes(),), ()))
        return nodes, (state, *self._distinct), self.tree.n_slots

    def __len__(self) -> int:
        return len(self.all)


def _is_fixed(source: Source) -> bool:
    """Whether the guards pin the source's object."""
    if source.is_fixed:
        return True
    return any(key[0] in ("is", "eq") for key in source.checks)


def _number(source: Source, order: dict[int, int]) -> None:
    order[id(source)] = len(order)
    for child in source.children():
        _number(child, order)


def _implied(source: Source, kind: str) -> bool:
    """Whether an identity or equality check on the source already says it all."""
    return kind == "type_is" and any(key[0] in ("is", "eq", "tensor") for key in source.checks)


def _key(value: Any) -> Any:
    if type(value) in (int, str, bool, type(None)):
        return (type(value), value)
    if type(value) is float:
        return (float, repr(value))  # NaN is itself, -0.0 is not 0.0
    return tuple(map(_key, value)) if type(value) is tuple else id(value)


def _lower(source: Source) -> tuple[Any, ...] | None:
    if source.is_drawn:
        return (("object", None), (), source.collect(), ())
    children = tuple(n for n in map(_lower, source.children()) if n is not None)
    checks = tuple(sorted(source.checks.values(), key=lambda c: _ORDER.get(c[0], 5)))
    if not children and not checks and source.slot < 0:
        return None
    return (source.accessor, checks, source.slot, children)


_ORDER = {"is": 0, "type_is": 1, "eq": 2, "tensor": 2, "len": 3, "dict_keys": 3, "same_as_slot": 9}


def tensor_guard(value: torch.Tensor) -> tuple[Any, ...]:
    """The arguments of the `tensor` check for `value`, everything static."""
    device = value.device
    strided = value.layout is torch.strided
    return (
        type(value), value.dtype, device.type, -1 if device.index is None else device.index,
        value.layout, value.requires_grad, tuple(value.size()),
        tuple(value.stride()) if strided else None,
    )
