"""Small programs for what CPython's tests of types found wrong (tools/cpython_tests.py).

Attributes, containers and their views, classes, C types; the rest is in `test_cpython_findings`.
"""

from __future__ import annotations

import abc
import array
import collections
import copy
import decimal
import enum
import functools
import os
import re
import sys
import threading
import types
import typing
import warnings
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)


@weft.disable
def proxy_of(contents: dict[str, int]) -> Any:
    return types.MappingProxyType(contents)


@weft.disable
def iterator_of(items: list[int]) -> Iterator[int]:
    return iter(items)


def raised(*functions: Callable[[], Any]) -> list[str]:
    """What each call raises."""
    texts = []
    for function in functions:
        try:
            texts.append(f"no error: {function()!r}")
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    return texts


# -- numbers and C types --------------------------------------------------------------------------


class Tagged(int):
    tag: int
    more: int

    def __new__(cls, tag: int, value: int = 0) -> Tagged:
        self = super().__new__(cls, value)
        self.tag = tag
        return self


def test_an_instance_of_a_subclass_of_int_is_new_in_each_call() -> None:
    def f(x: Any) -> Any:
        one, other = Tagged(1, 4), Tagged(1, 4)
        before = hasattr(one, "more")
        one.more = 3
        return x + 1, one is other, one == other, before, hasattr(other, "more")

    check(f, (X,), breaks=None)


def test_a_c_type_without_constructor_refuses_as_python_does() -> None:
    def f(x: Any) -> Any:
        return x + 1, raised(lambda: re.Match())  # type: ignore[call-arg]

    check(f, (X,), breaks=None)


def test_a_c_class_method_of_a_class_made_inside_makes_its_instances() -> None:
    def f(x: Any) -> Any:
        class Number(float):
            def __new__(cls, value: float) -> Number:
                return float.__new__(cls, value + 1)

        made = Number.fromhex("0x1.8p+0")
        return x + 1, type(made) is Number, made == 2.5

    check(f, (X,), breaks=None)


def test_a_pattern_that_warns_does_so_in_the_program_too() -> None:
    def f(x: Any) -> Any:
        re.purge()
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            re.compile("[[a]")
        return x + 1, len(given)

    check(f, (X,), breaks=None)


def test_a_slice_is_one_object_wherever_it_is_used() -> None:
    def f(x: Any) -> Any:
        made = slice([1], [2])
        return x + 1, [made, made, copy.copy(made)]

    for _ in range(2):
        items = check(f, (X,), breaks=None)(X)[1]
        assert items[0] is items[1] is items[2]
    check(lambda x: (x, raised(lambda: slice(), lambda: slice(1, 2, 3, 4))),  # type: ignore[call-overload]
          (X,), breaks=None)


# -- dictionaries, sets and views -----------------------------------------------------------------


def test_a_proxy_shows_what_is_written_to_its_dictionary_later() -> None:
    def inner(proxy: Any, contents: dict[str, int]) -> Any:
        contents["a"] += 5
        return proxy["a"], proxy == contents

    def f(x: Any) -> Any:
        contents = {"a": 1}
        proxy = proxy_of(contents)
        fresh = {1: 2}
        shown = fresh.keys().mapping
        fresh[3] = 4
        return x + 1, inner(proxy, contents), len(shown), shown == fresh

    check(f, (X,), breaks=None)


class NeverEqual:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("compared")

    __hash__ = None  # type: ignore[assignment]


def test_items_views_compare_values_without_hashing_them() -> None:
    def f(x: Any) -> Any:
        a, b = {1: NeverEqual()}, {1: NeverEqual()}
        plain = {1: 2, 3: [4]}
        return x + 1, raised(
            lambda: a.items() == b.items(), lambda: a.items() < {**b, 2: 3}.items(),
            lambda: plain.items() == {1: 2, 3: [4]}.items(), lambda: (3, [4]) in plain.items(),
            lambda: plain.keys() >= {1}, lambda: {7} <= plain.keys(),
            lambda: plain.items() == [(1, 2)], lambda: plain.keys() != {1, 3})

    check(f, (X,))


