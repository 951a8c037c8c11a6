"""An interpreted call, and whether another call of the function repeats it.

Place in the pipeline: made by `calls.py`, replayed by `replay.py`. A call repeats another if their
arguments differ in outside objects alone, for which the guards hold that the first call's objects
have by then, and in tensors of the same form. The objects correspond one to one: what both reach
is the same object, and what only one reaches is known by the same path, or not at all::

    recording = Recording(function, [layer0, x0], {}, begin, end, result, ...)
    match(tx, recording, [layer1, x1], {})         # a Match, or None
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import fx

from weft import _frame
from weft.capture.core.base import MISSING, Args, Kwargs, LazyValue, SymbolicValue
from weft.capture.core.constant import ConstantValue
from weft.capture.core.source import Source
from weft.capture.guards.guard_set import ordered_checks
from weft.capture.library.containers.sequences import SequenceValue, SizeValue, TupleValue
from weft.capture.library.tensors.tensor import TensorValue
from weft.capture.repeats.moments import Moment
from weft.errors import SourceLine
from weft.shapes.fakes.fake import is_leaf

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_SEQUENCES: Final = (TupleValue, SizeValue)
_PLAIN: Final = (int, str, bool, type(None), float, complex, bytes)
_MOST_SOURCES: Final = 20_000
"""Calls that can reach more places than this are interpreted."""


def tensor_form(example: torch.Tensor) -> tuple[object, ...]:
    """What programs can ask of a tensor without asking for its data."""
    strided = example.layout is torch.strided
    return (
        type(example), example.dtype, example.device, example.layout, tuple(example.size()),
        tuple(example.stride()) if strided else None,
        example.storage_offset() if strided else None, example.requires_grad, is_leaf(example),
        example.is_conj(), example.is_neg(), example.is_inference(),
        None if example.is_inference() else example._version, example._base is None,
        "_is_param" in example.__dict__)


def made_items(value: SymbolicValue) -> list[SymbolicValue] | None:
    """The items of a tuple that capture made; None for any other value."""
    if value.source is None and isinstance(value, SequenceValue) and type(value) in _SEQUENCES:
        return value.items
    return None


def tensors_in(values: Sequence[SymbolicValue]) -> Iterator[TensorValue]:
    """The tensors among arguments, and in tuples that capture made."""
    for value in values:
        if isinstance(value, TensorValue):
            yield value
        else:
            yield from tensors_in(made_items(value) or ())


@final
@dataclass(slots=True)
class Recording:
    """One interpreted call."""

    args: Args
    kwargs: Kwargs
    begin: Moment
    end: Moment
    result: SymbolicValue
    tensors: dict[int, tuple[tuple[object, ...], fx.Node | None]]
    """The forms and nodes that the tensors among the arguments had, by the ids of their values."""
    lines: tuple[SourceLine, ...]
    """The lines of the callers."""
    modules: dict[str, tuple[str, type]]
    """The modules of the callers."""
    flags: tuple[bool, bool]
    """What the interpreter knew about the next call at the end."""
    pattern: Pattern | None = None
    """What the guards say of its objects; made when the first call is compared."""


@final
@dataclass(slots=True)
class Pair:
    """An outside object among the arguments of the recorded call, and of another one."""

    old: Source
    old_object: object
    new: Source
    new_object: object


@final
class Pairs:
    """Which values of another call stand where those of the recorded call stood."""

    def __init__(self, recording: Recording) -> None:
        self._known = recording.tensors
        self.values: dict[int, SymbolicValue] = {}
        """The new values, by the ids of the old ones."""
        self.tensors: list[tuple[fx.Node, TensorValue]] = []
        """The nodes of tensors that capture made, and the tensors in their places."""
        self.roots: list[Pair] = []
        self._taken: set[int] = set()

    def add_all(self, old: Sequence[SymbolicValue], new: Sequence[SymbolicValue]) -> bool:
        """Pair arguments; False if they are too different."""
        return len(old) == len(new) and all(
            self.add(a, b) for a, b in zip(old, new, strict=True))

    def add(self, old: SymbolicValue, new: SymbolicValue) -> bool:
        """Pair two values; False if they are too different."""
        if old.__class__ is not new.__class__:
            return False
        if old.__class__ is ConstantValue:
            return _same_constant(old, new)
        if id(old) in self.values:
            return self.values[id(old)] is new
        if id(new) in self._taken:
            return False
        self.values[id(old)] = new
        self._taken.add(id(new))
        if isinstance(old, TensorValue) and isinstance(new, TensorValue):
            return self._add_tensors(old, new)
        items = made_items(old), made_items(new)
        if items[0] is not None and items[1] is not None:
            return self.add_all(items[0], items[1])
        return self._add_outside(old, new)

    def _add_tensors(self, old: TensorValue, new: TensorValue) -> bool:
        if old.written or new.written or (old.source is None) is not (new.source is None):
            return False
        form, node = self._known[id(old)]
        if old.python_type() is not new.python_type() or form != tensor_form(new.example):
            return False
        if node is not None:
            self.tensors.append((node, new))
            return True
        return self._add_outside(old, new)

    def _add_outside(self, old: SymbolicValue, new: SymbolicValue) -> bool:
        if old.source is None or new.source is None:
            return False
        if old is new:
            return True
        if old.source.is_fixed or new.source.is_fixed or _place(old.source) != _place(new.source):
            return False
        objects = old.outside_object(), new.outside_object()
        if MISSING in objects:
            return False
        self.roots.append(Pair(old.source, objects[0], new.source, objects[1]))
        return True


def _place(source: Source) -> tuple[bool, bool, bool]:
    """What capture asks about the way to an object."""
    return source.is_of_call, source.is_argument, source.is_attribute


def _same_constant(old: SymbolicValue, new: SymbolicValue) -> bool:
    a, b = old.constant(), new.constant()
    if a is b:
        return True
    return type(a) is type(b) and type(a) in _PLAIN and repr(a) == repr(b)


@final
@dataclass(slots=True)
class Pattern:
    """The places that can be reached from the outside objects among a call's arguments."""

    sources: list[Source] = field(default_factory=list)
    """The sources, each after the one that it is a step from."""
    bases: list[int] = field(default_factory=list)
    """For each source the index of the one that it is a step from; -1: an argument."""
    keys: list[object] = field(default_factory=list)
    index: dict[Source, int] = field(default_factory=dict)
    objects: list[Any] = field(default_factory=list)
    """What the recorded call found there."""
    values: dict[int, SymbolicValue] = field(default_factory=dict)
    """By index: the values of the objects that were reached first, or only, by this path."""
    shared: list[int] = field(default_factory=list)
    """The indices of objects that were known by another path."""
    same: list[tuple[Source, Source]] = field(default_factory=list)
    """The pairs of sources below the arguments, or of one there, that must give the same object."""
    inputs: dict[fx.Node, Source] = field(default_factory=dict)
    """The inputs of the graph that come from there."""
    known: set[int] = field(default_factory=set)
    """The ids of the values that were known when the call ended."""
    tree: Any = None

    def reach(self, source: Source, base: int, key: object, position: int = -1) -> tuple[Any, ...]:
        """The node of the guard tree for a source, with all that is known beyond it."""
        at = len(self.sources)
        self.sources.append(source)
        self.bases.append(base)
        self.keys.append(key)
        self.index[source] = at
        accessor = source.accessor if base >= 0 else ("local", position)
        beyond = tuple(self.reach(child, at, k) for k, child in source.steps())
        return accessor, ordered_checks(source), at, beyond

    def value(self, source: Source) -> SymbolicValue | None:
        """The value at a source, if there was one at the end of the call."""
        return self.values.get(self.index.get(source, -1))


