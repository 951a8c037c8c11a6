"""Python versions of C functions whose library has none that capture could interpret."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any


class Comparable:
    """What the function that `functools.cmp_to_key` makes gives for one object."""

    def __init__(self, compare: Callable[[Any, Any], int], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) < 0

    def __gt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) > 0

    def __le__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) <= 0

    def __ge__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) >= 0

    def __eq__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) == 0

    __hash__ = None  # type: ignore[assignment]


def cmp_to_key(mycmp: Callable[[Any, Any], int]) -> Callable[[Any], Any]:
    """functools.cmp_to_key"""
    return partial(Comparable, mycmp)


def count_elements(mapping: Any, iterable: Iterable[Any]) -> None:
    """What collections.Counter counts with."""
    mapping_get = mapping.get
    for element in iterable:
        mapping[element] = mapping_get(element, 0) + 1


def from_keys(cls: Any, iterable: Iterable[Any], value: Any = None) -> Any:
    """dict.fromkeys"""
    made = cls()
    for key in iterable:
        made[key] = value
    return made
