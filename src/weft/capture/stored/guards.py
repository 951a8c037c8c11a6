"""Guard trees as data, and their objects in another process.

Place in the pipeline: a part of a stored entry. A tree is written as it is; objects of the program
in it become numbers (`store/writer.py`). When it is loaded, the tree is walked over the frame that
is about to be captured: the object at each guarded place must be what the first process had there,
and becomes the one that the guard requires from now on::

    (("local", 0), (("is_alive", <f>, 3),), -1, ())           # the guard `g is f`
    [["local", 0], [["is_alive", ["program", 0], 3]], -1, []]  # f: byte code 3f0a..., no defaults

No guard is dropped: one that has no form as data makes the entry not storable.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

from weft import _frame
from weft.capture.core.source import Reference
from weft.store import DoesNotFit, NotStorable, Reader, Writer
from weft.store.identity import ATTRIBUTES, MRO, Data

_NUMBERS: Final = frozenset({"local", "cell_object", "list_item", "tuple_item", "size",
                             "stride"})
_NO_OPERAND: Final = frozenset({"instance_dict", "type", "drawn"})
_MISSING: Final = object()


# -- to data ---------------------------------------------------------------------------------------


def nodes_to_data(writer: Writer, nodes: Sequence[Any]) -> list[Data]:
    """The nodes of a guard tree."""
    return [_node_to_data(writer, node) for node in nodes]


def _node_to_data(writer: Writer, node: Any) -> Data:
    accessor, checks, slot, children = node
    return [_accessor_to_data(writer, accessor), [_check_to_data(writer, c) for c in checks], slot,
            nodes_to_data(writer, children)]


def _accessor_to_data(writer: Writer, accessor: Any) -> Data:
    kind, *operand = accessor
    if kind in _NO_OPERAND:
        return [kind]
    if kind in _NUMBERS:
        return [kind, operand[0]]
    if kind in ("object", "alive"):
        return [kind, None if operand[0] is None else _object_to_data(writer, operand[0])]
    return [kind, writer.value(operand[0])]


def _object_to_data(writer: Writer, obj: Any) -> Data:
    """What a guard requires by identity, itself or through a reference."""
    if type(obj) is Reference:
        obj = obj()
        if obj is None:
            raise NotStorable("an object of a guard is gone")
    return writer.refer(obj)


def _check_to_data(writer: Writer, check: Any) -> Data:
    kind, *operands, number = check
    rule = _CHECKS.get(kind)
    if rule is None:
        raise NotStorable(f"it has a guard of the kind {kind}")
    return [kind, *rule(writer, *operands), number]


def _class_attribute(writer: Writer, name: str, expected: Any) -> list[Data]:
    if expected is None:
        return [name, "nothing"]
    if type(expected) is tuple:
        kind, of_name, owner = expected
        return [name, "of C", writer.refer(kind), of_name, _object_to_data(writer, owner)]
    return [name, "alive" if type(expected) is Reference else "object",
            _object_to_data(writer, expected)]


_CHECKS: Final[dict[str, Callable[..., list[Data]]]] = {
    "type_is": lambda writer, cls: [writer.refer(cls)],
    "is": lambda writer, obj: [writer.refer(obj)],
    "is_alive": lambda writer, obj: [_object_to_data(writer, obj)],
    "is_not": lambda writer, obj: [writer.refer(obj)],
    "eq": lambda writer, value: [writer.value(value)],
    "len": lambda writer, number: [number],
    "dict_keys": lambda writer, keys: [[writer.value(key) for key in keys]],
    "missing_key": lambda writer, key: [writer.value(key)],
    "no_attr": lambda writer, name: [name],
    "same_as_slot": lambda writer, slot: [slot],
    "py": lambda writer, predicate: [writer.value(predicate)],
    "content": lambda writer, raw, same: [writer.value(raw), writer.value(same)],
    "class_attribute": _class_attribute,
    "class_data": lambda writer, name, owner: [name, _object_to_data(writer, owner)],
    "bases": lambda writer, bases: [[_object_to_data(writer, base) for base in bases]],
    "tensor": lambda writer, cls, *rest: [writer.refer(cls), *map(writer.value, rest)],
}


def tree_checks_to_data(writer: Writer, checks: Sequence[Any]) -> list[Data]:
    """The checks that follow the walk."""
    return [_tree_check_to_data(writer, *check) for check in checks]


def _tree_check_to_data(writer: Writer, kind: str, *rest: Any) -> Data:
    *operand, number = rest
    if kind == "global_state":
        content = operand[0].content() if operand else None
        if content is None:
            raise NotStorable("a mode of torch functions was active")
        return [kind, content.hex(), number]
    if kind == "functions":
        return [kind, [[type(f) is Reference, _object_to_data(writer, f)] for f in operand[0]],
                number]
    if kind == "distinct":
        return [kind, list(operand[0]), number]
    if kind == "shape":
        return [kind, writer.value(operand[0]), number]
    raise NotStorable(f"it has a guard of the kind {kind}")


# -- from data -------------------------------------------------------------------------------------


def tree_of(reader: Reader, nodes: Sequence[Data], checks: Sequence[Data], n_slots: int,
            frame: Any) -> Any:
    """The guard tree, with the objects of this process; raises DoesNotFit if they are others."""
    first = [_Walk(reader, frame).node(node, _MISSING) for node in nodes if not _is_fixed(node)]
    fixed = _fixed_nodes(reader, [node for node in nodes if _is_fixed(node)], frame)
    after = tuple(_tree_check(reader, check) for check in checks)
    return _frame.GuardTree((*first, *fixed), after, n_slots)


def _is_fixed(node: Data) -> bool:
    return node[0][0] in ("object", "alive")


def _fixed_nodes(reader: Reader, nodes: Sequence[Data], frame: Any) -> list[Any]:
    """The nodes below fixed objects, in their order; some objects are met below others first."""
    built: dict[int, Any] = {}
    waiting = dict(enumerate(nodes))
    while waiting:
        ready = [at for at, node in waiting.items()
                 if node[0][1] is None or reader.is_bound(node[0][1])]
        if not ready:
            lost = next(iter(waiting.values()))[0][1]
            raise DoesNotFit(f"nothing leads to {reader.describe(lost)}")
        for at in ready:
            built[at] = _Walk(reader, frame).node(waiting.pop(at), _MISSING)
    return [built[at] for at in range(len(nodes))]


class _Walk:
    """Rebuilds nodes while it reads the frame as they will."""

    def __init__(self, reader: Reader, frame: Any) -> None:
        self.reader = reader
        self.frame = frame

    def node(self, data: Data, base: Any) -> Any:
        accessor_data, checks, slot, children = data
        accessor, actual = self._accessor(accessor_data, base)
        built = tuple(self._check(check, actual) for check in checks)
        return accessor, built, slot, tuple(self.node(child, actual) for child in children)

    def _accessor(self, data: Data, base: Any) -> tuple[Any, Any]:
        kind, *operand = data
        if kind == "drawn" or (operand == [None] and kind == "object"):
            return (kind, *operand), _MISSING
        if kind in ("object", "alive"):
            obj = self.reader.value(operand[0])
            return (kind, Reference(obj) if kind == "alive" else obj), obj
        if kind in _NO_OPERAND:
            return (kind,), _read(kind, base, None)
        argument = operand[0] if kind in _NUMBERS else self.reader.value(operand[0])
        if kind == "local":
            return (kind, argument), self.frame.locals[argument]
        if kind == "cell_object":
            return (kind, argument), self.frame.cells[argument]
        return (kind, argument), _read(kind, base, argument)

    def _check(self, data: Data, actual: Any) -> Any:
        kind, *operands, number = data
        return kind, *_READ_CHECKS[kind](self.reader, actual, *operands), number


def _read(kind: str, base: Any, argument: Any) -> Any:
    if base is _MISSING:
        return _MISSING
    try:
        return _READERS[kind](base, argument)
    except Exception:  # noqa: BLE001  code of the program: the guard will fail
        raise DoesNotFit(f"nothing at a place that is read by {kind} {argument!r:.60}") from None


_READERS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "attr": getattr,
    "instance_dict": lambda value, _: object.__getattribute__(value, "__dict__"),
    "dict_item": lambda value, key: (
        value[key] if type(value) is MappingProxyType else dict.__getitem__(value, key)),
    "list_item": list.__getitem__,
    "tuple_item": tuple.__getitem__,
    "type": lambda value, _: type(value),
    "size": lambda tensor, dim: tensor.size(dim),
    "stride": lambda tensor, dim: tensor.stride(dim),
    "call": lambda value, function: function(value),
}


def _actual_attribute(actual: Any, name: str) -> Any:
    for base in MRO(actual):
        if name in ATTRIBUTES(base):
            return base, ATTRIBUTES(base)[name]
    raise DoesNotFit(f"a class without {name}")


def _read_class_attribute(reader: Reader, actual: Any, name: str, kind: str, *more: Data
                          ) -> tuple[Any, ...]:
    if kind == "nothing":
        return name, None
    _, attribute = _actual_attribute(actual, name)
    if kind == "of C":
        owner = reader.bind(more[2], attribute.__objclass__) if hasattr(
            attribute, "__objclass__") else reader.value(more[2])
        return name, (reader.value(more[0]), more[1], Reference(owner))
    obj = reader.bind(more[0], attribute)
    return name, Reference(obj) if kind == "alive" else obj


def _read_bases(reader: Reader, actual: Any, bases: Sequence[Data]) -> tuple[Any, ...]:
    present = (type(actual), *MRO(actual))
    if len(present) != len(bases):
        raise DoesNotFit("a class with other bases")
    return (tuple(Reference(reader.bind(data, base))
                  for data, base in zip(bases, present, strict=True)),)


_READ_CHECKS: Final[dict[str, Callable[..., tuple[Any, ...]]]] = {
    "type_is": lambda reader, actual, cls: (reader.bind(cls, type(actual)),),
    "is": lambda reader, actual, obj: (reader.bind(obj, actual),),
    "is_alive": lambda reader, actual, obj: (Reference(reader.bind(obj, actual)),),
    "is_not": lambda reader, actual, obj: (reader.value(obj),),
    "eq": lambda reader, actual, value: (reader.value(value),),
    "len": lambda reader, actual, number: (number,),
    "dict_keys": lambda reader, actual, keys: (tuple(reader.values(keys)),),
    "missing_key": lambda reader, actual, key: (reader.value(key),),
    "no_attr": lambda reader, actual, name: (name,),
    "same_as_slot": lambda reader, actual, slot: (slot,),
    "py": lambda reader, actual, predicate: (reader.value(predicate),),
    "content": lambda reader, actual, raw, same: (reader.value(raw), reader.value(same)),
    "class_attribute": _read_class_attribute,
    "class_data": lambda reader, actual, name, owner: (
        name, Reference(reader.bind(owner, _actual_attribute(actual, name)[0]))),
    "bases": _read_bases,
    "tensor": lambda reader, actual, cls, *rest: (
        reader.bind(cls, type(actual)), *reader.values(rest)),
}


def _tree_check(reader: Reader, data: Data) -> Any:
    kind, operand, number = data
    if kind == "global_state":
        now = _frame.global_state()
        content = now.content()
        if content is None or content.hex() != operand:
            raise DoesNotFit("other modes of PyTorch")
        return kind, now, number
    if kind == "functions":
        return kind, tuple(Reference(reader.value(f)) if weak else reader.value(f)
                           for weak, f in operand), number
    if kind == "distinct":
        return kind, tuple(operand), number
    return kind, reader.value(operand), number