def test_a_set_that_grows_under_its_loop_raises() -> None:
    def f(x: Any) -> Any:
        items = {1, 2, 3}
        for item in items:
            items.update([item + 10])
        return x + 1

    check(f, (X,), breaks=None)


def test_an_ordered_dict_that_is_reordered_under_its_loop_raises() -> None:
    def f(x: Any) -> Any:
        items = OrderedDict.fromkeys("abc")
        for key in items:
            items.move_to_end(key)
        return x + 1

    check(f, (X,), breaks=None)


def test_a_union_keeps_the_factory_and_the_kind_of_the_derived_side() -> None:
    def f(x: Any) -> Any:
        counts = defaultdict(int, {1: 2})
        left, right = counts | {3: 4}, {3: 4} | counts
        left["new"] += 1
        right["new"] += 1
        return x + 1, left, right, {1: 2} | OrderedDict({3: 4})

    check(f, (X,))


class Ordered(OrderedDict[Any, Any]):
    pass


class Set(set[Any]):
    pass


def test_constructors_and_methods_of_containers_refuse_wrong_arguments() -> None:
    def f(x: Any) -> Any:
        fixed: Any = frozenset("ab")
        fixed.__init__("cd")
        return x + 1, sorted(fixed), Ordered().setdefault("a", default=9), raised(
            lambda: Ordered().update((), ()), lambda: {}.update((), ()),  # type: ignore[call-overload]
            lambda: Ordered([], []), lambda: defaultdict(1),  # type: ignore[call-overload]
            lambda: Set(sequence=()), lambda: set().__init__(a=1))  # type: ignore[misc,call-arg,call-overload]

    check(f, (X,), breaks=None)


def test_an_iterator_from_outside_sees_its_list_change() -> None:
    def f(x: Any) -> Any:
        items = [1, 2, 3]
        iterator = iterator_of(items)
        items[:] = [7, 8]
        return x + 1, list(iterator)

    check(f, (X,), breaks=None)


def test_methods_of_containers_compare_by_their_container() -> None:
    def f(x: Any) -> Any:
        a: list[int] = []
        b: list[int] = []
        return (x + 1, a.append == a.append, a.append != a.append, a.append == b.append,
                a.append == a.pop)

    check(f, (X,))


# -- classes and attributes -----------------------------------------------------------------------


class NoDict:
    shared = 0
    __slots__ = ("slot",)


class HasProperty:
    alone = property()


def test_errors_about_attributes_say_what_python_says() -> None:
    def f(x: Any) -> Any:
        class Local:
            alone = property()

        class Plain:
            pass

        def on(make: Any, name: str) -> list[str]:
            return raised(lambda: getattr(make(), name), lambda: setattr(make(), name, 1),
                          lambda: delattr(make(), name))

        return (x + 1, on(HasProperty, "alone"), on(Local, "alone"), on(NoDict, "shared"),
                on(NoDict, "missing"), on(NoDict, "slot"), on(Plain, "missing"))

    check(f, (X,), breaks=None)


def test_texts_that_are_no_strings_are_refused() -> None:
    def f(x: Any) -> Any:
        class Bad:
            def __str__(self) -> Any:
                return x.dim()

            __repr__ = __str__

        return x + 1, raised(lambda: str(Bad()), lambda: repr(Bad()))

    check(f, (X,), breaks=None)


def test_the_right_side_goes_first_only_with_a_method_of_its_own() -> None:
    def f(x: Any) -> Any:
        class Base:
            def __floordiv__(self, other: object) -> str:
                return "left"

            def __rfloordiv__(self, other: object) -> str:
                return "right"

        class Same(Base):
            pass

        class Own(Base):
            def __rfloordiv__(self, other: object) -> str:
                return "own"

        return x + 1, Base() // Same(), Base() // Own(), 1 // Same()

    check(f, (X,))


class Hidden:
    def __init__(self, inner: Any) -> None:
        self.__inner = inner

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_Hidden__"):
            return object.__getattribute__(self, name)
        return getattr(self.__inner, name)


