"""Marks for what stored entries may contain of weft's own: its state means the same in any process.

Place in the pipeline: the bottom. Entries on disk (`store/`) hold objects of marked classes as
their fields, and functions that marked functions make as their variables. What has state of one
process (an address, a counter of this interpreter, a cache) is not marked; it may say by `remade`
how another process makes it::

    @storable
    def starts_at(offset):              # the function inside is stored as 'offset = 4'
        return lambda tensor: tensor.storage_offset() == offset
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final, runtime_checkable
from weakref import WeakKeyDictionary

T = TypeVar("T", bound=Callable[..., Any])

_marked: Final[dict[int, object]] = {}


def storable(marked: T) -> T:
    """Mark a class, or a function that makes functions."""
    _marked[id(marked)] = marked
    return marked


def is_storable(obj: object) -> bool:
    """Whether the class or function is marked."""
    return id(obj) in _marked


@runtime_checkable
class Remade(Protocol):
    """An object that another process makes by a call."""

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A function of a module of weft, and the arguments with which it makes the same."""


@runtime_checkable
class CompiledLater(Remade, Protocol):
    """An object that compiles a graph when it is asked to, the first argument of `remade`."""

    on_disk: Any
    """Where what is compiled is kept."""


@final
class Making(NamedTuple):
    """A function of a module of weft, and the arguments with which it makes a callable."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


_makings: Final[WeakKeyDictionary[Callable[..., Any], Making]] = WeakKeyDictionary()


def made_by(made: T, function: Callable[..., Any], *arguments: Any) -> T:
    """Note that another process makes this callable by `function(*arguments)`."""
    _makings[made] = Making(function, arguments)
    return made


def how_made(call: Callable[..., Any]) -> Making | None:
    """What makes the callable in another process, if that was noted."""
    return _makings.get(call)
