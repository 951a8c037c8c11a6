"""Tensors made of tensors, whose class says of which: `__tensor_flatten__`, `__tensor_unflatten__`.

Place in the pipeline: capture guards their parts and runs operations on wrappers of fakes; aot
computes with the parts alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


def is_wrapper(cls: type) -> bool:
    """Whether tensors of the class are made of others, and can be taken apart."""
    return (
        issubclass(cls, torch.Tensor)
        and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
    )


def parts(wrapper: Any) -> tuple[Sequence[str], Any]:
    """The attributes that hold the tensors it is made of (and a mesh of devices, perhaps), and what
    else it is made of."""
    names, context = wrapper.__tensor_flatten__()
    return names, context


def leaves(value: Any) -> list[torch.Tensor]:
    """The tensors that are no wrappers, of which one is made in the end."""
    if not isinstance(value, torch.Tensor):
        return []
    if not is_wrapper(type(value)):
        return [value]
    return [leaf for name in parts(value)[0] for leaf in leaves(getattr(value, name))]


def rebuilt(value: Any, leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Another wrapper like it: `leaf` gives what takes the place of each leaf, in order."""
    if not isinstance(value, torch.Tensor):
        return value
    if not is_wrapper(type(value)):
        return leaf(value)
    names, context = parts(value)
    inner: Mapping[str, Any] = {name: rebuilt(getattr(value, name), leaf) for name in names}
    unflatten = type(value).__tensor_unflatten__  # type: ignore[attr-defined]
    return unflatten(inner, context, value.size(), value.stride())
