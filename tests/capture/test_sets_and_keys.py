"""The order of sets, and dictionary keys that the program's classes compare."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)


def set_program(seed: int) -> str:
    """The text of a function that makes sets in all ways and lists them."""
    rng = random.Random(seed)
    element = rng.choice([lambda: f"v{rng.randint(0, 60)}", lambda: rng.randint(0, 300)])

    def some() -> str:
        return repr([element() for _ in range(rng.randint(0, 14))])

    lines, names = ["def f(x, given):", " out = []", " s0 = given | set()"], ["s0", "given"]
    for index in range(1, rng.randint(4, 9)):
        name, old, other = f"s{index}", rng.choice(names), rng.choice(names)
        changed = rng.choice(["s0", *(n for n in names if n != "given")])
        operator, method = rng.choice("|&-^"), rng.choice(
            ["union", "intersection", "difference", "symmetric_difference"])
        lines.append(" " + rng.choice([
            f"{name} = set({some()})", f"{name} = {{y for y in {some()}}}",
            f"{name} = set({old})", f"{name} = {old}.copy()", f"{name} = {old} {operator} {other}",
            f"{name} = {old}.{method}({some()})", f"{name} = set(dict.fromkeys({some()}))",
            f"{name} = {changed}; {name}.update({some()}, {other})",
            f"{name} = {changed}\n for y in {some()}: {name}.discard(y)",
            f"{name} = {changed}; {name} {operator}= {other}",
            f"{name} = {changed}\n if len({name}) > 1: out.append({name}.pop())",
        ]))
        names.append(name)
        lines.append(f" out.append(list({name}))")
    return "\n".join([*lines, " return x + len(out), out"])


@pytest.mark.parametrize("seed", range(12))
def test_sets_made_inside_have_the_order_of_real_ones(seed: int) -> None:
    for number in range(8):
        names: dict[str, Any] = {}
        text = set_program(8 * seed + number)
        exec(text, names)
        given = set(random.Random(seed).sample(range(200), 9))
        expected = names["f"](X, set(given))
        weft.reset()
        compiled = weft.compile(names["f"], backend="eager")
        assert compiled(X, set(given))[1] == expected[1], text
        assert compiled(X, set(given))[1] == expected[1], text


def test_an_outside_set_in_another_order_is_another_program() -> None:
    def first(x: torch.Tensor, names: set[int]) -> Any:
        return x + next(iter(names)), list(names)

    compiled = weft.compile(first, backend="eager")
    for given in ({8, 0}, {0, 8}, {8, 0}):
        shown = compiled(X, given)
        assert shown[1] == list(given)
        assert shown[0][0] == 1 + list(given)[0]


class Wrapped:
    """Equal by the identity of what it holds, as libraries write it."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __hash__(self) -> int:
        return id(self.held)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wrapped) and self.held is other.held


class Named:
    def __init__(self, name: Any) -> None:
        self.name, self.known = name, None

    def __hash__(self) -> int:
        if self.known is None:
            self.known = hash(self.name)
        return self.known

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.name == other.name


class Counted(Named):
    def __init__(self, name: Any) -> None:
        super().__init__(name)
        self.times = 0

    def __hash__(self) -> int:
        self.times += 1
        return hash(self.name)


class Unhashable(Named):
    def __hash__(self) -> int:
        return "text"  # type: ignore[return-value]  # noqa: PLE0309


@dataclass(frozen=True)
class Point:
    x: int
    y: str = "y"


class Plain:
    pass


OUTSIDE = {Named("a"): 1.0, Named("b"): 2.0}


def by_name(x: torch.Tensor) -> Any:
    found = {Named("a"): x, Named("b"): x + 1}
    found[Named("a")] = x * 3
    return found[Named("a")] + found[Named("b")], len(found), Named("c") in found


def by_what_is_held(x: torch.Tensor) -> Any:
    one, two = Plain(), Plain()
    found = {Wrapped(one): x}
    found[Wrapped(two)] = x * 2
    return found[Wrapped(one)], len(found), Wrapped(Plain()) in found, {Wrapped(one), Wrapped(one)}


def returned(x: torch.Tensor) -> Any:
    found = {Named("a"): x, Point(1): x + 1}
    return len(found), [(type(key).__name__, vars(key)) for key in found], found


def in_a_set(x: torch.Tensor) -> Any:
    many = {Named(str(i % 15)) for i in range(40)} | {Point(7 * i) for i in range(20)}
    many.discard(Named("3"))
    return x, [key.name if isinstance(key, Named) else key.x for key in many]


def wrong_hash(x: torch.Tensor) -> Any:
    try:
        return {Unhashable("a"): x}
    except TypeError as error:
        return x, str(error)


@pytest.mark.parametrize("function", [by_name, by_what_is_held, returned, in_a_set, wrong_hash])
def test_keys_that_the_program_compares(function: Any) -> None:
    expected = function(X)
    compiled = weft.compile(function, backend="eager", fullgraph=True)
    for _ in range(2):
        shown = compiled(X)
        assert len(shown) == len(expected)
        for ours, eager in zip(shown, expected, strict=True):
            if isinstance(eager, dict):
                assert list(map(vars, ours)) == list(map(vars, eager))
            elif not isinstance(eager, set):
                assert torch.equal(torch.as_tensor(ours), torch.as_tensor(eager)) if isinstance(
                    eager, torch.Tensor) else ours == eager


