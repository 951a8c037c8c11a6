"""Methods of C types, written as Python methods named `m_<name>`.

Place in the pipeline: base class of the families that stand for C types (list, dict, set,
iterators). `value.append(x)` calls the method directly; `value.append` alone is a `BoundBuiltin`::

    def m_append(self, tx, item, /): ...
"""

from __future__ import annotations

from collections import deque
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import Args, Kwargs, SymbolicValue, is_heap_type
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, NOT_IMPLEMENTED
from weft.capture.core.operator_names import COMPARISONS, IN_PLACE, OPERATOR_METHODS
from weft.capture.core.rules import rule_of_method
from weft.quoting import attribute

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


class MethodTable(SymbolicValue):
    """A value whose methods are the `m_...` functions of its class."""

    __slots__ = ()

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        rule = rule_of_method(type(self), self.python_type(), name)
        if rule is None:
            return self.getattr(tx, name).call(tx, args, kwargs)
        try:
            return rule.call((self, tx), [tx.force(a) for a in args], kwargs)
        except (IndexError, TypeError) as error:
            detail = f"{self!r}.{name} with {len(args)} arguments: {error}"
            raise graph_break("unknown-operation", detail) from error

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        kind = self.python_type()
        if rule_of_method(type(self), kind, name) is not None:
            return BoundBuiltin(self, name)
        if name == "__class__":
            return tx.wrap_fixed(kind, kind.__name__)
        if not any(name in base.__dict__ for base in kind.__mro__):  # (the class has a `__dict__`)
            text = f"'{_name_in_errors(kind)}' object has no attribute '{name}'"
            raise tx.error(AttributeError, text)
        raise graph_break("unknown-operation", f"attribute {name!r} of a {kind.__name__}")


class RuledCallable(SymbolicValue):
    """A value whose call is its method `m___call__`."""

    __slots__ = ()

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        rule = rule_of_method(type(self), type, "__call__")
        assert rule is not None
        return rule.call((self, tx), args, kwargs)


class ItemMethods(MethodTable):
    """`__setitem__` and `__delitem__` of containers whose items can be changed."""

    __slots__ = ()

    def m___setitem__(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue, /
                      ) -> SymbolicValue:
        self.setitem(tx, key, value)
        return NONE

    def m___delitem__(self, tx: Interpreter, key: SymbolicValue, /) -> SymbolicValue:
        self.delitem(tx, key)
        return NONE


class ContainerMethods(MethodTable):
    """The methods that every container has: `__len__`, `__iter__`, `__contains__`, and those of
    operators."""

    __slots__ = ()

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self._is_operator(name) and len(args) == 1:
            return self.operator(tx, name, tx.force(args[0]), self)
        if name == "__repr__" and not args and self.python_type() in _SHOWN:
            return tx.call_python(repr, [self])
        return super().method(tx, name, args, kwargs)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if self._is_operator(name) or (name == "__repr__" and self.python_type() in _SHOWN):
            return BoundBuiltin(self, name)
        return super().getattr(tx, name)

    def _is_operator(self, name: str) -> bool:
        return (name in OPERATOR_METHODS and bool(self._peers())
                and any(name in base.__dict__ for base in self.python_type().__mro__))

    def _peers(self) -> tuple[type, ...]:
        """The types of what this one can be compared with."""
        kind = self.python_type()
        return next((peers for peers in _PEERS if issubclass(kind, peers)), ())

    def operator(self, tx: Interpreter, name: str, other: SymbolicValue, target: SymbolicValue
                 ) -> SymbolicValue:
        """`list.__add__(target, other)` and the like, where `target` is this container or an
        instance of a subclass that has its items."""
        op, reflected = OPERATOR_METHODS[name]
        peers = self._peers()
        accepts = issubclass(other.python_type(), peers)
        by_mapping = peers == (dict,)
        if by_mapping and op == "or_" and accepts and target is not self and (
                self.python_type() is not dict or _iterates(target.python_type())):
            raise graph_break("unknown-operation", f"{name} of {target!r}")  # calls its methods
        if by_mapping and reflected and other.python_type() is dict:
            merged: SymbolicValue = other.binary(tx, op, target, False)
            return merged
        if accepts and op not in IN_PLACE and not by_mapping:  # C reads the items
            other = other.underlying()
        result: SymbolicValue | None = self.binary(tx, op, other, reflected)
        if result is not None:
            return target if result is self else result
        declines = not accepts and (op in COMPARISONS or peers in _DECLINING)
        if declines or (by_mapping and op in ("lt", "le", "gt", "ge")):
            return NOT_IMPLEMENTED
        raise graph_break("unknown-operation", f"{name} of {target!r}")

    def m___len__(self, tx: Interpreter) -> SymbolicValue:
        return tx.wrap_new(self.length(tx))

    def m___iter__(self, tx: Interpreter) -> SymbolicValue:
        return self.iter(tx)

    def m___contains__(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        return tx.wrap_new(self.contains(tx, item))


def _iterates(cls: Any) -> bool:
    """Whether iterating over an instance runs the program's code."""
    return isinstance(cls.__iter__, FunctionType)


def _name_in_errors(kind: type) -> str:
    """The name of a type in Python's error messages: static C types include their module
    (`torch.Size`)."""
    plain = kind.__module__ == "builtins" or is_heap_type(kind)
    return kind.__name__ if plain else f"{kind.__module__}.{kind.__name__}"


_PEERS: Final[tuple[tuple[type, ...], ...]] = (
    (list,), (tuple,), (dict,), (set, frozenset), (deque,))
_DECLINING: Final = ((dict,), (set, frozenset))
"""Types whose operators return NotImplemented for others; those of sequences raise."""
_SHOWN: Final = (list, tuple, dict)
"""Types whose `repr` does not name the class."""


@final
class BoundBuiltin(SymbolicValue):
    """`owner.name`, a bound method that is implemented by the owner's value family."""

    __slots__ = ("name", "owner")
    kind: type = type([].append)

    def __init__(self, owner: SymbolicValue, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "__self__":
            return self.owner
        if name == "__name__":
            return tx.wrap_new(self.name)
        return super().getattr(tx, name)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op in ("eq", "ne") and isinstance(other, BoundBuiltin):
            same = self.owner is other.owner and self.name == other.name
            return tx.wrap_new(same is (op == "eq"))
        return None

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self.owner.method(tx, self.name, args, kwargs)

    def rebuild(self, emit: Emitter) -> str:
        return attribute(emit.value(self.owner), self.name)

    def __repr__(self) -> str:
        return f"{self.owner!r}.{self.name}"
