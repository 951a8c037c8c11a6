"""Subclasses of containers with methods of their own: which of them C code calls, and which not."""

from __future__ import annotations

import copy
import operator
from collections import OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import pytest
import torch

import weft
from tests.capture.harness import check

LOG: list[str] = []


def logging_subclass(base: Any, *names: str) -> Any:
    """A subclass that notes the calls of the named methods."""

    def logged(name: str) -> Any:
        original = getattr(base, name)

        def method(self, *args, **kwargs):
            LOG.append(name)
            return original(self, *args, **kwargs)

        return method

    return type(f"Logged{base.__name__}", (base,), {name: logged(name) for name in names})


_MAPPING = ("__setitem__", "__getitem__", "__delitem__", "__iter__", "__contains__", "keys",
            "items")
LOGGED_DICT = logging_subclass(dict, *_MAPPING)
LOGGED_ORDERED = logging_subclass(OrderedDict, *_MAPPING)
LOGGED_DEFAULT = logging_subclass(defaultdict, *_MAPPING)
LOGGED_LIST = logging_subclass(list, "__setitem__", "__getitem__", "append", "extend", "__iter__")
LOGGED_DEQUE = logging_subclass(
    deque, "__setitem__", "__getitem__", "append", "extend", "clear", "__iter__", "__len__")
LOGGED_SET = logging_subclass(set, "__iter__", "add", "update")
PLAIN_ORDERED = type("PlainOrdered", (OrderedDict,), {})
PLAIN_DEFAULT = type("PlainDefault", (defaultdict,), {})

_PAIRS = {"a": 1, "b": 2}
_MAKERS: dict[str, Any] = {
    "dict": lambda: LOGGED_DICT(_PAIRS),
    "ordered": lambda: LOGGED_ORDERED(_PAIRS),
    "default": lambda: LOGGED_DEFAULT(list, _PAIRS),
    "plain ordered": lambda: PLAIN_ORDERED(_PAIRS),
    "plain default": lambda: PLAIN_DEFAULT(list, _PAIRS),
    "list": lambda: LOGGED_LIST([1, 2, 3]),
    "set": lambda: LOGGED_SET([1, 2]),
    "deque": lambda: LOGGED_DEQUE([1, 2, 3], 6),
}


def of_mappings(m: Any) -> list[Any]:
    m["k"] = 5
    m.update({"q": 1}, w=2)
    m.setdefault("a", 7)
    m.setdefault("new", 8)
    del m["b"]
    popped = m.pop("a"), m.popitem()
    return [m.copy(), copy.copy(m), copy.deepcopy(m), m | {"z": 1}, {"z": 1} | m, *popped]


def of_lists(m: Any) -> list[Any]:
    m.append(4)
    m.extend([5])
    m[0] = 9
    m.sort(reverse=True)
    return [copy.copy(m), copy.deepcopy(m), m.copy(), m + [1], m.pop()]


def of_deques(m: Any) -> list[Any]:
    m.append(4)
    m.extend([5])
    m.appendleft(0)
    m[0] = 9
    m.rotate(1)
    return [m.copy(), m + m, [*m], m == deque([9]), m.index(9), list(reversed(m)), m.pop()]


def of_sets(m: Any) -> list[Any]:
    m.add(7)
    m.discard(1)
    m |= {20}
    m &= type(m)({20, 7})
    return [m <= {7, 20, 3}, {7} ^ m, m - {7}, m.copy(), frozenset(m), m | {9}, copy.copy(m)]


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
        return type(value), list(base.items(value)), getattr(value, "default_factory", None)
    if isinstance(value, list):
        return type(value), list.__repr__(value)
    if isinstance(value, deque):
        return type(value), list(deque.__iter__(value)), value.maxlen
    return type(value), repr(value)


@pytest.mark.parametrize("kind", list(_MAKERS))
@pytest.mark.parametrize("inside", [True, False])
def test_methods_of_subclasses_are_called_as_c_code_calls_them(kind, inside):
    make = _MAKERS[kind]
    operations = {"list": of_lists, "set": of_sets, "deque": of_deques}.get(kind, of_mappings)

    def made_inside(x):
        made = make()
        return x + 1, operations(made), made

    def from_outside(x, made):
        return x + 1, operations(made), made

    def run(function: Any) -> Any:
        args = (torch.ones(1),) if inside else (torch.ones(1), make())
        LOG.clear()
        _, results, made = function(*args)
        return [shown(value) for value in (*results, made)], list(LOG)

    weft.reset()
    function = made_inside if inside else from_outside
    compiled = weft.compile(function, backend="eager")
    assert run(function) == run(compiled) == run(compiled)


