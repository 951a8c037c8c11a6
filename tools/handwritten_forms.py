"""Attention, norms and activations as models write them: which of them weft recognises.

    python -m tools.handwritten_forms [--write docs/handwritten-forms.md]

Each form is compiled for inference, compared with eager, and shown with the pattern that replaced
it (`passes/standard_patterns.py`), or the operators and kernels that it became.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import torch
import torch.nn.functional as F

import weft
from weft.diagnostics import events

Tensor = torch.Tensor
B, H, S, D = 2, 4, 24, 32
KEPT_WEIGHTS: Final = "its weights are returned, too: they are computed in any case"
ONE_KERNEL: Final = "one kernel as it is, as the library's operator"
NO_OPERATOR: Final = "no library operator; fused with its neighbours"


@final
@dataclass(frozen=True, slots=True)
class Form:
    """A program, where its like is found, its inputs, and why it is no pattern (if it is none)."""

    name: str
    models: str
    program: Callable[..., object]
    inputs: Callable[[], tuple[Tensor, ...]]
    why_not: str = ""


def _heads(dim: int = D, positions: int = S) -> tuple[Tensor, ...]:
    return tuple(torch.randn(B, positions, H, dim).transpose(1, 2) for _ in range(3))


def _with(*more: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (*_heads(), *more)


def _x() -> tuple[Tensor, ...]:
    return (torch.randn(B, S, 64),)


def _x_w() -> tuple[Tensor, ...]:
    return torch.randn(B, S, 64), torch.rand(64)


def _x_w_b() -> tuple[Tensor, ...]:
    return torch.randn(B, S, 64), torch.rand(64), torch.rand(64)


def _padding() -> Tensor:
    mask = torch.zeros(B, 1, 1, S)
    mask[0, ..., S // 2:] = torch.finfo(torch.float32).min
    return mask


def _causal() -> Tensor:
    return torch.full((S, S), -math.inf).triu(1)[None, None]


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(B, S, -1)


def _attend(scores: Tensor, v: Tensor) -> Tensor:
    return _merge(torch.matmul(torch.softmax(scores, dim=-1), v))


def _soft(scores: Tensor, q: Tensor) -> Tensor:
    weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return F.dropout(weights, 0.1, training=False)


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (t[:, :2, None].expand(B, 2, 2, S, D).reshape(B, H, S, D) for t in (k, v))
    return _attend(q @ k.transpose(2, 3) * D**-0.5, v)


def swin(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, shifted: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) / math.sqrt(D) + bias
    scores = scores.view(1, B, H, S, S) + shifted[:, None][None]
    return _attend(scores.view(B, H, S, S), v)


def relative(q: Tensor, k: Tensor, v: Tensor, distances: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) + torch.einsum("bhld,lrd->bhlr", q, distances)
    return _attend(scores / math.sqrt(D), v)


def bart(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (t.reshape(B * H, S, D) for t in (q * D**-0.5, k, v))
    return torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v).view(B, H, S, D)


def clipped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = 50.0 * torch.tanh(q @ k.mT * D**-0.5 / 50.0)
    return _attend(scores, v)


def hidden(q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    return _attend(scores.masked_fill(~shown, -math.inf), v)


def gpt2_old(q: Tensor, k: Tensor, v: Tensor, shown: Tensor) -> Tensor:
    scores = torch.matmul(q, k.transpose(-1, -2)) / D**0.5
    return _attend(torch.where(shown, scores, torch.finfo(scores.dtype).min), v)


def sinks(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    scores = torch.cat([q @ k.mT * D**-0.5, sink.expand(B, H, S, 1)], -1)
    return _merge(torch.softmax(scores, -1)[..., :-1] @ v)


def with_weights(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = torch.softmax(q @ k.mT * D**-0.5, -1)
    return weights @ v, weights


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q, -1) @ (torch.softmax(k, -2).mT @ v)


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * D**-0.5
    return torch.einsum("bhqk,bhkd->bhqd", torch.softmax(scores, -1), v)


SHOWN: Final = torch.ones(S, S, dtype=torch.bool).tril()[None, None]
MASKED_FILL: Final = "hidden scores are replaced, not added to: a row hidden as a whole differs"

ATTENTION: Final = (
    Form("softmax(q @ k.T / sqrt(d)) @ v", "ViT, DeiT, BEiT without bias",
         lambda q, k, v: _attend(q @ k.transpose(-1, -2) / math.sqrt(D), v), _heads),
    Form("… * d ** -0.5", "Llama, CLIP (eager)",
         lambda q, k, v: _attend(q @ k.transpose(2, 3) * D**-0.5, v), _heads),
    Form("… * scale + mask, softmax in float32, dropout", "transformers' eager_attention_forward",
         lambda q, k, v, m: _merge(_soft(q @ k.transpose(2, 3) * 0.1 + m, q) @ v),
         _with(_padding())),
    Form("… / sqrt(d) + padding mask", "BERT, RoBERTa, ELECTRA before 4.48",
         lambda q, k, v, m: _attend(q @ k.transpose(-1, -2) / math.sqrt(D) + m, v),
         _with(_padding())),
    Form("… + causal mask of -inf", "GPT-NeoX, OPT", lambda q, k, v, m: _attend(
        q @ k.transpose(-1, -2) * 0.2 + m, v), _with(_causal())),
    Form("mask + scores (the other order)", "various", lambda q, k, v, m: _attend(
        m + q @ k.transpose(-1, -2) * 0.2, v), _with(_padding())),
    Form("(q / sqrt(d)) @ k.T", "Wav2Vec2, DistilBERT", lambda q, k, v: _attend(
        (q / math.sqrt(D)) @ k.transpose(2, 3), v), _heads),
    Form("(q / sqrt(d)) @ k.T + mask", "DistilBERT", lambda q, k, v, m: _attend(
        (q / math.sqrt(D)) @ k.transpose(2, 3) + m, v), _with(_padding())),
    Form("(q * scale) @ k.T", "Whisper, timm's ViT", lambda q, k, v: _attend(
        (q * D**-0.5) @ k.transpose(-2, -1), v), _heads),
    Form("(q * scale) @ k.T + mask", "MarianMT, Pegasus", lambda q, k, v, m: _attend(
        (q * D**-0.5) @ k.transpose(-2, -1) + m, v), _with(_padding())),
    Form("q @ k.T + bias, no scale", "T5, MT5", lambda q, k, v, m: _attend(
        torch.matmul(q, k.transpose(3, 2)) + m, v), _with(torch.randn(1, H, S, S))),
    Form("q @ k.T without anything", "GPT-Neo", lambda q, k, v: _attend(
        torch.matmul(q, k.transpose(-1, -2)), v), _heads),
    Form("… + bias of [heads, positions, positions]", "Swin's first block", lambda q, k, v, m:
         _attend((q * D**-0.5) @ k.transpose(-2, -1) + m, v), _with(torch.randn(H, S, S))),
    Form("keys by permute(0, 1, 3, 2)", "Albert, Funnel", lambda q, k, v: _attend(
        q @ k.permute(0, 1, 3, 2) / math.sqrt(D), v), _heads),
    Form("keys by .mT", "newer models", lambda q, k, v: _attend(q @ k.mT * 0.3, v), _heads),
    Form("keys and values repeated for groups", "Llama 3, Mistral, Qwen", grouped, _heads,
         "the values' view with heads as a dimension is merged with the next"),
    Form("bias and mask of shifted windows", "Swin's second block", swin, _with(
        torch.randn(H, S, S), torch.zeros(B, S, S)), "two masks of different dimensions"),
    Form("relative keys", "BERT with relative_key", relative, _with(torch.randn(S, S, D)),
         "a second product is added before the scale: no attention of the library has that"),
    Form("3-dimensional bmm", "BART, M2M100 before 4.30", bart, _heads,
         "3 dimensions: the library's kernel takes heads as the second of 4"),
    Form("scores clipped by tanh", "Gemma 2", clipped, _heads,
         "tanh between the product and softmax"),
    Form("masked_fill(-inf)", "GPT-J, XLM", hidden, _with(SHOWN), MASKED_FILL),
    Form("where(shown, scores, min)", "GPT-2 before 4.48", gpt2_old, _with(SHOWN), MASKED_FILL),
    Form("sinks beside the scores", "gpt-oss", sinks, _with(torch.randn(1, H, 1, 1)),
         "softmax has a further column"),
    Form("weights returned", "output_attentions=True", with_weights, _heads, KEPT_WEIGHTS),
    Form("softmax of queries and of keys", "linear attention, EfficientViT", linear_attention,
         _heads, "another function"),
    Form("by einsum", "Perceiver, some of diffusers", by_einsum, _heads,
         "einsum moves and multiplies by other views"),
    Form("one query against a cache", "decoding", lambda q, k, v: _merge1(
        torch.softmax(q[:, :, :1] @ k.mT * D**-0.5, -1) @ v), _heads,
         "fewer than 16 queries: nothing is won by not writing the scores"),
    Form("heads of 20", "small vision models", lambda q, k, v: _attend(q @ k.mT * 0.3, v),
         lambda: _heads(20), "weft's own kernel takes heads of a multiple of 16"),
)


def _merge1(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(B, 1, -1)


def t5_norm(x: Tensor, w: Tensor) -> Tensor:
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return w * (x * torch.rsqrt(variance + 1e-6))


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return w * (x - mean) / torch.sqrt(variance + 1e-12) + b


def old_bert_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * w + b


def annotated_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return w * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + b


def channel_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.transpose(1, 2)
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return w[:, None] * ((x - mean) / torch.sqrt(variance + 1e-6)) + b[:, None]


NORMS: Final = tuple(Form(*form, ONE_KERNEL) for form in (
    ("w * x * rsqrt(mean(x²) + eps)", "T5, Llama, Qwen", t5_norm, _x_w),
    ("(1 + w) * …", "Gemma", lambda x, w: x * torch.rsqrt(
        x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + w), _x_w),
    ("x / sqrt(mean(x²) + eps) * w", "Whisper's forks", lambda x, w: x / torch.sqrt(
        x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, _x_w),
    ("x * x instead of pow", "various", lambda x, w: x * torch.rsqrt(
        (x * x).mean(-1, keepdim=True) + 1e-6) * w, _x_w),
    ("F.normalize(x) * sqrt(d) * w", "x-transformers", lambda x, w: F.normalize(
        x, dim=-1) * 8.0 * w, _x_w),
    ("x * rsqrt(mean(x²)) without weight", "OLMo, Gemma 3n", lambda x: x * torch.rsqrt(
        x.pow(2).mean(-1, keepdim=True) + 1e-6), _x),
    ("(x - mean) / sqrt(mean((x - mean)²))", "BERT of 2018", layer_norm, _x_w_b),
    ("var(unbiased=False), rsqrt", "DeBERTa", old_bert_norm, _x_w_b),
    ("(x - mean) / (std + eps)", "The Annotated Transformer", annotated_norm, _x_w_b),
    ("over channels first", "ConvNeXt", channel_norm, _x_w_b),
    ("F.layer_norm", "GPT-2, ViT", lambda x, w, b: F.layer_norm(x, (64,), w, b), _x_w_b),
    ("F.rms_norm", "newer models", lambda x, w: F.rms_norm(x, (64,), w), _x_w),
    ("group norm by hand", "diffusers", lambda x: (lambda g: (
        (g - g.mean(-1, keepdim=True)) / torch.sqrt(g.var(-1, keepdim=True, unbiased=False) + 1e-5)
    ).view(x.shape))(x.view(B, 8, -1)), _x),
    ("softmax by exp and sum", "various", lambda x: (lambda e: e / e.sum(-1, keepdim=True))(
        torch.exp(x - x.amax(-1, keepdim=True))), _x),
))

ROOT: Final = math.sqrt(2.0)
SLOPE: Final = math.sqrt(2.0 / math.pi)

ACTIVATIONS: Final = (
    Form("x * 0.5 * (1 + erf(x / sqrt(2)))", "gelu_python", lambda x: x * 0.5 * (
        1.0 + torch.erf(x / math.sqrt(2.0))), _x),
    Form("0.5 * x * (1 + erf(x / 1.4142135623730951))", "ESM", lambda x: 0.5 * x * (
        1.0 + torch.erf(x / ROOT)), _x),
    Form("x * (1 + erf(x / sqrt(2))) / 2", "some ports", lambda x: x * (
        (1 + torch.erf(x / ROOT)) / 2), _x),
    Form("0.5 * (x * (1 + erf(x * 0.7071)))", "JAX ports", lambda x: 0.5 * (
        x * (1.0 + torch.erf(x * (1 / ROOT)))), _x),
    Form("(1 + erf(x / sqrt(2))) * x * 0.5", "various", lambda x: (
        (1.0 + torch.erf(x / ROOT)) * x) * 0.5, _x),
    Form("gelu_new, pow(x, 3)", "GPT-2, GPT-J", lambda x: 0.5 * x * (1.0 + torch.tanh(
        SLOPE * (x + 0.044715 * torch.pow(x, 3.0)))), _x),
    Form("gelu_new, x * x * x", "Megatron", lambda x: 0.5 * x * (1.0 + torch.tanh(
        SLOPE * (x + 0.044715 * x * x * x))), _x,
         "0.044715 is multiplied first: the rounding of the cube differs"),
    Form("gelu_fast", "FNet, BLOOM", lambda x: 0.5 * x * (1.0 + torch.tanh(
        x * 0.7978845608 * (1.0 + 0.044715 * x * x))), _x, "another constant (0.7978845608)"),
    Form("quick gelu", "CLIP", lambda x: x * torch.sigmoid(1.702 * x), _x, NO_OPERATOR),
    Form("F.gelu", "BERT", F.gelu, _x, "the operator itself"),
    Form("x * sigmoid(x)", "swish of EfficientNet", lambda x: x * torch.sigmoid(x), _x),
    Form("sigmoid(x) * x", "various", lambda x: torch.sigmoid(x) * x, _x),
    Form("x / (1 + exp(-x))", "ports", lambda x: x / (1 + torch.exp(-x)), _x, NO_OPERATOR),
    Form("silu(gate) * up", "Llama", lambda x: F.silu(x[..., :32]) * x[..., 32:], _x,
         "the operator itself; its product is fused"),
    Form("x * tanh(softplus(x))", "mish", lambda x: x * torch.tanh(F.softplus(x)), _x, NO_OPERATOR),
    Form("relu(x) ** 2", "Primer, Nemotron", lambda x: F.relu(x).square(), _x, NO_OPERATOR),
    Form("clamp(x, 0, 6)", "MobileNet", lambda x: x.clamp(0, 6), _x, NO_OPERATOR),
    Form("x * relu6(x + 3) / 6", "MobileNetV3", lambda x: x * F.relu6(x + 3) / 6, _x, NO_OPERATOR),
)

FORMS: Final = {"Attention": ATTENTION, "Norms": NORMS, "Activations": ACTIVATIONS}


def pattern_of(form: Form) -> str | None:
    """The name of the pattern that replaces it, if one does; raises AssertionError if the result
    is not eager's."""
    torch.manual_seed(0)
    inputs = form.inputs()
    weft.reset()
    with torch.no_grad(), events.collect() as seen:
        result = weft.compile(form.program, backend="aot_eager_decomposed")(*inputs)
        torch.testing.assert_close(result, form.program(*inputs), rtol=1e-4, atol=1e-5)
    names = [e.name for e in seen if e.kind == "pattern"]
    return names[0].partition(":")[0] if names else None


def table() -> str:
    """The page, in Markdown."""
    lines, found = [], 0
    for title, forms in FORMS.items():
        lines += [f"## {title}", "| form | found in | recognised as |", "|---|---|---|"]
        for form in forms:
            name = pattern_of(form)
            found += name is not None
            lines.append(f"| `{form.name}` | {form.models} | {name or f'no: {form.why_not}'} |")
        lines.append("")
    total = sum(map(len, FORMS.values()))
    return "\n".join([
        "# Forms that models write by hand", "",
        f"Of {total} forms as they are found in models, {found} are replaced by an operator of the "
        "library. The others",
        "are compiled as they are. Printed by `python -m tools.handwritten_forms`.", "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="the page to write")
    page = parser.parse_args().write
    text = table()
    print(text) if page is None else page.write_text(text)


if __name__ == "__main__":
    main()