def test_an_object_that_hides_its_dictionary_is_made_without_asking_it() -> None:
    def f(x: Any) -> Any:
        hidden = Hidden(3)
        print("break")
        return x + 1, hidden.real

    check(f, (X,), breaks=None)


class Counting:
    calls = 0

    def __get__(self, owner: Any, kind: Any) -> int:
        Counting.calls += 1
        return Counting.calls


class HasDescriptor:
    counted = Counting()


def test_a_descriptor_read_from_the_class_runs_in_each_call() -> None:
    def f(x: Any) -> Any:
        Counting.calls = 0
        return x + 1, HasDescriptor.counted, HasDescriptor.counted, HasDescriptor().counted

    check(f, (X,))


def test_documentation_of_properties_made_inside() -> None:
    def f(x: Any) -> Any:
        class Local:
            named = property(doc="hello")

            @named.getter
            def named(self) -> int:
                return 1

        return x + 1, property(doc="basic").__doc__, Local.named.__doc__

    check(f, (X,), breaks=None)


def test_class_bodies_that_python_refuses_are_refused() -> None:
    def f(x: Any) -> Any:
        def cell() -> Any:
            class Local:
                __classcell__ = 42

        return x + 1, raised(cell)

    check(f, (X,), breaks=None)


class Special(types.ModuleType):
    extra = 1


def test_a_module_object_whose_class_is_set() -> None:
    def f(x: Any) -> Any:
        made = types.ModuleType("made")
        before = made.__class__
        made.__class__ = Special
        return x + 1, before, made.__class__, made.extra

    check(f, (X,), breaks=None)


def test_long_integers_can_be_guarded_whatever_the_limit_of_their_digits() -> None:
    def f(x: Any, number: int) -> Any:
        return x + 1, number > 3

    limit = sys.get_int_max_str_digits()
    check(f, (X, 1 << (4 * limit)))


class Told:
    names: list[str] = []

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        print("told of", cls.__name__)


def test_c_class_methods_found_through_super_get_their_class() -> None:
    def f(x: Any) -> Any:
        class Local(Told):
            pass

        return x + 1, Local.__name__

    check(f, (X,), breaks=None)


# -- arguments and errors of builtin functions ----------------------------------------------------


class Huge:
    def __len__(self) -> int:
        return sys.maxsize + 1


def test_builtin_functions_refuse_what_python_refuses() -> None:
    functions: tuple[Any, ...] = (all, any, sorted, setattr, iter, sum, len, type, max, round)
    all_, any_, sorted_, setattr_, iter_, sum_, len_, type_, max_, round_ = functions

    def f(x: Any) -> Any:
        return x + 1, raised(
            lambda: all_(), lambda: any_([1], 2), lambda: sorted_([1], None),
            lambda: sorted_(iterable=[]), lambda: setattr_(Huge, 1, 2), lambda: iter_(42, 42))

    def g(x: Any) -> Any:
        return x + 1, raised(
            lambda: sum_(["a", "b"], ""), lambda: len_(Huge()), lambda: type_("A", [], {}),
            lambda: max_([]), lambda: max_([], default=3), lambda: round_(Huge()))

    check(f, (X,), breaks=None)
    check(g, (X,), breaks=None)


def test_errors_of_sequences_say_what_python_says() -> None:
    def change(items: Any, delete: bool) -> None:
        if delete:
            del items[7]
        else:
            items[7] = 1

    def f(x: Any) -> Any:
        items: Any = [1, 2]
        fixed: Any = (1, 2)
        ends: Any = deque([1, 2])
        return x + 1, raised(
            lambda: items[5], lambda: fixed[5], lambda: ends[5], lambda: items.index("a"),
            lambda: fixed.index(7), lambda: ends.index(7), lambda: items.remove(7),
            lambda: ends.remove(7), lambda: items.pop(7), lambda: change(items, False),
            lambda: change(items, True), lambda: items.index(1, 1, 2), lambda: items.index(2, -5))

    check(f, (X,), breaks=None)


class Clearing:
    def __init__(self, items: Any) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        self.items.clear()
        return NotImplemented


def test_sequences_that_change_while_they_are_compared() -> None:
    def f(x: Any) -> Any:
        a: list[Any] = []
        b: list[Any] = []
        a.append(Clearing(b))
        b.append(Clearing(a))
        same = a == b
        c: list[Any] = []
        c[:] = [Clearing(c), 1]
        d: deque[Any] = deque()
        d.extend([Clearing(d), 2])
        return x + 1, same, raised(lambda: c.index(3), lambda: d.index(7))

    check(f, (X,), breaks=None)


def test_iterators_of_a_deque_notice_changes_from_their_start_but_not_assignments() -> None:
    def f(x: Any) -> Any:
        grown: deque[int] = deque()
        first = iter(grown)
        grown.append(4)
        shrunk = deque("a")
        second = iter(shrunk)
        shrunk.pop()
        assigned = deque("abc")
        for index, item in enumerate(assigned):
            assigned[index] = item * 2
        return x + 1, raised(lambda: next(first), lambda: next(second)), assigned

    check(f, (X,), breaks=None)


def bits(n: int) -> int:
    return (n * n).bit_length()


def test_ints_beyond_64_bits_are_not_taken_for_others() -> None:
    def f(x: Any, n: int) -> Any:
        return x + 1, n.bit_length(), bits(n), n > 2**64, n * n > 2**70, n - 2**65 < 0

    check(f, *[(X, n) for n in (2**20, 2**30, 2**40, 2**62, 2**63, 2**100)])


# -- identity and what is made while capturing ----------------------------------------------------


@weft.disable
def opaque(*values: Any) -> Any:
    return values


def test_a_tuple_of_constants_from_outside_stays_the_same_object() -> None:
    def give(items: Any) -> Any:
        print("break")
        return items

    def f(x: Any) -> Any:
        (items,) = opaque((1, 2))
        (other,) = opaque((1, 2))
        return x + 1, give(items) is items, opaque(items)[0] is items

    check(f, (X,), breaks=None)
    memo: dict[int, Any] = {}
    compiled = weft.compile(lambda x, items, memo: (x + 1, copy.deepcopy(items, memo)))
    items = (1, (2, 3))
    assert compiled(X, items, memo)[1] is items
    assert not memo


def test_an_iterator_over_matches_is_new_in_each_call() -> None:
    pattern = re.compile("%(\\w)")

    def f(x: Any, text: str) -> Any:
        matches = pattern.finditer(text)
        print("break")
        return x + 1, [match.group(1) for match in matches], [*pattern.finditer(text)][0].group()

    check(f, (X, "%a %b"), breaks=None)


def test_a_list_whose_sorting_fails_keeps_its_items() -> None:
    def f(x: Any) -> Any:
        items: list[Any] = [{}, 3, "x"]
        return x + 1, raised(items.sort), len(items)

    check(f, (X,), breaks=None)


def test_the_recursion_limit_is_that_of_the_program() -> None:
    def f(x: Any) -> Any:
        return x + 1, sys.getrecursionlimit()

    check(f, (X,))


def test_types_of_bound_methods_of_c_types() -> None:
    def f(x: Any) -> Any:
        methods = object().__init__, (42).__lt__, [].append, {}.get  # type: ignore[misc]
        print("break")
        return x + 1, [type(method) for method in methods], methods[0]()

    check(f, (X,), breaks=None)


class NeedsArgument:
    def __new__(cls, value: int) -> NeedsArgument:
        self = object.__new__(cls)
        self.value = value
        return self

    value: int


def test_copies_are_made_by_the_classes_own_constructor() -> None:
    def f(x: Any) -> Any:
        made = NeedsArgument(3)
        return x + 1, raised(lambda: copy.copy(made), lambda: copy.deepcopy(made))

    check(f, (X,), breaks=None)


class Renaming:
    asked: typing.ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.size = [3]

    def __getattribute__(self, name: str) -> Any:
        super().__getattribute__("asked").append(name)
        return super().__getattribute__({"width": "size"}.get(name, name))


class Hiding(Renaming):
    def __getattribute__(self, name: str) -> Any:
        return {"hidden": 1} if name == "__dict__" else super().__getattribute__(name)


class Replacing(Renaming):
    def __getattribute__(self, name: str) -> Any:
        return (lambda: (int, (3,))) if name == "__reduce__" else super().__getattribute__(name)


def test_copying_asks_a_hook_of_attributes_for_what_the_copy_module_asks() -> None:
    def f(x: Any, value: Any) -> Any:
        Renaming.asked.clear()
        made = copy.copy(value), copy.deepcopy(value)
        asked = list(Renaming.asked)
        return x + 1, asked, [m if type(m) is int else m.width for m in made]

    check(f, (X, Renaming()))
    for value in Hiding(), Replacing():
        check(f, (X, value), breaks=None)


class Remembering:
    @functools.lru_cache
    def layers(self, count: int, *more: Any) -> tuple[int, ...]:
        return tuple(range(count))

    @staticmethod
    @functools.cache
    def shifted(n: int) -> int:
        return n + 1


def test_cached_functions_are_bound_to_their_object() -> None:
    owner = Remembering()

    def f(x: Any) -> Any:
        method = owner.layers
        made = [*method(2), *owner.layers(1, [].append), *Remembering.layers(owner, 3)]
        return x + 1, made, owner.shifted(1), method

    check(f, (X,))


# -- classes made inside --------------------------------------------------------------------------


class Abstract(abc.ABC):
    @property
    @abc.abstractmethod
    def color(self) -> str: ...


class Looks(enum.Enum):
    RED = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        print("looking for", value)
        return cls.RED if value == "red" else 5


def test_classes_made_inside_that_python_looks_at() -> None:
    def f(x: Any) -> Any:
        class Concrete(Abstract):
            color = types.DynamicClassAttribute(lambda self: "cyan")  # type: ignore[assignment]

        pair = collections.namedtuple("pair", ["first"])

        class Local:
            pass

        unions = (pair | str == typing.Union[pair, str],  # noqa: UP007
                  (Local | None) == typing.Optional[Local])  # noqa: UP045
        print("break")
        return x + 1, Concrete().color, unions

    check(f, (X,), breaks=None)


def test_class_bodies_with_errors_of_their_parts() -> None:
    class Wrong:
        def __set_name__(self, owner: Any, name: str) -> None:
            raise ZeroDivisionError

    def named() -> Any:
        class Local:
            attribute = Wrong()

        return Local

    def twice() -> Any:
        class Color(enum.Enum):
            RED = 1
            RED = 2  # type: ignore[misc]

        return Color

    def f(x: Any) -> Any:
        errors = raised(twice)
        try:
            named()
        except Exception as error:
            errors.append(type(error).__name__)
        return x + 1, errors

    check(f, (X,), breaks=None)


def test_an_enumeration_that_looks_for_members_does_so_in_each_call() -> None:
    def f(x: Any) -> Any:
        return x + 1, Looks("red"), raised(lambda: Looks("blue"))

    check(f, (X,), breaks=None)


# -- weak references, protocols, subclasses of containers -----------------------------------------


class Referred:
    number = 3


def test_an_object_referred_to_weakly_lives_as_long_as_its_variable() -> None:
    def f(x: Any) -> Any:
        one, other = Referred(), Referred()
        reference, proxy = weakref.ref(one), weakref.proxy(other)
        print("break")
        print("and another")
        return x + 1, reference() is None, proxy.number

    check(f, (X,), breaks=None)


@typing.runtime_checkable
class HasX(typing.Protocol):
    x: int


def test_a_protocol_looks_at_instances() -> None:
    def f(x: Any) -> Any:
        class Has:
            def __init__(self) -> None:
                self.x = 1

        class Lacks:
            pass

        return x + 1, isinstance(Has(), HasX), isinstance(Lacks(), HasX)

    check(f, (X,), breaks=None)


class Deferring(list[Any]):
    def __eq__(self, other: object) -> bool:
        return NotImplemented


