"""Which arguments a Python function accepts: how many, and under which names.

Place in the pipeline: the bottom. A rule has the parameters of what it stands for; whoever applies
it asks first whether the arguments fit, from the function's signature, which is read once::

    def rule(x, dims, keepdim=False): ...

    arity(rule).accepts(2, ["keepdim"])     # True
    arity(rule).accepts(1, [])              # False
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, final

_KINDS: Final = inspect.Parameter
_PLACES: Final = (_KINDS.POSITIONAL_ONLY, _KINDS.POSITIONAL_OR_KEYWORD)
_NAMED: Final = (_KINDS.POSITIONAL_OR_KEYWORD, _KINDS.KEYWORD_ONLY)
_NO_PLACE: Final = float("inf")


@final
@dataclass(frozen=True, slots=True)
class Arity:
    """The arguments that a callable accepts."""

    least: int
    most: float
    """The number of positional arguments, passed by position or by name."""
    names: dict[str, float]
    """Parameters that may be passed by name, with their positions."""
    required: frozenset[str]
    """Those among them without a default."""
    any_name: bool
    needs_names: bool
    """Whether there are keyword-only parameters without a default."""

    def accepts(self, count: int, names: Collection[str]) -> bool:
        """Whether `count` positional arguments and these keywords fit."""
        if not names:
            return self.least <= count <= self.most and not self.needs_names
        if count > self.most or count + len(names) < self.least:
            return False
        known = self.any_name or all(name in self.names for name in names)
        twice = any(self.names.get(name, _NO_PLACE) < count for name in names)
        missing = any(self.names[name] >= count and name not in names for name in self.required)
        by_place = self.least - sum(self.names[name] < _NO_PLACE for name in self.required)
        return known and not twice and not missing and count >= by_place


@functools.cache
def arity(function: Callable[..., object], first: int = 0) -> Arity:
    """What a function accepts behind its `first` parameters."""
    parameters = [p for n, p in enumerate(inspect.signature(function).parameters.values())
                  if n >= first or p.kind not in _PLACES]
    places = [p for p in parameters if p.kind in _PLACES]
    named = [p for p in parameters if p.kind in _NAMED]
    return Arity(
        least=sum(p.default is p.empty for p in places),
        most=_NO_PLACE if any(p.kind is _KINDS.VAR_POSITIONAL for p in parameters) else len(places),
        names={p.name: places.index(p) if p in places else _NO_PLACE for p in named},
        required=frozenset(p.name for p in named if p.default is p.empty),
        any_name=any(p.kind is _KINDS.VAR_KEYWORD for p in parameters),
        needs_names=any(p.kind is _KINDS.KEYWORD_ONLY and p.default is p.empty for p in named),
    )
