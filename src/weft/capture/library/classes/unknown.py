"""Objects of types without a family: they can be passed on and compared; anything else breaks the
graph.

Place in the pipeline: returned by wrappers that do not support an object, so that the graph breaks
where the object is used and not where it is read.
"""

from __future__ import annotations

from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft._frame import instance_dict
from weft._torch import DisableTorchFunction, is_functorch_wrapped_tensor
from weft.capture.core.base import Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.source import Source
from weft.capture.library.classes.attributes import type_lookup

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


_IDENTITY_HASH: Final[Any] = object.__hash__
_CONSTANTS: Final[tuple[Any, ...]] = (int, float, str, bytes)


class UnknownValue(OutsideObject):
    """An outside object that capture cannot look into."""

    __slots__ = ()

    def dict_key(self, tx: Interpreter) -> object:
        if type(self.object).__hash__ is _IDENTITY_HASH:
            return tx.identities.key(self, self.object)
        if _compares_as_constant(self.object):
            tx.guards.identity(self.source, self.object)
            return self.object
        return super().dict_key(tx)

    def truth(self, tx: Interpreter) -> bool:
        if _compares_as_constant(self.object):
            tx.guards.identity(self.source, self.object)
            return bool(self.object)
        raise graph_break("unknown-value", f"the truth of {self!r}")

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        """A method in C is bound here, so that its call is the one operation that breaks."""
        if is_plain_method(self.object, name):
            return BoundBuiltin(self, name)
        return super().getattr(tx, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if is_plain_method(self.object, name):
            raise graph_break("unknown-c-function", f"{name} of {self!r}")
        return super().method(tx, name, args, kwargs)

    def __repr__(self) -> str:
        return f"an object of type {type(self.object).__name__}"


@final
class UnheldTensor(UnknownValue):
    """A tensor that is no operand of graphs: what is done with it breaks the graph, which says so.

        x = torch.eye(3).to_sparse();  x * 2      # mul of a tensor ... (of layout torch.sparse_coo)
    """

    __slots__ = ()

    def dict_key(self, tx: Interpreter) -> object:
        raise self._break(f"hash of {self!r}")

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if not is_plain_method(self.object, name):
            raise self._break(f"attribute {name!r} of {self!r}")
        return super().getattr(tx, name)

    def truth(self, tx: Interpreter) -> bool:
        raise self._break(f"the truth of {self!r}")

    def length(self, tx: Interpreter) -> int:
        raise self._break(f"len of {self!r}")

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        raise self._break(f"{name} of {self!r}")

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        raise self._break(f"{op} of {other!r} and {self!r}" if reflected else
                          f"{op} of {self!r} and {other!r}")

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        raise self._break(f"indexing {self!r}")

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        raise self._break(f"item assignment to {self!r}")

    def iter(self, tx: Interpreter) -> SymbolicValue:
        raise self._break(f"iteration over {self!r}")

    def proxy(self, tx: Interpreter) -> Any:
        raise self._break(f"{self!r} as an argument of a tensor operation")

    def fake(self, tx: Interpreter) -> Any:
        raise self._break(f"{self!r} as an argument of a tensor operation")

    def _break(self, what: str) -> GraphBreak:
        return graph_break("unheld-tensor", what)

    def __repr__(self) -> str:
        return f"a tensor that graphs do not hold ({_peculiarity(self.object)})"


def _peculiarity(tensor: torch.Tensor) -> str:
    """What keeps a tensor out of graphs, in a few words."""
    with DisableTorchFunction():
        if tensor.layout is not torch.strided:
            return f"of layout {tensor.layout}"
        peculiar = (is_functorch_wrapped_tensor(tensor), "wrapped by a transform outside"), (
            tensor.is_nested, "nested"), (tensor.is_quantized, "quantized")
    return next((text for holds, text in peculiar if holds), f"a {type(tensor).__name__}")


def is_plain_method(obj: object, name: str) -> bool:
    """Whether reading the attribute only binds a method in C."""
    kind = type(obj)
    if kind.__getattribute__ is not object.__getattribute__ or (
            type(type_lookup(kind, name)) is not MethodDescriptorType):
        return False
    return not kind.__dictoffset__ or name not in instance_dict(obj)


def _compares_as_constant(obj: object) -> bool:
    """Whether it is a number or text whose subclass keeps hash, equality and truth."""
    base: Any = next((base for base in _CONSTANTS if isinstance(obj, base)), None)
    return base is not None and all(
        getattr(type(obj), name, None) is getattr(base, name, None)
        for name in ("__hash__", "__eq__", "__bool__", "__len__"))


def unknown(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    """The value of an object whose type has no family."""
    if source is None:
        if hasattr(type(obj), "__next__"):
            raise graph_break("unknown-value", f"a {type(obj).__name__} made while capturing")
        source = tx.tree.object(obj, f"<{type(obj).__name__}>")
    if not source.is_fixed:
        tx.guards.add(source, "type_is", type(obj))
    family = UnheldTensor if issubclass(type(obj), torch.Tensor) else UnknownValue
    return family(obj, source)
