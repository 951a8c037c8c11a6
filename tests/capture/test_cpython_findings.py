"""Small programs for what CPython's own tests found wrong (tools/cpython_tests.py)."""

from __future__ import annotations

import abc
import collections
import collections.abc
import copy
import enum
import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

import weft
from tests.capture.harness import check, same

X = torch.ones(2)


class Text(str):
    pass


class Number(int):
    pass


def test_equality_and_hash_of_instances_of_str_and_int() -> None:
    def f(x: Any, text: Any, number: Any) -> Any:
        return x + 1, text == "a", "a" == text, text != "a", number == 3, hash(text) == hash("a")

    check(f, (X, Text("a"), Number(3)), breaks=None)


class HasBuiltin:
    function = len
    kind = dict


def test_a_builtin_in_a_class_is_not_bound() -> None:
    def f(x: Any, obj: HasBuiltin) -> Any:
        return x + obj.function([1, 2]), obj.kind(a=1)

    check(f, (X, HasBuiltin()))


class Watch:
    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.seen = (kind, error is not None, traceback is None, error.__traceback__ is traceback)
        return True


def test_exit_is_given_a_traceback() -> None:
    def f(x: Any) -> Any:
        watch = Watch()
        with watch:
            raise ValueError(3)
        return x + 1, watch.seen

    check(f, (X,))


def test_an_exception_that_leaves_a_capture_has_its_traceback() -> None:
    def f(x: Any, keep: list[Any]) -> Any:
        try:
            raise ValueError(3)
        except ValueError as error:
            keep.append(error.__traceback__)
        return x + 1

    keep: list[Any] = []
    weft.compile(f, backend="eager")(X, keep)
    assert keep[0] is not None


def test_iterator_of_a_deque_is_rebuilt_where_it_was() -> None:
    def f(x: Any, items: Any) -> Any:
        iterator = iter(items)
        next(iterator)
        return x + 1, iterator

    _, rest = weft.compile(f, backend="eager")(X, collections.deque([1, 2, 3]))
    assert list(rest) == [2, 3]


class Reversed(dict[Any, Any]):
    def __iter__(self) -> Any:
        return reversed(list(dict.keys(self)))

    keys = __iter__  # type: ignore[assignment]


def test_dict_of_a_subclass_that_iterates_its_own_way() -> None:
    def f(x: Any, mapping: Any) -> Any:
        return x + 1, dict(mapping)

    check(f, (X, Reversed(a=1, b=2)), breaks=None)


def test_iterator_of_a_dict_is_rebuilt_as_one() -> None:
    def f(x: Any, mapping: Any) -> Any:
        outside, made = iter(mapping.items()), {"c": 1, "d": 2}
        inside = iter(made.values())
        next(outside), next(inside)
        return x + 1, outside, inside, made

    for _ in range(2):
        _, outside, inside, made = weft.compile(f, backend="eager")(X, {"a": 1, "b": 2})
        assert type(outside) is type(iter({}.items())) and type(inside) is type(iter({}.values()))
        assert list(outside) == [("b", 2)]
        made["e"] = 3
        try:
            next(inside)
        except RuntimeError:
            continue
        raise AssertionError("the iterator belongs to another dictionary")


def test_values_changed_while_iterating_over_items() -> None:
    def f(x: Any) -> Any:
        mapping, seen = {"a": 1, "b": 2}, []
        for key, value in mapping.items():
            mapping["b"] = 7
            seen.append((key, value))
        return x + 1, seen

    check(f, (X,))


def test_a_mapping_proxy_stays_one() -> None:
    def f(x: Any, cls: Any) -> Any:
        proxy = cls.__dict__
        return x + 1, type(proxy), "kind" in proxy, proxy.get("nothing", 4)

    check(f, (X, HasBuiltin), breaks=None)


def test_locals_names_what_is_bound() -> None:
    def f(x: Any, a: int, free: list[int] = [1]) -> Any:
        b = a + 1

        def inner() -> int:
            return b

        del a
        text = "{b} {free}".format(**locals())
        return x + inner(), text, dir()[:1]

    check(f, (X, 3), breaks=None)


def test_eval_sees_the_frame() -> None:
    def inner(a: int) -> Any:
        b = a + 1
        return eval("a + b"), b

    def f(x: Any, a: int) -> Any:
        return x + 1, inner(a), x - 1

    check(f, (X, 3), breaks=None)


class Base:
    @classmethod
    def make(cls) -> str:
        return cls.__name__

    def method(self) -> str:
        return "base"


class Derived(Base):
    def method(self) -> str:
        return super().make() + super().method()

    @staticmethod
    def wrong(self: Any) -> Any:
        return super(Derived, self).method()  # noqa: UP008  (a static method)


def test_super_binds_class_methods_to_the_class_of_the_object() -> None:
    def f(x: Any, obj: Derived) -> Any:
        return x + 1, obj.method()

    check(f, (X, Derived()))


def test_super_of_another_object() -> None:
    def f(x: Any) -> Any:
        return Derived.wrong(x)

    check(f, (X,), breaks=None)


class NeverEqual:
    def __eq__(self, other: object) -> bool:
        return False


class AlwaysEqual:
    def __eq__(self, other: object) -> bool:
        return True


def test_contains_asks_the_item() -> None:
    def f(x: Any) -> Any:
        return x + 1, AlwaysEqual() in [NeverEqual()], NeverEqual() in (AlwaysEqual(),)

    check(f, (X,))


def test_a_list_iterator_that_met_the_end_stays_there() -> None:
    def f(x: Any) -> Any:
        items = [1, 2]
        first, second = iter(items), iter(items)
        for _ in first:
            next(second)
        items.append(3)
        return x + 1, list(first), list(second)

    check(f, (X,))


def test_iterators_over_outside_containers_that_were_changed_keep_their_place() -> None:
    def f(x: Any, items: list[int], mapping: dict[str, int]) -> Any:
        items.extend([1, 2, 3])
        mapping.update(a=1, b=2)
        iterators = iter(items), reversed(items), iter(mapping.items())
        for iterator in iterators:
            next(iterator)
        print("break")
        return x + 1, list(map(list, iterators))

    check(f, (X, [], {}), breaks=1)


def test_a_list_iterator_keeps_its_list() -> None:
    def f(x: Any) -> Any:
        items = [1, 2]
        iterator = iter(items)
        next(iterator)
        return x + 1, items, iterator

    _, items, iterator = weft.compile(f, backend="eager")(X)
    items.append(3)
    assert list(iterator) == [2, 3]


class SequenceFirst(collections.UserList[int], collections.abc.Mapping[int, int]):
    pass


class NoTuple:
    __match_args__ = None


def test_match_of_what_is_both_a_sequence_and_a_mapping() -> None:
    def f(x: Any, subject: Any) -> Any:
        match subject:
            case {}:
                return x + 1, "mapping"
            case []:
                return x + 2, "sequence"
            case str():
                return x + 3, "text"

    check(f, (X, SequenceFirst()), (X, ""), (X, {}), (X, ()), breaks=None)


def test_match_args_of_another_type() -> None:
    def f(x: Any, subject: Any) -> Any:
        match subject:
            case NoTuple(y):
                return x + 1, y

    check(f, (X, NoTuple()), breaks=None)


class Table(dict[Any, Any]):
    pass


def test_class_methods_of_c_types_through_an_instance() -> None:
    def f(x: Any, table: Table) -> Any:
        made = table.fromkeys(["a"], 1)
        return x + 1, type(made), made["a"]

    check(f, (X, Table()), breaks=None)


def test_a_method_of_an_opaque_object() -> None:
    lock = threading.Lock()
    acquire = lock.acquire

    def f(x: Any) -> Any:
        taken = acquire()
        lock.release()
        return x + 1, taken

    stats = check(f, (X,), breaks=None)
    assert stats is not None and weft.stats()["fallbacks"] == 0


def test_description_of_a_function_made_inside() -> None:
    def f(x: Any) -> Any:
        def inner(a: int) -> str:
            """Text."""
            return str(a)

        inner.__qualname__ = "other.inner"
        inner.__doc__ = "Other text."
        inner.mark = 3
        return x + 1, inner

    _, expected = f(X)
    _, inner = weft.compile(f, backend="eager")(X)
    for name in ("__annotations__", "__qualname__", "__doc__", "__name__", "__module__", "mark"):
        assert getattr(inner, name) == getattr(expected, name), name


def test_classes_made_inside_know_their_module() -> None:
    def f(x: Any) -> Any:
        return x + 1, type("Made", (), {}).__module__, collections.namedtuple("P", "a").__module__

    check(f, (X,), breaks=None)


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("nobody asked for it")

    __hash__ = object.__hash__


def test_capture_does_not_show_objects() -> None:
    def f(x: Any, table: dict[Any, int], loud: Any) -> Any:
        return x + sum(table.values()), loud in table

    loud = Loud()
    assert weft.compile(f, backend="eager")(X, {loud: 1}, loud)[1] is True


