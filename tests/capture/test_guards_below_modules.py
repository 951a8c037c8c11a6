"""What is remembered of the modules and parameters below a root: every change there is noticed.

One model is captured; its guards are asked again and again while something deep inside is changed
and changed back.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import weft
from weft import _frame


class Block(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(*[Block(depth - 1) if depth else nn.Linear(4, 4, bias=i == 0)
                                     for i in range(2)])
        self.register_buffer("offset", torch.ones(4))
        self.factors = [1, 2.5]
        self.window = (3, [4])
        self.options = {"scale": 2.0}
        self.counter = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) * self.options["scale"] + self.offset * self.factors[1]
        return y * self.window[1][0] if self.training else y


def run(model: Block, x: torch.Tensor) -> torch.Tensor:
    return model(x)


class OtherLinear(nn.Linear):
    pass


class OtherParameter(nn.Parameter):
    pass


@contextmanager
def swapped(first: torch.Tensor, second: torch.Tensor) -> Iterator[None]:
    torch.utils.swap_tensors(first, second)
    yield
    torch.utils.swap_tensors(first, second)


@contextmanager
def other(target: Any, name: str, new: Any) -> Iterator[None]:
    old = getattr(target, name)
    setattr(target, name, new)
    yield
    setattr(target, name, old)


@contextmanager
def without(namespace: dict[str, Any], name: str) -> Iterator[None]:
    items = list(namespace.items())
    del namespace[name]
    yield
    namespace.clear()
    namespace.update(items)


@contextmanager
def with_item(target: Any, key: Any, new: Any) -> Iterator[None]:
    old = target[key]
    target[key] = new
    yield
    target[key] = old


@contextmanager
def with_new(target: Any, key: Any) -> Iterator[None]:
    target[key] = lambda *args: None
    yield
    del target[key]


@contextmanager
def resized(offset: torch.Tensor) -> Iterator[None]:
    offset.resize_(2)
    yield
    offset.resize_(4)


@contextmanager
def set_to(weight: torch.Tensor, new: torch.Tensor) -> Iterator[None]:
    old = weight.detach().clone()
    weight.set_(new)
    yield
    weight.set_(old)


@contextmanager
def transposed(offset: torch.Tensor) -> Iterator[None]:
    offset.unsqueeze_(0)
    yield
    offset.squeeze_(0)


@contextmanager
def requiring_grad_through_a_result(offset: torch.Tensor) -> Iterator[None]:
    with torch.enable_grad():
        offset.add_(torch.zeros(4, requires_grad=True))
    yield
    offset.detach_()


@contextmanager
def hooked(layer: nn.Module) -> Iterator[None]:
    handle = layer.register_forward_hook(lambda module, args, out: out)
    yield
    handle.remove()


def _leaf(model: Block) -> Any:
    return model.inner[1].inner[0].inner[0]


def _block(model: Block) -> Any:
    return model.inner[1].inner[0]


CHANGES: Final[dict[str, Callable[[Block], Any]]] = {
    "dtype": lambda m: other(_leaf(m).weight, "data", torch.zeros(4, 4, dtype=torch.float64)),
    "dtype of the same memory": lambda m: other(
        _block(m).offset, "data", _block(m).offset.view(torch.int32)),
    "shape": lambda m: other(_leaf(m).weight, "data", torch.zeros(5, 4)),
    "rank": lambda m: other(_leaf(m).bias, "data", torch.zeros(1, 4)),
    "six dimensions": lambda m: other(_leaf(m).bias, "data", torch.zeros(1, 1, 1, 1, 1, 4)),
    "strides": lambda m: other(_leaf(m).weight, "data", _leaf(m).weight.data.t()),
    "conjugate": lambda m: swapped(_leaf(m).weight, nn.Parameter(
        torch.zeros(4, 4, dtype=torch.complex64).conj())),
    "device": lambda m: swapped(_leaf(m).weight, nn.Parameter(torch.zeros(4, 4, device="meta"))),
    "requires_grad": lambda m: other(_leaf(m).weight, "requires_grad", False),
    "requires_grad of a buffer": lambda m: other(_block(m).offset, "requires_grad", True),
    "grad_fn of a buffer": lambda m: requiring_grad_through_a_result(_block(m).offset),
    "class of a parameter": lambda m: other(_leaf(m).weight, "__class__", OtherParameter),
    "resize_": lambda m: resized(_block(m).offset),
    "unsqueeze_": lambda m: transposed(_block(m).offset),
    "set_": lambda m: set_to(_block(m).offset, torch.zeros(3)),
    "swapped": lambda m: swapped(_leaf(m).weight, nn.Parameter(torch.zeros(3, 3))),
    "parameter": lambda m: other(_leaf(m), "weight", nn.Parameter(torch.zeros(4, 5))),
    "no parameter": lambda m: other(_leaf(m), "bias", None),
    "submodule": lambda m: other(_block(m), "inner", nn.Identity()),
    "item of a Sequential": lambda m: with_item(_block(m).inner, 0, nn.Identity()),
    "class of a submodule": lambda m: other(_leaf(m), "__class__", OtherLinear),
    "deleted attribute": lambda m: without(_block(m).__dict__, "factors"),
    "new forward": lambda m: other(_leaf(m), "__dict__", {
        **_leaf(m).__dict__, "forward": torch.relu}),
    "forward hook": lambda m: hooked(_leaf(m)),
    "hook behind the back": lambda m: with_new(_leaf(m)._forward_pre_hooks, 7),
    "eval": lambda m: other(_block(m), "training", False),
    "buffer": lambda m: other(_block(m), "offset", torch.ones(2, 4)),
    "__dict__": lambda m: other(_leaf(m), "__dict__", {
        **_leaf(m).__dict__, "_parameters": {"weight": nn.Parameter(torch.zeros(2, 4)),
                                             "bias": None}}),
    "_parameters": lambda m: other(_leaf(m), "_parameters", {
        "weight": nn.Parameter(torch.zeros(2, 4)), "bias": None}),
    "_forward_hooks": lambda m: other(_leaf(m), "_forward_hooks", OrderedDict(
        {1: lambda module, args, out: out})),
    "item of a list": lambda m: with_item(_block(m).factors, 1, 3.5),
    "list": lambda m: other(_block(m), "factors", [1, 4.5]),
    "item of a list in a tuple": lambda m: with_item(_block(m).window[1], 0, 5),
    "item of a dictionary": lambda m: with_item(_block(m).options, "scale", 3.0),
}


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Block, Callable[[], bool]]]:
    """A model, and whether the guards of its captured code hold."""
    weft.reset()
    model, x = Block(2), torch.zeros(2, 4)
    compiled = weft.compile(run, backend="eager")
    with torch.no_grad():
        compiled(model, x)
    gc.collect()
    (entry,) = (obj for obj in gc.get_objects() if type(obj) is _frame.Entry)

    def holds() -> bool:
        with torch.no_grad():
            found = entry.guards.check([model, x], None, globals())
        return found is not None

    yield model, holds
    del compiled


@pytest.mark.parametrize("name", CHANGES)
def test_change_is_noticed_each_time(name: str, guarded: Any) -> None:
    model, holds = guarded
    for _ in range(3):
        assert holds()
        assert holds()
        assert holds()
        with torch.no_grad(), CHANGES[name](model):
            assert not holds()
            assert not holds()
            gc.collect(0)
            assert not holds()
        assert holds()


def test_changes_that_no_guard_is_about_are_passed_over(guarded: Any) -> None:
    model, holds = guarded
    for i in range(20):
        _block(model).counter = i
        _leaf(model).weight.data = torch.full((4, 4), float(i))
        _leaf(model).weight.grad = torch.zeros(4, 4)
        _block(model).options["other"] = i
        assert holds()


def test_objects_that_take_the_place_and_the_address_of_others(guarded: Any) -> None:
    model, holds = guarded
    block = _block(model)
    for i in range(200):
        block.factors[1] = None
        block.factors[1] = 2.5 if i % 3 else float(i + 3)
        assert holds() == bool(i % 3)
    for i in range(200):
        block.options = None
        block.options = {"scale": 2.0 if i % 3 else 3.0}
        assert holds() == bool(i % 3)
    block.factors[1], block.options = 2.5, {"scale": 2.0}
    assert holds()


@pytest.mark.parametrize("inside", [False, True])
def test_hooks_of_all_modules(inside):
    seen = []
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())

    def register():
        return register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__))

    def f(x):
        handle = register() if inside else None
        y = model(x)
        if handle is not None:
            handle.remove()
        return y

    compiled = weft.compile(f, backend="eager")
    compiled(torch.ones(1, 2))
    seen.clear()
    handle = None if inside else register()
    try:
        compiled(torch.ones(1, 2))
    finally:
        if handle is not None:
            handle.remove()
    assert seen == ["Linear", "ReLU", "Sequential"]
