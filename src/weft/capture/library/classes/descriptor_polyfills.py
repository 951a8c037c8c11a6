"""The methods of `classmethod`, `staticmethod` and `property`, for programs that call them.

Place in the pipeline: see `library/standard/polyfill_rules.py`. (Attributes of classes that are
descriptors are read by `attributes.py`.)
"""

from __future__ import annotations

from typing import Any, Final


def bound(function: Any, owner: Any) -> Any:
    """`MethodType(function, owner)`, also of what cannot be called. (It has a rule.)"""
    return classmethod(function).__get__(None, owner)


def class_method_get(descriptor: Any, instance: Any, owner: Any = None) -> object:
    """classmethod.__get__"""
    return bound(descriptor.__func__, type(instance) if owner is None else owner)


def static_method_get(descriptor: Any, instance: object, owner: object = None) -> object:
    """staticmethod.__get__"""
    return descriptor.__func__


def static_method_call(descriptor: Any, *args: Any, **kwargs: Any) -> object:
    """staticmethod.__call__"""
    return descriptor.__func__(*args, **kwargs)


def property_get(descriptor: Any, instance: Any, owner: object = None) -> object:
    """property.__get__"""
    if instance is None:
        return descriptor
    if descriptor.fget is None:
        raise AttributeError(f"property of {type(instance).__qualname__!r} object has no getter")
    return descriptor.fget(instance)


METHODS: Final[dict[tuple[type, str], Any]] = {
    (classmethod, "__get__"): class_method_get,
    (staticmethod, "__get__"): static_method_get,
    (staticmethod, "__call__"): static_method_call,
    (property, "__get__"): property_get,
}
