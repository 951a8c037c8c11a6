"""What programs do with `typing` while they run: generic classes called, forms made and refused."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable
from typing import (  # noqa: UP035
    Annotated,
    Any,
    ClassVar,
    Generic,
    List,
    NamedTuple,
    NewType,
    Protocol,
    TypedDict,
    TypeVar,
    runtime_checkable,
)

import torch

import weft
from tests.capture.harness import check

X = torch.ones(2)
T = TypeVar("T")


class Node(Generic[T]):
    def __init__(self, value: T) -> None:
        self.value = value


class Items(list):  # type: ignore[type-arg]
    pass


class Units:
    """A class of the program's own that takes parameters."""

    asked: list[str] = []

    def __class_getitem__(cls, name: str) -> str:
        cls.asked.append(name)
        return f"<{name}>"


class Goes(Protocol):
    def go(self) -> int: ...


def refused(make: Callable[[], Any]) -> str:
    try:
        return f"no error: {make()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def test_a_call_of_a_generic_alias_tells_its_instance() -> None:
    def f(x: Any) -> Any:
        node, items = Node[int](3), Items[int]((1, 2))  # type: ignore[misc]
        return x + node.value, node.__orig_class__, items.__orig_class__, items  # type: ignore[attr-defined]

    check(f, (X,), breaks=0)


def test_forms_that_cannot_be_made_or_called_raise_what_typing_raises() -> None:
    def f(x: Any) -> Any:
        return (
            x + 1,
            refused(lambda: List[int]()),  # noqa: UP006
            refused(lambda: Annotated[int]),
            refused(lambda: Generic[int]),  # type: ignore[misc,index]
            refused(lambda: Node[int, str]),  # type: ignore[misc]
            refused(lambda: List["/T"]),  # type: ignore[syntax]  # noqa: F722, UP006
            refused(lambda: Goes()),  # type: ignore[misc]
        )

    check(f, (X,), breaks=None)


def test_a_class_getitem_of_the_program_runs_in_each_call() -> None:
    def f(x: Any) -> Any:
        before = len(Units.asked)
        return x + 1, Units["cm"], len(Units.asked) - before  # type: ignore[misc,name-defined]

    check(f, (X,), breaks=0)


def test_types_made_by_functions_belong_to_the_module_that_makes_them() -> None:
    def f(x: Any) -> Any:
        shape = NamedTuple("shape", [("rows", int)])  # noqa: UP014
        options = TypedDict("options", {"rows": int})  # noqa: UP013
        identity, color = NewType("identity", int), enum.Enum("color", "RED BLUE")
        modules = {kind.__module__ for kind in (shape, options, identity, color)}
        return x + shape(2).rows, modules, options(rows=1), str(color(2))  # type: ignore[call-arg]

    check(f, (X,), breaks=None)


def plain(a: int, b: int = 1) -> int:
    return a + b


def test_signatures_are_those_of_the_moment_and_refused_as_by_python() -> None:
    def f(x: Any) -> Any:
        class Made:
            def __init__(self, a: int = 1, *rest: int) -> None: ...

        vars(plain)["__text_signature__"] = "($self, q)"
        told = str(inspect.signature(plain))
        del vars(plain)["__text_signature__"]
        signatures = (told, str(inspect.signature(plain)), str(inspect.signature(Made)))
        return x + 1, signatures, refused(lambda: inspect.signature(42))  # type: ignore[arg-type]

    check(f, (X,), breaks=None)


@runtime_checkable
class HasUnit(Protocol):
    unit: str


def test_a_protocol_sees_attributes_that_were_just_set() -> None:
    def f(x: Any, node: Any) -> Any:
        before = isinstance(node, HasUnit)
        node.unit = "cm"
        after = isinstance(node, HasUnit)
        del node.unit
        return x + 1, before, after, isinstance(node, HasUnit)

    check(f, (X, Node(1)), breaks=None)


def test_super_is_refused_as_python_does() -> None:
    class Base:
        def gone(self) -> Any:
            del self
            return super()  # type: ignore[misc]

    def without_class(self: Any) -> Any:
        return super().gone  # type: ignore[misc]

    def f(x: Any) -> Any:
        return (
            x + 1,
            refused(lambda: Base().gone()),
            refused(lambda: without_class(Base())),
            refused(lambda: super(int, "a")),
            refused(lambda: super(Base, list)),  # type: ignore[misc]
        )

    check(f, (X,), breaks=None)


class Even(type):
    """Looks at the instance, and notes that it was asked."""

    asked: ClassVar[list[str]] = []

    def __instancecheck__(cls, instance: Any) -> bool:
        Even.asked.append(type(instance).__name__)
        return isinstance(instance, int) and instance % 2 == 0


class EvenNumber(metaclass=Even):
    pass


@runtime_checkable
class HasValue(Protocol):
    value: int


def test_instance_checks_of_metaclasses_and_protocols_look_at_the_instance() -> None:
    """That an object has what a protocol wants was looked at once, and guarded by its type."""
    class Plain:
        pass

    def f(x: Any, given: Any) -> Any:
        made = Plain()
        before = isinstance(made, HasValue)
        made.value = 1
        return (x + 1, isinstance(given, HasValue), before, isinstance(made, (int, HasValue)),
                isinstance(x, EvenNumber), isinstance(4, EvenNumber), len(Even.asked))

    weft.reset()
    compiled = weft.compile(f, backend="eager", fullgraph=True)
    for has_value in (False, True, False):
        given = Plain()
        if has_value:
            given.value = 2
        Even.asked.clear()
        expected = f(X, given)[1:]
        Even.asked.clear()
        assert compiled(X, given)[1:] == expected


def test_classes_that_derive_are_looked_up_and_guarded() -> None:
    class Base:
        pass

    def names(x: Any) -> Any:
        return x + 1, [cls.__name__ for cls in Base.__subclasses__()]

    weft.reset()
    compiled = weft.compile(names, backend="eager", fullgraph=True)
    assert compiled(X)[1] == []
    first = type("First", (Base,), {})
    assert compiled(X)[1] == [first.__name__]


def test_a_tuple_of_type_variables_knows_its_module() -> None:
    def f(x: Any) -> Any:
        made = typing.TypeVarTuple("made")
        return x, made.__module__, made.__name__

    check(f, (torch.ones(2),), breaks=None)
