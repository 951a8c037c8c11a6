"""weft's own patterns: what models write by hand and a library operator computes faster.

Place in the pipeline: `aot/rewrites/replace_patterns.py` looks for them in graphs without a
backward, one after the other. An activation behind a product becomes part of the
product's call (`codegen/lowering/epilogues.py`) once it is recognised; attention is computed
without its matrix of scores::

    softmax(q @ k.mT * s + mask) @ v     becomes     attention(q, k, v, mask, s)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import signature
from typing import Any, Final

import torch
import torch.nn.functional as F

from weft._torch import OpOverload
from weft.passes.patterns import Match, Pattern

aten = torch.ops.aten
Tensor = torch.Tensor

# -- activations -----------------------------------------------------------------------------------


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)


def _gelu_by_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def _silu(x: Tensor) -> Tensor:
    return F.silu(x)


ROOT_HALF: Final = 1 / math.sqrt(2.0)
ROOT: Final = math.sqrt(2.0)
SLOPE: Final = math.sqrt(2.0 / math.pi)

GELUS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "x * 0.5 * (1 + erf(x / sqrt(2)))": lambda x: x * 0.5 * (1.0 + torch.erf(x / ROOT)),
    "0.5 * (x * (1 + erf(x / sqrt(2))))": lambda x: 0.5 * (x * (1.0 + torch.erf(x / ROOT))),
    "x * (0.5 * (1 + erf(x / sqrt(2))))": lambda x: x * (0.5 * (1.0 + torch.erf(x / ROOT))),
    "x * ((1 + erf(x / sqrt(2))) / 2)": lambda x: x * ((1.0 + torch.erf(x / ROOT)) / 2),
    "x * 0.5 * (1 + erf(x * sqrt(1/2)))": lambda x: x * 0.5 * (1.0 + torch.erf(x * ROOT_HALF)),
    "0.5 * (x * (1 + erf(x * sqrt(1/2))))":
        lambda x: 0.5 * (x * (1.0 + torch.erf(x * ROOT_HALF))),
    "x * (0.5 * (1 + erf(x * sqrt(1/2))))":
        lambda x: x * (0.5 * (1.0 + torch.erf(x * ROOT_HALF))),
}


def _cube(x: Tensor) -> Tensor:
    return torch.pow(x, 3.0)


def _product(x: Tensor) -> Tensor:
    return x * x * x


def _tanh_gelu(cube: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: 0.5 * x * (1.0 + torch.tanh(SLOPE * (x + 0.044715 * cube(x))))


def _tanh_gelu_inside(cube: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: 0.5 * (x * (1.0 + torch.tanh(SLOPE * (x + 0.044715 * cube(x)))))


TANH_GELUS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "0.5 * x * (1 + tanh(c * (x + 0.044715 * x ** 3)))": _tanh_gelu(_cube),
    "0.5 * x * (1 + tanh(c * (x + 0.044715 * x * x * x)))": _tanh_gelu(_product),
    "0.5 * (x * (1 + tanh(c * (x + 0.044715 * x ** 3))))": _tanh_gelu_inside(_cube),
    "0.5 * x * (1 + tanh(0.79788456 * x * (1 + 0.044715 * x * x)))": lambda x: 0.5 * x * (
        1.0 + torch.tanh(0.7978845608028654 * x * (1.0 + 0.044715 * x * x))),
}

SILUS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
}

def _is_floating(match: Match) -> bool:
    return match.tensor_replaced().dtype.is_floating_point


def _empty(*sizes: int) -> Tensor:
    return torch.empty(sizes, dtype=torch.float32, device="cpu")


def _activations(
    name: str, searches: dict[str, Callable[[Tensor], Tensor]],
    replacement: Callable[[Tensor], Tensor], *needs: OpOverload,
) -> tuple[Pattern, ...]:
    return tuple(
        Pattern(f"{name} {i}: {formula}", search, replacement, ((_empty(4, 4),),), _is_floating,
                frozenset(needs), is_standard=True)
        for i, (formula, search) in enumerate(searches.items(), 1))


# -- attention -------------------------------------------------------------------------------------

MIN_QUERIES: Final = 16
"""Fewer queries have few scores: nothing is won by not writing them."""
LANES: Final = 16
MAX_DIMENSION: Final = 256
"""Of a head; weft's own kernel takes multiples of LANES up to this."""


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention on [batch, head, position, dimension]; rows without a finite score are NaN, as
    softmax makes them."""
    if mask is None:
        return _library_attention(q, k, v, None, scale)
    mask = mask.reshape((1,) * (4 - mask.dim()) + tuple(mask.shape))
    is_hidden = mask.amax(-1, keepdim=True) == -math.inf  # the library gives zeros there
    return torch.where(is_hidden, math.nan, _library_attention(q, k, v, mask, scale))


def _library_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float
) -> Tensor:
    out: Tensor = aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, attn_mask=mask, scale=scale)[0]
    return out


def _scores(q: Tensor, k: Tensor) -> Tensor:
    return torch.matmul(q, k.transpose(-1, -2))


def _weighted(scores: Tensor, v: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(scores, -1), v)


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return _weighted(_scores(q, k), v)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _weighted(_scores(q, k) + mask, v)


def _scaled(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return _weighted(_scores(q, k) * scale, v)


def _divided(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return _weighted(_scores(q, k) / scale, v)


def _scaled_and_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    return _weighted(_scores(q, k) * scale + mask, v)


def _divided_and_masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    return _weighted(_scores(q, k) / scale + mask, v)


def _queries_scaled(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return _weighted(_scores(q * scale, k), v)


def _queries_divided(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return _weighted(_scores(q / scale, k), v)


def _queries_scaled_and_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> Tensor:
    return _weighted(_scores(q * scale, k) + mask, v)


def _queries_divided_and_masked(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float
) -> Tensor:
    return _weighted(_scores(q / scale, k) + mask, v)


def _is_worth_attention(match: Match) -> bool:
    """Whether weft's own kernel, or ATen's, takes these tensors."""
    q, k, v = (match.tensor(name) for name in ("q", "k", "v"))
    if any(t.dtype != torch.float32 or t.device.type != "cpu" or t.dim() != 4 or t.stride(-1) != 1
           for t in (q, k, v)):
        return False
    head, queries = q.shape[-1], q.shape[-2]
    if type(head) is not int or head % LANES or head > MAX_DIMENSION or v.shape[-1] != head:
        return False
    if type(queries) is int and queries < MIN_QUERIES:
        return False
    mask = match.tensor("mask") if "mask" in match.nodes else None
    if mask is not None and (mask.dtype != q.dtype or mask.dim() > 4):
        return False
    return all(n > 0 for n in match.numbers.values())


def _example() -> tuple[Tensor, ...]:
    return tuple(_empty(2, 20, 3, 32).transpose(1, 2) for _ in range(3))


OPERATORS: Final = {
    " * ": aten.mul.Tensor, " / ": aten.div.Tensor, " + ": aten.add.Tensor
}
"""What the signs in formulas become."""


def _kinds(searches: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]]) -> tuple[
        Pattern, ...]:
    return tuple(_attention_pattern(f"attention {i}: {formula}", *pair)
                 for i, (formula, pair) in enumerate(searches.items(), 1))


def _attention_pattern(
    name: str, search: Callable[..., Tensor], replacement: Callable[..., Tensor]
) -> Pattern:
    names = signature(search).parameters
    scale: tuple[Any, ...] = (0.5,) if "scale" in names else ()
    mask = (_empty(2, 3, 20, 20),) if "mask" in names else ()
    needs = {aten._softmax.default, aten.bmm.default}
    needs |= {operator for sign, operator in OPERATORS.items() if sign in name}
    return Pattern(name, search, replacement, ((*_example(), *mask, *scale),),
                   _is_worth_attention, frozenset(needs), is_standard=True)


ATTENTIONS: Final = _kinds({
    "softmax(q @ k.T * s) @ v": (_scaled, lambda q, k, v, scale: _attention(q, k, v, None, scale)),
    "softmax(q @ k.T / s) @ v": (
        _divided, lambda q, k, v, scale: _attention(q, k, v, None, 1 / scale)),
    "softmax((q * s) @ k.T) @ v": (
        _queries_scaled, lambda q, k, v, scale: _attention(q, k, v, None, scale)),
    "softmax((q / s) @ k.T) @ v": (
        _queries_divided, lambda q, k, v, scale: _attention(q, k, v, None, 1 / scale)),
    "softmax(q @ k.T * s + mask) @ v": (_scaled_and_masked, _attention),
    "softmax(q @ k.T / s + mask) @ v": (
        _divided_and_masked, lambda q, k, v, mask, scale: _attention(q, k, v, mask, 1 / scale)),
    "softmax((q * s) @ k.T + mask) @ v": (_queries_scaled_and_masked, _attention),
    "softmax((q / s) @ k.T + mask) @ v": (
        _queries_divided_and_masked,
        lambda q, k, v, mask, scale: _attention(q, k, v, mask, 1 / scale)),
    "softmax(q @ k.T) @ v": (_plain, lambda q, k, v: _attention(q, k, v, None, 1.0)),
    "softmax(q @ k.T + mask) @ v": (
        _masked, lambda q, k, v, mask: _attention(q, k, v, mask, 1.0)),
})

# -- the list --------------------------------------------------------------------------------------

STANDARD_PATTERNS: Final = (
    *_activations("gelu", GELUS, _gelu, aten.erf.default),
    *_activations("gelu by tanh", TANH_GELUS, _gelu_by_tanh, aten.tanh.default),
    *_activations("silu", SILUS, _silu, aten.sigmoid.default),
    *ATTENTIONS,
)
"""In the order in which they are looked for."""
