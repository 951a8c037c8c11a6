"""Descriptors made inside: `property`, `staticmethod`, `classmethod`, `cached_property`.

Place in the pipeline: a value family; they become attributes of classes made inside
(`made_classes.py`), where `attributes.bind` reads their functions.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Final, final

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.constant import NONE, constant, is_none
from weft.capture.core.methods import RuledCallable
from weft.capture.library.classes.classes import constructor
from weft.capture.library.classes.descriptor_polyfills import METHODS
from weft.capture.library.functions.functions import BoundMethodValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_PARTS: Final[dict[type, tuple[str, ...]]] = {
    property: ("fget", "fset", "fdel", "doc"),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    functools.cached_property: ("func",),
}
_CHANGES: Final = {"getter": 0, "setter": 1, "deleter": 2}


@final
class DescriptorValue(SymbolicValue):
    """`kind(*parts)`."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: type, parts: list[SymbolicValue]) -> None:
        super().__init__()
        self.kind = kind
        self.parts = parts

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in _CHANGES and self.kind is property:
            return PropertyChange(self, _CHANGES[name])
        names = _PARTS[self.kind]
        if name in names:
            return self.parts[names.index(name)]
        if name == "__isabstractmethod__":
            return constant(any(_is_abstract(tx, part) for part in self.parts))
        if name == "__doc__":
            own = self.parts[-1] if self.kind is property else NONE
            first = self.parts[0]
            inherits = is_none(own) and not is_none(first)
            return first.getattr(tx, "__doc__") if inherits else own
        method = METHODS.get((self.kind, name))
        if method is not None:
            return BoundMethodValue(self, tx.wrap_fixed(method, name))
        return super().getattr(tx, name)

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.kind is staticmethod:
            return self.parts[0].call(tx, args, kwargs)
        return super().call(tx, args, kwargs)

    def rebuild(self, emit: Emitter) -> str:
        parts = ", ".join(emit.value(part) for part in self.parts)
        return emit.bind(self, f"{emit.constant(self.kind)}({parts})")


def _is_abstract(tx: Interpreter, part: SymbolicValue) -> bool:
    described = part.own_attributes()
    mark = described.lookup(tx, "__isabstractmethod__") if described is not None else None
    return mark is not None and mark.truth(tx)


@final
class PropertyChange(RuledCallable):
    """`a_property.setter`, `.getter` or `.deleter`."""

    __slots__ = ("index", "owner")

    def __init__(self, owner: DescriptorValue, index: int) -> None:
        super().__init__()
        self.owner = owner
        self.index = index

    def m___call__(self, tx: Interpreter, function: SymbolicValue, /) -> SymbolicValue:
        parts = list(self.owner.parts)
        parts[self.index] = function
        return DescriptorValue(property, parts)


@constructor(property)
def _make_property(
    tx: Interpreter, cls: type, fget: SymbolicValue = NONE, fset: SymbolicValue = NONE,
    fdel: SymbolicValue = NONE, doc: SymbolicValue = NONE,
) -> SymbolicValue:
    return DescriptorValue(cls, [fget, fset, fdel, doc])


@constructor(staticmethod, classmethod, functools.cached_property)
def _make_other(tx: Interpreter, cls: type, function: SymbolicValue, /) -> SymbolicValue:
    return DescriptorValue(cls, [function])
