"""Details of builtins and of Python's libraries that CPython's own tests found wrong."""

from __future__ import annotations

import abc
import collections
import contextvars
import copy
import enum
import functools
import importlib
import inspect
import itertools
import logging
import re
import string
import struct
import threading
import types
import weakref
from collections import Counter, OrderedDict, deque, namedtuple
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)


def refused(call: Any) -> str:
    try:
        call()
    except TypeError as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("call", [
    lambda: {}.keys(x=1),  # type: ignore[call-arg]
    lambda: itertools.product([0], repeat=1, more=2),  # type: ignore[call-overload]
    lambda: min([0], default=1, key=len, more=3),  # type: ignore[call-overload]
    lambda: enumerate([1], begin=2),  # type: ignore[call-overload]
    lambda: enumerate([1], "a"),  # type: ignore[arg-type]
    lambda: filter(len, [], []),  # type: ignore[call-overload]
    lambda: itertools.repeat(1, 2, 3),  # type: ignore[call-overload]
    lambda: reversed({1, 2}),  # type: ignore[call-overload]
    lambda: type({}.keys())(),
    lambda: next(iter({1: 2}.values()), 1, 2),  # type: ignore[call-overload]
    lambda: copy.copy(iter([]).__reduce__),
])
def test_arguments_that_c_functions_refuse(call: Any) -> None:
    check(lambda x: (x + 1, refused(call)), (X,), breaks=None)


def test_empty_minimum_says_so() -> None:
    def f(x: Any) -> Any:
        texts = []
        for function in (min, max):
            try:
                function([])
            except ValueError as error:
                texts.append(str(error))
        return x + 1, texts

    check(f, (X,))


def test_combinations_are_made_as_they_are_asked_for() -> None:
    def f(x: Any) -> Any:
        pairs = itertools.permutations(range(40), 20)
        first = next(pairs)
        print(type(pairs).__name__)
        return x + 1, first, next(pairs), next(itertools.product("ab", repeat=30))

    check(f, (X,), breaks=None)


def test_a_reversed_object_is_indexed_lazily() -> None:
    class Items:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index * 10

    check(lambda x: (x + 1, list(reversed(Items()))), (X,), breaks=None)  # type: ignore[call-overload]


def test_a_subclass_of_dict_that_leaves_comparing_to_the_other_side() -> None:
    def f(x: Any) -> Any:
        counted = Counter("abca")
        plain = {"a": 2, "b": 1, "c": 1}
        return x + 1, counted == plain, plain == counted, counted != plain, counted == {}

    check(f, (X,))


Pair = namedtuple("Pair", "a b")


def test_replace_of_fields_that_are_not_there() -> None:
    def f(x: Any) -> Any:
        try:
            Pair(1, 2)._replace(a=1, c=3)
        except ValueError as error:
            return x + 1, str(error)
        return x

    check(f, (X,), breaks=None)


class OwnReplace(Pair):
    def _replace(self, **changes: Any) -> Any:
        return "own"


class OwnNew(namedtuple("OwnNew", "a b")):
    def __new__(cls, both: Any) -> Any:
        return super().__new__(cls, both, both)


def test_named_tuples_with_methods_of_their_own() -> None:
    def f(x: Any) -> Any:
        made = OwnNew(3)
        print("break")
        return x + 1, OwnReplace(1, 2)._replace(a=2), made

    check(f, (X,), breaks=None)


def test_the_documentation_of_a_field_made_inside() -> None:
    def f(x: Any) -> Any:
        made = namedtuple("made", "a b")
        made.a.__doc__ = "text"
        return x + 1, made.a.__doc__, made.b.__doc__

    check(f, (X,), breaks=None)


def test_format_is_a_method_of_the_class() -> None:
    class Shown:
        def __format__(self, spec: str) -> str:
            return "class" + spec

    def f(x: Any) -> Any:
        shown = Shown()
        shown.__format__ = lambda spec: "instance"  # type: ignore[method-assign]
        return x + 1, f"{shown:a}", format(shown)

    check(f, (X,))


def test_names_of_functions_must_be_strings() -> None:
    def f(x: Any) -> Any:
        def inner() -> None: ...

        names = ("__name__", "__qualname__")
        return x + 1, [refused(lambda name=name: setattr(inner, name, 7)) for name in names]

    check(f, (X,), breaks=None)