def make_pattern(tx: Interpreter, recording: Recording, roots: Sequence[Pair]) -> Pattern | None:
    """What the guards say of the objects of a recorded call; None if it cannot be said."""
    pattern = Pattern()
    inner = {child for pair in roots for child in _beyond(pair.old)}
    if len(inner) > _MOST_SOURCES or any(pair.old in inner for pair in roots):
        return None
    nodes = tuple(pattern.reach(pair.old, -1, None, i) for i, pair in enumerate(roots))
    pattern.tree = _frame.GuardTree(nodes, (), len(pattern.sources))
    objects = pattern.tree.check([pair.old_object for pair in roots], (), {})
    if objects is None:
        return None
    pattern.objects = objects
    pattern.known = {id(value) for value in tx.outside.values()[:recording.end.objects]}
    for at, obj in enumerate(objects):
        value = tx.outside.value_of(obj)
        if value is None:
            continue
        if value.source is not None and value.source in pattern.index:
            if value.source is pattern.sources[at]:
                pattern.values[at] = value
        else:
            pattern.shared.append(at)
    pattern.same = [pair for pair in tx.guards.same_pairs()[:recording.end.same]
                    if pair[0] in inner or pair[1] in inner]
    pattern.inputs = {item.node: item.source for item in tx.builder.inputs[:recording.end.inputs]
                      if item.source in pattern.index}
    met = tx.outside.values()[recording.begin.objects:recording.end.objects]
    if any(v.source in pattern.index and pattern.value(v.source) is not v
           for v in met if v.source is not None):
        return None  # it is another object each time
    return pattern


