"""operator.itemgetter, attrgetter and methodcaller.

Place in the pipeline: a value family; a call does what the equivalent Python code in the library's
documentation does.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.methods import RuledCallable
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.classes.classes import constructor
from weft.capture.library.containers.sequences import TupleValue
from weft.quoting import keyword

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


def _item(tx: Interpreter, target: SymbolicValue, key: SymbolicValue) -> SymbolicValue:
    return target.getitem(tx, key)


def _attribute(tx: Interpreter, target: SymbolicValue, path: SymbolicValue) -> SymbolicValue:
    step = lambda value, name: value.getattr(tx, name)  # noqa: E731
    return functools.reduce(step, path.constant().split("."), target)


_READERS: Final[dict[type, Callable[[Any, SymbolicValue, SymbolicValue], SymbolicValue]]] = {
    operator.itemgetter: _item,
    operator.attrgetter: _attribute,
}


@final
class GetterValue(RuledCallable):
    """`itemgetter(*args)`, `attrgetter(*args)` or `methodcaller(*args, **kwargs)`."""

    __slots__ = ("args", "kind", "kwargs", "original")

    def __init__(
        self, kind: type, args: Args, kwargs: Kwargs, source: Source | None = None,
        original: Any = MISSING,
    ) -> None:
        super().__init__(source)
        self.kind = kind
        self.args = args
        self.kwargs = kwargs
        self.original = original

    def m___call__(self, tx: Interpreter, target: SymbolicValue, /) -> SymbolicValue:
        read = _READERS.get(self.kind)
        if read is None:
            return target.method(tx, self.args[0].constant(), self.args[1:], self.kwargs)
        parts = [read(tx, target, key) for key in self.args]
        return parts[0] if len(parts) == 1 else TupleValue(parts)

    def rebuild(self, emit: Emitter) -> str:
        parts = [emit.value(arg) for arg in self.args]
        parts += [keyword(name, emit.value(value)) for name, value in self.kwargs.items()]
        return emit.bind(self, f"{emit.constant(self.kind)}({', '.join(parts)})")


_KINDS: Final = (operator.itemgetter, operator.attrgetter, operator.methodcaller)


@constructor(*_KINDS)
def _make_getter(tx: Interpreter, cls: type, first: SymbolicValue, /, *args: SymbolicValue,
                 **kwargs: SymbolicValue) -> SymbolicValue:
    return GetterValue(cls, [first, *args], kwargs)


@wraps(*_KINDS)
def _wrap_getter(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """One from outside is guarded by identity: it cannot be changed, only replaced."""
    tx.guards.identity(source, obj)
    kind, args = obj.__reduce__()
    if isinstance(kind, functools.partial):  # a methodcaller with keywords
        named = {name: tx.wrap_new(value) for name, value in kind.keywords.items()}
        args = (*kind.args, *args)
    else:
        named = {}
    return GetterValue(type(obj), [tx.wrap_new(arg) for arg in args], named, source, obj)
