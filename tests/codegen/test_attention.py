"""weft's attention kernel against ATen's: masks, causality, blocks and their tails, layouts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import weft
from weft.backends.inductor import compile_fx
from weft.codegen.lowering import attention as lowering
from weft.diagnostics import events
from weft.runtime.attention import attention_for
from weft.runtime.cpp_build import toolchain

aten = torch.ops.aten
FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default
MASKS = ("none", "causal", "full", "keys", "queries")
needs_avx512 = pytest.mark.skipif(
    toolchain().vector_bytes != lowering.VECTOR_BYTES, reason="needs AVX-512")


def mask_of(kind: str, b: int, s: int, t: int) -> torch.Tensor | None:
    """An additive mask, some of it broadcast; one row hides all keys."""
    if kind in ("none", "causal"):
        return None
    shape = {"full": (b, 1, s, t), "keys": (b, 1, 1, t), "queries": (1, 1, s, 1)}[kind]
    mask = torch.randn(shape)
    if kind == "full":
        mask[torch.rand(shape) < 0.3] = -float("inf")
        mask[:, :, s // 2] = -float("inf")
    return mask


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("sizes", [(2, 3, 64, 64, 64), (1, 2, 197, 197, 32), (2, 1, 40, 700, 128),
                                   (1, 2, 300, 17, 48), (1, 1, 1, 5, 16)])
def test_kernel_agrees_with_aten(sizes: tuple[int, ...], kind: str) -> None:
    torch.manual_seed(0)
    b, h, s, t, d = sizes
    q, v = torch.randn(b, s, h, d).transpose(1, 2), torch.randn(b, h, t, d)
    k = torch.randn(b, t, h, 2 * d)[..., :d].transpose(1, 2)
    mask = mask_of(kind, b, s, t)
    got = attention_for(d)(q, k, v, mask, kind == "causal", 0.3)
    wide = None if mask is None else mask.expand(b, 1, s, t).contiguous()
    wanted = FLASH(q, k, v, 0.0, kind == "causal", attn_mask=wide, scale=0.3)
    for a, w in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, w, rtol=1e-4, atol=1e-5)
    assert got[0].stride() == wanted[0].stride()


def test_nan_spreads_as_in_aten() -> None:
    q, k, v = (torch.randn(1, 1, 40, 16) for _ in range(3))
    q[0, 0, 3, 2] = float("nan")
    got, wanted = attention_for(16)(q, k, v, None, False, None), FLASH(q, k, v)
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-4, atol=1e-5, equal_nan=True)


@needs_avx512
def test_attention_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "onednn_is_faster", lambda: True)

    def function(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        heads = x.view(2, 40, 12, 32).transpose(1, 2)
        q, k, v = heads[:, :4], heads[:, 4:8], heads[:, 8:]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return torch.tanh(y.transpose(1, 2).reshape(2, 40, 128))

    x, mask = torch.randn(2, 40, 384), torch.randn(2, 1, 40, 40)
    events.reset()
    with torch.no_grad():
        call = compile_fx(torch.fx.symbolic_trace(function), [x, mask])
        got = call(x, mask)
    got = got[0] if isinstance(got, (list, tuple)) else got
    torch.testing.assert_close(got, function(x, mask), rtol=1e-4, atol=1e-5)
    [code] = events.history("output_code")
    assert "attention32" in code.source


def test_grouped_heads_share_keys() -> None:
    """Fewer key heads than query heads: the kernel would read past the keys."""
    q, k = torch.randn(2, 4, 16, 16), torch.randn(2, 2, 16, 16)

    def program(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)

    torch.testing.assert_close(weft.compile(program)(q, k), program(q, k))


def _flex_reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, change: Any, mask: Any
                    ) -> torch.Tensor:
    """Score by score, as the user's functions are written."""
    batches, heads, queries, keys = *q.shape[:3], k.shape[2]
    k, v = (t.repeat_interleave(heads // k.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    changed = torch.full_like(scores, -torch.inf)
    for place in itertools.product(*map(range, (batches, heads, queries, keys))):
        at = [torch.tensor(n) for n in place]
        if mask(*at):
            changed[place] = change(scores[place], *at)
    return torch.softmax(changed, -1).nan_to_num(0.0) @ v


_BIAS, _TEXT = torch.linspace(-1, 1, 64), torch.arange(6) // 2


@pytest.mark.parametrize(("change", "mask"), [
    (lambda s, b, h, q, k: s - (h + 1) * (q - k).abs(), lambda b, h, q, k: q >= k),
    (lambda s, b, h, q, k: 20 * torch.tanh(s / 20), lambda b, h, q, k: _TEXT[q] == _TEXT[k]),
    (lambda s, b, h, q, k: s + _BIAS[q - k + 6], lambda b, h, q, k: (q >= k) & (q > 2)),
], ids=["distance", "documents", "unseen"])
def test_flex_attention_is_one_graph(change: Any, mask: Any) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8)
    seen = create_block_mask(mask, None, None, 6, 6, device="cpu")

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, score_mod=change, block_mask=seen, enable_gqa=True)

    weft.reset()
    found = weft.compile(f, fullgraph=True)(q, k, v)
    torch.testing.assert_close(found, _flex_reference(q, k, v, change, mask), rtol=1e-4, atol=1e-5)
    assert weft.stats()["kernels"] <= 3  # what is done to the scores, with the softmax