def test_keys_whose_hash_changes_them_are_left_to_python() -> None:
    def count(x: torch.Tensor) -> Any:
        key = Counted("a")
        found = {key: x}
        return found[key] * key.times, key.times

    check(count, (X,), breaks=None)


def test_keys_of_outside_dictionaries_are_compared_by_python() -> None:
    check(lambda x: (x * OUTSIDE[Named("a")], Named("c") in OUTSIDE), (X,), breaks=None)


class ClassProperty:
    def __init__(self, function: Any) -> None:
        self.function = classmethod(function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.function.__get__(instance, owner or type(instance))()


class Owner:
    size = 3

    @ClassProperty
    def double(cls: Any) -> int:
        return cls.size * 2

    @staticmethod
    def triple(x: Any) -> Any:
        return x * 3


def test_descriptors_called_by_the_program() -> None:
    def f(x: torch.Tensor) -> Any:
        plus = staticmethod(lambda y: y + 1)
        five = property(lambda owner: owner.size + 2)
        triple = Owner.__dict__["triple"]
        return (x * Owner.double + Owner().double, plus(x), plus.__get__(None, Owner)(x),
                five.__get__(Owner()), five.__get__(None, Owner) is five, triple(x))

    check(f, (X,), graphs=1, breaks=0)


def test_frozensets_of_constants_and_deep_copies_keep_the_order_of_their_tables():
    """Frozensets came in the order of a set filled anew, deep copies in that of insertion."""
    def f(x):
        first, second = frozenset((381, 98, 16, 8)), frozenset(range(0, 400, 31))
        made = {8, 16}
        made.add(0)
        made.discard(16)
        made.add(24)
        return x + 1, str(first | second), list(second - first), list(copy.deepcopy(made))

    check(f, (torch.ones(1),), graphs=1)


def test_sets_made_of_outside_sets_have_the_order_of_this_call():
    """Another set with equal items gave its unions the order that the first call's had."""
    def f(x, items):
        return x + 1, list(items | {1}), list(set(items)), 8 in (items - {3})

    check(f, (X, {8, 0}), (X, {0, 8}), (X, {8, 0}))


def test_operators_of_outside_sets_ask_again_whether_they_hold_an_object():
    """Only `update` guarded which objects an outside set holds: `s - {o}` had the first call's
    size for an object that the set held in a later call."""
    def f(x, held, o):
        local = {o}
        local.update(held)
        sizes = len(held - {o}), len(held.union([o])), held >= {o}, held.isdisjoint([o])
        held |= {o}
        return x + 1, sizes, len(held), len(local)

    inside, outside = Owner(), Owner()
    compiled = weft.compile(f, backend="eager")
    for o in (outside, inside, outside):
        assert compiled(X, {inside, "a"}, o)[1:] == f(X, {inside, "a"}, o)[1:]


def test_an_update_by_an_outside_set_does_not_depend_on_its_order():
    """Sets with equal items in another order were captured again."""
    def f(x, items):
        local = {1}
        local.update(items)
        return x + len(local)

    check(f, (X, {8, 0}), (X, {0, 8}), graphs=1)


class Naming:
    """Its text is that of a container that may hold it."""

    value: Any = None

    def __repr__(self) -> str:
        return repr(self.value)


def test_a_set_that_holds_an_object_that_holds_the_set():
    """It was made twice: the object's attribute was another set than the variable."""
    def f(x, kind):
        item = Naming()
        held = kind([item])
        item.value = held
        print(end="")
        return x + 1, item.value is held, repr(held)

    check(f, (X, set), (X, frozenset), (X, tuple), breaks=None)


def test_key_that_an_intersection_takes_from_the_other_set():
    def f(x, one, other):
        items = {one, "k", 1}
        items &= {other, "k", 1.0}
        return x, items.union(["m"]), items | {5}

    check(f, (X, "".join(["lon", "ger"]), "".join(["longe", "r"])), breaks=0)


class Clearing:
    """Its comparison empties a dictionary."""

    def __init__(self, other: dict[Any, int]) -> None:
        self.other = other

    def __hash__(self) -> int:
        return 0

    def __eq__(self, value: object) -> bool:
        self.other.clear()
        return False


def test_a_dictionary_that_changes_while_it_updates_another():
    """No RuntimeError was raised."""
    def f(x):
        other: dict[Any, int] = {1: 0, 2: 0}
        other[Clearing(other)] = 0
        with pytest.raises(RuntimeError, match="mutated during update"):
            {Clearing(other): 0, 1: 1}.update(other)
        return x + 1, len(other)

    check(f, (X,), breaks=None)


def test_listing_a_set_asks_no_key_whether_it_is_equal():
    class Colliding(int):
        asked = 0

        def __hash__(self):
            return 13

        def __eq__(self, other):
            type(self).asked += 1
            return False

    def f(x):
        items = {Colliding(1), Colliding(2)}
        before = Colliding.asked
        return x, list(map(int, items)), sorted(int(i) for i in items), Colliding.asked - before

    check(f, (X,), breaks=None)
