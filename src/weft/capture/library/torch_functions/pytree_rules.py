"""Rules for torch.utils._pytree: pytree itself flattens and unflattens, with markers as leaves.

Place in the pipeline: see `weft.capture.library`. Containers are rebuilt with a marker for each
leaf, the real function runs on them, and the markers in its result become values again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

from weft._torch import pytree
from weft.capture.core.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, constant, is_none, python_object
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.named_tuples import NamedTupleValue
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.functions.functions import rule
from weft.interrupts import surface

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class Marker:
    """Stands for a leaf while pytree works."""

    def __init__(self, value: SymbolicValue) -> None:
        self.value = value


@final
class SpecValue(OutsideObject):
    """A TreeSpec."""

    __slots__ = ()
    is_constant = True

    def constant(self) -> Any:
        return self.object

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        attribute = getattr(self.object, name, MISSING)
        if attribute is MISSING:
            raise tx.error(AttributeError, name)
        if callable(attribute) and not isinstance(attribute, type):
            return SpecMethod(self.object, name)
        return tx.wrap_new(attribute)


@final
class SpecMethod(SymbolicValue):
    """`spec.unflatten`, ..."""

    __slots__ = ("name", "spec")

    def __init__(self, spec: Any, name: str) -> None:
        super().__init__()
        self.spec = spec
        self.name = name

    def rebuild(self, emit: Emitter) -> str:
        return f"{emit.constant(self.spec)}.{self.name}"

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.name == "unflatten":
            return _unflattened(tx, args[0], self.spec)
        if kwargs or not all(arg.is_constant for arg in args):  # a tree of values
            raise graph_break("unknown-operation", f"TreeSpec.{self.name}")
        return tx.wrap_new(getattr(self.spec, self.name)(*(arg.constant() for arg in args)))


@wraps(pytree.TreeSpec, subclasses=True)
def _wrap_spec(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is not None:
        tx.guards.add(source, "py", lambda other: other == obj)
    return SpecValue(obj)


def _to_markers(tx: Interpreter, value: SymbolicValue, is_leaf: SymbolicValue = NONE) -> object:
    """The containers as Python objects with markers as leaves."""
    value = tx.force(value)
    if is_leaf is not NONE and not is_none(is_leaf) and tx.call(is_leaf, [value]).truth(tx):
        return Marker(value)
    inner = partial(_to_markers, tx, is_leaf=is_leaf)
    if isinstance(value, ListValue) or type(value) is TupleValue:
        return value.kind(map(inner, value.all(tx)))
    if isinstance(value, NamedTupleValue):
        return value.build([inner(item) for item in value.all(tx)])
    if isinstance(value, DictValue) and value.cls in (dict, OrderedDict):
        return value.cls((k.constant(), inner(v)) for k, v in value.pairs(tx))
    if value.python_type() in pytree.SUPPORTED_NODES:
        return _registered_stand_in(tx, value, inner)
    if is_none(value):
        return None
    return Marker(value)


def _registered_stand_in(
    tx: Interpreter, value: SymbolicValue, inner: Callable[[SymbolicValue], object]
) -> object:
    """A stand-in, made of markers, for an object of a class with its own flatten function."""
    node = pytree.SUPPORTED_NODES[value.python_type()]
    parts = tx.call(tx.wrap_fixed(node.flatten_fn, "flatten"), [value])
    children, context = tx.unpack(parts)
    plain = python_object(tx, context)
    if plain is MISSING:
        raise graph_break("unknown-operation", f"pytree of a {value.python_type().__name__}")
    markers = [inner(child) for child in tx.unpack(children)]
    return _stand_in(node.unflatten_fn, markers, plain)


def _stand_in(
    make: Callable[[Any, Any], object], markers: Sequence[object], context: object
) -> object:
    """What the program's unflatten function makes of markers, if it accepts anything."""
    try:
        return make(markers, context)
    except Exception as error:  # the program's function fails on markers: break the graph
        surface(error)
        raise graph_break("unknown-operation", "pytree of a class that looks at leaves") from error


def _unflattened(tx: Interpreter, leaves: SymbolicValue, spec: object) -> SymbolicValue:
    markers = [Marker(value) for value in tx.unpack(leaves)]
    return _to_values(tx, _stand_in(pytree.tree_unflatten, markers, spec))


