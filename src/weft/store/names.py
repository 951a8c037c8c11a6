"""Objects that other processes have under the same name: functions, classes, modules, sentinels.

Place in the pipeline: how `writer.py` writes what belongs to Python, PyTorch, weft or a package::

    name_of(torch.relu)                  # ('torch', 'relu')
    object_named("torch", "relu")        # torch.relu

A name counts only if it leads back to the very object.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import FunctionType, ModuleType
from typing import Any, Final

from weft.store.errors import DoesNotFit

_STANDARD: Final = frozenset({"torch", "weft", *sys.stdlib_module_names} - {"__main__"})


def is_library(module: object) -> bool:
    """Whether a module of that name is of Python, PyTorch or weft: the version says what it is."""
    return isinstance(module, str) and module.partition(".")[0] in _STANDARD


def name_of(obj: Any) -> tuple[str, str] | None:
    """The module and the qualified name that lead to the object, or None."""
    module = _text(obj, "__module__")
    path = _text(obj, "__qualname__") or _text(obj, "__name__")
    for inner in _INNER if module and path and "<" not in path else ():
        if _lookup(module, path + inner) is obj:
            return module, path + inner
    return _names().get(id(obj)) if _leads_back(obj) else None


_INNER: Final = ("", ".fget", ".fset", ".fdel", ".func", ".__func__", ".__wrapped__")
"""A function's own name may lead to what a decorator made of it."""


def _text(obj: Any, name: str) -> str:
    try:
        value = getattr(obj, name, None)
    except Exception:  # noqa: BLE001  code of the program
        return ""
    return value if type(value) is str else ""


def _lookup(module: str, path: str) -> Any:
    first, *rest = path.split(".")
    for home in homes(module):
        obj: Any = vars(home).get(first)
        for name in rest:
            obj = _attribute(obj, name)
        if obj is not None:
            return obj
    return None


def homes(module: str) -> list[ModuleType]:
    """The module of that name and, if it stands for another one (`torch.backends.cudnn`), that."""
    kept = sys.modules.get(module)
    if not isinstance(kept, ModuleType):
        return []
    return [kept, *(inner for inner in list(vars(kept).values()) if (
        issubclass(type(inner), ModuleType) and inner is not kept  # `__class__` may warn
        and vars(inner).get("__name__") == module))]


def _attribute(obj: Any, name: str) -> Any:
    """An attribute as it is stored, or None: no property or module function runs."""
    if isinstance(obj, ModuleType):
        return vars(obj).get(name)
    if isinstance(obj, type):
        for base in type.__dict__["__mro__"].__get__(obj):
            if name in vars(base):
                kept = vars(base)[name]
                return kept.__func__ if type(kept) is staticmethod else kept
    if type(obj) in _DECORATED and f".{name}" in _INNER:
        return getattr(obj, name, None)
    return None


_DECORATED: Final = (property, functools.cached_property, classmethod, FunctionType)


_reverse: dict[int, tuple[str, str]] = {}
_seen_modules: set[str] = set()
_counted: list[None] = []
"""As many items as there were modules."""


def _names() -> dict[int, tuple[str, str]]:
    """The names of what the libraries' modules hold, by id."""
    if len(sys.modules) == len(_counted):
        return _reverse
    _counted[:] = [None] * len(sys.modules)
    for name, module in list(sys.modules.items()):
        if name in _seen_modules or not is_library(name) or not isinstance(module, ModuleType):
            continue
        _seen_modules.add(name)
        for key, value in list(vars(module).items()):
            if type(value) not in _PLAIN:
                _reverse.setdefault(id(value), (name, key))
    return _reverse


_PLAIN: Final = (int, float, str, bytes, tuple, frozenset, list, dict, set, type(None))


def _leads_back(obj: Any) -> bool:
    name = _names().get(id(obj))
    return name is not None and _lookup(*name) is obj


def object_named(module: str, path: str) -> Any:
    """The object of that name; libraries are imported if need be. Raises DoesNotFit."""
    module_named(module)
    obj = _lookup(module, path)
    if obj is None:
        raise DoesNotFit(f"there is no {module}.{path}")
    return obj


def namespace_of(globals: dict[str, Any]) -> tuple[str, int] | None:
    """The module's name and which of its `homes` has these global variables."""
    name = globals.get("__name__")
    if type(name) is not str:
        return None
    places = homes(name)
    known = next(((name, at) for at, home in enumerate(places) if vars(home) is globals), None)
    return known or next(((other, 0) for other, module in list(sys.modules.items()) if isinstance(
        module, ModuleType) and vars(module) is globals), None)


def namespace_named(name: str, at: int) -> dict[str, Any]:
    """The global variables of a module. Raises DoesNotFit."""
    module_named(name)
    places = homes(name)
    if at >= len(places):
        raise DoesNotFit(f"there is no such module {name}")
    return vars(places[at])


def module_named(name: str) -> ModuleType:
    """The module of that name; libraries are imported if need be. Raises DoesNotFit."""
    if name not in sys.modules and is_library(name):
        try:
            importlib.import_module(name)
        except ImportError:
            raise DoesNotFit(f"there is no module {name}") from None
    module = sys.modules.get(name)
    if not isinstance(module, ModuleType):
        raise DoesNotFit(f"there is no module {name}")
    return module
