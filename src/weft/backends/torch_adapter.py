"""Offers the backends registered with PyTorch to users of weft, as `backend="torch:<name>"`, or by
the name alone where weft has none of that name.

The single file of the package that may import torch._dynamo, and only when a user asks for it.

    weft.compile(f, backend="torch:onnxrt")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from torch.fx import GraphModule

from weft.errors import UnknownBackend


def names() -> list[str]:
    """The backends that PyTorch knows."""
    registry = import_module("torch._dynamo.backends.registry")
    listed: list[str] = registry.list_backends(exclude_tags=())
    return listed


def find(name: str) -> Callable[..., Any]:
    """PyTorch's backend of this name; UnknownBackend with PyTorch's names if there is none."""
    registry = import_module("torch._dynamo.backends.registry")
    known = names()
    if name not in known:
        raise UnknownBackend(f"torch:{name}", [f"torch:{n}" for n in known])
    theirs = registry.lookup_backend(name)

    def backend(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = theirs(gm, example_inputs)
        return compiled

    backend.__name__ = f"torch:{name}"
    return backend