def test_annotations_of_a_function_made_inside() -> None:
    def f(x: Any) -> Any:
        def inner():  # type: ignore[no-untyped-def]
            ...

        @functools.wraps(inner)
        def outer() -> None: ...

        return x + 1, outer.__annotations__ is inner.__annotations__, inner.__annotations__

    check(f, (X,))


def test_an_abstract_method_behind_a_descriptor() -> None:
    def f(x: Any) -> Any:
        class Abstract(metaclass=abc.ABCMeta):
            @functools.singledispatchmethod
            @abc.abstractmethod
            def add(self, y: Any) -> None: ...

        return x + 1, refused(Abstract)

    check(f, (X,), breaks=None)


class OfClass:
    """A class method of one's own."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, cls: Any) -> Any:
        return self.function(cls)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return types.MethodType(self, owner)


def test_a_classmethod_around_a_descriptor() -> None:
    class Holder:
        @classmethod
        @OfClass
        def same(cls) -> Any:
            return cls

    check(lambda x: (x + 1, Holder.same() is Holder), (X,), breaks=None)


def test_cells_compare_by_their_contents() -> None:
    def cell(value: Any) -> Any:
        return (lambda: value).__closure__[0]  # type: ignore[index]

    def f(x: Any) -> Any:
        return x + 1, cell(1) == cell(1.0), cell(1) < cell(2), cell(1) != cell(1)

    check(f, (X,))


def test_yield_from_a_coroutine() -> None:
    async def wait() -> int:
        return 1

    def delegating(waiting: Any) -> Any:
        yield from waiting

    def f(x: Any) -> Any:
        waiting = wait()
        text = refused(lambda: list(delegating(waiting)))
        waiting.close()
        return x + 1, text

    check(f, (X,), breaks=None)


def test_what_next_raises_carries_its_value() -> None:
    class Ends:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            raise StopIteration(42)

    def counting() -> Any:
        yield 1
        return 7

    def delegating(log: list[Any]) -> Any:
        log.append((yield from Ends()))  # type: ignore[misc]

    def f(x: Any) -> Any:
        log: list[Any] = list(delegating(log := []))
        generator = counting()
        next(generator)
        for ending in (generator, Ends()):
            try:
                next(ending)
            except StopIteration as error:
                log.append(error.value)
        return x + 1, log

    check(f, (X,))


class Text(type):
    def __instancecheck__(cls, obj: Any) -> bool:
        return obj == 3


class Three(metaclass=Text): ...


class Point:
    __match_args__ = ("a", "a")

    def __init__(self) -> None:
        self.a = 1


def test_patterns_ask_as_python_does() -> None:
    def f(x: Any, subject: Any) -> Any:
        try:
            match subject:
                case Three():
                    return x, "three"
                case Point(1, 1):
                    return x, "twice"
                case {"k": found, "l": _}:
                    return x, found
        except TypeError as error:
            return x, str(error)
        return x, "none"

    default = collections.defaultdict(int, k=1)
    for subject in (3, Point(), {"k": 1, "l": 2}, default, []):
        check(f, (X, subject), breaks=None)


def test_a_thread_is_looked_up_by_its_own_number() -> None:
    known = {threading.get_ident(): "first"}

    def f(x: Any) -> Any:
        return x + 1, known.get(threading.get_ident(), "other")

    compiled = weft.compile(f, backend="eager")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(compiled(X)[1]))
    thread.start()
    thread.join()
    assert (*found, compiled(X)[1]) == ("other", "first")


def test_the_dictionary_of_a_thread_local() -> None:
    data = threading.local()
    data.scale = 3

    def f(x: Any) -> Any:
        data.last = x * data.__dict__.get("scale", 1)
        return data.__dict__["last"] + vars(data)["scale"]

    check(f, (X,), (X,), graphs=1)


def test_a_thread_is_looked_up_in_an_empty_dictionary() -> None:
    known: dict[int, str] = {}  # opt_einsum's caches, before any is shared

    def f(x: Any) -> Any:
        return x + 1, known.get(threading.get_ident(), "none")

    compiled = weft.compile(f, backend="eager", fullgraph=True)
    assert compiled(X)[1] == "none"
    known[threading.get_ident()] = "one"
    compiled = weft.compile(f, backend="eager")
    assert compiled(X)[1] == "one"


PLAIN: contextvars.ContextVar[int] = contextvars.ContextVar("PLAIN")
WITH_DEFAULT = contextvars.ContextVar("WITH_DEFAULT", default=5)


def test_context_variables_without_a_value() -> None:
    def f(x: Any) -> Any:
        try:
            PLAIN.get()
        except LookupError as error:
            return x + 1, error.args[0] is PLAIN, WITH_DEFAULT.get(), WITH_DEFAULT.get(6)
        return x

    check(f, (X,))


def test_tokens_of_context_variables_are_used_once() -> None:
    def f(x: Any) -> Any:
        token = PLAIN.set(1)
        kinds = []
        for variable in (WITH_DEFAULT, PLAIN, PLAIN):
            try:
                variable.reset(token)
            except (ValueError, RuntimeError) as error:
                kinds.append(type(error).__name__)
        return x + 1, kinds, PLAIN.get(0)

    check(f, (X,), breaks=None)


class Kept:
    """A cached property that keeps what it computes in the instance's dictionary."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        cache = instance.__dict__
        print("a break")
        value = self.function(instance)
        cache["kept"] = value
        return value


