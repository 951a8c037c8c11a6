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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Signature
from types import CodeType, FunctionType
from typing import Any, final

import torch
from torch.autograd import forward_ad

from weft import _frame
from weft.capture.core.source import Reference, Source, SourceTree, describe, is_library
from weft.capture.core.state import readable_modes
from weft.errors import SourceLine
from weft.interrupts import is_from_outside
from weft.quoting import one_line
from weft.storable import storable


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


def short(value: Any, most: int = 60) -> str:
    """A text of at most so many characters for an object in messages."""
    if type(value) is Reference:
        value = value()
        if value is None:
            return "an object that is gone"
    if issubclass(type(value), type):
        return one_line(value.__qualname__)
    text = describe(value)
    return text if len(text) <= most else text[:most - 3] + "..."


def _tensor_text(guard: Guard) -> str:
    kind, dtype, device_type, _index, _layout, grad, sizes, strides = guard.args
    shape = list(sizes)
    extra = ", requires_grad" if grad else ""
    return (f"{guard.source} is a {one_line(kind.__name__)} of {dtype}, {shape}, "
            f"strides {list(strides)} on {device_type}{extra}")


def _class_attribute_text(guard: Guard) -> str:
    name, expected = guard.args
    if expected is None:
        return f"{guard.source} has no {short(name)}"
    what = f"the {expected[1]} of C" if type(expected) is tuple else short(expected)
    return f"{guard.source}.{one_line(name)} is {what}"


_TEXT: dict[str, Callable[[Guard], str]] = {
    "type_is": lambda g: f"type({g.source}) is {short(g.args[0])}",
    "is": lambda g: f"{g.source} is {short(g.args[0])}",
    "eq": lambda g: f"{g.source} == {short(g.args[0])}",
    "len": lambda g: f"len({g.source}) == {g.args[0]}",
    "dict_keys": lambda g: f"list({g.source}) == {short(list(g.args[0]))}",
    "missing_key": lambda g: f"{short(g.args[0])} not in {g.source}",
    "class_attribute": _class_attribute_text,
    "class_data": lambda g: f"{g.source}.{one_line(g.args[0])} is defined by {short(g.args[1])}",
    "bases": lambda g: f"bases of {g.source} are {short(tuple(b() for b in g.args[0][2:]))}",
    "same_as_slot": lambda g: f"{g.source} is the same object as before",
    "tensor": _tensor_text,
    "content": lambda g: f"{g.source} {short(g.args[1])}",
    "shape": lambda g: str(g.args[0]),
    "data": lambda g: str(g.args[0]),
    "absent": lambda g: one_line(f"{g.args[0]} not in {g.args[1]}"),
    "distinct": lambda g: f"{', '.join(g.args)} are different objects",
    "functions": lambda g: f"code and defaults of {short([row[0] for row in g.args])}",
    "global_state": lambda g: "global modes (gradient, autocast, ...) are as they were",
}


def _itself(obj: object) -> object:
    return obj


