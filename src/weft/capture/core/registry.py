"""Which value family stands for which Python type.

Place in the pipeline: under the interpreter's `wrap`. Each family registers its types beside its
class::

    @wraps(list)
    def wrap_list(tx, obj, source): ...

Lookup follows the MRO, so a subclass without an entry uses its base's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from weft.capture.core.source import Source

if TYPE_CHECKING:
    from weft.capture.core.base import SymbolicValue
    from weft.capture.core.protocols import Interpreter

Wrap = Callable[["Interpreter", Any, Source | None], "SymbolicValue"]
"""(interpreter, object, where it comes from) -> its value."""

EXACT: dict[type, Wrap] = {}
"""Types whose subclasses need another treatment (list, dict, int, ...)."""

DERIVED: dict[type, Wrap] = {}
"""Types whose subclasses are treated alike (torch.Tensor, nn.Module, type, object)."""

IDENTITY: dict[int, tuple[Any, Callable[[], SymbolicValue]]] = {}
"""Single objects with a value of their own, by id."""

BY_NAME: dict[str, Wrap] = {}
"""Types of modules that are not imported before the program does, by qualified name."""

_by_type: dict[type, Wrap] = {}


def wraps(*types: type, subclasses: bool = False) -> Callable[[Wrap], Wrap]:
    """Register the function that makes the values of some types' objects."""

    def register(wrap: Wrap) -> Wrap:
        table = DERIVED if subclasses else EXACT
        for kind in types:
            table[kind] = wrap
        return wrap

    return register


def wraps_named(*names: str) -> Callable[[Wrap], Wrap]:
    """As `wraps`, for types that cannot be named without importing their modules."""

    def register(wrap: Wrap) -> Wrap:
        BY_NAME.update(dict.fromkeys(names, wrap))
        return wrap

    return register


def wrap_of(kind: type) -> Wrap:
    """The function that makes the value of an object of exactly this type."""
    wrap = _by_type.get(kind)
    if wrap is None:
        wrap = _by_type[kind] = _search(kind)
    return wrap


def _search(kind: type) -> Wrap:
    exact = EXACT.get(kind) or BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
    if exact is not None:
        return exact
    return next(DERIVED[base] for base in kind.__mro__ if base in DERIVED)
