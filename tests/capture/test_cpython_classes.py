"""Small programs for what CPython's tests of classes, methods and nested lists found wrong.

(tools/cpython_tests.py; types and containers are in `test_cpython_objects`.)
"""

from __future__ import annotations

import abc
import builtins
import collections
import colorsys
import copy
import dataclasses
import enum
import functools
import gc
import inspect
import os
import sys
import time
import types
import weakref
from typing import Any
from unittest import mock

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)


def test_lists_nested_beyond_the_recursion_limit_raise_when_written() -> None:
    def f(x: Any) -> Any:
        nested: list[Any] = []
        for _ in range(1200):
            nested = [nested]
        try:
            return x + 1, len(repr(nested))
        except RecursionError:
            return x + 2, 0

    check(f, (X,), breaks=None)


def test_a_list_that_contains_itself_is_written() -> None:
    def f(x: Any) -> Any:
        items: list[Any] = [1]
        items.append(items)
        return x + 1, repr(items), str({1: items})

    check(f, (X,), breaks=0)


class Plugin:
    """What the program derives from, and asks for what derives from it."""


def test_models_of_classes_are_not_among_the_subclasses() -> None:
    def f(x: Any) -> Any:
        before = len(Plugin.__subclasses__())

        class Local(Plugin):
            pass

        return x + 1, before, len(Plugin.__subclasses__()), Local

    assert weft.compile(f, backend="eager")(X)[1:3] == (0, 1)
    gc.collect()
    assert not Plugin.__subclasses__()


class Other:
    """Another such class."""


@weft.disable
def outside() -> int:
    return sum(cls.__name__ == "Unused" for cls in Other.__subclasses__())


def test_classes_that_are_not_read_again_live_on_behind_a_break() -> None:
    def f(x: Any) -> Any:
        class Unused(Other):
            pass

        found = outside()
        return x + found, found

    assert weft.compile(f, backend="eager")(X)[1] == 1


def test_a_field_that_is_its_own_annotation_is_one_object() -> None:
    source = inspect.cleandoc("""
        def f(x):
            @dataclasses.dataclass
            class D:
                C: C = dataclasses.field()
            return x + 1, "type=..." in repr(D.__dict__["__dataclass_fields__"]["C"])
    """)
    names: dict[str, Any] = {"dataclasses": dataclasses}
    exec(compile(source, "annotated", "exec", dont_inherit=True), names)
    assert weft.compile(names["f"], backend="eager")(X)[1] == names["f"](X)[1] is True


COUNT = [0]


class Counted:
    def __init__(self) -> None:
        COUNT[0] += 1

    def __del__(self) -> None:
        COUNT[0] -= 1


class Holder:
    __slots__ = ("__weakref__", "a", "b")
    a: Any
    b: Any

    def noted(self) -> None:
        """A method to refer to."""


def test_what_an_attribute_holds_is_freed_with_the_object() -> None:
    def f(x: Any) -> Any:
        held = Holder()
        held.a = Counted()
        held.b = Counted()
        before = COUNT[0]
        del held
        return x + before, before, COUNT[0]

    check(f, (X,), breaks=None)


def test_methods_of_c_are_equal_if_they_are_of_the_same_object() -> None:
    def f(x: Any, init: Any) -> Any:
        items: list[int] = []
        return x + 1, [
            Plugin.__init_subclass__ != Plugin.__init_subclass__, init == Plugin.__init_subclass__,
            "".join == "".join, "".join == ",".join, (1).__add__ != (1).__add__,
            items.append == items.append, [].append == [].append,
        ]

    check(f, (X, Plugin.__init_subclass__), breaks=0)


class Meta(type):
    def __getattr__(cls, name: str) -> str:
        return "of the metaclass"


class Virtual(metaclass=Meta):
    @types.DynamicClassAttribute
    def name(self) -> str:
        return "of the object"


def test_attributes_that_only_instances_have_are_those_of_the_metaclass() -> None:
    check(lambda x: (x + 1, Virtual.name, Virtual().name), (X,), breaks=0)


