"""Backends by name.

Place in the pipeline: `weft.compile(backend=...)` resolves its argument here. A backend is a
callable `backend(gm, example_inputs) -> callable`. Names come from `register_backend`, from the
built-in table (imported at first use), from the entry-point groups `weft_backends` and
`torch_dynamo_backends`, and from PyTorch's own registry (`torch:<name>`, or the name alone where
weft has none).

    @register_backend
    def my_backend(gm, example_inputs):
        return gm.forward
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from weft.errors import BadValue, UnknownBackend

Backend = Callable[..., Callable[..., Any]]

_BUILTIN: Final[dict[str, str]] = {
    "eager": "weft.backends.eager:eager",
    "aot_eager": "weft.backends.aot_eager:aot_eager",
    "aot_eager_decomposed": "weft.backends.aot_eager_decomposed:aot_eager_decomposed",
    "inductor": "weft.backends.inductor:inductor",
    "weft": "weft.backends.inductor:inductor",  # its name in torch.compile
}
_GROUPS: Final = ("weft_backends", "torch_dynamo_backends")
_registered: dict[str, Backend] = {}


def register_backend(
    name: str | Backend | None = None, backend: Backend | None = None
) -> Any:
    """Adds a backend: `register_backend("name", function)`, or a decorator, bare or with a name."""
    if callable(name):
        return register_backend(_name_of(name), name)
    if backend is None:
        return lambda function: register_backend(name or _name_of(function), function)
    if not callable(backend):
        raise BadValue(f"a backend is a callable, got {backend!r}")
    if not isinstance(name, str):
        raise BadValue(f"a backend's name is a text, got {name!r}")
    _registered[name] = backend
    return backend


def _name_of(backend: object) -> str:
    return str(getattr(backend, "__name__", type(backend).__name__))


def list_backends() -> list[str]:
    """The names that `backend=` takes."""
    return sorted({*_BUILTIN, *_registered, *(e.name for e in _installed())})


def resolve(backend: str | Backend) -> Backend:
    """The backend for a name (UnknownBackend if there is none) or a callable.

    Built-in names give a light stand-in that imports the implementation at its first call.
    """
    if not isinstance(backend, str):
        if not callable(backend):
            raise BadValue(f"backend= takes a name or a callable, got {backend!r}")
        return backend
    if backend in _registered:
        return _registered[backend]
    if backend in _BUILTIN:
        return _own(backend)
    return _from_entry_point(backend)


@cache
def _own(name: str) -> _Lazy:
    """One object for a name: equal `weft.compile` calls share compiled code."""
    return _Lazy(name, _BUILTIN[name])


def is_own(backend: Backend) -> bool:
    """Whether it is one of weft's, as `resolve` gives them."""
    return isinstance(backend, _Lazy)


def _from_entry_point(name: str) -> Backend:
    entry_point = next((e for e in _installed() if e.name == name), None)
    if entry_point is None:
        return _of_torch(name)
    loaded: Backend = entry_point.load()
    _registered[name] = loaded
    return loaded


def _of_torch(name: str) -> Backend:
    """A backend of PyTorch's own registry."""
    adapter = import_module("weft.backends.torch_adapter")
    plain = name.removeprefix("torch:")
    if plain == name and name not in adapter.names():
        raise UnknownBackend(name, list_backends())
    backend: Backend = adapter.find(plain)
    return backend


def _installed() -> list[EntryPoint]:
    return [e for group in _GROUPS for e in entry_points(group=group)]


class _Lazy:
    """A built-in backend that is imported when it is first called."""

    def __init__(self, name: str, where: str) -> None:
        self.__name__ = self.name = name
        self._where = where
        self._loaded: Backend | None = None

    def __call__(self, *args: object, **kwargs: object) -> Callable[..., object]:
        if self._loaded is None:
            module, _, attribute = self._where.partition(":")
            self._loaded = getattr(import_module(module), attribute)
        assert self._loaded is not None
        return self._loaded(*args, **kwargs)

    def __reduce__(self) -> tuple[object, ...]:
        return resolve, (self.__name__,)

    def __repr__(self) -> str:
        return f"<weft backend {self.__name__}>"