class Costs:
    cost = 1

    def rising(self) -> int:
        self.cost += 1
        return self.cost

    kept_cost = Kept(rising)


def test_a_dictionary_of_attributes_in_a_variable_across_a_break() -> None:
    def f(x: Any) -> Any:
        item = Costs()
        costs = [item.rising(), item.kept_cost, item.rising()]
        return x + 1, costs, vars(item)

    check(f, (X,), breaks=None)


def test_attributes_and_their_dictionary_are_the_same() -> None:
    def f(x: Any, names: dict[str, Any], item: Any) -> Any:
        names["a"] = 1
        item.b = 2
        return x + names["b"] + item.a, dict(names)

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        item = Costs()
        item.b = 0  # type: ignore[attr-defined]
        assert compiled(X, vars(item), item)[1] == vars(item) == {"b": 2, "a": 1}


def test_a_function_got_from_its_class_is_not_bound() -> None:
    def f(x: Any) -> Any:
        get = Costs.rising.__get__
        return x + 1, get(None, Costs) is Costs.rising, get(Costs(), Costs)()

    check(f, (X,))


class Partial(functools.partial):  # type: ignore[type-arg]
    pass


def test_members_of_c_types_that_cannot_be_set() -> None:
    def f(x: Any, bound: Any) -> Any:
        try:
            bound.func = len
        except AttributeError as error:
            return x + 1, str(error)
        return x

    check(f, (X, Partial(int, "3")), breaks=None)


def test_join_and_unions_of_generators() -> None:
    def f(x: torch.Tensor, names: dict[str, Any]) -> Any:
        text = ", ".join(f"{k}={v}" for k, v in names.items())
        union = frozenset({1}).union(i for i in range(3))
        try:
            ",".join(v for v in names.values())
        except TypeError as error:
            return x + 1, text, sorted(union), str(error)
        return x - 1

    check(f, (X, {"a": 1, "b": [2]}), graphs=1, breaks=0)


SENTINEL = "==no value=="


def test_a_string_kept_by_the_program_is_the_same_object() -> None:
    class Holder:
        pass

    def f(x: Any, holder: Any) -> Any:
        holder.value, holder.other = SENTINEL, "another text"
        return x + 1

    holder = Holder()
    weft.compile(f, backend="eager")(X, holder)
    assert holder.value is SENTINEL  # type: ignore[attr-defined]


class Kinds(enum.Enum):
    NUMBERS = list[int]
    TEXTS = list


def test_callable_values_of_an_enumeration() -> None:
    def f(x: Any) -> Any:
        return (x + 1, Kinds.NUMBERS.value == list[int], Kinds.NUMBERS.value != list[int],
                Kinds.TEXTS.value(), Kinds.NUMBERS.value((1, 2)))

    check(f, (X,))


def test_properties_in_the_place_of_class_and_dict() -> None:
    class Disguised:
        @property
        def __class__(self) -> Any:
            return int

        @property
        def __dict__(self) -> Any:
            return {"a": 2}

    thing = Disguised()

    def f(x: Any) -> Any:
        return x + 1, thing.__class__, vars(thing), type(thing) is Disguised, dir(thing)

    check(f, (X,), breaks=None)


def test_what_format_has_to_return() -> None:
    class Wrong:
        def __format__(self, spec: str) -> Any:
            return 1

    def f(x: Any) -> Any:
        return x + len(f"{Wrong()}")

    check(f, (X,))


# -- ordered dictionaries and deques --------------------------------------------------------------


