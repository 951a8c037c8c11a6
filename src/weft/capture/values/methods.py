"""Methods of C types, written as Python methods named `m_<name>`.

Place in the pipeline: base class of the families that stand for C types (list, dict, set,
iterators). `value.append(x)` calls the method directly; `value.append` alone is a `BoundBuiltin`::

    def m_append(self, tx, args, kwargs): ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from weft.capture.breaks import graph_break
from weft.capture.values.arities import method_fits
from weft.capture.values.base import Args, Kwargs, SymbolicValue, is_heap_type

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement.emitter import Emitter


class MethodTable(SymbolicValue):
    """A value whose methods are the `m_...` functions of its class."""

    __slots__ = ()

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        rule = getattr(self, f"m_{name}", None)
        if rule is None:
            return self.getattr(tx, name).call(tx, args, kwargs)
        if not method_fits(self.python_type(), name, len(args), kwargs):
            raise graph_break("unknown-operation", f"{self!r}.{name} of {len(args)} arguments")
        try:
            return rule(tx, [tx.force(a) for a in args], kwargs)  # type: ignore[no-any-return]
        except (IndexError, TypeError) as error:
            detail = f"{self!r}.{name} with {len(args)} arguments: {error}"
            raise graph_break("unknown-operation", detail) from error

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if hasattr(type(self), f"m_{name}"):
            return BoundBuiltin(self, name)
        kind = self.python_type()
        if name == "__class__":
            return tx.wrap_fixed(kind, kind.__name__)
        if not any(name in base.__dict__ for base in kind.__mro__):  # (the class has a `__dict__`)
            text = f"'{_name_in_errors(kind)}' object has no attribute '{name}'"
            raise tx.error(AttributeError, text)
        raise graph_break("unknown-operation", f"attribute {name!r} of a {kind.__name__}")


class ContainerMethods(MethodTable):
    """The methods that every container has: `__len__`, `__iter__`, `__contains__`."""

    __slots__ = ()

    def m___len__(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return tx.wrap_new(self.length(tx))

    def m___iter__(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self.iter(tx)

    def m___contains__(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return tx.wrap_new(self.contains(tx, args[0]))


def _name_in_errors(kind: type) -> str:
    """The name of a type in Python's error messages: static C types include their module
    (`torch.Size`)."""
    plain = kind.__module__ == "builtins" or is_heap_type(kind)
    return kind.__name__ if plain else f"{kind.__module__}.{kind.__name__}"


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
        return f"{emit.value(self.owner)}.{self.name}"

    def __repr__(self) -> str:
        return f"{self.owner!r}.{self.name}"