def test_keys_whose_comparison_raises_raise_in_the_program() -> None:
    def f(x: Any) -> Any:
        class Raising(str):
            def __eq__(self, other: object) -> bool:
                found.clear()
                return False

            def __hash__(self) -> int:
                return hash("key")

        found = {Raising(): 1}
        return x + 1, "key" in found, len(found)

    check(f, (X,), breaks=None)


def test_replaced_builtins_are_not_called_by_capture() -> None:
    calls: list[Any] = []

    def f(x: Any) -> Any:
        return x + 1

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    with mock.patch.object(builtins, "len", calls.append):
        assert torch.equal(compiled(X), X + 1)
    assert not calls
    assert torch.equal(compiled(X), X + 1) and weft.stats()["graphs"] == 1


class NotBool:
    def __bool__(self) -> bool:
        raise ValueError


def test_a_function_whose_mark_as_abstract_has_no_truth_is_refused() -> None:
    def f(x: Any) -> Any:
        try:
            class Refused(abc.ABC):
                def bar(self) -> None:
                    pass

                bar.__isabstractmethod__ = NotBool()  # type: ignore[attr-defined]
                foo = property(bar)
        except ValueError:
            return x - 1
        return x + 1

    check(f, (X,), breaks=None)


def test_imports_follow_sys_modules() -> None:
    def f(x: Any) -> Any:
        try:
            import colorsys

            return x + colorsys.rgb_to_hsv(1, 0, 0)[2]
        except ImportError:
            return x - 1

    def without(x: Any) -> Any:
        sys.modules["colorsys"] = None  # type: ignore[assignment]
        try:
            return f(x)
        finally:
            sys.modules["colorsys"] = colorsys

    compiled, alone = weft.compile(f, backend="eager"), weft.compile(without, backend="eager")
    assert torch.equal(compiled(X), X + 1) and torch.equal(alone(X), X - 1)
    with mock.patch.dict(sys.modules, {"colorsys": None}):
        assert torch.equal(compiled(X), X - 1)
    with mock.patch.dict(sys.modules, {"colorsys": mock.Mock(rgb_to_hsv=lambda *_: (0, 0, 5))}):
        assert torch.equal(compiled(X), X + 5)


class Number(float):
    """Weak references to such numbers exist."""


def test_weak_references_are_dead_once_a_variable_behind_a_break_is_deleted() -> None:
    def f(x: Any) -> Any:
        held = Holder()
        reference = weakref.ref(held)
        method = weakref.WeakMethod(held.noted, id)
        to_method = weakref.ref(method)
        before = reference() is None, to_method() is None
        del held, method
        dead = reference() is None, to_method() is None
        return x + 1, before, dead, reference == to_method, reference == reference

    check(f, (X,), breaks=None)


def test_a_number_that_only_a_proxy_refers_to_lives_as_long_as_its_variable() -> None:
    def f(x: Any) -> Any:
        number = Number(2.0)
        proxy: Any = weakref.proxy(number)
        return x + 1, proxy + 1.0, 1.0 + proxy

    check(f, (X,), breaks=None)


def test_attributes_of_struct_sequences_that_are_no_items() -> None:
    def f(x: Any, stat: os.stat_result, then: time.struct_time) -> Any:
        newest = max([stat], key=lambda one: one.st_mtime)
        return (x + 1, stat.st_mtime, stat.st_mtime_ns, stat.st_size, stat[8], len(stat), newest,
                then.tm_year, then.tm_zone, then[0], str(stat))

    check(f, (X, os.stat(__file__), time.localtime(0)), breaks=None)


def test_dispatch_fills_a_cache_that_the_program_watches() -> None:
    class Tracing(collections.UserDict[Any, Any]):
        def __init__(self) -> None:
            super().__init__()
            self.log: list[Any] = []

        def __setitem__(self, key: Any, item: Any) -> None:
            self.log.append(key)
            super().__setitem__(key, item)

    def f(x: Any, scale: Any, cache: Any) -> Any:
        first = scale(1)
        seen = list(cache.log)
        second = scale([])
        print(end="")
        return x + first + second + scale(2), seen, list(cache.log)

    logs = []
    for call in (f, weft.compile(f, backend="eager")):
        cache = Tracing()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(weakref, "WeakKeyDictionary", lambda cache=cache: cache)
            scale = functools.singledispatch(lambda obj: 2)
        scale.register(int, lambda obj: obj)
        logs.append(call(X, scale, cache)[1:])
    assert logs[0] == logs[1] == ([int], [int, list])


