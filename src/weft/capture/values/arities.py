"""How many arguments C functions and types take, and under which names.

Place in the pipeline: asked before a rule of `handlers/` is applied. A call that does not fit is
Python's to refuse, with its own words: the graph ends there::

    fits(enumerate, 1, ["start"])     # True
    fits(enumerate, 1, ["begin"])     # False
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, final


@final
@dataclass(frozen=True, slots=True)
class Arity:
    """What a callable accepts."""

    least: int
    most: float
    """Positional arguments, given as such or by name."""
    names: dict[str, int]
    """Parameters that may be given by name: their positions, -1 of those given by name only."""
    required: frozenset[str]
    """Those without a default that may be given by name."""
    any_name: bool


_Stub = Callable[..., Any]

_STUBS: Final[dict[Any, _Stub]] = {
    filter: lambda function, iterable, /: None,
    itertools.filterfalse: lambda function, iterable, /: None,
    map: lambda function, iterable, /, *iterables: None,
    zip: lambda *iterables, strict=False: None,
    reversed: lambda sequence, /: None,
    enumerate: lambda iterable, start=0: None,
    itertools.chain: lambda *iterables: None,
    itertools.islice: lambda iterable, stop, step=1, more=1, /: None,
    itertools.product: lambda *iterables, repeat=1: None,
    itertools.repeat: lambda object, times=0: None,
    itertools.zip_longest: lambda *iterables, fillvalue=None: None,
    itertools.starmap: lambda function, iterable, /: None,
    itertools.takewhile: lambda predicate, iterable, /: None,
    itertools.dropwhile: lambda predicate, iterable, /: None,
    functools.partial: lambda function, /, *args, **kwargs: None,
    iter: lambda iterable, sentinel=None, /: None,
    next: lambda iterator, default=None, /: None,
    getattr: lambda object, name, default=None, /: None,
    min: lambda first, /, *more, key=None, default=None: None,
    max: lambda first, /, *more, key=None, default=None: None,
}
"""Signatures of what has none to be inspected."""

_HOMES: Final = ("builtins", "itertools", "functools", "_functools", "operator", "_operator",
                 "math", "collections", "_collections")


def fits(function: Any, count: int, names: Collection[str]) -> bool:
    """Whether a call with so many positional arguments, and these by name, is accepted as far as
    is known."""
    arity = arity_of(function)
    if arity is None:
        return True
    if not arity.least <= count + len(names) or count > arity.most:
        return False
    if not names:
        return True
    known = arity.any_name or all(name in arity.names for name in names)
    twice = any(0 <= arity.names.get(name, -1) < count for name in names)
    missing = any(name not in names and arity.names[name] >= count for name in arity.required)
    return known and not twice and not missing


@functools.cache
def arity_of(function: Any) -> Arity | None:
    """What a C function of Python's own libraries accepts; None: that is not known."""
    stub = _STUBS.get(function)
    if stub is None and getattr(function, "__module__", None) not in _HOMES:
        return None
    try:
        signature = inspect.signature(function if stub is None else stub)
    except (TypeError, ValueError):
        return None
    return _read(list(signature.parameters.values()))


def _read(parameters: list[inspect.Parameter]) -> Arity:
    kinds = inspect.Parameter
    places = [p for p in parameters
              if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    names = {p.name: n for n, p in enumerate(places) if p.kind is not kinds.POSITIONAL_ONLY}
    names |= {p.name: -1 for p in parameters if p.kind is kinds.KEYWORD_ONLY}
    many = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    return Arity(
        least=sum(p.default is p.empty for p in places),
        most=float("inf") if many else len(places),
        names=names,
        required=frozenset(p.name for p in places if p.default is p.empty and p.name in names),
        any_name=any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )
