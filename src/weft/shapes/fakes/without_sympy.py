"""Keeps PyTorch's meta kernels from loading sympy, half a second of a process's first compile.

Place in the pipeline: `MemoFakeMode` and aot's expansion run PyTorch's Python kernels inside
`without_sympy()` or `python_kernels()`. Nearly all of these first ask something about sizes, with a
statement like

    from torch.fx.experimental.symbolic_shapes import guard_or_false

which loads PyTorch's symbolic-shape engine and with it sympy, although the sizes are plain ints or
weft's own symbols. Inside the context, and only while the real modules are not loaded, small
stand-in modules answer these questions. Any other question, or one about a symbol that is not
weft's, loads the real module and is passed on, so a stand-in that some other module keeps a
reference to goes on working.
"""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from types import ModuleType
from typing import Any, Final, final

import torch

from weft._torch import python_dispatcher
from weft.shapes.symnode import SymNode, is_hinted

_ENGINE: Final = "torch.fx.experimental.symbolic_shapes"
_SYMBOLS: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)


@contextmanager
def without_sympy() -> Iterator[None]:
    """Answer PyTorch's questions about sizes here, unless its engine is loaded."""
    placed = [module for module in _STAND_INS if module.__name__ not in sys.modules]
    for module in placed:
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        _remove(placed)


@contextmanager
def python_kernels() -> Iterator[None]:
    """Composite operators run as PyTorch's Python forms of them: in C++ many ask for plain sizes.
    """
    with python_dispatcher(), without_sympy():
        yield


def _remove(stand_ins: Iterable[ModuleType]) -> None:
    for module in stand_ins:
        if sys.modules.get(module.__name__) is module:
            del sys.modules[module.__name__]


class _StandIn(ModuleType):
    """A module with a few names of its own; other names are the real module's.

    ``classes`` are names of classes that have no instances before the real module is loaded.
    """

    def __init__(self, name: str, classes: Sequence[str] = ()) -> None:
        super().__init__(name)
        self._classes = classes

    def __getattr__(self, name: str) -> Any:
        if name in self._classes and sys.modules.get(self.__name__) in (None, self):
            return _NoInstance
        if name == "__path__" and self.__name__ == "sympy":  # a part of it is being imported
            return self._load().__path__
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._load(), name)

    def _load(self) -> ModuleType:
        _remove(_STAND_INS)  # the real modules must not see the stand-ins
        return importlib.import_module(self.__name__)


@final
class _NoInstance:
    """A class without instances."""


# ------------------------------------------------------------------------------ answers


@final
class _Engine(_StandIn):
    """PyTorch's engine: functions without an answer here load it when they are called."""

    def __getattr__(self, name: str) -> Any:
        is_function = not name.startswith("__") and name.lower() == name
        return partial(_ask_pytorch, name) if is_function else super().__getattr__(name)


def _ask_pytorch(name: str, *args: object, **kwargs: object) -> object:
    return getattr(_engine._load(), name)(*args, **kwargs)


def _question(name: str, plain: tuple[type, ...], answer: Any, ask: Any) -> Callable[..., object]:
    """A function of a number: ``answer`` for a plain one, ``ask`` for weft's node of a symbolic
    one."""

    def question(value: Any, *rest: object, **options: object) -> object:
        if type(value) in plain:
            return answer(value)
        node = value.node if isinstance(value, _SYMBOLS) else None
        if isinstance(node, SymNode):
            return ask(node)
        return _ask_pytorch(name, value, *rest, **options)

    return question


def _sym_eq(x: object, y: object) -> object:
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) == len(y) and reduce(operator.and_, map(_sym_eq, x, y), True)
    return x == y


def _itself(value: object) -> object:
    return value


def _free_unbacked_symbols(value: object) -> object:
    """The empty set: plain sizes have no symbols."""
    numbers: Sequence[Any] = (value,)
    if isinstance(value, torch.Tensor):
        numbers = (*value.size(), *value.stride(), value.storage_offset())
    plain = all(type(n) in _NUMBERS or isinstance(n.node, SymNode) for n in numbers)
    return set() if plain else _ask_pytorch("free_unbacked_symbols", value)


_NUMBERS: Final = (int, float, bool)
_ANSWERS: Final[dict[str, tuple[tuple[type, ...], Any, Any]]] = {
    "guard_or_false": ((bool,), _itself, SymNode.guard_or_false),
    "guard_or_true": ((bool,), _itself, SymNode.guard_or_true),
    "guard_size_oblivious": ((bool,), _itself, SymNode.guard_size_oblivious),
    "statically_known_true": ((bool,), _itself, SymNode.statically_known_true),
    "expect_true": ((bool,), _itself, SymNode.expect_true),
    "guard_int": ((int,), _itself, SymNode.guard_int),
    "is_nested_int": (_NUMBERS, lambda _: False, SymNode.is_nested_int),
    "is_symbolic": (_NUMBERS, lambda _: False, SymNode.is_symbolic),
    "has_free_symbols": (_NUMBERS, lambda _: False, lambda _: True),
}
"""For each question: the plain types, the answer for them, and the answer for weft's nodes."""

_engine: Final = _Engine(_ENGINE)
_engine.__dict__.update(
    {name: _question(name, *answers) for name, answers in _ANSWERS.items()},
    free_unbacked_symbols=_free_unbacked_symbols,
    has_hint=is_hinted,
    has_guarding_hint=is_hinted,
    sym_eq=_sym_eq,
    sym_and=lambda *conditions: reduce(operator.and_, conditions),
    sym_or=lambda *conditions: reduce(operator.or_, conditions),
)
_STAND_INS: Final[tuple[ModuleType, ...]] = (
    _engine, _StandIn("sympy", ["Basic"]), _StandIn("torch.utils._sympy.functions", ["Max"]),
)
