"""What lookups in the program's classes give: guarded as they are made.

Place in the pipeline: beside `guard_set`, one per capture. Every lookup goes through
`library/classes/attributes.type_lookup`, which notes it here. The guards ask the class as Python
would, so they see whatever changes the answer: of the class, of a base, of the order of the bases,
of the metaclass::

    model.scale          # guard: the class has no descriptor 'scale' that would be asked first

Classes of torch and of the standard library are assumed not to change, except for what layers
compute (`forward`), and so are classes of C.
"""

from __future__ import annotations

import threading
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, final

from weft.capture.core.base import MISSING, is_heap_type
from weft.capture.core.source import Reference, Source, is_library
from weft.capture.guards.guard_set import GuardSet

BASES: Final = type.__dict__["__mro__"].__get__
ATTRIBUTES: Final = type.__dict__["__dict__"].__get__

_C_DESCRIPTORS: Final = (
    types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType,
    types.MethodDescriptorType, types.ClassMethodDescriptorType)

_DESCRIPTOR_METHODS: Final = ("__get__", "__set__", "__delete__")


@final
class ClassGuards:
    """The guards on the classes that a capture has asked."""

    def __init__(self, guards: GuardSet, own_classes: Mapping[type, object]) -> None:
        self._guards = guards
        self._own = own_classes
        """Classes that the captured code makes: nothing outside changes them."""
        self._places: dict[int, Source | None] = {}
        """The sources of the classes, by id; None: the class is assumed not to change."""
        self._known: set[tuple[int, str]] = set()

    def note(self, cls: type, name: str, owner: type | None, attribute: object) -> None:
        """Guard that looking up `name` gives `attribute`, which `owner` defines (None: no class
        does)."""
        key = id(cls), name
        if key in self._known and self._guards.noted is None:
            return
        self.bases(cls)
        place = self._places[id(cls)]
        if place is None and (name != "forward" or not is_heap_type(cls) or cls in self._own):
            return
        source = place or self._guards.tree.object(cls, cls.__qualname__)
        self._guards.note(source)
        if key not in self._known:
            self._known.add(key)
            self._add(source, name, owner, attribute)

    def bases(self, cls: type) -> None:
        """Guard the class's metaclass, its bases and their order."""
        if id(cls) not in self._places:
            self._places[id(cls)] = self._place(cls)

    def own(self, cls: type, name: str) -> None:
        """Guard what the class itself defines under a name, or that it defines nothing; data has
        guards of its own."""
        self.bases(cls)
        place = self._places[id(cls)]
        attribute = ATTRIBUTES(cls).get(name, MISSING)
        if attribute is not MISSING:
            self.note(cls, name, cls, attribute)
        elif place is not None:
            self._guards.add(place.instance_dict(), "missing_key", name)

    def text(self, cls: type, name: str, text: str | None) -> None:
        """Guard a text that describes the class: its name, its documentation."""
        self.bases(cls)
        place = self._places[id(cls)]
        if place is not None:
            self._guards.add(place.attribute(name), "eq", text)

    def finish(self) -> None:
        """Guard the bases of the classes of which the guards require instances."""
        for guard in [*self._guards.all]:
            if guard.kind in ("type_is", "tensor"):
                self.bases(guard.args[0])

    def _place(self, cls: type) -> Source | None:
        """The class's source, guarded to have its bases; None if it is assumed not to change."""
        if cls in self._own or not is_heap_type(cls) or is_library(
                ATTRIBUTES(cls).get("__module__", "")) or BASES(cls) is None:
            return None
        source = self._guards.tree.object(cls, cls.__qualname__)
        self._guards.add(source, "bases", (Reference(type(cls)), *map(Reference, BASES(cls))))
        return source

    def _add(self, source: Source, name: str, owner: type | None, attribute: object) -> None:
        if owner is None:
            self._guards.add(source, "class_attribute", name, None)
        elif _is_descriptor(attribute) or isinstance(attribute, type):
            self._guards.add(source, "class_attribute", name, _reference(attribute))
        else:
            self._guards.add(source, "class_data", name, Reference(owner))
        for method in _DESCRIPTOR_METHODS:  # which may be defined later
            self.note(type(attribute), method, *defined(type(attribute), method))


def _is_descriptor(attribute: object) -> bool:
    return any(defined(type(attribute), method)[0] is not None for method in _DESCRIPTOR_METHODS)


def _reference(attribute: object) -> object:
    """What stands for a descriptor in a guard, which must not keep the class alive. One of C is
    found again by its name in its class."""
    if isinstance(attribute, _C_DESCRIPTORS):
        return type(attribute), attribute.__name__, Reference(attribute.__objclass__)
    try:
        return Reference(attribute)
    except TypeError:
        return attribute


def defined(cls: type, name: str) -> tuple[type | None, Any]:
    """The first class, in the order of the bases, that defines the name, and what it defines."""
    for base in BASES(cls) or ():
        attributes = ATTRIBUTES(base)
        if name in attributes:
            return base, attributes[name]
    return None, MISSING


@final
class _Capture(threading.local):
    """The capture that this thread is in."""

    guards: ClassGuards | None = None


_CAPTURE: Final = _Capture()


@contextmanager
def guarding_lookups(guards: ClassGuards) -> Iterator[None]:
    """Inside, `note_lookup` adds its guards here."""
    outer, _CAPTURE.guards = _CAPTURE.guards, guards
    try:
        yield
    finally:
        _CAPTURE.guards = outer


def note_lookup(cls: type, name: str, owner: type | None, attribute: object) -> None:
    """Guard a lookup, if this thread captures."""
    if _CAPTURE.guards is not None:
        _CAPTURE.guards.note(cls, name, owner, attribute)
