"""Classes made inside of compiled functions: used there, returned, with instances that escape."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import sys
import weakref
from typing import Any, ClassVar, Generic, NamedTuple, TypedDict, TypeVar

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.arange(4.0)


def outcomes(function: Any, *calls: Any) -> None:
    """Compares results that may be compared although their classes are other ones each time."""
    weft.reset()
    compiled = weft.compile(function, backend="eager")
    for args in calls:
        expected, actual = function(*args), compiled(*args)
        assert len(expected) == len(actual)
        for a, b in zip(expected, actual, strict=True):
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, (a, b)
    assert weft.stats()["graph_breaks"] == 0


def test_methods_closures_and_super() -> None:
    def f(x: Any, n: int) -> Any:
        class Base:
            factor = 2

            def __init__(self, start: Any) -> None:
                self.start = start

            def value(self) -> Any:
                return self.start * self.factor + n

        class Child(Base):
            factor = 3

            def value(self) -> Any:
                return super().value() + __class__.factor

        child = Child(x)
        child.extra = 1  # type: ignore[attr-defined]
        return child.value(), isinstance(child, Base), Child.__name__, vars(child)["extra"]

    check(f, (X, 1), (X, 2), (X, 3))


def test_descriptors() -> None:
    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            self.name = f"_{name}"

        def __get__(self, obj: Any, owner: type | None = None) -> Any:
            return getattr(obj, self.name, 7)

        def __set__(self, obj: Any, value: Any) -> None:
            setattr(obj, self.name, value)

    def f(x: Any) -> Any:
        class Owner:
            described = Named()
            items: list[Any] = []
            table = {"x": x}

            @property
            def both(self) -> Any:
                return self.described + 1

            @both.setter
            def both(self, value: Any) -> None:
                self.described = value

            @staticmethod
            def static(a: Any) -> Any:
                return a * 2

            @classmethod
            def make(cls) -> Any:
                return cls()

            @functools.cached_property
            def cached(self) -> Any:
                self.items.append(1)
                return x * 3

        owner = Owner.make()
        before = owner.both
        owner.both = 10
        Owner.later = 5  # type: ignore[attr-defined]
        return (before, owner.both, Owner.static(x), owner.cached + owner.cached, Owner.items,
                owner.table["x"] + 1, owner.later)

    outcomes(f, (X,), (X + 1,))


def test_classes_and_instances_escape() -> None:
    def f(x: Any, n: int) -> Any:
        class Made:
            """Text."""

            __slots__ = ("a", "b")
            shared = x

            def __init__(self, a: Any) -> None:
                self.a = a

            def twice(self) -> Any:
                return self.a * 2 + n

        return Made, Made(x + 1)

    compiled = weft.compile(f, backend="eager")
    for n in (1, 1, 2):
        cls, instance = compiled(X, n)
        assert type(instance) is cls and cls.__doc__ == "Text." and cls.__name__ == "Made"
        assert cls.__module__ == __name__ and cls.__qualname__ == f(X, n)[0].__qualname__
        assert torch.equal(instance.twice(), (X + 1) * 2 + n) and cls.shared is X
        assert not hasattr(instance, "b")
    assert compiled(X, 1)[0] is not compiled(X, 1)[0]


@pytest.mark.parametrize("slots", [False, True])
def test_dataclasses(slots: bool) -> None:
    def f(x: Any, n: int) -> Any:
        @dataclasses.dataclass(slots=slots, order=True)
        class Point:
            a: int
            b: list[int] = dataclasses.field(default_factory=lambda: [n])
            c: Any = dataclasses.field(default=3, compare=False)

            def total(self) -> Any:
                return x * self.a + self.c

        point = Point(n)
        other = dataclasses.replace(point, a=5)
        names = [field.name for field in dataclasses.fields(Point)]
        return (point.total(), other.total(), names, point < other, repr(point)[-22:], point.b,
                dataclasses.asdict(other), point == Point(n))

    outcomes(f, (X, 1), (X, 2))


def test_dataclass_instances_escape() -> None:
    def f(x: Any) -> Any:
        @dataclasses.dataclass
        class Pair:
            a: Any
            b: Any = dataclasses.field(default_factory=dict)

        return Pair(x + 1)

    made = weft.compile(f, backend="eager")(X)
    assert torch.equal(made.a, X + 1) and made.b == {} and type(made)(1, 2) == type(made)(1, 2)
    assert [field.name for field in dataclasses.fields(made)] == ["a", "b"]


def test_enumerations() -> None:
    def f(x: Any, n: int) -> Any:
        class Mode(enum.Enum):
            FAST = 1
            SLOW = 2

            @property
            def nice(self) -> str:
                return self.name.title()

        class Level(enum.IntEnum):
            LOW = 1
            HIGH = 2

        mode = Mode(n)
        return (x * mode.value, mode is Mode.SLOW, [m.name for m in Mode], Mode["FAST"].nice,
                Level.HIGH + 1, list(Level)[0].value)

    outcomes(f, (X, 1), (X, 2))


def test_members_escape() -> None:
    def f(x: Any) -> Any:
        class Mode(enum.Enum):
            FAST = 1

        return x + 1, Mode.FAST, Mode

    _, member, cls = weft.compile(f, backend="eager")(X)
    assert member is cls.FAST and member.value == 1


def test_functions_that_make_classes() -> None:
    def f(x: Any, n: int) -> Any:
        Pair = collections.namedtuple("Pair", "a b", defaults=[n])
        Kind = type("Kind", (Pair,), {"total": lambda self: self.a + self.b, "extra": x})
        plain = type("Plain", (), {"value": 3})()
        pair = Pair(x)
        return pair.a + pair.b, Pair._fields, Kind.__mro__[1].__name__, plain.value, Kind.extra

    outcomes(f, (X, 1), (X, 2))


def test_namedtuples_escape() -> None:
    def f(x: Any) -> Any:
        Pair = collections.namedtuple("Pair", "a b")
        return Pair(x + 1, 2)

    made = weft.compile(f, backend="eager")(X)
    assert made._fields == ("a", "b") and made.b == 2 and type(made).__module__ == __name__


def test_abstract_classes() -> None:
    def f(x: Any) -> Any:
        class Shape(abc.ABC):
            @abc.abstractmethod
            def area(self) -> Any: ...

        class Square(Shape):
            def area(self) -> Any:
                return x * x

        try:
            Shape()  # type: ignore[abstract]
        except TypeError:
            return Square().area(), issubclass(Square, Shape)

    outcomes(f, (X,))


def test_total_ordering_and_class_decorators() -> None:
    def f(x: Any) -> Any:
        registry = {}

        def register(cls: Any) -> Any:
            registry[cls.__name__] = cls
            return cls

        @register
        @functools.total_ordering
        class Version:
            def __init__(self, n: int) -> None:
                self.n = n

            def __eq__(self, other: object) -> Any:
                return self.n == other.n  # type: ignore[attr-defined]

            def __lt__(self, other: Any) -> Any:
                return self.n < other.n

        made = registry["Version"]
        return x + 1, made(1) <= made(2), made(1) > made(2), max(made(3), made(2)).n

    outcomes(f, (X,))


def test_a_break_after_the_class() -> None:
    def f(x: Any, n: int) -> Any:
        class Made:
            def __init__(self) -> None:
                self.value = x

            def scaled(self) -> Any:
                return self.value * n

        made = Made()
        seen.append(made.scaled().sum())
        stop()
        return made.scaled() + 1, Made.__name__, isinstance(made, Made)

    seen: list[Any] = []
    check(f, (X, 1), (X, 2), breaks=None)


@weft.disable
def stop() -> None:
    sys.intern("nothing")


def test_metaclasses_with_code_are_left_to_python() -> None:
    class Meta(type):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__new__(cls, *args)
            made.tag = kwargs.get("tag")  # type: ignore[attr-defined]
            return made

        def __init__(cls, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args)

    def f(x: Any) -> Any:
        class Made(metaclass=Meta, tag="t"):
            pass

        return x + 1, Made.tag  # type: ignore[attr-defined]

    check(f, (X,), breaks=None)


def test_abstract_classes_made_before_a_break() -> None:
    def f(x: Any) -> Any:
        class Shape(abc.ABC):
            @property
            @abc.abstractmethod
            def area(self) -> Any: ...

        stop()
        try:
            Shape()  # type: ignore[abstract]
        except TypeError:
            return x + 1, Shape.__abstractmethods__

    check(f, (X,), breaks=None)


def test_a_field_that_tells_its_default_its_name() -> None:
    class Named:
        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

    def f(x: Any) -> Any:
        @dataclasses.dataclass
        class Made:
            part: Any = dataclasses.field(default=Named(), init=False)

        return x + 1, Made.part.name

    check(f, (X,), breaks=None)


def test_a_weak_reference_of_an_object_made_inside_is_its_own() -> None:
    class Made:
        pass

    def f(x: Any) -> Any:
        made = Made()
        reference = weakref.ref(made)
        return x + 1, made.__weakref__ is reference  # type: ignore[attr-defined]

    check(f, (X,), breaks=None)


def test_unpacking_what_is_no_iterable() -> None:
    class Made:
        pass

    def f(x: Any) -> Any:
        try:
            a, b = Made()  # type: ignore[misc]
        except TypeError as error:
            return x + 1, str(error)

    check(f, (X,))


class Registry(type):
    known: ClassVar[dict[str, Any]] = {}

    def __init__(cls, name: str, bases: Any, namespace: Any) -> None:
        super().__init__(name, bases, namespace)
        cls.known[name.lower()] = cls

    def __len__(cls) -> int:
        return len(cls.known)

    def __getitem__(cls, name: str) -> Any:
        return cls.known[name]

    def __iter__(cls) -> Any:
        return iter(cls.known)

    def __contains__(cls, name: object) -> bool:
        return name in cls.known


class Layer(metaclass=Registry):
    factor = 1


class Double(Layer):
    factor = 2


def test_special_methods_of_a_metaclass() -> None:
    def f(x: Any, name: str) -> Any:
        if name not in Layer:
            raise KeyError(name)
        return x * Layer[name].factor * len(Layer), list(Layer)

    check(f, (X, "double"), (X, "layer"), (X, "other"), breaks=None)


def test_property_made_with_none_for_its_text_has_its_getters() -> None:
    def getter(self: Any) -> None:
        """of the getter"""

    def f(x: Any) -> Any:
        made = property(getter, None, None, None), property(getter, None, None, "own"), property()
        return x + 1, [each.__doc__ for each in made]

    check(f, (X,), graphs=1)


def test_method_with_the_name_of_a_variable_around_its_class() -> None:
    def f(x: Any) -> Any:
        name = "variable"

        class Made:
            def name(self) -> str:
                return "method"

            def other(self) -> str:
                return name

        return x + 1, Made().name(), Made().other()

    check(f, (X,))


def test_an_abstract_class_made_inside_is_asked_once_what_derives_from_it():
    def f(x, n, log):
        class Refusing(Exception):
            pass

        class Chosen(abc.ABC):
            @classmethod
            def __subclasshook__(cls, other):
                log.append(other.__name__)
                return n == 2

        def refuse():
            raise Refusing(n)

        class Strange(metaclass=abc.ABCMeta):
            __subclasses__ = refuse

        try:
            answer = issubclass(int, Strange)
        except Refusing as error:
            answer = str(error)
        return x * n, issubclass(int, Chosen), isinstance("s", Chosen), answer, log

    check(f, (X, 2, []), (X, 3, []), breaks=None)


REGISTERED: dict[str, list[Any]] = {}


class Registered:
    def __init_subclass__(cls, *, kind: str = "none", **rest: Any) -> None:
        super().__init_subclass__(**rest)
        REGISTERED.setdefault(kind, []).append(cls.__name__)
        cls.kind = kind  # type: ignore[attr-defined]


class Tagging(type):
    def __new__(mcs, name: str, bases: Any, namespace: Any, **rest: Any) -> Any:
        namespace["fields"] = [key for key in namespace if not key.startswith("_")]
        made = super().__new__(mcs, name, bases, namespace)
        made.tag = rest.get("tag", name.lower())
        return made

    def __init__(cls, name: str, bases: Any, namespace: Any, **rest: Any) -> None:
        super().__init__(name, bases, namespace)

    def __call__(cls, *args: Any) -> Any:
        made = super().__call__(*args)
        made.made_by = cls.__name__
        return made

    def __len__(cls) -> int:
        return len(cls.fields)  # type: ignore[attr-defined]


def test_bases_are_told_once_of_a_subclass_made_inside() -> None:
    def program(x):
        class First(Registered, kind="a"):
            def scale(self):
                return x * 2

        class Second(First):
            def scale(self):
                return super().scale() + 1, __class__.__name__

        texts = []
        try:
            class Third(Registered, other=1):
                pass
        except TypeError as error:
            texts.append(str(error))
        return Second().scale(), First.kind, Second.kind, Second.__mro__[1] is First, texts

    REGISTERED.clear()
    expected = program(torch.ones(2)), {**REGISTERED}
    REGISTERED.clear()
    compiled = check(program, (torch.ones(2),), repeat=1)
    REGISTERED.clear()
    assert str((compiled(torch.ones(2)), REGISTERED)) == str(expected)


def test_metaclasses_of_the_program_make_classes() -> None:
    def program(x):
        class Config(metaclass=Tagging, tag="config"):
            width = 3

            def area(self):
                return x * self.width

        class Wide(Config):
            width = 5

        made = Wide()
        return (made.area(), made.made_by, Config.tag, Wide.tag, Config.fields, len(Wide),
                type(Wide) is Tagging, bool(Config))

    check(program, (torch.ones(2),))


def test_numbers_and_tensors_as_attributes_of_a_class() -> None:
    def f(x: torch.Tensor, n: int) -> Any:
        class Scaled:
            size = n
            weight = x * 2
            both = (n, x.shape[0])

            def scaled(self, by: int) -> torch.Tensor:
                return self.weight * self.size * by + self.both[1]

            twice = functools.partialmethod(scaled, 2)

        class More(Scaled):
            size = n + 1

        @dataclasses.dataclass
        class Settings:
            steps: int = n
            rate: float = n * 0.5

        more, settings = More(), Settings()
        more.size += 1
        same = Scaled().weight is Scaled.weight
        return more.twice(), Scaled.size, More.size, more.size, same, settings.rate, settings.steps

    check(f, (X, 3), (X, 4), (X, 5), breaks=0)


def test_generic_and_typed_dictionary_statements() -> None:
    kind = TypeVar("kind")

    def f(x: torch.Tensor, n: int) -> Any:
        class Box(Generic[kind]):
            def __init__(self, value: Any) -> None:
                self.value = value

        class Options(TypedDict):  # type: ignore[misc]
            __annotations__ = {"rate": float}

        options: Any = {"rate": 0.5}
        names = [cls.__name__ for cls in Box.__mro__]
        return (Box(x).value * options["rate"], names, Options(rate=n), Options.__total__,
                Box.__parameters__ == (kind,))  # type: ignore[attr-defined]

    check(f, (X, 3), (X, 3), breaks=0 if sys.version_info < (3, 12) else None)


class Forgetful(type):
    """Does not pass the cell of `__class__` on."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        namespace.pop("__classcell__", None)
        return super().__new__(cls, name, bases, namespace)