def test_reordering_an_outside_dictionary_does_not_call_its_own_methods():
    def f(x, table):
        table.move_to_end("a")
        return x * 2

    logs = []
    for function in (f, weft.compile(f, backend="eager")):
        table = LOGGED_ORDERED(_PAIRS)
        LOG.clear()
        function(torch.ones(1), table)
        logs.append((list(LOG), list(OrderedDict.items(table))))
    assert logs[0] == logs[1]


class Empty(type):
    def __len__(cls):
        return 0


class Falsy(metaclass=Empty):
    pass


def test_truth_of_a_class_is_asked_of_its_metaclass():
    def f(x, cls):
        return x + 1 if cls else x + 2, cls or 3, operator.truth(cls)

    compiled = weft.compile(f, backend="eager")
    for cls in (Falsy, dict):
        assert repr(compiled(torch.ones(1), cls)) == repr(f(torch.ones(1), cls))


class Asked:
    """Notes what it is asked for."""

    def __getattr__(self, name):
        LOG.append(name)
        raise AttributeError(name)

    def __call__(self, x):
        print("called")
        return x


def test_marks_are_not_asked_of_the_programs_objects():
    def f(x, call):
        return call(*[x + 1]) * 2

    call = Asked()
    compiled = weft.compile(f, backend="eager")
    LOG.clear()
    for _ in range(2):
        compiled(torch.ones(1), call)
    assert LOG == []


class Moments(NamedTuple):
    mean: Any
    count: int = 3

    def __add__(self, other):  # type: ignore[override]
        return Moments(self.mean + other.mean, self.count + other.count)

    def __rmul__(self, factor):  # type: ignore[override]
        return self._replace(mean=self.mean * factor)

    def __lt__(self, other):  # type: ignore[override]
        return "less"


class Counted(Moments):
    def __len__(self):
        return 9

    def __iter__(self):
        yield from ("iterated", self.count)

    def __getitem__(self, index):  # type: ignore[override]
        return "item", super().__getitem__(index)

    def __contains__(self, item):
        return item == "anything"

    def __bool__(self):
        return False


def test_operators_of_a_named_tuple_are_the_programs():
    def f(x):
        one = Moments(x)
        return one + Moments(x * 2, 5), 2 * one, one < one

    check(f, (torch.ones(2),), graphs=1)


def test_a_named_tuple_with_container_methods_of_its_own():
    def f(x):
        one = Counted(x + 1)
        return (len(one), list(one), one[1], "anything" in one, x in one, 1 if one else 2,
                [*one], one.mean)

    check(f, (torch.ones(2),), breaks=None)


class Sums(list[Any]):
    pass


class Doubling(dict[str, int]):
    def __setitem__(self, key: str, value: int) -> None:
        super().__setitem__(key, 2 * value)


def test_in_place_operators_of_a_subclass_give_the_object_itself() -> None:
    def f(x: Any) -> Any:
        sums, pairs = Sums([1]), Doubling(a=1)
        first = sums
        sums += (2, x)
        sums *= 2
        pairs |= {"b": 3}
        numbers = LOGGED_SET([1])
        numbers |= {2}
        return sums, sums is first, pairs, type(pairs), type(numbers)

    check(f, (torch.ones(3),), breaks=0)