def test_branches_on_a_comparison_of_tensors() -> None:
    """3.13's comparison makes the bool itself; the jump takes nothing else."""
    def f(x: Any) -> Any:
        if x.sum() > 0:
            return x * 2
        return x * 3

    check(f, (X,), (-X,), breaks=None)


def test_a_range_is_not_listed() -> None:
    def f(x: Any) -> Any:
        for i in range(10**30):
            if i == 5:
                break
        rest = iter(range(4))
        next(rest)
        return x + i, 10**20 in range(10**30), rest

    _, found, rest = weft.compile(f, backend="eager")(X)
    assert found and list(rest) == [1, 2, 3] and type(rest) is type(iter(range(1)))


def test_a_cycle_of_contexts_has_an_end() -> None:
    def f(x: Any) -> Any:
        first, second = TypeError(1), ValueError(2)
        first.__context__, second.__context__ = second, first
        try:
            try:
                raise first
            except TypeError:
                raise KeyError(3)
        except KeyError as error:
            return x + 1, type(error.__context__)

    check(f, (X,), breaks=None)


def test_docstring_of_a_function_made_inside() -> None:
    def f(x: Any) -> Any:
        def inner() -> None:
            """Text."""

        return x + 1, inner.__doc__, (lambda: "no text").__doc__

    check(f, (X,), breaks=None)


def test_order_counts_in_ordered_dicts() -> None:
    def f(x: torch.Tensor) -> Any:
        a, b = OrderedDict([(1, 2), (3, 4)]), OrderedDict([(3, 4), (1, 2)])
        return x + 1, a == b, a == {3: 4, 1: 2}, a != b

    check(f, (torch.ones(2),), graphs=1)


def test_text_of_ascii() -> None:
    check(lambda x: (x + 1, ascii("é'\\\u20ac"), ascii(["ü"])), (torch.ones(2),), graphs=1)


def test_missing_key_of_subclass_with_getitem() -> None:
    class Doubling(dict[str, str]):
        def __missing__(self, key: str) -> str:
            return key * 2

        def __getitem__(self, key: str) -> str:
            return super().__getitem__(key)

    def f(x: torch.Tensor) -> Any:
        made = Doubling(a="b")
        return x + 1, made["a"], made["c"], made.get("c")

    check(f, (torch.ones(2),), graphs=1)


def test_abstract_class_raises() -> None:
    def f(x: torch.Tensor) -> Any:
        try:
            Mapping()  # type: ignore[abstract]
        except TypeError as error:
            return x + 1, str(error)

    check(f, (torch.ones(2),), graphs=1)


def test_long_loop_without_tensors_is_left_to_python() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        return x + 1, sum(range(n))

    check(f, (torch.ones(2), 3_000_000), graphs=0, repeat=1)


def test_reversed_range_is_not_listed() -> None:
    check(lambda x: (x + 1, next(reversed(range(10**12)))), (torch.ones(2),), graphs=1)


def test_sorting_by_user_objects() -> None:
    @dataclass(order=True)
    class Pair:
        a: int
        b: int = 0

    def f(x: torch.Tensor, n: int) -> Any:
        found = sorted([Pair(3, n), Pair(1), Pair(2, 5)], reverse=n > 1)
        by = sorted("bca", key=functools.cmp_to_key(lambda p, q: ord(q) - ord(p)))
        return x * found[0].a, [p.a for p in found], by

    check(f, (torch.ones(2), 1), (torch.ones(2), 2))


class Ratio(float, enum.Enum):
    HALF = 0.5


def test_method_of_a_base_on_an_instance_of_a_subclass() -> None:
    def f(x: torch.Tensor) -> Any:
        return x + 1, float.__repr__(Ratio.HALF), f"{Ratio.HALF!r}", (3).real, (-3).bit_length

    check(f, (X,), graphs=1, breaks=None)


def test_complex_constants() -> None:
    def f(x: torch.Tensor) -> Any:
        a = complex("inf") * 1
        return x + 1, a, str(complex(-0.0, -0.0)), complex(-0.0, -0.0), complex("nan").imag

    check(f, (X,), graphs=1)


def test_str_decodes() -> None:
    check(lambda x: (x + 1, str(b"abc", "ascii"), str(b"a", encoding="latin1")), (X,), graphs=1)