def test_move_to_end_takes_the_end_by_position() -> None:
    def f(x: Any) -> Any:
        order = OrderedDict.fromkeys("abc")
        order.move_to_end("c", False)
        order.move_to_end("a", True)
        return x + 1, list(order)

    check(f, (X,), graphs=1)


def test_an_empty_ordered_dictionary_says_what_it_is_in_its_own_words() -> None:
    def f(x: Any) -> Any:
        texts = []
        for kind in (dict, OrderedDict):
            try:
                kind().popitem()
            except KeyError as error:
                texts.append(str(error))
        return x + 1, texts

    check(f, (X,), graphs=1)


def test_keys_of_an_outside_dictionary_are_moved_among_all_of_them() -> None:
    def f(x: Any, order: Any) -> Any:
        order.move_to_end("a")
        first = order.popitem(last=False)
        print(end="")
        order.move_to_end("c", last=False)
        return x + 1, first, list(order), order

    check(f, (X, OrderedDict(a=1, b=2, c=3, d=4)), breaks=1)


def test_an_iterator_over_a_deque_sees_items_that_are_replaced_behind_a_break() -> None:
    def f(x: Any) -> Any:
        items = deque([1, 2, 3])
        iterator = iter(items)
        first = next(iterator)
        print(end="")
        items[1] = 7
        return x + 1, first, type(iterator), list(iterator)

    check(f, (X,), breaks=None)


def test_a_deque_that_changes_while_it_looks_for_what_to_remove() -> None:
    class Clears:
        def __init__(self, owner: Any) -> None:
            self.owner = owner

        def __eq__(self, other: object) -> bool:
            self.owner.clear()
            return False

        __hash__ = None  # type: ignore[assignment]

    def f(x: Any) -> Any:
        items: Any = deque(["a"])
        items.extend([Clears(items), "c"])
        try:
            items.remove("c")
        except IndexError as error:
            return x + 1, str(error), len(items)
        return x

    check(f, (X,), breaks=None)


def test_a_list_extended_by_a_generator_that_reads_what_was_added() -> None:
    def halves(items: Any) -> Any:
        while len(items) < 4:
            yield items[-1] / 2
        raise ValueError("full")

    def f(x: Any) -> Any:
        first, second, third = [x], [x], deque([x], maxlen=3)
        first.extend(first[-1] * n for n in range(2, 4))
        refused(lambda: second.extend(halves(second)))
        third.extend(third[0] + third[-1] for _ in range(4))
        third.extendleft(third[0] - 1 for _ in range(2))
        third.extend(third)
        first += (len(first) for _ in range(2))
        return first, second, third

    check(f, (X,), graphs=1, breaks=0)


def test_a_set_updated_by_a_generator_that_reads_it() -> None:
    def make() -> Any:
        outside: set[int] = set()

        def f(x: Any) -> Any:
            seen = {0}
            seen.update((len(seen) for _ in range(3)), {7: 1}, {8})
            outside.update(len(outside) + 5 for _ in range(2))
            return x + 1, sorted(seen), outside

        return f

    check(make(), (X,), (X,), graphs=None, breaks=0, make=make)


def starred(a, /, b, *args, c=3, d, **kw):
    return a, b, args, c, d, kw


class Letters:
    def keys(self):
        return ["c", "d"]

    def __getitem__(self, key):
        return key


@pytest.mark.parametrize("call", [
    lambda n: starred(*n),
    lambda n: starred(1, *n),
    lambda n: starred(1, **n),
    lambda n: starred(1, d=1, **n),
    lambda n: starred(1, **[("b", n)]),  # type: ignore[arg-type]
    lambda n: starred(1, n, c=1, **Letters()),
    lambda n: starred(1, n, **Letters()),
    lambda n: {**n},
    lambda n: {**[(1, n)]},  # type: ignore[list-item]
    lambda n: len(*n),
    lambda n: Letters().keys(**n),
    lambda n: (lambda: 0)(*n),
    lambda n: print(**{"sep": n, 2: 3}),
])
def test_errors_of_starred_arguments_say_what_python_says(call):
    def f(x, n):
        return x * 2, refused(lambda: call(n))

    check(f, (X, 2), graphs=1)


def test_a_function_made_inside_without_defaults_has_none():
    def f(x):
        def inner(a):
            return a

        return x + 1, inner

    _, inner = check(f, (X,))(X)
    assert inner.__defaults__ is None