class Attributes(dict[str, Any]):
    """Items as attributes, as configuration libraries have them."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return dict(self)


def test_a_class_that_defines_its_own_dict_attribute() -> None:
    settings = Attributes(act="relu", scale=2)

    def f(x: Any) -> Any:
        return (x.relu() if settings.act == "relu" else x) * settings.scale, settings.__dict__

    check(f, (torch.randn(3),), graphs=1, breaks=0)
    settings["scale"] = 3
    check(f, (torch.randn(3),), graphs=1, breaks=0)


class Loud(list[Any]):
    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def __add__(self, other: Any) -> Any:
        return Loud(super().__add__(other))

    def __iadd__(self, other: Any) -> Any:
        return super().__iadd__([*other, "!"])

    def __mul__(self, n: Any) -> Any:
        return super().__mul__(n)

    def __repr__(self) -> str:
        return f"Loud{super().__repr__()}"

    def __ne__(self, other: object) -> bool:
        return super().__ne__(other)

    __hash__ = None  # type: ignore[assignment]


class Merged(dict[str, Any]):
    def __or__(self, other: Any) -> Any:
        return Merged(super().__or__(other))

    def __ror__(self, other: Any) -> Any:
        return super().__ror__(other)

    def __ior__(self, other: Any) -> Any:
        return super().__ior__(other)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    def __repr__(self) -> str:
        return f"Merged({super().__repr__()})"

    __hash__ = None  # type: ignore[assignment]


def test_operators_that_a_subclass_gets_from_its_base_with_super() -> None:
    def f(x: Any, loud: Loud, merged: Merged) -> Any:
        first = loud
        loud += ["b"]
        merged |= {"c": x}
        plain = [1].__eq__([1]), [1].__eq__((1,)), {}.__or__(3), [2].__mul__(2), {1}.__and__({1})
        return (loud is first, loud == ["a", "b", "!"], loud != [], loud + [1], loud * 2, plain,
                merged | {"d": 1}, {"d": 2} | merged, merged == {}, repr(Loud([1])), merged == 3,
                repr(Merged(a=Loud([2]))))

    check(f, (torch.ones(3), Loud(["a"]), Merged(a=1)), breaks=0)


class Ordered:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ordered) and self.n == other.n

    def __ne__(self, other: object) -> bool:
        return super().__ne__(other)

    def __lt__(self, other: Any) -> Any:
        return super().__lt__(other)  # type: ignore[misc]

    def __gt__(self, other: Any) -> bool:
        return self.n > other.n

    def __repr__(self) -> str:
        return f"Ordered({self.n})"

    def __str__(self) -> str:
        return "the " + super().__str__()

    __hash__ = None  # type: ignore[assignment]


def test_operators_that_a_class_gets_from_object_with_super() -> None:
    def f(x: Any) -> Any:
        one, two = Ordered(1), Ordered(2)
        return one != two, one != Ordered(1), str(two), one < two, one.__lt__(two)

    check(f, (torch.ones(3),), breaks=0)


def method_of(x: Any) -> Any:
    return x


class Scaling:
    def scaled(self, x: Any) -> Any:
        return x * 2


def test_functions_and_methods_called_and_compared_by_the_names_of_their_methods() -> None:
    scaling = Scaling()

    def f(x: Any) -> Any:
        scaled = scaling.scaled
        return (method_of.__eq__(method_of), method_of.__eq__(1), Third.__str__.__ne__(3),
                scaled.__eq__(scaling.scaled), scaled.__lt__(scaled), method_of.__call__(x),
                scaled.__call__(x))

    check(f, (torch.ones(3),), graphs=1)


def test_attributes_of_ranges_and_named_tuples() -> None:
    def f(x: Any, sizes: range) -> Any:
        found = torch.max(x, 0)
        made = found.__class__((found.values + 1, found.indices))
        return (made, torch.return_types.max((x, x)), sizes.index(4), sizes.count(5),
                sizes.__len__(), sizes.__contains__(2), list(sizes.__iter__()))

    check(f, (torch.randn(3, 2), range(0, 9, 2)), breaks=0)
    with pytest.raises(ValueError, match="3 is not in range"):
        weft.compile(lambda x, sizes: x + sizes.index(3), backend="eager")(torch.ones(1), range(2))


def test_torch_version_is_compared_inside_a_graph() -> None:
    def f(x: Any) -> Any:
        return x + 1 if torch.__version__ >= (2, 0) and torch.__version__ > "1.9" else x

    check(f, (torch.ones(3),), graphs=1, breaks=0)


class Third(float):
    pass


def test_divmod_of_an_instance_of_a_subclass_of_float_failed_inside() -> None:
    check(lambda x, n: (divmod(n, 2), divmod(2, n), x + 1), (torch.ones(2), Third(3.5)), graphs=1)


class Extent(NamedTuple):
    height: int
    width: int


def test_the_iterator_of_a_named_tuple_made_an_empty_one_of_its_class() -> None:
    def f(x: Any, extent: Extent) -> Any:
        first, ended = iter(extent), iter(extent)
        return first.__next__(), type(first), [*ended], next(ended, None), ended, x + 1

    check(lambda x, e: (lambda r: (*r[:4], list(r[4]), r[5]))(f(x, e)),
          (torch.ones(2), Extent(2, 3)), graphs=1)
    *_, ended, _ = weft.compile(f, backend="eager")(torch.ones(2), Extent(2, 3))
    assert list(ended) == []