def _beyond(source: Source) -> Iterator[Source]:
    for child in source.children():
        yield child
        yield from _beyond(child)


@final
@dataclass(slots=True)
class Match:
    """A call that repeats a recorded one."""

    recording: Recording
    pattern: Pattern
    pairs: Pairs
    objects: list[Any]
    """What the new call finds, by index."""


def match(tx: Interpreter, recording: Recording, args: Args, kwargs: Kwargs) -> Match | None:
    """How a call repeats a recorded one, or None."""
    pairs = Pairs(recording)
    if list(kwargs) != list(recording.kwargs) or not pairs.add_all(recording.args, args):
        return None
    if not pairs.add_all([*recording.kwargs.values()], [*kwargs.values()]):
        return None
    if recording.pattern is None:
        recording.pattern = make_pattern(tx, recording, pairs.roots)
    pattern = recording.pattern
    if pattern is None or [p.old for p in pairs.roots] != [
            s for s, base in zip(pattern.sources, pattern.bases, strict=True) if base < 0]:
        return None
    objects = pattern.tree.check([pair.new_object for pair in pairs.roots], (), {})
    if objects is None:
        return None
    repeated = Match(recording, pattern, pairs, objects)
    return repeated if _corresponds(tx, repeated) and not _was_changed(tx, repeated) else None


def _corresponds(tx: Interpreter, match: Match) -> bool:
    """Whether the objects of both calls correspond one to one, and those of the new call are known
    by the same paths or not at all."""
    pattern, objects = match.pattern, match.objects
    if any(objects[at] is not pattern.objects[at] for at in pattern.shared):
        return False
    places = _existing_places(match)
    new_of: dict[int, int] = {}
    for at in pattern.values:
        obj = objects[at]
        known = tx.outside.value_of(obj)
        if known is not None and (known.source is None or known.source is not places[at]):
            return False
        if known is not None and not _same_form(pattern.values[at], known):
            return False
        new_of[id(pattern.objects[at])] = id(obj)
    if len(set(new_of.values())) != len(new_of):
        return False
    return all(new_of.get(id(old), id(new)) == id(new)
               for old, new in zip(pattern.objects, objects, strict=True))


def _same_form(old: SymbolicValue, new: SymbolicValue) -> bool:
    if old.__class__ is not new.__class__:
        return False
    if isinstance(old, TensorValue) and isinstance(new, TensorValue):
        return not (old.written or new.written) and (
            tensor_form(old.example) == tensor_form(new.example))
    return True


def _existing_places(match: Match) -> list[Source | None]:
    """The new sources, as far as they exist."""
    places: list[Source | None] = []
    roots = iter(match.pairs.roots)
    for base, key in zip(match.pattern.bases, match.pattern.keys, strict=True):
        if base < 0:
            places.append(next(roots).new)
        else:
            parent = places[base]
            places.append(None if parent is None else parent.step(key))
    return places


def _was_changed(tx: Interpreter, match: Match) -> bool:
    """Whether the program has changed one of the objects in which the calls differ: no guard tells
    what is there since."""
    if not len(tx.effects):
        return False
    ids = {*map(id, match.objects), *map(id, match.pattern.objects)}
    return any(value.source in match.pattern.index or id(value.outside_object()) in ids
               for value in tx.effects.touched())


def can_be_result(value: SymbolicValue, *, depth: int = 4) -> bool:
    """Whether the result of a call can be made again."""
    if value.source is not None or value.__class__ in (ConstantValue, LazyValue):
        return True
    if isinstance(value, TensorValue):
        return type(value) is TensorValue and not value.written
    items = made_items(value)
    return items is not None and depth > 0 and all(
        can_be_result(item, depth=depth - 1) for item in items)
