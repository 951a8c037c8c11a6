"""Sources: where a value of the user's program comes from.

Place in the pipeline: the bottom of capture. A `Source` is one step (an accessor of the guard tree)
from its base, so the sources of a capture *are* the guard tree: each carries the checks on its
value and, if the replacement needs the value, a slot of the list that the guards collect.
`str(source)` is what the user would write::

    root = SourceTree()
    eps = root.local(0, "self").attribute("norm").attribute("eps")
    str(eps)                                     # 'self.norm.eps'
"""

from __future__ import annotations

import sys
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple, final

from weft.quoting import one_line

Accessor = tuple[Any, ...]

_ITEMS = frozenset({"dict_item", "list_item", "tuple_item"})
_MODULE_DICTS = frozenset({"_modules", "_parameters", "_buffers"})


class FrameState(NamedTuple):
    """A real frame as it is entered: what `Source`s without a base are read from."""

    code: types.CodeType
    locals: list[Any]
    cells: tuple[Any, ...]
    globals: dict[str, Any]


@final
class Reference(weakref.ref[Any]):
    """A guard's reference to the object that must be at its source.

    It is weak: once the program has freed the object, the guard cannot hold any more.
    """

    __slots__ = ()


@final
class Source:
    """One place in the program's data: `accessor` applied to the value of `base` (None: the
    frame)."""

    __slots__ = ("_children", "accessor", "base", "checks", "name", "slot", "tree")

    def __init__(self, tree: SourceTree, base: Source | None, accessor: Accessor, name: str
                 ) -> None:
        self.tree = tree
        self.base = base
        self.accessor = accessor
        self.name = name
        self.checks: dict[Any, tuple[Any, ...]] = {}
        self.slot = -1
        self._children: dict[Any, Source] = {}

    def child(self, accessor: Accessor, key: object, name: str) -> Source:
        """The source one step further; the same object for the same `key`."""
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = Source(self.tree, self, accessor, name)
        return child

    def children(self) -> Iterator[Source]:
        return iter(self._children.values())

    def steps(self) -> Iterator[tuple[object, Source]]:
        """The sources one step further, each with its key."""
        return iter(self._children.items())

    def step(self, key: object) -> Source | None:
        """The source one step further with this key, if there is one."""
        return self._children.get(key)

    def again(self, base: Source) -> Source:
        """The same step from another source."""
        assert self.base is not None
        kind, *operands = self.accessor
        named = _STEPS.get(kind)
        if named is not None:
            return named(base, *operands)
        key = next(key for key, child in self.base.steps() if child is self)
        return base.child(self.accessor, key, self.name.replace(self.base.name, base.name))

    # -- steps ------------------------------------------------------------------------------------

    def extent(self) -> int:
        """How many sources there are from this one on."""
        return 1 + sum(child.extent() for child in self.children())

    def attribute(self, name: str) -> Source:
        return self.child(("attr", name), ("attr", name), f"{self.name}.{one_line(name)}")

    def instance_dict(self) -> Source:
        return self.child(("instance_dict",), "instance_dict", self.name)

    def dict_item(self, key: object) -> Source:
        """The value under `key`; `key` is the Python object itself."""
        memo = ("dict_item", type(key), _hashable(key))
        return self.child(("dict_item", key), memo, self._item_name(key))

    def list_item(self, index: int) -> Source:
        return self.child(("list_item", index), ("list_item", index), f"{self.name}[{index}]")

    def tuple_item(self, index: int) -> Source:
        return self.child(("tuple_item", index), ("tuple_item", index), f"{self.name}[{index}]")

    def type(self) -> Source:
        return self.child(("type",), "type", f"type({self.name})")

    def call(self, function: object, name: str) -> Source:
        """`function(value)`: any other way to get from one value to another."""
        return self.child(("call", function), ("call", id(function)), one_line(name))

    @property
    def is_buffer(self) -> bool:
        """Whether it is a value of a module's dictionary of buffers."""
        return self.base is not None and self.base.accessor == ("dict_item", "_buffers")

    @property
    def is_fixed(self) -> bool:
        """Whether the source is one particular object, the same in every call."""
        return bool(self.accessor[0] == "object")

    @property
    def is_of_call(self) -> bool:
        """Whether it is reached from the frame's arguments or cells, not from a fixed object."""
        return not self.is_fixed if self.base is None else self.base.is_of_call

    @property
    def is_argument(self) -> bool:
        """Whether the source is an argument of the frame, or an item of a container that is one."""
        step: str = self.accessor[0]
        return step == "local" if self.base is None else step in _ITEMS and self.base.is_argument

    @property
    def is_attribute(self) -> bool:
        """Whether it is an attribute of an object, or part of one."""
        return self.base is not None and (
            self.accessor[0] in ("attr", "instance_dict") or self.base.is_attribute)

    @property
    def is_drawn(self) -> bool:
        """Whether the replacement itself fills the slot (a random number), so that no guard can
        check it."""
        return self.accessor == ("drawn",)

    # -- use --------------------------------------------------------------------------------------

    def collect(self) -> int:
        """The slot of the collected list in which the replacement finds the value."""
        if self.slot < 0:
            self.slot = self.tree.new_slot()
        return self.slot

    def _item_name(self, key: object) -> str:
        if self.accessor[0] == "instance_dict":
            return f"{self.name}.{describe_name(key)}"
        parent = self.base
        if (parent is not None and parent.accessor[0] == "instance_dict"
                and self.accessor[-1] in _MODULE_DICTS):
            return _member(parent.name, key)
        return f"{self.name}[{describe(key)}]"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Source({self.name})"


