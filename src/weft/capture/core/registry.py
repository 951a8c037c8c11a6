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

Wrapper = Callable[["Interpreter", Any, Source | None], "SymbolicValue"]

EXACT: dict[type, Wrapper] = {}
"""Types whose subclasses need another treatment (list, dict, int, ...)."""

DERIVED: dict[type, Wrapper] = {}
"""Types whose subclasses are treated alike (torch.Tensor, nn.Module, type, object)."""

IDENTITY: dict[int, tuple[Any, Callable[[], SymbolicValue]]] = {}
"""Single objects with a value of their own, by id."""

BY_NAME: dict[str, Wrapper] = {}
"""Types of modules that are not imported before the program does, by qualified name."""

_found: dict[type, Wrapper] = {}


def wraps(*types: type, subclasses: bool = False) -> Callable[[Wrapper], Wrapper]:
    """Register the wrapper of some types."""

    def register(wrapper: Wrapper) -> Wrapper:
        table = DERIVED if subclasses else EXACT
        for kind in types:
            table[kind] = wrapper
        return wrapper

    return register


def wraps_named(*names: str) -> Callable[[Wrapper], Wrapper]:
    """As `wraps`, for types that cannot be named without importing their modules."""

    def register(wrapper: Wrapper) -> Wrapper:
        BY_NAME.update(dict.fromkeys(names, wrapper))
        return wrapper

    return register


def wrapper_of(kind: type) -> Wrapper:
    """The wrapper for objects of exactly this type."""
    wrapper = _found.get(kind)
    if wrapper is None:
        wrapper = _found[kind] = _search(kind)
    return wrapper


def _search(kind: type) -> Wrapper:
    exact = EXACT.get(kind) or BY_NAME.get(f"{kind.__module__}.{kind.__qualname__}")
    if exact is not None:
        return exact
    return next(DERIVED[base] for base in kind.__mro__ if base in DERIVED)
