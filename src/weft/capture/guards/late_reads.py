"""What code reads that runs later than the frame: the backward of a user's function, a hook.

Place in the pipeline: beside `guard_set`. Such code is interpreted when the frame is captured
(`subgraphs.rehearsal`), and what it read then is guarded by the frame. But it runs in the backward,
and the program may have changed a variable in between. So the guards of what it read are checked
once more when the backward runs (aot does that); if one fails, the program's own code runs, by
autograd::

    scale = 1.0
    class Scaled(torch.autograd.Function):
        def backward(ctx, g): return g * scale     # may be another number than in the forward
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from types import MappingProxyType
from typing import Any, Final, final

from weft import _frame
from weft.capture.core.base import MISSING, is_same
from weft.capture.core.source import Accessor, Reference, Source
from weft.errors import WeftError

_ITEMS: Final = frozenset({"dict_item", "list_item", "tuple_item"})
_VARIABLES: Final = frozenset({"dict_item", "list_item", "attr"})


class ForwardReadsError(WeftError, RuntimeError):
    """A forward must run again, and something that it read has changed since."""


@final
class LateReads:
    """What the backward of one function read, and what its forward read."""

    def __init__(self, backward: Iterable[Source], forward: Iterable[Source] = (),
                 kept: Mapping[Source, Any] = MappingProxyType({})) -> None:
        """kept: containers that the backward has from the forward, and where these were found."""
        self._tree = _frame.GuardTree(_nodes({**dict.fromkeys(backward), **kept}, kept), (), 0)
        sources = [source for source in with_items({**dict.fromkeys(forward), **kept})
                   if source.checks]
        values = [value for source in sources if (value := _Value.of(source)) is not None]
        self._values: list[_Value | _Contents] = [
            *values, *(_Contents(obj) for obj in _containers(values, kept.values()))]

    def hold(self) -> bool:
        """Whether the backward would read now what it read when it was captured."""
        return self._tree.check((), None, {}) is not None

    @contextmanager
    def as_in_forward(self) -> Iterator[None]:
        """Inside, the forward reads what it read when it was captured."""
        changed = [(value, now) for value in self._values
                   if (now := value.now()) is not MISSING and not value.is_same(now)]
        try:
            for value, _ in changed:
                value.put(value.object())
            yield
        finally:
            for value, now in reversed(changed):
                value.put(now)


# -- guards ----------------------------------------------------------------------------------------


def with_items(sources: Iterable[Source]) -> dict[Source, None]:
    """The sources and, since a list is read with all its items, those of items below."""
    ordered: dict[Source, None] = {}
    waiting = [*sources]
    while waiting:
        source = waiting.pop()
        if source not in ordered:
            ordered[source] = None
            waiting += (c for c in source.children() if source.accessor[0] != "instance_dict"
                        and source.base is not None and c.accessor[0] in _ITEMS)
    return ordered


def _path(source: Source, kept: Mapping[Source, object] = MappingProxyType({})
          ) -> tuple[Accessor, tuple[Accessor, ...]] | None:
    """How the source is reached from a fixed object, or from one that the frame's guards require;
    None if it is reached from neither."""
    steps: list[Accessor] = []
    path: tuple[Accessor, tuple[Accessor, ...]] | None = None
    place: Source | None = source
    while place is not None:
        if place in kept:
            return ("object", kept[place]), tuple(reversed(steps))
        obj = place.accessor[1] if place.is_fixed else _required(place)
        if obj is not MISSING and (place is not source or place.is_fixed):
            anchor = ("alive", obj) if type(obj) is Reference else ("object", obj)
            path = anchor, tuple(reversed(steps))
        steps.append(place.accessor)
        place = place.base
    return path


def _required(source: Source) -> object:
    """The object (or the reference to it) that guards require there, or MISSING."""
    return next((check[1] for check in source.checks.values()
                 if check[0] in ("is", "is_alive")), MISSING)


def _nodes(sources: Iterable[Source], kept: Mapping[Source, object]) -> tuple[object, ...]:
    """The guard tree's nodes for the checks on the sources."""
    roots: dict[Any, Any] = {}
    for source in with_items(sources):
        path = _path(source, kept)
        checks = [c for c in source.checks.values() if c[0] != "same_as_slot"]
        if path is None or not checks:
            continue
        children = roots
        for accessor in (path[0], *path[1]):
            key = (accessor[0], *(p if type(p) in (str, int) else id(p) for p in accessor[1:]))
            _, node_checks, children = children.setdefault(key, (accessor, [], {}))
        node_checks += checks
    return _lowered(roots)


