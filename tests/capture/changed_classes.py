"""Programs that rely on what a class says, and everything that changes what it says.

`PROGRAMS` use an object in one way each; `changes` lists what may happen between two calls. Both
are made anew for each pair (`World`).
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator
from typing import Any

NUMBERS = 5, 7


class World:
    """Three classes, each the base of the next, with a metaclass; descriptors; an object."""

    def __init__(self) -> None:
        class Descriptor:
            def __init__(self, number: int) -> None:
                self.number = number

            def __get__(self, obj: Any, cls: Any) -> int:
                return self.number

        class DataDescriptor(Descriptor):
            def __set__(self, obj: Any, value: Any) -> None:
                obj.__dict__["set"] = value

        class Meta(type):
            rate = 2

        class Root(metaclass=Meta):
            scale = 3

            def method(self) -> int:
                return 1

            def __len__(self) -> int:
                return 2

            @property
            def computed(self) -> int:
                return 4

            @functools.cached_property
            def cached(self) -> int:
                return 6

            @classmethod
            def of_class(cls) -> int:
                return cls.scale

            @staticmethod
            def static() -> int:
                return 8

        class Middle(Root):
            __slots__ = ("slot",)
            described = Descriptor(9)
            set_too = DataDescriptor(10)

        class Leaf(Middle):
            def __init__(self) -> None:
                self.value = 11
                self.slot = 12

            def by_super(self) -> int:
                return super().method()

        class Other(Root):
            scale = 13

            def method(self) -> int:
                return 14

            def __call__(self) -> int:
                return 15

        class OtherMeta(Meta):
            rate = 16

            def __call__(cls) -> Any:
                made = super().__call__()
                made.value = 17
                return made

        class Same(Middle):
            scale = 18

            def method(self) -> int:
                return 19

            def by_super(self) -> int:
                return 20

        class Abstract(abc.ABC):
            pass

        self.classes: dict[str, Any] = {"Leaf": Leaf, "Middle": Middle, "Root": Root}
        self.Leaf, self.Middle, self.Root, self.Other, self.Same = Leaf, Middle, Root, Other, Same
        self.Meta, self.OtherMeta, self.Abstract = Meta, OtherMeta, Abstract
        self.Descriptor, self.DataDescriptor = Descriptor, DataDescriptor
        self.obj = Leaf()


def _set(world: Any) -> int:
    world.obj.value = 21
    return int(world.obj.value)


def _match(world: Any) -> int:
    match world.obj:
        case world.Other():
            return 1
        case world.Middle(value=11):
            return 2
        case _:
            return 3


def _with(world: Any) -> int:
    with world.obj:
        return 1


def _deleted(world: Any) -> int:
    world.obj.temporary = 1
    del world.obj.temporary
    return hasattr(world.obj, "temporary") + 2


PROGRAMS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "method": (lambda w: w.obj.method(), ("method", "__getattribute__")),
    "class data": (lambda w: w.obj.scale, ("scale", "__getattribute__")),
    "instance data": (lambda w: w.obj.value, ("value", "__getattribute__")),
    "property": (lambda w: w.obj.computed, ("computed",)),
    "cached property": (lambda w: w.obj.cached, ("cached",)),
    "descriptor": (lambda w: w.obj.described, ("described",)),
    "data descriptor": (lambda w: w.obj.set_too, ("set_too",)),
    "slot": (lambda w: w.obj.slot, ("slot",)),
    "class method": (lambda w: w.obj.of_class(), ("of_class", "scale")),
    "static method": (lambda w: w.obj.static(), ("static",)),
    "super": (lambda w: w.obj.by_super(), ("method", "by_super")),
    "missing": (lambda w: getattr(w.obj, "missing", 22), ("missing", "__getattr__")),
    "hasattr": (lambda w: hasattr(w.obj, "missing"), ("missing", "__getattr__")),
    "len": (lambda w: len(w.obj), ("__len__",)),
    "truth": (lambda w: 1 if w.obj else 0, ("__len__", "__bool__")),
    "add": (lambda w: w.obj + 1, ("__add__",)),
    "reflected": (lambda w: 1 + w.obj, ("__radd__",)),
    "item": (lambda w: w.obj[1], ("__getitem__",)),
    "iteration": (lambda w: sum(list(w.obj)), ("__iter__", "__getitem__")),
    "in": (lambda w: 1 in w.obj, ("__contains__", "__iter__")),
    "equal": (lambda w: w.obj == 1, ("__eq__",)),
    "less": (lambda w: w.obj < 1, ("__lt__",)),
    "negative": (lambda w: -w.obj, ("__neg__",)),
    "int": (lambda w: int(w.obj), ("__int__", "__index__")),
    "text": (lambda w: len(str(w.obj)) < 30, ("__str__", "__repr__")),
    "format": (lambda w: len(f"{w.obj}") < 30, ("__format__", "__str__")),
    "key": (lambda w: {w.obj: 1}[w.obj], ("__hash__", "__eq__")),
    "call": (lambda w: w.obj(), ("__call__",)),
    "callable": (lambda w: callable(w.obj), ("__call__",)),
    "with": (_with, ("__enter__", "__exit__")),
    "set": (_set, ("value", "__setattr__")),
    "delete": (_deleted, ("temporary", "__delattr__")),
    "of class": (lambda w: w.Leaf.scale, ("scale",)),
    "of metaclass": (lambda w: w.Leaf.rate, ("rate",)),
    "function of class": (lambda w: w.Leaf.method(w.obj), ("method",)),
    "new": (lambda w: w.Leaf().value, ("__init__", "__new__", "value")),
    "isinstance": (lambda w: isinstance(w.obj, w.Other) + 2, ("__class__",)),
    "issubclass": (lambda w: issubclass(w.Leaf, w.Other) + 2, ()),
    "abstract": (lambda w: isinstance(w.obj, w.Abstract) + 2, ()),
    "abstract class": (lambda w: issubclass(w.Leaf, w.Abstract) + 2, ()),
    "type": (lambda w: (type(w.obj) is w.Leaf) + 2, ()),
    "name": (lambda w: len(type(w.obj).__name__), ()),
    "qualified name": (lambda w: len(w.Leaf.__qualname__), ()),
    "module": (lambda w: len(w.Leaf.__module__), ()),
    "documentation": (lambda w: len(w.Leaf.__doc__ or ""), ()),
    "bases": (lambda w: [w.Other, w.Middle, w.Root].index(w.Leaf.__bases__[0]), ()),
    "order": (lambda w: len(w.Leaf.__mro__), ()),
    "subclasses": (lambda w: len(w.Root.__subclasses__()), ()),
    "match": (_match, ("value",)),
    "namespace": (lambda w: len(vars(w.obj)), ()),
}
"""Name: the use of `World.obj`, and the attributes that it may look up."""


def _raising(*args: Any) -> Any:
    raise KeyError("raised")


def _reads(*args: Any) -> Any:
    return object.__getattribute__(args[0], args[1]) if len(args) == 2 else args[0]


FORMS: dict[str, Callable[[World], Any]] = {
    "function": lambda w: lambda *args: NUMBERS[0],
    "other function": lambda w: _reads,
    "raises": lambda w: _raising,
    "data": lambda w: NUMBERS[1],
    "None": lambda w: None,
    "property": lambda w: property(lambda self: NUMBERS[0]),
    "class method": lambda w: classmethod(lambda cls, *args: NUMBERS[1]),
    "static method": lambda w: staticmethod(lambda *args: NUMBERS[0]),
    "descriptor": lambda w: w.Descriptor(NUMBERS[0]),
    "data descriptor": lambda w: w.DataDescriptor(NUMBERS[0]),
    "slot": lambda w: w.Middle.__dict__["slot"],
}
"""What may be set as a class attribute."""

Change = Callable[[World], None]


def _sets(place: str, name: str, form: str) -> Change:
    return lambda w: setattr(w.classes[place], name, FORMS[form](w))


def _deletes(place: str, name: str) -> Change:
    return lambda w: delattr(w.classes[place], name)


GENERAL: dict[str, Change] = {
    "bases of the class": lambda w: setattr(w.Leaf, "__bases__", (w.Other, w.Middle)),
    "bases of a base": lambda w: setattr(w.Middle, "__bases__", (w.Other,)),
    "bases twice": lambda w: [setattr(w.Middle, "__bases__", (b,)) for b in (w.Other, w.Root)],
    "class of the object": lambda w: setattr(w.obj, "__class__", w.Same),
    "metaclass": lambda w: setattr(w.Leaf, "__class__", w.OtherMeta),
    "metaclass attribute": lambda w: setattr(w.Meta, "rate", NUMBERS[0]),
    "metaclass property": lambda w: setattr(w.Meta, "scale", property(lambda cls: NUMBERS[0])),
    "metaclass call": lambda w: setattr(w.Meta, "__call__", lambda cls: w.obj),
    "metaclass check": lambda w: setattr(w.Meta, "__instancecheck__", lambda cls, obj: True),
    "metaclass subclass check": lambda w: setattr(
        w.Meta, "__subclasscheck__", lambda cls, other: True),
    "metaclass access": lambda w: setattr(
        w.Meta, "__getattribute__", lambda cls, name: type.__getattribute__(cls, name)),
    "descriptor's get": lambda w: setattr(
        w.Descriptor, "__get__", lambda self, obj, cls: NUMBERS[0]),
    "descriptor's set": lambda w: setattr(w.Descriptor, "__set__", lambda *args: None),
    "descriptor's number": lambda w: setattr(w.Middle.__dict__["described"], "number", NUMBERS[0]),
    "no set": lambda w: delattr(w.DataDescriptor, "__set__"),
    "name": lambda w: setattr(w.Leaf, "__name__", "Renamed"),
    "qualified name": lambda w: setattr(w.Leaf, "__qualname__", "Renamed"),
    "module": lambda w: setattr(w.Leaf, "__module__", "elsewhere"),
    "documentation": lambda w: setattr(w.Leaf, "__doc__", "changed"),
    "registered": lambda w: [w.Abstract.register(w.Middle)],
    "subclass": lambda w: [type(w.Root)("Another", (w.Root,), {})],
    "instance attribute": lambda w: vars(w.obj).update(missing=NUMBERS[0], scale=NUMBERS[1]),
    "instance method": lambda w: vars(w.obj).update(method=lambda: NUMBERS[0]),
    "instance data": lambda w: vars(w.obj).update(described=NUMBERS[0], computed=NUMBERS[1]),
    "no instance data": lambda w: vars(w.obj).clear(),
    "namespace": lambda w: setattr(w.obj, "__dict__", {"value": NUMBERS[0]}),
    "unrelated": lambda w: setattr(w.Root, "unrelated", 1),
}
"""Changes that no attribute's name is needed for."""


def changes(names: tuple[str, ...]) -> Iterator[tuple[str, Change]]:
    """All changes of what looking up one of the names gives, and all others."""
    yield from GENERAL.items()
    for name in names:
        for place in ("Leaf", "Middle", "Root"):
            for form in FORMS:
                yield f"{place}.{name} = {form}", _sets(place, name, form)
            yield f"del {place}.{name}", _deletes(place, name)