def test_divmod_of_user_objects() -> None:
    class Both:
        def __divmod__(self, other: Any) -> Any:
            return "divmod", other

        def __rdivmod__(self, other: Any) -> Any:
            return "rdivmod", other

    check(lambda x: (x + 1, divmod(Both(), 2), divmod(2, Both()), divmod(7, 2)), (X,), graphs=1)


def test_too_many_arguments_of_constructors() -> None:
    class Plain:
        pass

    class Init:
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)

    def f(x: torch.Tensor) -> Any:
        found = []
        for make in (lambda: Plain(1), lambda: Init(1), lambda: object.__new__(Plain, 2)):
            try:
                found.append(type(make()).__name__)
            except TypeError as error:
                found.append(str(error))
        return x + 1, found, type(Init()).__name__

    check(f, (X,), graphs=1)


def test_virtual_subclasses_are_not_asked_first() -> None:
    class Base:
        def __eq__(self, other: object) -> Any:
            return "Base"

        __hash__ = None  # type: ignore[assignment]

    class Virtual(metaclass=abc.ABCMeta):
        def __eq__(self, other: object) -> Any:
            return "Virtual"

        __hash__ = None  # type: ignore[assignment]

    check(lambda x: (x + 1, Base() == Virtual(), Virtual() == Base()), (X,), graphs=1)


def test_frozensets_are_not_copied() -> None:
    def f(x: torch.Tensor) -> Any:
        a = frozenset([1, 2])
        return x + 1, frozenset(a) is a, a.copy() is a, hasattr(a, "add")

    check(f, (X,), graphs=1)


def test_sets_are_emptied_by_init() -> None:
    def f(x: torch.Tensor) -> Any:
        a = {1, 2}
        a.__init__([3])  # type: ignore[misc]
        return x + 1, a

    check(f, (X,), graphs=1)


def test_messages_of_exceptions() -> None:
    class Own(Exception):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(code)
            self.text = text

    def f(x: torch.Tensor, n: int) -> Any:
        found: list[Any] = [str(ValueError()), str(ValueError(1)), str(ValueError(1, "a")),
                            str(KeyError("k")), ImportError("m").msg, StopIteration(3).value]
        try:
            raise Own(n, "t").with_traceback(None)
        except Own as error:
            error.add_note("note")
            found += [error.args, error.text, str(error), error.__notes__]
        return x * n, found

    check(f, (X, 1), (X, 2))


def test_data_descriptor_without_get() -> None:
    class Writes:
        def __set__(self, owner: Any, value: Any) -> None:
            owner.__dict__["a"] = value

    class Owner:
        a = Writes()

    def f(x: torch.Tensor) -> Any:
        owner = Owner()
        before = type(owner.a).__name__
        owner.a = 42
        return x + 1, before, owner.a

    check(f, (X,), graphs=1)


def test_module_of_a_class_may_be_anything() -> None:
    class Odd:
        __module__ = collections  # type: ignore[assignment]

    check(lambda x: (x + 1, Odd.__module__ is collections), (X,), graphs=1)


def test_slices_that_python_refuses() -> None:
    def f(x: torch.Tensor) -> Any:
        items, errors = [1, 2, 3], []
        for change in (lambda: items[::0], lambda: items.__setitem__(slice(0, 3, 2), [1])):
            try:
                change()
            except ValueError as error:
                errors.append(str(error))
        return x + 1, errors

    check(f, (X,), graphs=1)


def test_hash_of_default_objects() -> None:
    marker = object()

    def f(x: torch.Tensor) -> Any:
        return x + 1, hash(marker) == hash_of(marker)

    check(f, (X,), breaks=None)


@weft.disable
def hash_of(obj: Any) -> int:
    return hash(obj)


def test_user_objects_as_keys() -> None:
    @dataclass(frozen=True)
    class Key:
        a: int
        b: str = "x"

    def f(x: torch.Tensor, n: int) -> Any:
        table = {Key(n): x, Key(2): x * 2, "k": x}
        table[Key(1)] = x + 5
        return table[Key(n)] + table["k"], len(table), Key(1) in {Key(1)}, hash(Key(3)) == hash(
            Key(3)), table.get(Key(7)), list(table)[0].a

    check(f, (X, 1), (X, 2), (X, 3))


class Counting:
    made = 0
    names: Any = ()