class Asked(types.ModuleType):
    """A module whose attributes are looked up in Python."""

    log: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        Asked.log.append(name)
        return super().__getattribute__(name)


def test_messages_ask_nothing_of_modules(capsys: Any) -> None:
    module = Asked("asked")
    vars(module)["scale"] = 2
    Asked.log.clear()
    weft.reset()
    weft.set_logs(guards=True)
    try:
        weft.compile(lambda x, module: x * len(module.__name__), backend="eager")(X, module)
    finally:
        weft.set_logs()
    assert "__class__" not in Asked.log


def test_deepcopy_sets_slots_by_the_classs_own_setattr() -> None:
    @dataclasses.dataclass(frozen=True)
    class Frozen:
        __slots__ = ("size",)
        size: int

    def f(x: Any) -> Any:
        try:
            return x, copy.deepcopy(Frozen(1)).size
        except dataclasses.FrozenInstanceError as error:
            return x, str(error)

    check(f, (X,), breaks=0)


class Unhashable(enum.Enum):
    ONE = {}
    name_ = "python"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="values are not `in` enumerations")
def test_values_that_have_no_hash_are_in_enumerations() -> None:
    def f(x: Any) -> Any:
        return x, {} in Unhashable, [] in Unhashable, "python" in Unhashable

    check(f, (X,), breaks=None)


def test_a_functions_dictionary_hides_nothing_of_the_function() -> None:
    def f(x: Any) -> Any:
        def wrapper() -> None:
            """A docstring."""

        functools.update_wrapper(wrapper, type)
        return x, wrapper.__annotations__, wrapper.__name__, "__dict__" in wrapper.__dict__

    check(f, (X,), breaks=None)


def test_get_of_a_method() -> None:
    def f(x: Any) -> Any:
        one, other = Owner(), Owner()
        return x, one.me.__get__(other)() is one, one.me.__get__(other)() is other

    check(f, (X,), breaks=0)


class Owner:
    def me(self) -> Any:
        return self


def test_code_without_lines_runs_in_a_frame_of_its_own() -> None:
    def divide() -> None:
        1 / 0

    divide.__code__ = divide.__code__.replace(co_linetable=b"")

    def f(x: Any) -> Any:
        try:
            divide()
        except ZeroDivisionError as error:
            entry = error.__traceback__.tb_next  # type: ignore[union-attr]
            return x, entry.tb_lineno  # type: ignore[union-attr]

    check(f, (X,), breaks=None)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="suggestions are of variables with values")
def test_an_unknown_name_is_likened_to_the_functions_variables(capsys: Any) -> None:
    def misspelt() -> None:
        blech = None
        print(bluch)  # type: ignore[name-defined]  # noqa: F821

    def f(x: Any) -> Any:
        try:
            misspelt()
        except NameError as error:
            return error

    error = weft.compile(f, backend="eager")(X)
    sys.__excepthook__(type(error), error, error.__traceback__)
    assert "Did you mean: 'blech'?" in capsys.readouterr().err


def test_a_method_of_what_cannot_be_called() -> None:
    """It was rebuilt by MethodType, which refuses."""
    def f(x: Any) -> Any:
        method = classmethod(1).__get__(2)  # type: ignore[arg-type]
        print(end="")
        try:
            types.MethodType(1, 2)  # type: ignore[arg-type]
        except TypeError as error:
            return x, str(error), method.__func__, method.__self__, type(method)

    check(f, (X,), breaks=1)


def test_identities_of_tuples_that_an_iterator_fills_again() -> None:
    """Each was taken for a tuple of its own."""
    def f(x: Any) -> Any:
        pairs = len(set(map(id, zip("abc", "def", strict=True))))
        held = len(set(map(id, list(enumerate("abc")))))
        return x + pairs, len(set(map(id, enumerate("abc")))), held

    check(f, (torch.ones(2),), breaks=None)