def _lowered(nodes: dict[Any, Any]) -> tuple[object, ...]:
    return tuple((accessor, tuple(checks), -1, _lowered(children))
                 for accessor, checks, children in nodes.values())


# -- values ----------------------------------------------------------------------------------------


@final
class _Value:
    """An object that the forward read, and the place where it found it."""

    __slots__ = ("_anchor", "_object", "_path")

    def __init__(self, anchor: Accessor, path: tuple[Accessor, ...], obj: Any) -> None:
        self._anchor = anchor
        self._path = path
        try:
            self._object: Any = Reference(obj)
        except TypeError:
            self._object = obj

    @staticmethod
    def of(source: Source) -> _Value | None:
        """What the source holds now; None if it cannot change."""
        path = _path(source)
        if path is None or not path[1] or path[1][-1][0] not in _VARIABLES:
            return None
        variable = _Value(*path, None)
        now = variable.now()
        return None if now is MISSING else _Value(*path, now)

    def object(self) -> Any:
        """The object that the forward read."""
        if type(self._object) is not Reference:
            return self._object
        obj = self._object()
        if obj is None:
            raise self._error()
        return obj

    def now(self) -> Any:
        """What is there now, or MISSING."""
        try:
            return _step(self._owner(), self._path[-1])
        except (AttributeError, LookupError, TypeError, ValueError):
            return MISSING

    def is_same(self, now: Any) -> bool:
        """Whether `now` is what the forward read."""
        return is_same(now, self._object() if type(self._object) is Reference else self._object)

    def is_item(self) -> bool:
        """Whether the place is in a list."""
        return bool(self._path[-1][0] == "list_item")

    def owner(self) -> Any:
        """What the place is part of."""
        return self._owner()

    def put(self, obj: Any) -> None:
        """Let the place hold `obj`."""
        (kind, key), owner = self._path[-1], self._owner()
        if type(owner) is MappingProxyType:  # of a class
            setattr(self._owner(-2), key, obj)
        elif kind == "attr":
            setattr(owner, key, obj)
        else:
            owner[key] = obj

    def _owner(self, end: int = -1) -> Any:
        """What the path leads to before its step `end`."""
        kind, obj = self._anchor
        obj = obj() if kind == "alive" else obj
        for accessor in self._path[:end]:
            obj = _step(obj, accessor)
        return obj

    def _error(self) -> ForwardReadsError:
        return ForwardReadsError(
            f"the forward must run again for this backward, but {self._path[-1][-1]!r}, which it"
            " read, is another object now",
            do="exclude the function with weft.disable")


@final
class _Contents:
    """What a list, dictionary, set or deque held when the forward read it."""

    __slots__ = ("_items", "_owner")

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._items = copy(owner)

    def object(self) -> Any:
        """The items that the forward read."""
        return self._items

    def now(self) -> Any:
        """The items now."""
        return copy(self._owner)

    def is_same(self, now: Any) -> bool:
        """Whether these are the items that the forward read, in the same order."""
        pairs = [(x.items() if type(x) is dict else x) for x in (now, self._items)]
        return len(now) == len(self._items) and all(map(_is_same_item, *pairs))

    def put(self, items: Any) -> None:
        """Let the container hold `items`."""
        self._owner.clear()
        (self._owner.update if type(items) in (dict, set) else self._owner.extend)(items)


def _is_same_item(left: object, right: object) -> bool:
    if type(left) is tuple and type(right) is tuple:
        return len(left) == len(right) and all(map(_is_same_item, left, right))
    return is_same(left, right)


_CONTAINERS: Final = (list, dict, set, deque)


def _containers(values: Iterable[_Value], kept: Iterable[object]) -> list[object]:
    """The containers among what was read; dictionaries of variables are left out."""
    every = [value.owner() for value in values if value.is_item()]
    every += [obj for value in values if type(obj := value.now()) in _CONTAINERS]
    return [*{id(obj): obj for obj in (*every, *kept) if type(obj) in _CONTAINERS}.values()]


def _step(obj: Any, accessor: Accessor) -> object:
    """One step of a path, as the guards take it."""
    kind, *key = accessor
    if kind == "attr":
        return getattr(obj, key[0])
    if kind == "instance_dict":
        return obj.__dict__
    if kind in _ITEMS:
        return obj[key[0]]
    if kind == "type":
        return type(obj)
    if kind == "call":
        return key[0](obj)
    raise LookupError(kind)
