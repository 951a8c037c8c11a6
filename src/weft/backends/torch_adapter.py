"""Offers what PyTorch has of its own to users of weft who ask for it by name: the backends that are
registered with it, and torch.compile to measure against.

The single file of the package that may import torch._dynamo, and only when a user asks for it.

    weft.compile(f, backend="torch:onnxrt")     # or "onnxrt": weft has none of that name
    weft.benchmark(f, (x,), against=("eager", "torch.compile"))
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from torch.fx import GraphModule

from weft.errors import UnknownBackend


def names() -> list[str]:
    """The backends that PyTorch knows."""
    registry = import_module("torch._dynamo.backends.registry")
    listed: list[str] = registry.list_backends(exclude_tags=())
    return listed


def find(name: str) -> Callable[..., object]:
    """PyTorch's backend of this name; UnknownBackend with PyTorch's names if there is none."""
    registry = import_module("torch._dynamo.backends.registry")
    known = names()
    if name not in known:
        raise UnknownBackend(f"torch:{name}", [f"torch:{n}" for n in known])
    theirs = registry.lookup_backend(name)

    def backend(gm: GraphModule, example_inputs: Sequence[object]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = theirs(gm, example_inputs)
        return compiled

    backend.__name__ = f"torch:{name}"
    return backend


def compiled_by_torch(fn: Callable[..., object]) -> Callable[..., object]:
    """`torch.compile(fn)`, PyTorch's own also where `weft.install` or a library stands for it."""
    compiled: Callable[..., Any] = inspect.unwrap(torch.compile)(fn)
    return compiled
