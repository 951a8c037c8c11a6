"""The registry of the programs, and what they are made of.

@program
def twice(wrap):
    x = XR()
    wrap(lambda x: x * 2)(x).sum().backward()
    return [x.grad]
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

PROGRAMS: dict[str, Callable] = {}


def program(function: Callable) -> Callable:
    assert function.__name__ not in PROGRAMS
    PROGRAMS[function.__name__] = function
    return function


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))


def X() -> torch.Tensor:
    return torch.linspace(-1, 1, 12).view(3, 4)


def XR() -> torch.Tensor:
    return X().requires_grad_()


def grads(module: nn.Module) -> list:
    return [p.grad for p in module.parameters()]


def err(call: Callable, *args: object) -> list[str] | None:
    """Type and beginning of what a call raises."""
    try:
        call(*args)
    except Exception as error:
        return [type(error).__name__, str(error)[:60]]
    return None


def process_group() -> None:
    """One process on gloo."""
    if not dist.is_initialized():
        store = Path(tempfile.mkdtemp()) / "store"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
