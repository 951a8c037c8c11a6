"""What the captures of one code object have seen: sizes, numbers and functions, by name.

Place in the pipeline: kept by a `DynamicPolicy` (`policy.py`), which decides what follows::

    seen = SeenValues()
    seen.note_sizes("x", (8, 128)); seen.note_sizes("x", (16, 128))
    seen.changed_dimensions("x"), seen.history("x", 0, 16)      # {0}, (8, 16)
"""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any, final


@final
class SeenValues:
    """The last values, and which of them have changed."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._sizes_before: dict[str, tuple[int, ...]] = {}
        self._changed_dimensions: dict[str, set[int]] = {}
        self._numbers: dict[str, int | float] = {}
        self._changed_numbers: set[str] = set()
        self._settings: set[str] = set()
        """Names of integers that are attributes of objects."""
        self._functions: dict[str, weakref.ref[FunctionType]] = {}
        self._replaced_functions: set[str] = set()

    def note_sizes(self, name: str, sizes: tuple[int, ...]) -> None:
        """Remember the sizes of a tensor; what was known of one of another rank is forgotten."""
        last = self._sizes.get(name)
        if last == sizes:
            return
        if last is not None and len(last) == len(sizes):
            differs = {d for d, (a, b) in enumerate(zip(last, sizes, strict=True)) if a != b}
            self._changed_dimensions.setdefault(name, set()).update(differs)
            self._sizes_before[name] = last
        else:
            self._changed_dimensions.pop(name, None)
            self._sizes_before.pop(name, None)
        self._sizes[name] = sizes

    def changed_dimensions(self, name: str) -> set[int]:
        """The dimensions that have had several sizes."""
        return self._changed_dimensions.get(name, set())

    def history(self, name: str, d: int, size: int) -> tuple[int, ...]:
        """The sizes of a dimension before it changed last, if it did, and now."""
        before = self._sizes_before.get(name)
        return (size,) if before is None else (before[d], size)

    def note_number(self, name: str, value: int | float, *, is_setting: bool = False) -> None:
        """Remember a number, which may be a setting of an object; another type counts as a change.
        """
        if is_setting:
            self._settings.add(name)
        last = self._numbers.setdefault(name, value)
        if type(last) is not type(value) or (last != value and last == last):
            self._changed_numbers.add(name)
        self._numbers[name] = value

    def knows_number(self, name: str) -> bool:
        """Whether a number of that name was ever remembered."""
        return name in self._numbers

    def has_changed(self, name: str) -> bool:
        """Whether a number has had several values."""
        return name in self._changed_numbers

    def note_function(self, name: str, function: FunctionType) -> None:
        """Remember a function, but keep it not alive."""
        last = self._functions.get(name)
        if last is not None and last() is not function:
            self._replaced_functions.add(name)
        self._functions[name] = weakref.ref(function)

    def was_replaced(self, name: str) -> bool:
        """Whether there have been several functions of that name."""
        return name in self._replaced_functions

    def for_another_object(self, *, sizes: bool) -> SeenValues:
        """What holds of equal code of another object, whose settings are others for good; so are
        its sizes, unless they are said to be the same."""
        seen = SeenValues()
        seen._numbers = {n: v for n, v in self._numbers.items() if n not in self._settings}
        seen._changed_numbers = self._changed_numbers - self._settings
        seen._functions = dict(self._functions)
        seen._replaced_functions = set(self._replaced_functions)
        if sizes:
            seen._sizes, seen._sizes_before = dict(self._sizes), dict(self._sizes_before)
            seen._changed_dimensions = {n: set(d) for n, d in self._changed_dimensions.items()}
        return seen

    def as_data(self) -> list[list[Any]]:
        """The last sizes and numbers, as plain data."""
        return [[name, list(sizes)] for name, sizes in self._sizes.items()] + [
            [name, value] for name, value in self._numbers.items()]