def test_containers_compare_with_instances_of_subclasses_that_leave_it_to_them() -> None:
    def f(x: Any) -> Any:
        counts = collections.Counter([4, 4, 5])
        return (x + 1, counts == {4: 2, 5: 1}, {4: 2, 5: 1} == counts, counts != {4: 1},
                Deferring([1]) == [1], [1] == Deferring([1]), Deferring([1]) == Deferring([1]))

    check(f, (X,))


def test_methods_of_c_types_that_need_their_class_are_bound_to_it() -> None:
    def give(method: Any) -> Any:
        print("break")
        return method

    def f(x: Any) -> Any:
        items = array.array("i", [1, 2])
        view = memoryview(items)
        view.release()
        method = items.extend
        give(method)([3])
        return x + 1, items.tolist(), raised(lambda: view.nbytes)

    check(f, (X,), breaks=None)


class Unwilling:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("asked for its class")


def test_arguments_that_raise_when_asked_for_their_class_are_not_asked() -> None:
    def inner(x: Any, *unwilling: Any) -> Any:
        return x + len(unwilling)

    def f(x: Any) -> Any:
        unwilling = weakref.proxy(Referred()), Unwilling()
        return x + 1, sorted([2, 1], key=lambda n: (inner(x, *unwilling) * n).sum().item())

    check(f, (X,), breaks=None)


class LikeClass:
    __bases__ = (int,)


def test_objects_with_bases_are_taken_for_classes_as_python_does() -> None:
    def f(x: Any) -> Any:
        subclass: Any = issubclass
        return x + 1, subclass(LikeClass(), int), raised(lambda: subclass(Referred(), int))

    check(f, (X,), breaks=None)


def test_methods_of_dict_as_attribute_access():
    class Settings(dict):
        __getattr__ = dict.get
        __setattr__ = dict.__setitem__
        __delattr__ = dict.__delitem__

    def f(x, settings):
        settings.calls = (settings.calls or 0) + 1
        del settings.once
        return x * settings.scale + settings.calls, settings.missing

    check(f, (torch.ones(2), Settings(scale=2.0, once=1)), breaks=0)


class Asked(type):
    log: ClassVar[list[str]] = []

    def __getattribute__(cls, name: str) -> Any:
        if not name.startswith("__"):
            Asked.log.append(name)
        return super().__getattribute__(name)


class Namespace(metaclass=Asked):
    scale = 3


def of_a_namespace(x: torch.Tensor) -> Any:
    from scales import scale  # type: ignore[import-not-found]

    return x * Namespace.scale + scale