class Switched(type):
    @property
    def scale(cls) -> int:
        return 2


class Turned(metaclass=Switched):
    scale = 3
    __base__ = None  # type: ignore[assignment]


class Plain(type):
    pass


class Later(metaclass=Plain):
    scale = 3


def test_descriptors_of_a_metaclass_come_first_and_may_be_set_later() -> None:
    def program(x: torch.Tensor) -> Any:
        return x * Turned.scale, x * Later.scale, Turned.__base__

    compiled = check(program, (torch.ones(2),), breaks=None)
    Plain.scale = property(lambda cls: 5)  # type: ignore[attr-defined]
    assert [f(torch.ones(2))[1].tolist() for f in (program, compiled)] == [[5.0, 5.0]] * 2


class Slotted:
    __slots__ = ("place",)


class Borrower:
    place = Slotted.place  # type: ignore[attr-defined]


def test_a_slot_of_another_class_raises() -> None:
    def program(x: torch.Tensor) -> Any:
        borrower, texts = Borrower(), []
        try:
            borrower.place
        except TypeError as error:
            texts.append(str(error))
        try:
            borrower.place = 3
        except TypeError as error:
            texts.append(str(error))
        return x + 1, texts

    check(program, (torch.ones(2),))


def lazy_module() -> types.ModuleType:
    def missing(name: str) -> Any:
        if name == "old":
            raise AttributeError("gone since 2.0")
        return len(name)

    module = types.ModuleType("lazy")
    module.__getattr__ = missing  # type: ignore[method-assign]
    return module


def test_attributes_and_texts_of_modules() -> None:
    lazy = lazy_module()

    def program(x: torch.Tensor) -> Any:
        made = types.ModuleType("made")
        made.__file__ = "/made.py"
        has = ["__annotations__" in made.__dict__]
        made.__annotations__ = {}
        has.append("__annotations__" in made.__dict__)
        try:
            lazy.old
        except AttributeError as error:
            return x * lazy.other, str(error), repr(made), has

    check(program, (torch.ones(2),), breaks=None)


class Told(types.ModuleType):
    """A module that writes down what is read of it."""

    def __getattribute__(self, name: str) -> Any:
        read.append(name)
        return types.ModuleType.__getattribute__(self, name)


read: list[str] = []


def test_reading_an_object_ran_its_own_getattribute() -> None:
    """Capture looked into the object's dictionary as the program does, and the object noticed."""
    told = Told("told")

    def program(x: torch.Tensor) -> Any:
        method = told.__dir__
        return x + 1, callable(method)

    def outcome(f: Any) -> Any:
        read.clear()
        return f(X)[1], list(read)

    assert outcome(weft.compile(program, backend="eager")) == outcome(program)


class OnlySets:
    def __set__(self, owner: Any, value: Any) -> None:
        written.append(value)


written: list[Any] = []


class SettingMeta(type):
    place = OnlySets()


class OfSettingMeta(metaclass=SettingMeta):
    place = 7


def test_a_metaclass_descriptor_that_only_sets_hid_the_attribute_of_the_class() -> None:
    def program(x: torch.Tensor) -> Any:
        class Meta(type):
            place = OnlySets()

        class Made(metaclass=Meta):
            place = 3

        OfSettingMeta.place = 5  # type: ignore[misc,assignment]
        Made.place = 4
        return x * OfSettingMeta.place, Made.place, list(written)

    outcomes = []
    for function in (program, weft.compile(program, backend="eager")):
        written.clear()
        outcomes.append(function(X))
    assert outcomes[1][0].tolist() == outcomes[0][0].tolist() == [7.0, 7.0]
    assert outcomes[1][1:] == outcomes[0][1:] == (3, [5, 4])


def spoken(*args: Any) -> Any:
    return super()  # type: ignore[misc]


def test_super_without_arguments_spoke_of_those_of_the_continuation() -> None:
    for call in (spoken, weft.compile(spoken, backend="eager")):
        with pytest.raises(RuntimeError, match=r"super\(\): no arguments"):
            call()
        with pytest.raises(RuntimeError, match=r"super\(\): no arguments"):
            call(X)
