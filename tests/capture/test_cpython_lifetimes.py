"""Small programs for what CPython's own tests found wrong about how long objects live, and about
programs that ask the interpreter about itself (tools/cpython_tests.py)."""

from __future__ import annotations

import gc
import logging
import pickle
import sys
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)
ENDED: list[Any] = []


class Watched:
    """Notes when it is freed."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __del__(self) -> None:
        ENDED.append(self.name)


def test_weak_references_to_what_a_class_made_inside_holds() -> None:
    def f(x: Any) -> Any:
        class Static:
            @staticmethod
            def method(x: Any) -> Any:
                return x

        class Plain:
            def method(self) -> Any:
                return self

        held = weakref.ref(Static.method), weakref.ref(Plain.method)
        return x + 1, [reference() is None for reference in held]

    check(f, (X,))


def test_a_class_that_is_not_used_any_more_stays_a_subclass_over_two_breaks() -> None:
    def f(x: Any) -> Any:
        class Base:
            pass

        class Derived(Base):
            pass

        print("one", Derived.__name__)
        print("two")
        gc.collect()
        return x + 1, [cls.__name__ for cls in Base.__subclasses__()]

    check(f, (X,), breaks=None)


def test_a_weakly_held_function_lives_as_long_as_its_variable_over_two_breaks() -> None:
    def f(x: Any) -> Any:
        def inner() -> int:
            return 1

        held = weakref.ref(inner)
        print("one")
        print("two")
        gc.collect()
        return x + 1, held() is None

    check(f, (X,), breaks=None)


def test_a_callback_for_an_object_that_an_exception_frees() -> None:
    def f(x: Any) -> Any:
        known: dict[Any, Any] = {}

        def forget(reference: Any) -> None:
            del known[reference]

        def fails() -> None:
            target = lambda: ()
            known[weakref.ref(target, forget)] = None
            raise ValueError

        try:
            fails()
        except ValueError:
            pass
        return x + 1, len(known)

    check(f, (X,), breaks=None)


def test_a_traceback_holds_the_variables_that_are_referred_to_weakly() -> None:
    def f(x: Any) -> Any:
        held: Any = None

        def fails() -> None:
            nonlocal held
            target = types.SimpleNamespace()
            held = weakref.ref(target)
            raise ValueError

        try:
            fails()
        except ValueError:
            alive = held() is not None
        return x + 1, alive, held() is None

    check(f, (X,), breaks=None)


class Bytes(bytes):
    pass


def test_the_dictionary_of_an_object_is_not_held_over_a_break() -> None:
    def f(x: Any) -> Any:
        data = Bytes(b"data")
        buffer = pickle.PickleBuffer(data)
        data.buffer = buffer  # type: ignore[attr-defined]
        held = weakref.ref(buffer)
        del data, buffer
        gc.collect()
        return x + 1, held() is None

    check(f, (X,), breaks=None)


class Noted(Exception):
    """An exception that can be referred to weakly."""


RAISED: list[Any] = []


def noted() -> Noted:
    error = Noted()
    RAISED.append(weakref.ref(error))
    return error


@weft.disable
def fails_between_graphs(x: Any) -> Any:
    raise noted()


def fails_after_a_break(x: Any) -> Any:
    print("before")
    raise noted()


@pytest.mark.parametrize("fails", [fails_between_graphs, fails_after_a_break])
def test_an_exception_handled_after_a_break_is_freed_with_what_its_traceback_holds(
    fails: Callable[..., Any],
) -> None:
    def f(x: Any) -> Any:
        y = x + 1
        try:
            fails(y)
        except Noted:
            y = y * 2
        return y

    compiled = weft.compile(f, backend="eager")
    RAISED.clear()
    for _ in range(3):
        compiled(X)
    assert [error() for error in RAISED] == [None] * 3


def replaces(x: Any, held: Any) -> Any:
    held[0] = None
    ENDED.append("after")
    return x + 1


def deletes(x: Any, held: Any) -> Any:
    del held[0]
    ENDED.append("after")
    return x + 1


def pops(x: Any, held: Any) -> Any:
    held.pop(0)
    ENDED.append("after")
    return x + 1


def clears(x: Any, held: Any) -> Any:
    held.clear()
    ENDED.append("after")
    return x + 1


def keeps_a_variable(x: Any, held: Any) -> Any:
    kept = held[0]
    held[0] = None
    ENDED.append("before")
    del kept
    ENDED.append("after")
    return x + 1


@pytest.mark.parametrize("function", [replaces, deletes, pops, clears, keeps_a_variable])
@pytest.mark.parametrize("make", [lambda: {0: Watched(0)}, lambda: [Watched(0)]])
def test_a_container_from_outside_loses_an_object_with_del(
    function: Callable[..., Any], make: Callable[[], Any],
) -> None:
    def ended(call: Callable[..., Any]) -> list[Any]:
        held = make()
        ENDED.clear()
        call(X, held)
        return ENDED.copy()

    expected = ended(function)
    compiled = weft.compile(function, backend="eager")
    assert [ended(compiled), ended(compiled)] == [expected, expected]


def test_an_attribute_is_overwritten_twice_with_objects_that_have_del() -> None:
    def f(x: Any, obj: Any) -> Any:
        obj.part = Watched("made inside")
        obj.part = None
        ENDED.append("after")
        return x + 1

    for call in (f, weft.compile(f, backend="eager")):
        obj = types.SimpleNamespace(part=Watched("outside"))
        ENDED.clear()
        call(X, obj)
        assert ENDED == ["outside", "made inside", "after"]


def test_an_object_with_del_that_empties_the_dictionary_under_an_iterator() -> None:
    class Clearing(int):
        def __del__(self) -> None:
            items.clear()

    items: dict[int, Any] = {}

    def f(x: Any) -> Any:
        for key, _ in items.items():
            if key == 2:
                items[2] = None
        return x + 1

    for call in (f, weft.compile(f, backend="eager")):
        items.update({key: Clearing(key) for key in range(8)})
        with pytest.raises(RuntimeError, match="changed size during iteration"):
            call(X)


def test_an_iterator_of_a_dictionary_that_has_changed_before_the_call() -> None:
    def f(x: Any, iterator: Any) -> Any:
        return x + 1, list(iterator)

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        items = {1: 2, 3: 4}
        iterator = iter(items)
        items[5] = 6
        with pytest.raises(RuntimeError, match="changed size during iteration"):
            compiled(X, iterator)


def test_a_frame_without_tensors_that_counts_references_is_left_as_it_is() -> None:
    def f() -> int:
        def steps() -> Any:
            received = yield
            yield received

        generator = steps()
        next(generator)
        generator.send(generator)
        return sys.getrefcount(generator)

    assert weft.compile(f, backend="eager")() == f()


def test_a_frame_with_tensors_that_asks_for_a_size_breaks_once() -> None:
    def f(x: Any, items: list[int]) -> Any:
        y = x + 1
        return y * sys.getsizeof(items)

    check(f, (X, [1, 2]), graphs=2, breaks=1)


def test_a_class_of_loggers_that_the_frame_has_set() -> None:
    class Counting(logging.Logger):
        pass

    def f(x: Any, name: str) -> Any:
        known = logging.getLoggerClass()
        logging.setLoggerClass(Counting)
        logger = logging.getLogger(name)
        logging.setLoggerClass(known)
        return x + 1, type(logger)

    assert weft.compile(f, backend="eager")(X, "weft.tests.counted")[1] is Counting


def test_a_warning_recorded_by_another_copy_of_the_module(monkeypatch: Any) -> None:
    weft.compile(torch.sin, backend="eager")(X)  # capture is imported with the module's own name
    copy = types.ModuleType("warnings")
    vars(copy).update(vars(warnings))
    monkeypatch.setattr(warnings, "_showwarnmsg_impl", print)  # pytest has its list there
    shown: list[Any] = []
    vars(copy).update(_showwarnmsg_impl=shown.append, _showwarnmsg=shown.append)
    monkeypatch.setitem(sys.modules, "warnings", copy)

    def f(x: Any) -> Any:
        warnings.warn("now", stacklevel=1)
        return x + 1, len(shown)

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        copy.filters = warnings.filters  # type: ignore[attr-defined]
        assert weft.compile(f, backend="eager")(X)[1] == 1


def adds_to_the_set(x: Any, items: set[int]) -> Any:
    for item in items:
        print(item)
        if item == 2:
            items.add(17)
    return x + 1


def removes_from_a_set_made_inside(x: Any, items: set[int]) -> Any:
    made = {item + 1 for item in items}
    for item in made:
        print(item)
        made.discard(2)
        made.discard(4)
    return x + 1


def keeps_the_iterator(x: Any, items: set[int]) -> Any:
    iterator = iter(items)
    print(next(iterator))
    return x + 1, type(iterator).__name__, list(iterator), next(iterator, None)


def ends_the_iterator(x: Any, items: set[int]) -> Any:
    iterator = iter(items)
    total = sum(iterator)
    print(total)
    return x + total, type(iterator).__name__, next(iterator, None)


@pytest.mark.parametrize("function", [
    adds_to_the_set, removes_from_a_set_made_inside, keeps_the_iterator, ends_the_iterator,
])
def test_an_iterator_over_a_set_is_one_of_that_set_after_a_break(
    function: Callable[..., Any],
) -> None:
    check(function, (X, {1, 2, 3}), breaks=None)


@pytest.mark.parametrize("items", [[1, 2], (1, 2), "ab", "äb", b"ab", {1: 2}, {1, 2}, range(2)])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_an_iterator_keeps_its_type_over_a_break(items: Any, taken: int) -> None:
    def f(x: Any, items: Any) -> Any:
        iterator = iter(items)
        for _ in range(taken):
            next(iterator, None)
        print("break")
        return x + 1, type(iterator).__name__, list(iterator)

    check(f, (X, items), breaks=None)


def test_an_assignment_to_a_slice_of_step_zero_failed_inside() -> None:
    """What the list would lose was looked up before Python's check of the slice."""
    def f(x: torch.Tensor, outside: list[int]) -> Any:
        raised = []
        for items in (outside, [1, 2, 3]):
            try:
                items[slice(0, 3, 0)] = [4]
            except ValueError as error:
                raised.append(str(error))
            try:
                del items[::0]
            except ValueError as error:
                raised.append(str(error))
        return x + len(raised), raised

    weft.reset()
    found = weft.compile(f, backend="eager")(torch.ones(2), [1, 2])
    assert str(found) == str(f(torch.ones(2), [1, 2]))
    assert weft.stats()["graph_breaks"] == 0
