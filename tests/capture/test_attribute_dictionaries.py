"""Objects whose `__dict__` is another dictionary: configurations, shared state."""

from __future__ import annotations

from typing import Any

import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)


class Config(dict):  # type: ignore[type-arg]
    """A dictionary whose items are its attributes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.__dict__ = self


class Shared:
    """All instances have the same attributes."""

    state = {"count": 1}

    def __init__(self) -> None:
        self.__dict__ = self.state


def test_a_dictionary_that_is_its_own_namespace_is_made_inside() -> None:
    def f(x: Any) -> Any:
        made = Config(scale=x, shift=2)
        made.more = 5
        made["last"] = made.shift + 1
        return made.scale + made.last, sorted(made), made["more"], made, vars(made) is made

    check(f, (X,), breaks=0)


def test_a_dictionary_that_is_its_own_namespace_is_read_and_written() -> None:
    def f(x: Any, config: Any) -> Any:
        config.turn += 1
        config["name"] = "b"
        return x * config.scale + config["turn"], config.name, len(config)

    check(f, (X, Config(scale=3.0, turn=1, name="a")), breaks=0)


def test_instances_that_share_their_attributes() -> None:
    def f(x: Any) -> Any:
        one, other = Shared(), Shared()
        one.count = 3  # type: ignore[attr-defined]
        return x * other.count, one.__dict__ is other.__dict__, one is other  # type: ignore[attr-defined]

    check(f, (X,), breaks=0)


def test_the_hash_of_an_object_is_that_of_when_it_was_asked() -> None:
    def f(x: Any) -> Any:
        class Key:
            pass

        key = Key()
        before = hash(key)
        Key.__hash__ = lambda self: 42  # type: ignore[method-assign]
        between = hash(key)
        del Key.__hash__
        return x + 1, before == object.__hash__(key), between

    check(f, (X,), breaks=None)


class Plain:
    """An object with a dictionary of its own."""


def test_a_dictionary_of_an_object_made_inside_stays_its_own_across_a_break() -> None:
    def f(x: Any) -> Any:
        made = Plain()
        names = made.__dict__
        print(end="")
        names["scale"] = x
        return made.scale + 1, names is vars(made), made  # type: ignore[attr-defined]

    check(f, (X,), breaks=1)


def test_a_dictionary_of_an_object_made_inside_is_returned_with_it() -> None:
    @weft.compile(backend="eager")
    def f(x: Any) -> Any:
        made = Plain()
        made.__dict__.update(first=x + 1)
        return made, vars(made)

    made, names = f(X)
    names["second"] = 2
    assert made.second == 2 and made.first is names["first"]


class Counting(int):
    """A number that counts how often it is hashed."""

    times = 0

    def __hash__(self) -> int:
        type(self).times += 1
        return int(self)


class Deleting:
    """A key that deletes an attribute of a class when it is compared."""

    def __hash__(self) -> int:
        return hash("scale")

    def __eq__(self, other: object) -> bool:
        Plain.scale = 3  # type: ignore[attr-defined]
        return False


def test_keys_are_hashed_and_compared_by_the_program_alone() -> None:
    def f(x: Any) -> Any:
        keys = dict.fromkeys(map(Counting, range(3)))
        print(end="")
        other = dict.fromkeys(set(keys))
        return x + len(other), Counting.times

    def g(x: Any, obj: Any) -> Any:
        return x * obj.scale, Plain.scale  # type: ignore[attr-defined]

    for function in (f, weft.compile(f, backend="eager")):
        Counting.times = 0
        assert function(X)[1] == 3
    for function in (g, weft.compile(g, backend="eager")):
        Plain.scale = 2  # type: ignore[attr-defined]
        made = Plain()
        made.__dict__[Deleting()] = 0  # type: ignore[index]
        Plain.scale = 2  # type: ignore[attr-defined]
        assert function(X, made)[1] == 3
    del Plain.scale  # type: ignore[attr-defined]