_STEPS: Final[Mapping[str, Callable[..., Source]]] = {
    "attr": Source.attribute, "instance_dict": Source.instance_dict, "type": Source.type,
    "dict_item": Source.dict_item, "list_item": Source.list_item, "tuple_item": Source.tuple_item,
}
"""By accessor: the step that names what it leads to."""


@final
class SourceTree:
    """The root sources of a frame, and the number of slots in use."""

    def __init__(self) -> None:
        self.n_slots = 0
        self._roots: dict[Any, Source] = {}

    def new_slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1

    def _root(self, accessor: Accessor, key: object, name: str) -> Source:
        root = self._roots.get(key)
        if root is None:
            root = self._roots[key] = Source(self, None, accessor, name)
        return root

    def local(self, index: int, name: str) -> Source:
        return self._root(("local", index), ("local", index), one_line(name))

    def cell(self, index: int, name: str) -> Source:
        """The cell object of the frame's `index`-th free variable."""
        return self._root(("cell_object", index), ("cell_object", index), one_line(name))

    def object(self, value: object, name: str) -> Source:
        """A fixed object, such as a module's globals or a class found while capturing."""
        return self._root(("object", value), ("object", id(value)), one_line(name))

    def drawn(self, name: str) -> Source:
        """A place that the replacement fills before it calls the graph."""
        return self._root(("drawn",), ("drawn", len(self._roots)), name)

    def roots(self) -> Iterator[Source]:
        """The root sources: what differs between calls first (fixed objects last), then what few
        guards are below (a model last), so that calls of another size are refused soon."""
        return iter(sorted(self._roots.values(), key=lambda s: (s.is_fixed, s.extent())))


_PLAIN: Final = (str, bytes, int, float, complex, bool, type(None), type(Ellipsis), list, tuple,
                 range)


_NAMESPACE: Final = vars(types.ModuleType)["__dict__"].__get__

_LONG: Final = 1_000
"""Longest integer, in bits, that messages write out."""


_SHOWN: Final = 20
"""How many items of a sequence messages write out."""


def describe(obj: Any, depth: int = 5) -> str:
    """A short text for an object in messages; runs none of the program's code."""
    for kind in (list, tuple):
        if issubclass(type(obj), kind):  # a sequence may contain itself
            items = islice(kind.__iter__(obj), _SHOWN if depth else 0)
            parts = [describe(item, depth - 1) for item in items]
            more = ", ..." if len(parts) < kind.__len__(obj) else ""
            return f"({', '.join(parts)}{more})"
    if type(obj) is int and obj.bit_length() > _LONG:
        return f"an int of {obj.bit_length()} bits"
    if type(obj) in _PLAIN:
        return repr(obj)
    if issubclass(type(obj), types.ModuleType):
        return one_line(_NAMESPACE(obj).get("__name__", "module"))
    if issubclass(type(obj), (type, types.FunctionType, types.BuiltinFunctionType)):
        return one_line(obj.__name__)
    return f"<{one_line(type(obj).__name__)} object>"


def describe_name(key: object) -> str:
    """A name in a namespace, whose keys may be anything."""
    return one_line(key) if isinstance(key, str) else describe(key)


_LIBRARY: Final = frozenset({"torch", *sys.stdlib_module_names})


def is_library(module: object) -> bool:
    """Whether a module of that name is part of torch or of the standard library: those are assumed
    not to change."""
    return str(module).partition(".")[0] in _LIBRARY


def _hashable(key: object) -> object:
    return repr(key) if isinstance(key, float) else key


def _member(owner: str, key: object) -> str:
    text = describe_name(key)
    return f"{owner}[{text}]" if text.isdigit() else f"{owner}.{text}"