@final
class GuardSet:
    """The guards of one capture, without duplicates."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.all: list[Guard] = []
        self.stack: Callable[[], tuple[SourceLine, ...]] = tuple
        self._identified: list[object] = []
        """The objects guarded by identity, alive during the capture: the keys have their `id`."""
        self._of_call: dict[int, Reference] = {}
        """Those of them that the caller must pass again: nothing here keeps them alive."""
        self._distinct: list[tuple[Any, ...]] = []
        self._known_distinct: set[tuple[Source, ...]] = set()
        self._same: list[tuple[Source, Source]] = []
        self._functions: dict[int, tuple[FunctionType, Any, Any, Any]] = {}
        self.bound_to_process: dict[str, None] = {}
        """What was taken from this process that no guard compares (`capture/stored/`)."""
        self.orders: list[tuple[type, Any, tuple[Any, ...]]] = []
        """Kinds of sets, what they are filled with, and their orders, which it relies on."""
        self.signatures: dict[int, tuple[Signature, object]] = {}
        """Signatures that the capture has made, by id, with what they are of."""
        self.interpreted: dict[int, tuple[CodeType, str]] = {}
        """The code objects that were interpreted, by id, with the names of their modules."""
        self.noted: dict[Source, None] | None = None
        """What is read, guarded already or not, while somebody wants to know it
        (`late_reads.py`)."""

    def note(self, source: Source) -> None:
        """Record that a value known already is read again."""
        if self.noted is not None:
            self.noted[source] = None

    def bind_to_process(self, reason: str) -> None:
        """Keep the entry from being stored: the capture has used something that differs between
        processes, such as an address."""
        self.bound_to_process[reason] = None

    def interpret(self, code: CodeType, globals: Mapping[str, Any]) -> None:
        """Record that the code was interpreted."""
        self.interpreted[id(code)] = code, str(globals.get("__name__"))

    def add(self, source: Source, kind: str, *args: object) -> None:
        """Require that `source` passes a check; the same check is added once."""
        self.note(source)
        key = (kind, *map(_key, args))
        if key in source.checks or _implied(source, kind):
            return
        check = kind
        if kind == "is":
            args = (self._reference(source, args[0]),)
            check = "is_alive" if type(args[0]) is Reference else kind
        source.checks[key] = (check, *args, len(self.all))
        self.all.append(Guard(source, kind, args, self.stack()))

    def _reference(self, source: Source, obj: object) -> object:
        """A `Reference` to what the source must hold; the object itself if there are none to it."""
        self._identified.append(obj)
        try:
            reference = Reference(obj)
        except TypeError:
            return obj
        if source.is_of_call:
            self._of_call[id(obj)] = reference
        return reference

    def is_passed(self, source: Source) -> bool:
        """Whether a guard requires an object that the caller must pass again."""
        return source.is_of_call and any(check[0] == "is_alive" for check in source.checks.values())

    @storable
    def same_key(self, source: Source, obj: object, key: Callable[[Any], object] = repr) -> None:
        """Require an object of the same type with the same `key`, for objects whose equality
        ignores a difference (`Decimal("1.0") == Decimal("1.00")`, `{1} == {True}`)."""
        expected = key(obj)
        self.add(source, "type_is", type(obj))
        self.add(source, "py", lambda other: key(other) == expected)

    def identity(self, source: Source | None, obj: object) -> None:
        """Require that the source holds this very object, unless it is made inside or fixed."""
        if source is not None and not source.is_fixed:
            self.add(source, "is", obj)

    def function(self, obj: FunctionType) -> None:
        """Require that a function, guarded by identity already, keeps its code and its defaults."""
        name = str(obj.__globals__.get("__name__"))
        if not is_library(name) and not name.startswith("weft."):
            self._functions[id(obj)] = (obj, obj.__code__, obj.__defaults__, obj.__kwdefaults__)

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
        """As `distinct`, unless other guards already fix which objects these are."""
        if not all(map(_is_fixed, sources)):
            self.distinct(sources)

    def absent(self, key: Source, owner: Source, *, weakly: bool) -> None:
        """Require that an object is not a key of a dictionary or an item of a set.

        `weakly`: it is a weak reference to the object that must not be there.
        """
        at, place = key.collect(), owner.collect()
        kept = weakref.ref if weakly else _itself
        self._distinct.append(("shape", lambda v: kept(v[at]) not in v[place], len(self.all)))
        self.all.append(Guard(None, "absent", (str(key), str(owner)), self.stack()))

    def same(self, first: Source, second: Source) -> None:
        """Require that two sources give the same object."""
        if (first, second) not in self._same:
            self._same.append((first, second))

    def same_pairs(self, since: int = 0) -> list[tuple[Source, Source]]:
        """The pairs of sources that must give the same object, without the first `since`."""
        return self._same[since:]

    @property
    def n_conditions(self) -> int:
        """How many checks of several values there are."""
        return len(self._distinct)

    def _attach_same(self) -> None:
        """Add each "same object" check to that source of the pair which the guard walk reaches
        later."""
        order: dict[int, int] = {}
        for root in self.tree.roots():
            _number(root, order)
        for first, second in self._same:
            if order[id(first)] > order[id(second)]:
                first, second = second, first
            self.add(second, "same_as_slot", first.collect())

    def _outside_forward_ad(self) -> None:
        """Require that no level of forward-mode AD is active: tangents are invisible to other
        guards."""
        module = forward_ad.__dict__
        self.add(self.tree.object(module, "torch.autograd.forward_ad").dict_item("_current_level"),
                 "eq", -1)

    def _attach_functions(self) -> None:
        if self._functions:
            kept = tuple((self._of_call.get(key, row[0]), *row[1:])
                         for key, row in self._functions.items())
            self._distinct.append(("functions", tuple(row[0] for row in kept), len(self.all)))
            self.all.append(Guard(None, "functions", kept, ()))

    def _release_fixed(self) -> None:
        """Let fixed sources refer weakly to what the caller must pass again."""
        for root in self.tree.roots():
            reference = self._of_call.get(id(root.accessor[1])) if root.is_fixed else None
            if reference is not None:
                root.accessor = ("alive", reference)

    def shape(self, test: object, text: object, line: SourceLine | None) -> None:
        """Require a condition on the collected sizes.

        `test` is a postfix program, or a callable of the collected list; `text` is for messages.
        """
        self._add_condition("shape", test, text, line)

    def data(self, test: Any, sources: Sequence[Source], line: SourceLine | None) -> None:
        """Require that a test (`tensors/input_tests.py`) holds for the objects at some sources."""
        slots = [source.collect() for source in sources]
        self._add_condition("data", lambda v: test.holds(*[v[slot] for slot in slots]), test, line)

    def _add_condition(self, kind: str, test: object, text: object, line: SourceLine | None
                       ) -> None:
        """Add a check of the whole list of collected values."""
        self._distinct.append(("shape", test, len(self.all)))
        self.all.append(Guard(None, kind, (text,), () if line is None else (line,)))

    def lower(self, modes: object = None) -> tuple[tuple[Any, ...], tuple[Any, ...], int]:
        """`(nodes, tree_checks, n_slots)`, the arguments of the C extension's `GuardTree`.

        `modes` is PyTorch's global state when the frame was entered.
        """
        self._outside_forward_ad()
        self._attach_functions()
        self._release_fixed()
        self._attach_same()  # last: the others change the order of the walk
        nodes = tuple(n for n in map(_lower, self.tree.roots()) if n is not None)
        entered = () if modes is None else (modes,)
        state = ("global_state", *entered, len(self.all))
        self.all.append(Guard(None, "global_state", (readable_modes(),), ()))
        return nodes, (state, *self._distinct), self.tree.n_slots

    def __len__(self) -> int:
        return len(self.all)


def _is_fixed(source: Source) -> bool:
    """Whether guards already require one particular object at the source."""
    if source.is_fixed:
        return True
    return any(key[0] in ("is", "eq") for key in source.checks)


def _number(source: Source, order: dict[int, int]) -> None:
    order[id(source)] = len(order)
    for child in source.children():
        _number(child, order)


def _implied(source: Source, kind: str) -> bool:
    """Whether another check on the source already implies one of this kind."""
    return kind == "type_is" and any(key[0] in ("is", "eq", "tensor") for key in source.checks)


def _key(value: object) -> object:
    if type(value) in (int, str, bool, type(None)):
        return (type(value), value)
    if type(value) is float:
        return (float, repr(value))  # equal for the same NaN; -0.0 is not 0.0
    return tuple(map(_key, value)) if type(value) is tuple else id(value)


def _lower(source: Source) -> tuple[Any, ...] | None:
    if source.is_drawn:
        return (("object", None), (), source.collect(), ())
    children = tuple(n for n in map(_lower, source.children()) if n is not None)
    checks = ordered_checks(source)
    if not children and not checks and source.slot < 0:
        return None
    return (source.accessor, checks, source.slot, children)


def ordered_checks(source: Source) -> tuple[tuple[Any, ...], ...]:
    """The checks on a source, the cheapest first."""
    return tuple(sorted(source.checks.values(), key=lambda c: _ORDER.get(c[0], 5)))


_ORDER = {"is": 0, "is_alive": 0, "type_is": 1, "eq": 2, "tensor": 2, "len": 3, "dict_keys": 3,
          "same_as_slot": 9}


def tensor_guard(value: torch.Tensor) -> tuple[Any, ...]:
    """The arguments of a `tensor` check that accepts only tensors exactly like `value`."""
    device = value.device
    strided = value.layout is torch.strided
    return (
        type(value), value.dtype, device.type, -1 if device.index is None else device.index,
        value.layout, value.requires_grad, tuple(value.size()),
        tuple(value.stride()) if strided else None,
    )


_frame.pass_on_exceptions(is_from_outside)
