"""Named tuples: of `collections.namedtuple`, `typing.NamedTuple` and `torch.return_types`.

Place in the pipeline: a value family; tuples with field names and a class, which may override
methods::

    class Moments(NamedTuple):
        mean: Tensor
        var: Tensor
        def __add__(self, other): ...       # overrides tuple's
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

from weft.capture.core.base import MISSING, Args, Kwargs, LazyValue, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.declared import Declared
from weft.capture.core.operator_names import method_name, reflected_method
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.containers.mapping import dictionary_of
from weft.capture.library.containers.sequences import TupleValue, tuple_items

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class NamedTupleValue(TupleValue):
    """An instance of a namedtuple class or of torch.return_types."""

    __slots__ = ("cls", "hidden")

    def __init__(self, items: Iterable[SymbolicValue], source: Source | None = None,
                 cls: Any = None) -> None:
        super().__init__(items, source)
        self.cls = cls
        self.hidden: dict[str, SymbolicValue] = {}
        """Attributes that are not items, as `st_mtime` of `os.stat_result`."""

    def python_type(self) -> type:
        cls: type = self.cls
        return cls

    @property
    def fields(self) -> tuple[str, ...]:
        """The field names."""
        named = getattr(self.cls, "_fields", None)
        return named if named is not None else struct_fields(self.cls)

    def build(self, items: Sequence[object]) -> Any:
        named = hasattr(self.cls, "_fields")  # an overridden `__new__` may do more
        return tuple.__new__(self.cls, items) if named else self.cls(items)

    @property
    def is_constant(self) -> bool:  # type: ignore[override]
        return not self.hidden and super().is_constant

    def copied(self, tx: Interpreter) -> Any:
        return MISSING if self.hidden else super().copied(tx)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in self.fields:
            return self.at(tx, self.fields.index(name))
        if name in self.hidden:
            return tx.force(self.hidden[name])
        if name == "__class__":
            return tx.wrap_fixed(self.cls, self.cls.__name__)
        if hasattr(type(self), f"m_{name}") and not overridden(self.cls, name):
            return super().getattr(tx, name)
        return class_attribute(tx, self, self.cls, name)

    def _refuse_own(self, *names: str) -> None:
        """Break the graph at methods of tuple that the program overrides."""
        for name in names:
            if overridden(self.cls, name):
                raise graph_break("unknown-operation", f"{name} of a {self.cls.__name__}")

    def truth(self, tx: Interpreter) -> bool:
        self._refuse_own("__bool__", "__len__")
        return super().truth(tx)

    def length(self, tx: Interpreter) -> int:
        self._refuse_own("__len__")
        return super().length(tx)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        self._refuse_own("__iter__")
        return super().iter(tx)

    def iterate(self, tx: Interpreter) -> list[SymbolicValue]:
        self._refuse_own("__iter__")
        return super().iterate(tx)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        self._refuse_own("__getitem__")
        return super().getitem(tx, key)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        self._refuse_own("__contains__")
        return super().contains(tx, item)

    def dict_key(self, tx: Interpreter) -> object:
        self._refuse_own("__hash__", "__eq__")
        return super().dict_key(tx)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        name = reflected_method(op) if reflected else method_name(op)
        if not overridden(self.cls, name):
            return super().binary(tx, op, other, reflected)
        result = class_attribute(tx, self, self.cls, name).call(tx, [other], {})
        declined = result.is_constant and result.constant() is NotImplemented
        return None if declined else result

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if hasattr(type(self), f"m_{name}") and not overridden(self.cls, name):
            return super().method(tx, name, args, kwargs)
        return self.getattr(tx, name).call(tx, args, kwargs)

    def rebuild(self, emit: Emitter) -> str:
        items = "".join(f"{emit.value(item)}, " for item in self.items)
        cls = emit.constant(self.cls)
        if not hasattr(self.cls, "_fields"):
            return emit.bind(self, f"{cls}(({items}))")
        maker = emit.constant(tuple.__new__)
        return emit.bind(self, f"{maker}({cls}, ({items}))")

    def m__asdict(self, tx: Interpreter) -> SymbolicValue:
        return dictionary_of(tx, dict(zip(self.fields, self.all(tx), strict=True)))

    def m__replace(self, tx: Interpreter, **fields: SymbolicValue) -> SymbolicValue:
        if not fields.keys() <= {*self.fields}:
            raise graph_break("unknown-operation", f"fields that a {self.cls.__name__} has not")
        items = [fields.get(n, v) for n, v in zip(self.fields, self.items, strict=True)]
        return NamedTupleValue(items, None, self.cls)


def overridden(cls: type, name: str) -> bool:
    """Whether a class between `cls` and tuple defines the method."""
    for base in cls.__mro__:
        if base is tuple:
            return False
        if name in base.__dict__ and base.__dict__[name].__module__ != "collections":
            return True
    return False


def struct_fields(cls: type) -> tuple[str, ...]:
    """The names of the items of a PyStructSequence type (torch.return_types.max, ...)."""
    names: tuple[str, ...] = vars(cls)["__match_args__"]
    return names


def _hidden_fields(cls: type) -> list[str]:
    """The names of attributes of a PyStructSequence type that are not items."""
    names = [n for n, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType)]
    return [n for n in names if n not in struct_fields(cls)]


def make_struct(tx: Interpreter, cls: Any, args: Args) -> SymbolicValue:
    """`torch.return_types.max((values, indices))`"""
    items = tx.unpack(args[0]) if len(args) == 1 else []
    if cls.n_sequence_fields != cls.n_fields or len(items) != cls.n_fields:
        raise graph_break("unknown-operation", f"making a {cls.__name__}")
    return NamedTupleValue(items, None, cls)


class_attribute: Declared[[Interpreter, SymbolicValue, type, str], SymbolicValue] = Declared()
"""The value of an attribute of an object (the first one) that its class defines."""


tuple_subclass: Declared[[Interpreter, Any, Source | None], SymbolicValue] = Declared()
"""An instance of a subclass of tuple that has no names for its items."""


@wraps(tuple, subclasses=True)
def _wrap_named(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    cls = type(obj)
    if hasattr(cls, "_fields"):
        return NamedTupleValue(tuple_items(tx, obj, source), source, cls)
    if hasattr(cls, "n_sequence_fields"):
        value = NamedTupleValue(tuple_items(tx, obj, source), source, cls)
        for name in _hidden_fields(cls):
            if source is None:
                raise graph_break("unknown-value", f"a {cls.__name__} from nowhere")
            value.hidden[name] = LazyValue(source.attribute(name), getattr(obj, name))
        return value
    return tuple_subclass(tx, obj, source)
