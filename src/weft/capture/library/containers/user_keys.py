"""Dictionary keys that are instances of classes with a `__hash__` of their own.

Place in the pipeline: under `objects`. A `UserKey` stands for such an object in the dictionaries of
capture: its hash and equality interpret the class's `__hash__` and `__eq__`. The replacement calls
these methods again when it fills the real dictionary, so they must not change anything. Containers
from outside with such keys are left to Python.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, TypeVar, final

from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import python_object
from weft.capture.core.source import is_library
from weft.capture.library.numbers.identities import RunTimeNumber

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter
    from weft.capture.library.classes.instances import ObjectValue

T = TypeVar("T")


def user_key(tx: Interpreter, value: ObjectValue) -> UserKey:
    """The key that stands for `value`, whose class defines `__hash__`."""
    hasher = value.special(tx, "__hash__")
    assert hasher is not None
    hasher.call(tx, [], {})  # it may keep what it computed: the second call must find all done
    number = _without_effects(tx, [value], lambda: hasher.call(tx, [], {}))
    if isinstance(number, RunTimeNumber):  # made of the address of an object made inside
        return UserKey(tx, value, hash(number.dict_key(tx)), exact=False)
    hashed = python_object(tx, number)
    if hashed is MISSING:
        raise graph_break("unknown-operation", f"a hash that is {number!r}")
    if not isinstance(hashed, int):
        raise tx.error(TypeError, "__hash__ method should return an integer")
    return UserKey(tx, value, hashed, exact=True)


def _without_effects(tx: Interpreter, values: list[ObjectValue], call: Callable[[], T]) -> T:
    """The result of `call`; a break if it changed something, also one of `values`."""
    touches, states = tx.effects.n_touches, [_state(tx, value) for value in values]
    result = call()
    if tx.effects.n_touches != touches or states != [_state(tx, value) for value in values]:
        raise graph_break("unknown-operation", f"{values[0]!r} as a dictionary key: its __hash__ "
                          "or __eq__ changes something")
    return result


def _state(tx: Interpreter, value: ObjectValue) -> tuple[int, ...]:
    parts = [part for _, part in value.attributes.complete(tx).values()]
    return tuple(map(id, (*parts, *value.slots.values())))


@final
class UserKey:
    """An object as a key; `exact`: its hash is the one that the real object will have."""

    __slots__ = ("exact", "number", "state", "tx", "value")

    def __init__(self, tx: Interpreter, value: ObjectValue, number: int, *, exact: bool) -> None:
        self.tx = tx
        self.value = value
        self.number = number
        self.exact = exact
        self.state = _state(tx, value)

    def check(self) -> None:
        """Check that the object's hash did not change: the replacement hashes it again."""
        if self.state != _state(self.tx, self.value):
            raise graph_break("unknown-operation", "a dictionary key that was changed")

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, UserKey):
            return self._equals([self.value], self.tx.wrap_new(other))
        return self._equals([self.value, other.value], other.value)

    def _equals(self, values: list[ObjectValue], other: SymbolicValue) -> bool:
        return _without_effects(self.tx, values, lambda: self.tx.equal(self.value, other))

    def __repr__(self) -> str:
        return f"key {self.value!r}"


def has_real_hash(key: object) -> bool:
    """Whether a key's hash is that of the object that it stands for."""
    if isinstance(key, tuple):
        return all(map(has_real_hash, key))
    if isinstance(key, UserKey):
        return key.exact
    return isinstance(key, (int, float, str, bytes, complex, type(None)))


def is_compared_by_code(cls: type) -> bool:
    """Whether the program defines the equality or the hash of the class's instances in Python."""
    methods = (getattr(cls, name, None) for name in ("__eq__", "__hash__"))
    return any(isinstance(m, FunctionType) and not is_library(m.__module__) for m in methods)