class _Named:
    def method(self) -> None: ...

    def __repr__(self) -> str:
        return "<named>"


def test_texts_of_functions_methods_and_modules() -> None:
    named = _Named()

    def f(x: Any) -> Any:
        return (x + 1, str(refused), f"{len}", repr(functools), f"{[torch.add, named]}",
                str(named.method), repr(str.upper))

    check(f, (torch.ones(2),), graphs=1)


def test_sums_of_floats_keep_the_digits_that_python_keeps():
    def f(x):
        return x + 1, sum([0.1] * 10), sum([1e100, 1.0, -1e100]), sum([1, 2.5, True]), sum([0.1, x])

    check(f, (X,), graphs=1)


def test_imports_by_name() -> None:
    def f(x: Any) -> Any:
        return x * __import__("math").pi, importlib.import_module("collections.abc").Sequence

    check(f, (torch.ones(2),), graphs=1)


def test_zero_to_a_negative_power_is_refused_where_the_program_asks():
    def f(x, base, exponent):
        try:
            return x, (base * 0.5) ** exponent
        except ZeroDivisionError as error:
            return x, str(error)

    check(f, (X, 2, 1), (X, 3, -2), (X, 0, 3), (X, 0, -1), (X, 0, -2))


def test_divisions_of_symbolic_numbers_by_the_constant_zero_raise_as_python_does():
    def f(x, n, zero):
        texts = []
        for divide in (lambda: n / zero, lambda: n // zero, lambda: n % zero):
            try:
                texts.append(divide())
            except ZeroDivisionError as error:
                texts.append(str(error))
        return x, texts

    check(f, (X, 5, 0), (X, 6, 0), (X, 7, 0), (X, 7, 2))


def test_a_format_that_is_no_string_is_refused():
    class Shown:
        def __format__(self, spec):
            return spec or "plain"

    def f(x, spec):
        return x + 1, refused(lambda: format(Shown(), spec)), refused(lambda: format(3, spec))

    check(f, (X, None), (X, ""))


def test_patterns_that_a_function_replaces() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        swap = re.compile(r"(\d)|b*")
        return (x * n, re.sub(r"\d", lambda m: str(int(m[0]) + n), "a1b2"),
                swap.subn(lambda m: f"<{m[0]}>", "1bbc2", 3), swap.sub(lambda m: "", "1bbc2", -1),
                string.Template("$a has $b").substitute(a=1, b="c"), string.ascii_letters[:n],
                struct.unpack("<If", struct.pack("<If", 3, 1.5)))

    check(f, (torch.ones(3), 2), (torch.ones(3), 5), breaks=0)


class Sentinel(int):
    """As `re` has one in Python 3.13."""


ZERO = Sentinel()
NAMESPACE_OF = vars(type)["__dict__"].__get__


def test_numbers_of_subclasses_are_keys_and_flags() -> None:
    def f(x: torch.Tensor, table: dict[Any, int]) -> Any:
        return (x + table.get((str, ZERO), 5), bool(ZERO), table.get(ZERO, 1),
                "check" in NAMESPACE_OF(Sentinel))

    check(f, (torch.ones(3), {(str, 0): 2}), (torch.ones(3), {0: 7}), breaks=0)


def test_sets_updated_by_others() -> None:
    def f(x: torch.Tensor, seen: set[int]) -> Any:
        mine = {1, 2, 3}
        mine.symmetric_difference_update([3, 4])
        seen.intersection_update([1, 2], {2, 5})
        seen.difference_update({9})
        return x * len(mine), mine

    check(f, (torch.ones(3), {1, 2, 7}), breaks=0)


def test_errors_name_types_as_python_does() -> None:
    def f(x: torch.Tensor, p: torch.Tensor, names: threading.local) -> Any:
        texts = []
        for use in (lambda: x.shape.foo, lambda: x.shape["a"], lambda: x.shape[9],
                    lambda: p.foo, lambda: len.foo):  # type: ignore[attr-defined]
            try:
                use()
            except (AttributeError, TypeError, IndexError) as error:
                texts.append(str(error))
        names.seen = names.seen + 1
        space = types.SimpleNamespace(a=1)
        space.b = names.seen
        return x, texts, vars(space)

    names = threading.local()
    names.seen = 1
    expected = f(torch.ones(3), torch.nn.Parameter(torch.ones(1)), names)
    weft.reset()
    actual = weft.compile(f, backend="eager")(
        torch.ones(3), torch.nn.Parameter(torch.ones(1)), names)
    assert actual[1] == expected[1]
    assert (actual[2], names.seen) == ({"a": 1, "b": 3}, 3)
    assert weft.stats()["graph_breaks"] == 0


class Counted:
    """Counts how often it is asked for its length."""

    def __init__(self, items: list[Any]) -> None:
        self.items, self.asked = items, 0

    def __len__(self) -> int:
        self.asked += 1
        return len(self.items)

    def __iter__(self) -> Any:
        return iter(self.items)


def test_lists_ask_for_the_length_of_what_they_are_made_of() -> None:
    def f(x: Any) -> Any:
        kept = Counted([x, x])
        made = [list(kept), tuple(kept), [*kept], torch.add(*kept), sorted(Counted([2, 1]))]
        made[0].extend(kept)
        return made, max(kept[0] for kept in [[1]]), kept.asked, set(Counted([3]))

    check(f, (X,), graphs=1, breaks=0)


class Bits(enum.IntFlag):
    A = 1
    B = 2


def test_constants_that_a_graph_holds_by_value() -> None:
    check(lambda x: (x * (Bits.A | Bits.B), x.to(int), torch.zeros(2, dtype=float)), (X,),
          graphs=1, breaks=0)


def test_what_objects_say_of_themselves() -> None:
    kept = weakref.ref(Counted)

    def f(x: Any) -> Any:
        logger = logging.getLogger("weft.tests")
        pair = namedtuple("pair", "a b")(1, 2)
        return (x + 1, deque([1, 2]) == (1, 2), (1, 2) != deque([1, 2]), "".join.__class__,
                Counted([1]).__len__.__class__, hasattr(logger, "nothing"), list(reversed(pair)),
                callable(vars(Slotted)["slot"]), refused(lambda: kept(1)))  # type: ignore[call-arg]

    check(f, (X,), breaks=None)


class Slotted:
    __slots__ = ("slot",)


def test_names_of_a_class_that_changes() -> None:
    class Levels:
        low = 1

    def f(x: torch.Tensor) -> Any:
        return x + 1, [[n for n in dir(v) if n[0] != "_"] for v in (Levels, Levels())]

    compiled = check(f, (torch.ones(2),))
    Levels.high = 2  # type: ignore[attr-defined]
    assert str(compiled(X)) == str(f(X))


def test_dictionaries_updated_in_place_by_pairs() -> None:
    def f(x: torch.Tensor, pairs: Any) -> Any:
        made = [{1: 2}, collections.OrderedDict(a=x), collections.defaultdict(int)]
        for one in made:
            one |= pairs
        return x * 2, made

    check(f, (X, [(1, 3)]), (X, ("ab", "cd")), (X, {5: 6}), (X, ["abc"]), (X, 5))


FROM_HEX = float.__dict__["fromhex"]


def test_a_class_method_in_c_called_through_its_descriptor() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, FROM_HEX(float, "0x1p3"), refused(lambda: FROM_HEX())

    check(f, (X,), breaks=None)


def test_descriptors_in_c_refuse_objects_of_other_types() -> None:
    """`inspect.getattr_static` asks so whether an object is a class: the graph broke there."""
    def message(obj):
        try:
            return type.__dict__["__mro__"].__get__(obj)
        except TypeError as error:
            return str(error)

    def f(x):
        objects = (3, [], len, f, x.numpy(), torch.nn.ReLU(), torch.nn.ReLU)
        found = [inspect.getattr_static(obj, "__len__", "absent") for obj in objects]
        return x + 1, found, [message(obj) for obj in (3, [], None, X)], hasattr([], "__dict__")

    check(f, (X,), graphs=1, breaks=0)


class ByBase(type):
    """A metaclass that asks `type` first."""

    def __instancecheck__(cls, obj: Any) -> bool:
        return super().__instancecheck__(obj) or obj == 3

    def __subclasscheck__(cls, other: type) -> bool:
        return super().__subclasscheck__(other) or other is int


class Base(metaclass=ByBase): ...


class Derived(Base): ...


def test_metaclass_that_asks_type_broke_the_graph() -> None:
    def f(x: Any) -> Any:
        return x + 1, [
            [isinstance(obj, cls) for obj in (Base(), Derived(), 3, 4, None)]
            + [issubclass(kind, cls) for kind in (Base, Derived, int, str)]
            for cls in (Base, Derived)]

    check(f, (X,))
