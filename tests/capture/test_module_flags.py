"""Modules of torch.nn whose flags change between calls: outputs, gradients, buffers as in eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import weft

Made = Callable[[], nn.Module]
ROWS, SEQUENCE, IMAGE = (6, 4), (2, 4, 6), (2, 4, 6, 6)

MODULES: dict[str, tuple[Made, tuple[int, ...]]] = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), ROWS),
    "BatchNorm2d, all batches": (lambda: nn.BatchNorm2d(4, momentum=None), IMAGE),
    "BatchNorm1d, no weights": (lambda: nn.BatchNorm1d(4, affine=False), SEQUENCE),
    "BatchNorm1d, no statistics": (lambda: nn.BatchNorm1d(4, track_running_stats=False), ROWS),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True), IMAGE),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), IMAGE),
    "LayerNorm": (lambda: nn.LayerNorm(4), ROWS),
    "Conv2d": (lambda: nn.Conv2d(4, 4, 3), IMAGE),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGE),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), IMAGE),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), IMAGE),
    "Dropout": (nn.Dropout, ROWS),
    "RReLU": (nn.RReLU, ROWS),
    "LeakyReLU": (nn.LeakyReLU, ROWS),
    "GELU": (nn.GELU, ROWS),
    "Hardtanh": (nn.Hardtanh, ROWS),
    "Softplus": (nn.Softplus, ROWS),
    "Softmax": (lambda: nn.Softmax(-1), ROWS),
    "CosineSimilarity": (nn.CosineSimilarity, ROWS),
    "SmoothL1Loss": (nn.SmoothL1Loss, ROWS),
    "CrossEntropyLoss": (nn.CrossEntropyLoss, ROWS),
}
TWO_INPUTS = (nn.modules.loss._Loss, nn.CosineSimilarity, nn.PairwiseDistance)


TEXTS = {"mean": ["sum"], "nearest": ["bilinear"], "none": ["tanh"]}
CHANGES_SHARING_VARIANTS = 6
"""Flags that change one after the other on the same module: what it was compiled for first is
compiled once, and all variants stay below the limit."""


def _others(value: Any) -> list[Any]:
    """Other values that a flag may take."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [None, 0.75]
    return [0.5] if value is None else TEXTS.get(value, [])


def _changes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if not name.startswith("_") and isinstance(value, (bool, int, float, str, type(None))):
            for other in _others(value):
                yield name, other


def _seen(module: nn.Module, call: Any, inputs: list[torch.Tensor]) -> Any:
    torch.manual_seed(0)
    try:
        y = call(*inputs)
        gradients = torch.autograd.grad(y.sum(), inputs, allow_unused=True)
    except Exception as error:
        return type(error), [b.clone() for b in module.buffers()]
    return y.detach(), gradients, [b.clone() for b in module.buffers()]


def _are_close(actual: Any, expected: Any) -> bool:
    if isinstance(expected, (tuple, list)):
        return len(actual) == len(expected) and all(map(_are_close, actual, expected))
    if isinstance(expected, torch.Tensor) and isinstance(actual, torch.Tensor):
        return torch.allclose(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    return bool(actual is expected)


def _inputs(module: nn.Module, shape: tuple[int, ...]) -> list[torch.Tensor]:
    count = 2 if isinstance(module, TWO_INPUTS) else 1
    return [torch.randn(shape, requires_grad=True) for _ in range(count)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_flags_that_change_between_calls(name: str) -> None:
    torch.manual_seed(1)
    make, shape = MODULES[name]
    module = make()
    inputs = _inputs(module, shape)
    for number, (flag, value) in enumerate(_changes(module)):
        if number % CHANGES_SHARING_VARIANTS == 0:
            weft.reset()
            eager, twin = copy.deepcopy(module), copy.deepcopy(module)
            compiled = weft.compile(twin, backend="eager")
        for now in (getattr(module, flag), value, getattr(module, flag)):
            setattr(eager, flag, now)
            setattr(twin, flag, now)
            expected, actual = _seen(eager, eager, inputs), _seen(twin, compiled, inputs)
            assert _are_close(actual, expected), (flag, now, actual, expected)
