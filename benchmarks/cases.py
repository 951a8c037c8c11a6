"""What is measured: a registry of cases, each a function that builds a workload for a device.

    @case("softmax", kind="micro")
    def softmax(device: str) -> Workload: ...

Sizes follow the device: small fp32 on CPUs, large bf16 on GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch


@dataclass
class Workload:
    """A call: `fn(*args, **kwargs)`; `fn` is what gets compiled.

    grad: run with gradients enabled; the worker sets the mode once, outside what is measured.
    step: makes the whole measured call from the (compiled) `fn`: forward and backward in training.
    min_bytes: the fewest bytes that the work must move, for a bandwidth; 0 where meaningless.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    grad: bool = False
    step: Callable[[Callable[..., Any]], Callable[[], Any]] | None = None
    min_bytes: int = 0

    def bind(self, fn: Callable[..., Any]) -> Callable[[], Any]:
        """The measured call with `fn` in place of the original."""
        if self.step is not None:
            return self.step(fn)
        return functools.partial(fn, *self.args, **self.kwargs)


@dataclass(frozen=True)
class Case:
    """A named workload; `kind` is "model", "training", "micro" or "overhead"."""

    name: str
    kind: str
    build: Callable[[str], Workload]
    about: str


CASES: dict[str, Case] = {}


def case(name: str, *, kind: str) -> Callable[[Callable[[str], Workload]], Any]:
    """Register a builder; its docstring describes the case."""

    def register(build: Callable[[str], Workload]) -> Callable[[str], Workload]:
        about = (build.__doc__ or "").strip().splitlines()[0]
        CASES[name] = Case(name, kind, build, about)
        return build

    return register


def all_cases() -> dict[str, Case]:
    """Every case, models first."""
    for module in ("benchmarks.models", "benchmarks.training", "benchmarks.micro"):
        import_module(module)
    return CASES


def is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def dtype_for(device: str) -> torch.dtype:
    """What models run in: bf16 on GPUs, fp32 on CPUs."""
    return torch.bfloat16 if is_gpu(device) else torch.float32