def test_class_attributes_are_written() -> None:
    def f(x: torch.Tensor) -> Any:
        Counting.made += 1
        Counting.names = (*Counting.names, "a")
        return x * Counting.made, Counting().made, len(Counting().names)

    def fresh() -> Any:
        Counting.made, Counting.names = 0, ()
        return f

    expected = [(fresh() if n == 0 else f)(X) for n in range(5)]
    weft.reset()
    compiled = weft.compile(fresh(), backend="eager")
    for outcome in expected:
        assert same(outcome, compiled(X))
    assert Counting.made == 5 and Counting.names == ("a",) * 5


def test_identities_are_those_of_the_run() -> None:
    def f(x: torch.Tensor) -> Any:
        made: list[int] = []
        return x + 1, made, id(made), {id(made): 1}[id(made)], id(made) == id([1]), made.__hash__

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        _, made, number, *rest = compiled(X)
        assert number == id(made) and rest == [1, False, None]


def test_weak_references_made_inside() -> None:
    class Node:
        def __init__(self, value: Any) -> None:
            self.value = value

    def f(x: torch.Tensor, n: int) -> Any:
        node = Node(x)
        ref, table = weakref.ref(node), weakref.WeakKeyDictionary[Node, int]()
        table[node] = n
        found = ref()
        assert found is not None
        return found.value * table[node], len(table), ref() is node, ref == weakref.ref(node), ref

    def g(x: torch.Tensor, n: int) -> Any:
        result, *rest, ref = f(x, n)
        return result, rest, ref()

    check(g, (X, 1), (X, 2), breaks=2)  # the table watches the node, freed when eager frees it


def test_dispatch_follows_the_table() -> None:
    @functools.singledispatch
    def kind(value: Any) -> str:
        return "other"

    kind.register(int, lambda value: "int")
    compiled = weft.compile(lambda x, n: (x + 1, kind(n), kind(x)), backend="eager")
    assert compiled(X, 1)[1:] == ("int", "other")
    kind.register(torch.Tensor, lambda value: "tensor")
    assert compiled(X, 1)[1:] == ("int", "tensor")
    kind.register(int, lambda value: "number")
    assert compiled(X, 1)[1:] == ("number", "tensor")


def test_refused_arguments_of_python_functions() -> None:
    def f(x: torch.Tensor) -> Any:
        def g(a: Any, /, b: Any = 1, *, c: Any) -> Any:
            return a, b, c

        found = []
        for args, named in (((), {}), ((1, 2, 3), {"c": 1}), ((1,), {"a": 1, "c": 2}), ((1,), {}),
                            ((1,), {"b": 1, "z": 2, "c": 3}), ((1, 2), {"b": 1, "c": 3})):
            try:
                found.append(g(*args, **named))
            except TypeError as error:
                found.append(str(error))
        return x + 1, found

    check(f, (X,), graphs=1)


def test_bool_of_what_is_none() -> None:
    class Odd:
        def __bool__(self) -> Any:
            return 3  # noqa: PLE0304  that is the test

    def f(x: torch.Tensor) -> Any:
        try:
            return x, bool(Odd())
        except TypeError as error:
            return x + 1, str(error)

    check(f, (X,), graphs=1)


def test_list_that_is_emptied_or_filled_while_it_is_sorted() -> None:
    def f(x: Any, items: list[int], act: Any) -> Any:
        def key(item: int) -> int:
            act(items)
            return item

        try:
            items.sort(key=key)
        except ValueError as error:
            return x + 1, str(error), items
        return x, items

    def append_and_pop(items: list[int]) -> None:
        items.append(1)
        items.pop()

    acts = [list.clear, append_and_pop, lambda items: items.append(7)]
    check(f, *[(X, [3, 1, 2], act) for act in acts], (X, [], list.clear))


def test_copy_of_an_object_that_denies_how_it_is_copied() -> None:
    class Denying:
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("__reduce"):
                raise AttributeError(name)
            return object.__getattribute__(self, name)

    def f(x: Any) -> Any:
        try:
            return x, copy.copy(Denying())
        except copy.Error as error:
            return x + 1, str(error).partition("<")[0]

    check(f, (X,), breaks=None)


class Activation(enum.Enum):
    RELU = "relu"
    TANH = "tanh"

    def __call__(self, x: Any) -> Any:
        return getattr(torch, self.function)(x)

    @property
    def function(self) -> str:
        return self.value

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return cls.RELU if value == "default" else None


def test_code_of_an_enumeration_is_captured() -> None:
    def f(x: Any, kind: Activation) -> Any:
        return kind(x), kind.function, Activation("default")(x), Activation(kind.value) is kind

    check(f, (X, Activation.RELU), (X, Activation.TANH), graphs=2)