def _to_values(tx: Interpreter, obj: object) -> SymbolicValue:
    """The values for a result of pytree: the inverse of `_to_markers`."""
    if isinstance(obj, Marker):
        return obj.value
    if type(obj) in pytree.SUPPORTED_NODES and type(obj) not in _PLAIN:
        node = pytree.SUPPORTED_NODES[type(obj)]
        children, context = node.flatten_fn(obj)
        items = ListValue([_to_values(tx, child) for child in children])
        return tx.call(tx.wrap_fixed(node.unflatten_fn, "unflatten"), [items, tx.wrap_new(context)])
    if isinstance(obj, tuple) and (hasattr(obj, "_fields") or hasattr(obj, "n_sequence_fields")):
        return NamedTupleValue([_to_values(tx, item) for item in obj], None, type(obj))
    if isinstance(obj, tuple):
        return TupleValue([_to_values(tx, item) for item in obj])
    if isinstance(obj, list):
        return ListValue([_to_values(tx, item) for item in obj])
    if isinstance(obj, dict):
        dictionary = DictValue(cls=type(obj))
        for key, item in obj.items():
            dictionary.setitem(tx, tx.wrap_new(key), _to_values(tx, item))
        return dictionary
    return tx.wrap_new(obj)


_PLAIN: Final = (list, tuple, dict, OrderedDict)


@rule(pytree.tree_flatten)
def _flatten(tx: Interpreter, tree: SymbolicValue, is_leaf: SymbolicValue = NONE) -> SymbolicValue:
    leaves, spec = pytree.tree_flatten(_to_markers(tx, tree, is_leaf))
    return TupleValue([ListValue([_to_values(tx, leaf) for leaf in leaves]), SpecValue(spec)])


@rule(pytree.tree_leaves)
def _leaves(tx: Interpreter, tree: SymbolicValue, is_leaf: SymbolicValue = NONE) -> SymbolicValue:
    leaves = pytree.tree_leaves(_to_markers(tx, tree, is_leaf))
    return ListValue([_to_values(tx, leaf) for leaf in leaves])


@rule(pytree.tree_structure)
def _structure(tx: Interpreter, tree: SymbolicValue, is_leaf: SymbolicValue = NONE
               ) -> SymbolicValue:
    return SpecValue(pytree.tree_structure(_to_markers(tx, tree, is_leaf)))


@rule(pytree.tree_unflatten)
def _unflatten(tx: Interpreter, leaves: SymbolicValue, treespec: SymbolicValue) -> SymbolicValue:
    return _unflattened(tx, leaves, treespec.constant())


def _mapped(
    tx: Interpreter, function: SymbolicValue, trees: Sequence[SymbolicValue],
    is_leaf: SymbolicValue, keep: Callable[[SymbolicValue], bool] = lambda value: True,
) -> SymbolicValue:
    first, *others = trees
    leaves, spec = pytree.tree_flatten(_to_markers(tx, first, is_leaf))
    rest = [spec.flatten_up_to(_to_markers(tx, tree)) for tree in others]
    results = []
    for items in zip(leaves, *rest, strict=True):
        values = [_to_values(tx, item) for item in items]
        results.append(Marker(tx.call(function, values) if keep(values[0]) else values[0]))
    return _to_values(tx, _stand_in(pytree.tree_unflatten, results, spec))


@rule(pytree.tree_map)
def _map(tx: Interpreter, func: SymbolicValue, tree: SymbolicValue, *rests: SymbolicValue,
         is_leaf: SymbolicValue = NONE) -> SymbolicValue:
    return _mapped(tx, func, [tree, *rests], is_leaf)


@rule(pytree.tree_map_)
def _map_in_place(tx: Interpreter, func: SymbolicValue, tree: SymbolicValue, *rests: SymbolicValue,
                  is_leaf: SymbolicValue = NONE) -> SymbolicValue:
    _mapped(tx, func, [tree, *rests], is_leaf)
    return tree


@rule(pytree.tree_map_only)
def _map_only(tx: Interpreter, kinds: SymbolicValue, /, func: SymbolicValue, tree: SymbolicValue,
              is_leaf: SymbolicValue = NONE) -> SymbolicValue:
    wanted = kinds.constant()
    if not isinstance(wanted, (type, tuple)):
        raise graph_break("unknown-operation", "tree_map_only with a predicate")
    return _mapped(
        tx, func, [tree], is_leaf, lambda value: issubclass(value.python_type(), wanted))


@rule(pytree._is_leaf)
def _is_leaf(tx: Interpreter, tree: SymbolicValue, is_leaf: SymbolicValue = NONE) -> SymbolicValue:
    return constant(isinstance(_to_markers(tx, tree, is_leaf), Marker))


@rule(pytree._broadcast_to_and_flatten)
def _broadcast(tx: Interpreter, tree: SymbolicValue, treespec: SymbolicValue,
               is_leaf: SymbolicValue = NONE) -> SymbolicValue:
    markers = _to_markers(tx, tree, is_leaf)
    result = pytree._broadcast_to_and_flatten(markers, treespec.constant())
    if result is None:
        return constant(None)
    return ListValue([_to_values(tx, item) for item in result])


__all__: Final = ["Marker", "SpecValue"]
