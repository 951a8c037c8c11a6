"""Tensors made of tensors: classes with `__tensor_flatten__` and `__tensor_unflatten__`.

Place in the pipeline: capture guards their parts and runs operations on wrappers of fakes; aot
computes with the parts alone.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, final

import torch

from weft._torch import NestedIntNode, constant_bool_node, nested_dummy, no_modes
from weft.shapes.symnode import SymNode


def is_wrapper(cls: type) -> bool:
    """Whether tensors of the class are made of others and can be split into them."""
    return cls is not torch.Tensor and (
        issubclass(cls, torch.Tensor)
        and cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        and hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
    )


def parts(wrapper: Any) -> tuple[Sequence[str], Any]:
    """The attributes that hold its tensors (and perhaps a mesh of devices), and its other
    content."""
    names, context = wrapper.__tensor_flatten__()
    return names, context


def leaves(value: object) -> list[torch.Tensor]:
    """The tensors, which are not wrappers, that it is made of in the end."""
    return [path(value) for path in _paths(value)] if isinstance(value, torch.Tensor) else []


def rebuilt(value: object, leaf: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Another wrapper like it; `leaf` returns the replacement of each leaf, in order."""
    return _joiner(value)(map(leaf, leaves(value)))


def detached(value: torch.Tensor) -> torch.Tensor:
    """A tensor of the same form without a gradient: to a class, `detach` is an operator like any
    other, which it may compute with plain tensors."""
    if not value.requires_grad:
        return value
    plain = value.detach()
    if type(plain) is type(value):
        return plain
    alike: torch.Tensor = rebuilt(value, torch.Tensor.detach)
    return alike.requires_grad_(False)


@final
class Structure:
    """How a tensor is made of others, read once for all tensors like it.

    Of a tensor: `leaves` of its like by attribute paths, `join` as `rebuilt` from a wrapper's
    own attributes.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self.like = like
        self._paths = _paths(like)
        self.count = len(self._paths)
        self.join = _joiner(like)

    @cached_property
    def pieces(self) -> list[torch.Tensor]:
        """The leaves of the tensor itself."""
        return self.leaves(self.like)

    def leaves(self, value: torch.Tensor) -> list[torch.Tensor]:
        """The leaves of a tensor of this form."""
        return [path(value) for path in self._paths]


def _paths(like: torch.Tensor) -> list[Callable[[Any], Any]]:
    """What reads each leaf."""
    if not is_wrapper(type(like)):
        return [lambda value: value]
    return [operator.attrgetter(name) for name in _names(like)]


def _names(wrapper: torch.Tensor) -> Iterator[str]:
    """The dotted names of a wrapper's leaves."""
    for name in parts(wrapper)[0]:
        inner = getattr(wrapper, name)
        if isinstance(inner, torch.Tensor) and is_wrapper(type(inner)):
            yield from (f"{name}.{rest}" for rest in _names(inner))
        elif isinstance(inner, torch.Tensor):
            yield name


def _joiner(like: object) -> Callable[[Iterator[torch.Tensor]], object]:
    """What takes the leaves of a tensor like this one from an iterator and makes it of them."""
    if not isinstance(like, torch.Tensor):
        return lambda _: like
    if not is_wrapper(type(like)):
        return next
    names, context = parts(like)
    inner = [(name, _joiner(getattr(like, name))) for name in names]
    cls: Any = type(like)
    unflatten = cls.__tensor_unflatten__
    size, stride = like.size(), like.stride()
    return lambda pieces: unflatten(
        {name: join(pieces) for name, join in inner}, context, size, stride)


def keep_nested_dummy_real() -> None:
    """Let PyTorch make the nested tensor that it keeps from its first use on, outside of all modes:
    otherwise it could be one of fakes."""
    with no_modes():
        nested_dummy()


_ragged_sizes: Final = itertools.count(1 << 40)
"""Numbers that no nested tensor outside has."""


@final
class RaggedNode(NestedIntNode):
    """The node of a ragged size, a number that equals only itself; its products with symbolic sizes
    are strides."""

    def mul(self, other: Any) -> RaggedNode:
        """A multiple of the number."""
        factor: Any = torch.SymInt(other) if isinstance(other, SymNode) else other.constant_int()
        return RaggedNode(self.t_id, self.coeff * factor)

    def eq(self, other: Any) -> object:
        """Whether both are the same multiple of the same number."""
        same = isinstance(other, NestedIntNode) and other.t_id == self.t_id
        return constant_bool_node(same and bool(self.coeff == other.coeff))

    def ne(self, other: object) -> object:
        """Not `eq`."""
        return constant_bool_node(not torch.SymBool(self.eq(other)))


def ragged_size(known: torch.SymInt | None = None) -> torch.SymInt:
    """The ragged size of a fake nested tensor: that of a real one, or a new one."""
    number = next(_ragged_sizes) if known is None else known.node.nested_int()
    return torch.SymInt(RaggedNode(number, 1))