def test_a_metaclass_that_loses_the_cell_of_the_class() -> None:
    """The class was made; Python refuses."""
    def f(x: Any) -> Any:
        try:
            class Local(metaclass=Forgetful):
                def get(self) -> Any:
                    return __class__  # type: ignore[name-defined]
        except RuntimeError as error:
            return x, "__classcell__ propagated" in str(error)
        return x, Local

    check(f, (torch.ones(2),), breaks=None)


def test_a_named_tuple_written_as_a_class_broke_the_graph() -> None:
    def f(x: Any) -> Any:
        class Pair(NamedTuple):
            """Two tensors."""

            first: torch.Tensor
            second: torch.Tensor = x * 3
            count: int = 4

            def total(self) -> Any:
                return (self.first + self.second).sum() * self.count

            @property
            def start(self) -> Any:
                return self[0]

        one = Pair(x)
        first, *_ = other = one._replace(count=5)
        return (one.total() + other.total(), one.start + first, len(one), Pair._fields,
                other._asdict()["count"], Pair.__doc__)

    outcomes(f, (X,), (X + 1,))


def test_a_named_tuple_class_that_escapes_has_its_fields() -> None:
    def f(x: Any) -> Any:
        class Pair(NamedTuple):
            first: torch.Tensor
            count: int = 2

        return Pair(x * 2)

    expected, actual = f(X), weft.compile(f, backend="eager", fullgraph=True)(X)
    assert repr(actual) == repr(expected)
    mine, theirs = type(actual), type(expected)
    assert mine._fields == theirs._fields and mine._field_defaults == theirs._field_defaults
    assert mine.__annotations__ == mine.__new__.__annotations__ == theirs.__annotations__
    assert mine.__mro__[1:] == theirs.__mro__[1:] and mine.__doc__ == theirs.__doc__


def test_asking_for_the_accelerator_broke_the_graph() -> None:
    def f(x: Any) -> Any:
        device = torch.accelerator.current_accelerator(check_available=True)
        return x + (0 if device is None else 1), torch.accelerator.device_count()

    outcomes(f, (X,))