def test_a_metaclass_that_has_its_own_attribute_access_is_asked(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by an import from such a class in `sys.modules` (`typing.io` warns so)."""
    monkeypatch.setitem(sys.modules, "scales", Namespace)
    logs = []
    for function in (of_a_namespace, weft.compile(of_a_namespace, backend="eager")):
        for _ in range(2):
            Asked.log.clear()
            assert torch.equal(function(torch.ones(2)), torch.full((2,), 6.0))
            logs.append(list(Asked.log))
    assert logs == [["scale", "scale"]] * 4


class Cells(int):
    def __new__(cls, side: int) -> Any:
        self = int.__new__(cls)
        self.side = side  # type: ignore[attr-defined]
        return self

    def __getnewargs__(self) -> tuple[int]:
        return (self.side,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [Cells(3), type("Items", (list,), {})([1])], ids=["int", "list"])
def test_methods_of_object_see_the_subclass_not_the_number_it_is(value: Any) -> None:
    """`copy.copy` made an int of an int's subclass: `object.__reduce_ex__` saw the number."""
    def program(x: torch.Tensor) -> Any:
        parts = object.__reduce_ex__(value, 4)
        return x + 1, parts[:2], object.__repr__(value), object.__lt__(value, 3)

    check(program, (X,), breaks=None)


class Chain(deque):  # type: ignore[type-arg]
    made: ClassVar[list[Any]] = []

    def __init__(self, items: Any = (), maxlen: int | None = None) -> None:
        Chain.made.append(maxlen)
        super().__init__(items, maxlen)


def test_a_multiplied_deque_is_made_by_its_subclass() -> None:
    def program(x: torch.Tensor) -> Any:
        Chain.made.clear()
        chain = Chain([1, 2, 3], 2)
        return x + 1, chain * 2, 3 * chain, type(chain * 0), list(Chain.made)

    check(program, (X,))


class Falling:
    """A sequence without an end of its own."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, at: int) -> int:
        if at == 1:
            raise IndexError
        return at * at


def test_reversed_of_an_object_with_indices_ends_at_an_index_error() -> None:
    def program(x: torch.Tensor) -> Any:
        backwards = reversed(Falling(4))
        first = next(backwards)
        return x + 1, first, list(backwards), list(backwards), type(backwards) is reversed

    check(program, (X,))


def test_reversed_of_an_array_stays_one_in_a_break() -> None:
    def program(x: torch.Tensor) -> Any:
        numbers = array.array("b", [1, 2, 3])
        backwards = reversed(numbers)
        print(next(backwards))
        numbers.append(4)
        return x + 1, type(backwards) is reversed, list(backwards), numbers

    check(program, (X,), breaks=None)


def test_a_loop_over_a_reversed_module_list_goes_on_after_a_break() -> None:
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])

    def program(x: torch.Tensor) -> Any:
        for layer in reversed(layers):
            x = layer(x)
            print("layer")
        return x

    check(program, (X,), breaks=3)


def test_a_reversed_list_that_has_shrunk_has_ended() -> None:
    def program(x: torch.Tensor) -> Any:
        numbers = list(range(10))
        backwards = reversed(numbers)
        next(backwards)
        print("outside of the graph")
        numbers[1:] = []
        return x + 1, list(backwards)

    check(program, (X,), breaks=None)


def test_a_deep_copy_keeps_fields_that_are_no_items() -> None:
    given = os.stat_result([[i] for i in range(os.stat_result.n_sequence_fields)],
                           {"st_atime": [1.0]})

    def program(x: torch.Tensor) -> Any:
        return x + 1, copy.deepcopy(given).st_atime

    check(program, (X,), breaks=1)


def test_attributes_that_only_a_types_own_access_in_c_finds() -> None:
    """In a `with` statement the AttributeError of the usual access reached the program."""
    def program(x: torch.Tensor) -> Any:
        with decimal.localcontext() as context:
            context.traps[decimal.InvalidOperation] = False
            return x + 1, context.traps[decimal.InvalidOperation]

    check(program, (X,), breaks=None)


def test_a_view_that_is_not_read_again_still_forbids_to_resize() -> None:
    def program(x: torch.Tensor) -> Any:
        numbers = bytearray(range(10))
        view = memoryview(numbers)
        print("outside of the graph")
        try:
            numbers[1:-1] = b"abc"
        except BufferError as error:
            return x + 1, str(error)

    check(program, (X,), breaks=None)


def test_a_proxy_refuses_to_merge_into_its_dictionary() -> None:
    numbers = {"a": 1}

    def program(x: torch.Tensor) -> Any:
        proxy = types.MappingProxyType(numbers)
        try:
            proxy |= {"a": 2}  # type: ignore[assignment, operator]
        except TypeError as error:
            return x + 1, str(error), dict(numbers)

    check(program, (X,))


class Percent(str):
    def __rmod__(self, other: object) -> str:
        return f"asked about {other!r}"


def test_a_text_was_formatted_with_one_whose_class_hooks_into_it() -> None:
    outside = Percent("out")

    def program(x: torch.Tensor) -> Any:
        return x + 1, "a %% %r" % Percent("in"), "%s" % outside, "%s" % "plain"

    check(program, (torch.ones(2),))


def test_the_dictionary_of_a_thread_local_is_read_only() -> None:
    def program(x: torch.Tensor) -> Any:
        local, texts = threading.local(), []
        local.x = 5
        try:
            local.__dict__ = {}
        except AttributeError as error:
            texts.append(str(error))
        try:
            del local.__dict__
        except AttributeError as error:
            texts.append(str(error))
        return x + local.x, texts

    check(program, (torch.ones(2),), breaks=None)
