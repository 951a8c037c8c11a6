"""Attention on GPUs: the kernel that eager chooses, and masks that the fast kernels accept.

Place in the pipeline: `trace.py` runs a captured `scaled_dot_product_attention` through here.

PyTorch chooses one of its kernels (cuDNN, flash, memory-efficient, plain matrix products) by
looking at the tensors. Two things make it choose the plain one, which is several times slower and
needs more memory:

- fake tensors: so it is asked with uninitialised tensors of the same sizes, strides and type;
- a mask that is broadcast along its last dimension, as libraries build it for captured programs:
  that dimension is made dense first, which costs one small copy.

On every device, a mask that depends on no input and hides nothing (libraries build those too) is
dropped. Grouped-query calls and other devices take the ordinary path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.fx import Node
from torch.fx.node import map_arg
from torch.nn.attention import SDPBackend

from weft._torch import DispatchMode, OpOverload, fused_attention_choice, no_modes
from weft.config import config
from weft.shapes.graph_facts import captured_facts
from weft.shapes.graph_nodes import call_target

aten = torch.ops.aten

FLASH_HEAD_MULTIPLE: Final = 8
"""Flash attention pads the size of a head to a multiple of this."""


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:
    """`torch.nn.functional.scaled_dot_product_attention` on fakes, by the kernel that eager
    chooses."""
    plain = attn_mask is None and not enable_gqa and query.device.type == "cuda"
    if plain and _all_static(query, key, value):
        kernel = KERNELS.get(_choice(query, key, value, dropout_p, is_causal, scale))
        if kernel is not None:
            return kernel(query, key, value, dropout_p, is_causal, scale)
    as_eager_draws = config.fallback_random and dropout_p > 0.0  # kernels draw differently
    if attn_mask is not None and query.device.type == "cuda" and not as_eager_draws:
        attn_mask = _dense(attn_mask)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _dense(mask: torch.Tensor) -> torch.Tensor:
    """The mask with a dense last dimension; other broadcast dimensions stay broadcast."""
    last = mask.stride(-1)
    if type(last) is not int or last == 1 or mask.shape[-1] == 1:
        return mask
    *others, _ = mask.stride()
    kept = tuple(slice(0, 1) if type(s) is int and s == 0 else slice(None) for s in others)
    return mask[kept].contiguous().expand(mask.shape)


def _all_static(*tensors: torch.Tensor) -> bool:
    return all(type(n) is int for t in tensors for n in (*t.shape, *t.stride()))


def _choice(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    dropout: float, causal: bool, scale: float | None,
) -> int:
    """The kernel that PyTorch chooses for real tensors of this form."""
    with no_modes():
        real = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).requires_grad_(
                t.requires_grad
            )
            for t in (query, key, value)
        ]
        return fused_attention_choice(*real, None, dropout, causal, scale=scale)


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    dropout: float, causal: bool, scale: float | None,
) -> torch.Tensor:
    head = query.shape[-1]
    missing = -head % FLASH_HEAD_MULTIPLE
    scale = 1.0 / math.sqrt(head) if scale is None else scale
    padded = [F.pad(t, (0, missing)) if missing else t for t in (query, key, value)]
    op = aten._scaled_dot_product_flash_attention.default
    result: torch.Tensor = op(*padded, dropout, causal, False, scale=scale)[0]
    return result[..., :head] if missing else result


def _efficient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    dropout: float, causal: bool, scale: float | None,
) -> torch.Tensor:
    op = aten._scaled_dot_product_efficient_attention.default
    for_backward = _needs_gradient(query, key, value)
    results = op(query, key, value, None, for_backward, dropout, causal, scale=scale)
    result: torch.Tensor = results[0]
    return result


def _cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    dropout: float, causal: bool, scale: float | None,
) -> torch.Tensor:
    op = aten._scaled_dot_product_cudnn_attention.default
    for_backward = _needs_gradient(query, key, value)
    result: torch.Tensor = op(
        query, key, value, None, for_backward, dropout, causal, False, scale=scale
    )[0]
    return result


def _needs_gradient(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


KERNELS: Final[dict[int, Callable[..., torch.Tensor]]] = {
    int(SDPBackend.FLASH_ATTENTION.value): _flash,
    int(SDPBackend.EFFICIENT_ATTENTION.value): _efficient,
    int(SDPBackend.CUDNN_ATTENTION.value): _cudnn,
}

MASK_ARGUMENT: Final = 3
LARGEST_CONSTANT: Final = 100
"""A mask that is computed from at most this many nodes is evaluated while compiling."""


def run_attention(
    node: Node, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    attn_mask: torch.Tensor | None = None, *args: Any, **kwargs: Any,
) -> torch.Tensor:
    """The value of a captured attention node."""
    positional = len(node.args) > MASK_ARGUMENT
    mask = node.args[MASK_ARGUMENT] if positional else node.kwargs.get("attn_mask")
    if isinstance(mask, Node) and hides_nothing(mask):
        attn_mask = None
    return attention(query, key, value, attn_mask, *args, **kwargs)


def hides_nothing(mask: Node) -> bool:
    """Whether the mask is a constant of the graph that lets every position through."""
    nodes = _constant_nodes(mask)
    if nodes is None:
        return False
    with no_modes(), torch.no_grad(), _OnlyDeterministic():
        try:
            values: dict[Node, Any] = {}
            for node in nodes:
                values[node] = _evaluate(node, values)
            value = values[mask]
            return bool(value.all() if value.dtype == torch.bool else (value == 0).all())
        except _NotDeterministic:
            return False


def _constant_nodes(root: Node) -> list[Node] | None:
    """The nodes that `root` is computed from, operands first; None if they include an input or are
    too many."""
    nodes: dict[Node, None] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        if node in nodes:
            continue
        nodes[node] = None
        static = not any(isinstance(a, torch.SymInt) for a in (*node.args, *node.kwargs.values()))
        if node.op not in ("call_function", "call_method") or not static:
            return None
        if len(nodes) > LARGEST_CONSTANT:
            return None
        stack.extend(node.all_input_nodes)
    return None if _are_written(nodes) else sorted(nodes)


def _are_written(nodes: Iterable[Node]) -> bool:
    """Whether an operator writes to the memory of one of the nodes, as `mask.masked_fill_(...)`
    does."""
    waiting = list(nodes)
    seen, memory = set(waiting), {_memory(node) for node in waiting} - {None}
    while waiting:
        for user in waiting.pop().users:
            if captured_facts(user).has_effect or str(user.target).endswith("_"):
                return True
            if user not in seen and _memory(user) in memory:  # a view
                seen.add(user)
                waiting.append(user)
    return False


def _memory(node: Node) -> int | None:
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def _evaluate(node: Node, values: dict[Node, Any]) -> object:
    args = map_arg(node.args, values.__getitem__)
    kwargs = map_arg(node.kwargs, values.__getitem__)
    if node.op == "call_method":
        return getattr(args[0], str(node.target))(*args[1:], **kwargs)
    return call_target(node, args, kwargs)


class _NotDeterministic(Exception):
    """A constant would differ from call to call."""


class _OnlyDeterministic(DispatchMode):
    """Refuses random operators."""

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Any = (), kwargs: Any = None
    ) -> object:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise _NotDeterministic
        return func(*args, **(kwargs or {}))


FUNCTIONS: Final[dict[Any, Callable[..., Any]]] = {
    F.scaled_dot_product_attention: run_attention
}
"""Captured functions that aot runs in its own form."""
