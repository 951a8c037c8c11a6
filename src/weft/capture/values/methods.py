"""Methods of C types, written as Python methods named `m_<name>`.

Place in the pipeline: base class of the families that stand for C types (list, dict, set, tensor
iterators). `value.append` is then a bound method value, and `value.append(x)` a direct call::

    def m_append(self, tx, args, kwargs): ...
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.breaks import graph_break
from weft.capture.values.base import Args, Kwargs, SymbolicValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement import Emitter


_ARITIES: Final = {"pop": (0, 2), "popitem": (0, 0), "update": (0, 1), "clear": (0, 0),
                   "get": (1, 2), "copy": (0, 0), "setdefault": (1, 2), "keys": (0, 0),
                   "values": (0, 0), "items": (0, 0), "append": (1, 1),
                   "appendleft": (1, 1), "extend": (1, 1),
                   "extendleft": (1, 1), "rotate": (0, 1), "reverse": (0, 0), "count": (1, 1),
                   "remove": (1, 1), "insert": (2, 2), "index": (1, 3), "add": (1, 1),
                   "discard": (1, 1), "isdisjoint": (1, 1), "issubset": (1, 1),
                   "issuperset": (1, 1), "symmetric_difference": (1, 1)}
"""Numbers of arguments where a method of a container has no signature."""


@functools.cache
def _arity(kind: type, name: str) -> tuple[int, float, bool]:
    """The least and the greatest number of arguments, and whether some may have names."""
    try:
        parameters = list(inspect.signature(getattr(kind, name)).parameters.values())[1:]
    except (AttributeError, TypeError, ValueError):
        container = kind.__module__ in ("builtins", "collections")
        least, most = _ARITIES.get(name, (0, None)) if container else (0, None)
        most = None if name == "update" and not issubclass(kind, dict) else most
        return least, float("inf") if most is None else most, not container or name == "update"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    named = any(p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters)
    least = 0 if named else sum(p.default is p.empty for p in positional)
    return least, float("inf") if many else len(positional), named


def takes(kind: type, name: str, count: int, names: bool) -> bool:
    """Whether the method of a C type takes so many arguments (if not, Python raises)."""
    least, most, named = _arity(kind, name)
    return least <= count <= most and (named or not names)


class MethodTable(SymbolicValue):
    """A value whose methods are `m_…` functions of its class."""

    __slots__ = ()

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        rule = getattr(self, f"m_{name}", None)
        if rule is None:
            return self.getattr(tx, name).call(tx, args, kwargs)
        if not takes(self.python_type(), name, len(args), bool(kwargs)):
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
        if not hasattr(kind, name):
            text = f"'{kind.__name__}' object has no attribute '{name}'"
            raise tx.error(AttributeError, text)
        raise graph_break("unknown-operation", f"attribute {name!r} of a {kind.__name__}")


@final
class BoundBuiltin(SymbolicValue):
    """`owner.name` where the method is a rule of the owner's family."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: SymbolicValue, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def python_type(self) -> type:
        return type([].append)

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
