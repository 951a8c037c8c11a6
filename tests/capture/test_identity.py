"""What is told apart by identity: entries made for different objects are for those only."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import weft

X = torch.zeros(1)


class Mark:
    pass


class Never:
    """Equal to nothing, which containers do not ask an object about itself."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__


def equality(x: Any, a: Any, b: Any) -> Any:
    return x + (a == b) + 10 * (a != b)


def membership(x: Any, a: Any, b: Any) -> Any:
    return x + (a in (b, None)) + 10 * (a in {b}) + 100 * ([a] == [b]) + [a].count(b)


def keys(x: Any, a: Any, b: Any) -> Any:
    made = {a: 1}
    made[b] = 2
    return x + made[a] + 10 * len(made) + {(a, 1): 100}.get((b, 1), 0)


def sets(x: Any, a: Any, b: Any) -> Any:
    return x + len({a, b}) + 10 * len({a} | {b}) + 100 * ({a} == {b}) + 1000 * ({a} <= {b})


def numbers(x: Any, a: Any, b: Any) -> Any:
    return x + (id(a) == id(b)) + 10 * (id(a) in {id(b)})


def methods(x: Any, a: Any, b: Any) -> Any:
    return x + (a.__repr__ == b.__repr__) + 10 * (a is b)


@pytest.mark.parametrize("function", [equality, membership, keys, sets, numbers, methods])
@pytest.mark.parametrize("kind", [Mark, Never, nn.Identity])
def test_two_objects_and_then_one(function: Callable[..., Any], kind: Any) -> None:
    a, b = kind(), kind()
    compiled = weft.compile(function, backend="eager")
    for pair in ((a, b), (a, a), (b, a), (b, b)):
        assert compiled(X, *pair) == function(X, *pair)


def test_many_keys_of_a_set() -> None:
    def f(x: Any, marks: list[Any]) -> Any:
        return x + len(set(marks))

    marks = [Mark() for _ in range(40)]
    compiled = weft.compile(f, backend="eager")
    for at in (0, 7, 7, 38):
        assert compiled(X, [*marks[:39], marks[at]]) == f(X, [*marks[:39], marks[at]])
        assert compiled(X, marks) == 40


def read(x: Any, known: dict[Any, int], key: Any) -> Any:
    return x + known.get(key, 7)


def write(x: Any, known: dict[Any, int], key: Any) -> Any:
    known[key] = 5
    return x + len(known)


def remove(x: Any, known: dict[Any, int], key: Any) -> Any:
    known.pop(key, None)
    return x + len(known)


def set_default(x: Any, known: dict[Any, int], key: Any) -> Any:
    return x + known.setdefault(key, 9) + (key in known.keys())


def copy(x: Any, known: dict[Any, int], key: Any) -> Any:
    return x + (key in set(known)) + 10 * len([*known]) + known.get((key, 1), 3)


def search(x: Any, known: dict[Any, int], key: Any) -> Any:
    return x + sum(value for each, value in known.items() if each is key)


def a_function() -> Any:
    return lambda: 1


@pytest.mark.parametrize("function", [read, write, remove, set_default, copy, search])
@pytest.mark.parametrize("kind", [Mark, nn.Identity, object, a_function,
                                  lambda: nn.Parameter(torch.ones(2)), partial(partial, len)])
def test_another_key_of_an_outside_dictionary(function: Callable[..., Any], kind: Any) -> None:
    first, second, third = kind(), kind(), kind()
    compiled = weft.compile(function, backend="eager")
    for key in (third, second, first, third):
        ours, eager = {first: 1, second: 2}, {first: 1, second: 2}
        assert compiled(X, ours, key) == function(X, eager, key)
        assert list(map(id, ours)) == list(map(id, eager))
        assert list(ours.values()) == list(eager.values())


def test_an_outside_set_and_another_item() -> None:
    def f(x: Any, known: set[Any], key: Any) -> Any:
        found = key in known
        known.discard(key)
        return x + found + 10 * len(known)

    first, second, third = Mark(), Mark(), Mark()
    compiled = weft.compile(f, backend="eager")
    for key in (third, second, first, third):
        assert compiled(X, {first, second}, key) == f(X, {first, second}, key)


def test_new_keys_of_an_outside_dictionary_are_one_entry() -> None:
    def f(x: Any, known: dict[Any, int], key: Any) -> Any:
        if key not in known:
            known[key] = 1
        return x + 1

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    known = {"a": 0}
    for _ in range(3):
        assert compiled(X, dict(known), Mark()) == 1
    assert weft.stats()["recompiles"] == 0


def test_an_empty_tuple_is_itself() -> None:
    def f(x: Any, *rest: Any) -> Any:
        return x + (rest is tuple([]))

    assert weft.compile(f, backend="eager")(X) == 1


def test_other_keys_of_a_weak_dictionary() -> None:
    known: Any = weakref.WeakKeyDictionary()

    def f(x: Any, key: Any) -> Any:
        if key in known:
            return x * known[key]
        known[key] = 3
        return x * 100

    first, second, third = Mark(), Mark(), Mark()
    known[first] = 2
    compiled = weft.compile(f, backend="eager")
    assert [int(compiled(X + 1, key)) for key in (first, second, second, third, first)] == [
        2, 100, 3, 100, 2]
    assert len(known) == 3


def test_a_number_that_is_no_number_is_itself() -> None:
    def f(x: Any, a: float, b: float) -> Any:
        found = [[a] == [b], a in [b], a in (a,), a is b, (a,) == (a,), [a].count(b), a == a]
        return x, found, {a: 1}.get(b)

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    one, other = float("nan"), float("nan")
    for a, b in ((one, one), (one, other), (other, other), (one, one)):
        assert compiled(X, a, b)[1:] == f(X, a, b)[1:]


def test_copies_of_objects_that_were_different_once_are_one_where_they_are_the_same() -> None:
    def f(items: Any) -> Any:
        made = deepcopy(items)
        made[0].append(9)
        return made

    compiled = weft.compile(f, backend="eager")
    shared = [X + 1]
    for items in ([shared, [X + 1]], [shared, shared], [shared, [X + 1]]):
        assert [*map(len, compiled(items))] == [*map(len, f(items))]


class Tree:
    """Copied by a method that hands its memo on, and looks into it."""

    def __init__(self, value: Any, parent: Any = None) -> None:
        self.value, self.parent, self.children = value, parent, []

    def __deepcopy__(self, memo: Any) -> Any:
        assert id(self) not in memo
        made = memo[id(self)] = Tree(self.value * 2)
        made.parent = deepcopy(self.parent, memo)
        made.children = [deepcopy(child, memo) for child in self.children]
        made.seen = memo.get(id(self.parent)) is made.parent
        return made


def test_a_memo_that_is_handed_on_by_deepcopy_methods_is_followed() -> None:
    def f(x: Any, outside: Any) -> Any:
        root = Tree(x)
        root.children = [Tree(x + 1, root), outside]
        made = deepcopy([root, root, outside])
        (child, other), seen = made[0].children, made[0].children[0].seen
        return made[1] is made[0], child.parent is made[0], other is made[2], seen, child.value

    weft.reset()
    compiled = weft.compile(f, backend="eager", fullgraph=True)
    for number in (1, 2):
        result = compiled(X + number, Tree(X))
        assert result[:4] == (True, True, True, True)
        assert result[4] == (number + 1) * 2
