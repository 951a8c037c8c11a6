"""Callables that the program makes anew for each call, wherever it keeps them: compiled for their
code and for what they hold, not for the object."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft

pytestmark = pytest.mark.usefixtures("fresh")

Scale = Callable[[torch.Tensor], torch.Tensor]


class Scaling:
    def __init__(self, by: float) -> None:
        self.by = by

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by

    @classmethod
    def doubled(cls, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3


def with_default(by: float) -> Scale:
    def scaled(x: torch.Tensor, by: float = by) -> torch.Tensor:
        return x * by

    return scaled


def decorated(by: float) -> Scale:
    def shifted(function: Scale) -> Scale:
        @functools.wraps(function)
        def wrapper(x: torch.Tensor) -> torch.Tensor:
            return function(x) + 1

        return wrapper

    return shifted(lambda x: x * by)


def layer(by: float) -> nn.Module:
    linear = nn.Linear(3, 3, bias=False)
    nn.init.constant_(linear.weight, by)
    return linear


CALLABLES: dict[str, Callable[[float], Any]] = {
    "closure": lambda by: lambda x: x * by,
    "default": with_default,
    "decorated": decorated,
    "partial": lambda by: functools.partial(lambda by, x: x * by, by),
    "partial with keywords": lambda by: functools.partial(lambda x, by: x * by, by=by),
    "bound method": lambda by: Scaling(by).scaled,
    "instance": Scaling,
    "class method": lambda by: Scaling(by).doubled,
    "static method": lambda by: Scaling(by).tripled,
    "module": layer,
    "method of a tensor": lambda by: torch.full((3,), by).mul,
    "partial of an operator": lambda by: functools.partial(
        nn.functional.leaky_relu, negative_slope=by),
}


class Holder:
    def __init__(self, function: object) -> None:
        self.function = function


class Slotted:
    __slots__ = ("function",)

    def __init__(self, function: object) -> None:
        self.function = function


class Applying(nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)  # type: ignore[operator]


PLACES: dict[str, tuple[Callable[[object], Any], Callable[[Any, torch.Tensor], Any]]] = {
    "argument": (lambda f: f, lambda f, x: f(x)),
    "attribute": (Holder, lambda holder, x: holder.function(x)),
    "slot": (Slotted, lambda holder, x: holder.function(x)),
    "module": (Applying, lambda module, x: module(x)),
    "dictionary": (lambda f: {"f": f}, lambda table, x: table["f"](x)),
    "list": (lambda f: [f], lambda items, x: items[0](x)),
    "list in an attribute": (lambda f: Holder([f]), lambda holder, x: holder.function[0](x)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", CALLABLES)
def test_at_most_one_recompile(kind: str, place: str) -> None:
    """The first time, the place may look like one that keeps its object."""
    hold, program = PLACES[place]
    compiled = weft.compile(program, backend="eager")
    x = torch.randn(3)
    for _ in range(4):
        function = CALLABLES[kind](2.0)
        assert torch.equal(compiled(hold(function), x), function(x))
    assert weft.stats()["recompiles"] <= 1
    assert weft.stats()["graph_breaks"] == 0


def test_what_a_new_function_holds_is_seen() -> None:
    hold, program = PLACES["attribute"]
    compiled = weft.compile(program, backend="eager")
    x = torch.randn(3)
    for by in (2.0, 2.0, 2.0, 3.0, -1.0):
        assert torch.equal(compiled(hold(CALLABLES["closure"](by)), x), x * by)
        assert torch.equal(compiled(hold(with_default(by)), x), x * by)
    assert torch.equal(compiled(hold(lambda x: x - 1), x), x - 1)
