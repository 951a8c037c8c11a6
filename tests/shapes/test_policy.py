"""What becomes symbolic when, in whole programs: how many compilations serve how many sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weft

transformers = pytest.importorskip("transformers")

Tensor = torch.Tensor


pytestmark = pytest.mark.usefixtures("fresh")


def compilations(program: Callable[..., Any], calls: list[tuple[Any, ...]], **settings: Any) -> int:
    """Graphs that serve all calls, each compared with eager."""
    compiled = weft.compile(program, **{"backend": "eager", **settings})
    before = weft.stats()["graphs"]
    for args in calls:
        actual = compiled(*args)
        torch.testing.assert_close(actual, program(*args), rtol=1e-4, atol=1e-5)
    return weft.stats()["graphs"] - before


# name → (program, calls): the first compilation is static, the second serves the rest.
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]] = {
    "step counter": (
        lambda x, step: x * (1 - 0.9**step), [(torch.ones(3), s) for s in range(2, 40)]),
    "learning rate": (
        lambda x, lr: x - lr * x, [(torch.ones(3), 0.1 * 0.9**i) for i in range(20)]),
    "temperature": (
        lambda x, t: (x / t).softmax(-1), [(torch.randn(2, 3), t) for t in (0.7, 1.0, 1.3, 2.0)]),
    "number in a dict": (
        lambda x, d: x * d["k"] + d["t"],
        [(torch.ones(3), {"k": k, "t": k / 7}) for k in (3, 5, 9)]),
    "number in a list": (
        lambda x, ks: x[: ks[0]].sum() + ks[1], [(torch.ones(9), [k, k + 1]) for k in (3, 5, 7)]),
    "size as a tuple": (
        lambda x, size: x.new_zeros(size) + size[0], [(torch.ones(1), (k, 4)) for k in (3, 5, 9)]),
    "shape of another tensor": (
        lambda x, size: x.expand(size).contiguous(),
        [(torch.ones(1, 4), torch.ones(k, 4).shape) for k in (3, 5, 9)]),
    "tensors in a tuple": (
        lambda xs: torch.cat(xs).softmax(0),
        [((torch.randn(n), torch.randn(n + 3)),) for n in (4, 7, 12)]),
    "tensors in a dict": (
        lambda d: d["x"] @ d["y"], [({"x": torch.randn(3, n), "y": torch.randn(n, 2)},)
                                    for n in (4, 7, 12)]),
    "numpy array": (lambda x: x * 2 + x.shape[0], [(np.ones((n, 3)),) for n in (4, 7, 12)]),
    "numpy arrays in a list": (
        lambda xs: xs[0].sum() + xs[1], [([np.ones(n), np.ones(3)],) for n in (4, 7, 12)]),
    "attribute of a module": (
        lambda x, m: x * m.scale, [(torch.ones(3), SimpleNamespace(scale=s)) for s in (2, 3, 4)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_second_value_makes_it_symbolic(name: str) -> None:
    program, calls = PROGRAMS[name]
    assert compilations(program, calls) == 2


def test_folds_of_two_sizes_and_others() -> None:
    """Cross-validation: training and validation batches of changing sizes, one model."""
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    data, target = torch.randn(103, 6), torch.randint(0, 2, (103,))
    loss_of = weft.compile(lambda x, y: F.cross_entropy(model(x), y), backend="aot_eager")
    for fold in torch.arange(103).tensor_split(5):
        rest = torch.ones(103, dtype=torch.bool)
        rest[fold] = False
        for x, y in ((data[rest], target[rest]), (data[fold], target[fold])):
            torch.testing.assert_close(loss_of(x, y), F.cross_entropy(model(x), y))
    assert weft.stats()["graphs"] == 2


def test_counter_of_a_module() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x / self.calls

    model, twin = Counting(), Counting()
    compiled = weft.compile(model, backend="eager")
    for _ in range(12):
        torch.testing.assert_close(compiled(torch.ones(3)), twin(torch.ones(3)))
    assert model.calls == 12 and weft.stats()["graphs"] == 2


def test_loop_over_a_size_fixes_that_size_only() -> None:
    def program(x: Tensor) -> Tensor:
        total = x.new_zeros(x.shape[1])
        for i in range(x.shape[0]):
            total = total + x[i] * i
        return total

    calls = [(torch.randn(n, m),) for n in (3, 4) for m in (5, 6, 7, 8)]
    assert compilations(program, calls, dynamic=True) == 2
    assert compilations(program, calls) <= 4


def gpt2() -> Any:
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=16, vocab_size=61, n_positions=96, bos_token_id=0,
        eos_token_id=0)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> Any:
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=61, max_position_embeddings=96)
    return transformers.LlamaForCausalLM(config).eval()


def decoded(model: Any, plain: Any, ids: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Greedy decoding with a growing cache: tokens and last logits."""
    cache, last, logits = transformers.DynamicCache(config=plain.config), ids, []
    for _ in range(steps):
        output = model(input_ids=last, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        last = output.logits[:, -1:].argmax(-1)
        logits.append(output.logits[:, -1])
        ids = torch.cat([ids, last], 1)
    return ids, torch.stack(logits)


@pytest.mark.parametrize("make", [gpt2, llama])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_decoding_with_a_growing_cache(make: Callable[[], Any], backend: str) -> None:
    model, ids = make(), torch.randint(1, 61, (2, 5))
    compiled = weft.compile(model, backend=backend)
    with torch.no_grad():
        actual, expected = decoded(compiled, model, ids, 64), decoded(model, model, ids, 64)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
    assert weft.stats()["graphs"] <= 3


@pytest.mark.parametrize("make", [gpt2, llama])
def test_generate(make: Callable[[], Any]) -> None:
    model, ids = make(), torch.randint(1, 61, (2, 5))
    settings = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(ids, **settings)
    model.forward = weft.compile(model.forward, backend="eager")
    assert torch.equal(model.generate(ids, **settings), expected)
    assert weft.stats()["graphs"] <= 3


def test_cache_as_tuples() -> None:
    """A cache of plain tuples of tensors that the caller passes back."""
    torch.manual_seed(1)
    project = nn.Linear(8, 24)

    def step(x: Tensor, cache: tuple[tuple[Tensor, Tensor], ...] | None) -> Any:
        kept = []
        for layer in range(2):
            q, k, v = project(x).chunk(3, -1)
            if cache is not None:
                k, v = torch.cat([cache[layer][0], k], 1), torch.cat([cache[layer][1], v], 1)
            kept.append((k, v))
            x = x + F.scaled_dot_product_attention(q, k, v)
        return x, tuple(kept)

    compiled = weft.compile(step, backend="eager")
    cache = known = None
    with torch.no_grad():
        for _ in range(64):
            x = torch.randn(2, 1, 8)
            actual, cache = compiled(x, cache)
            expected, known = step(x, known)
            torch.testing.assert_close(actual, expected)
    assert weft.stats()["graphs"] <= 3


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_zero_and_one_without_variants_of_their_own(backend: str) -> None:
    calls = [(torch.randn(n, 3),) for n in (5, 1, 0, 7)]
    with weft.config.patch(specialize_zero_one=False):
        made = compilations(lambda x: x.relu() * 2 + x.shape[0], calls, backend=backend,
                            dynamic=True)
    assert made <= 2
    assert compilations(lambda x: x.relu() * 3, calls, backend=backend, dynamic=True) == 3


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizing_to_the_size_of_another_tensor(mode: str) -> None:
    def program(x: Tensor, y: Tensor) -> Tensor:
        return F.interpolate(x, size=y.shape[2:], mode=mode, align_corners=False)

    calls = [(torch.randn(b, 3, h, w), torch.randn(b, 1, h + 1, w + 7))
             for b, h, w in ((2, 4, 6), (5, 9, 13))]
    assert compilations(program, calls, dynamic=True) == 1


def test_lstm_of_a_changing_batch() -> None:
    lstm = nn.LSTM(5, 7).eval()
    calls = [(torch.randn(6, b, 5),) for b in (3, 4, 8)]
    with torch.no_grad():
        assert compilations(lambda x: lstm(x)[0], calls, dynamic=True) == 1


# name → what a program makes of a batch, which stays one artifact for all sizes.
MADE_OF_SIZES: dict[str, Callable[[Tensor], Any]] = {
    "len": lambda x: x.new_zeros(len(x), 3),
    "len of a part": lambda x: torch.arange(len(x[1:])),
    "tensor of a size": lambda x: torch.tensor(x.shape[0]),
    "tensor of a shape": lambda x: torch.tensor(x.shape),
    "tensor of nested lists": lambda x: torch.tensor([[x.shape[0], 1], [2, x.shape[1]]]),
    "tensor of another type": lambda x: torch.as_tensor(list(x.shape), dtype=torch.float64),
    "tensor of a float": lambda x: torch.tensor([x.shape[0] / 3, 0.1], dtype=torch.float64),
    "product": lambda x: x * math.prod(x.shape),
    "numel of a shape": lambda x: x * x.shape.numel() + x.size().numel(),
    "logarithms": lambda x: x * math.log(x.shape[0]) * math.log2(x.shape[1]) * math.exp(-len(x)),
    "vmap": lambda x: torch.vmap(lambda row: row.cumsum(0) + len(row))(x),
    "vmap of vmap": lambda x: torch.vmap(lambda i: torch.vmap(lambda j: i * 10 + j)(
        torch.arange(x.shape[1])))(torch.arange(x.shape[0])),
}


@pytest.mark.parametrize("name", MADE_OF_SIZES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_sizes_in_functions_that_fixed_them(name: str, backend: str) -> None:
    calls = [(torch.randn(n, m),) for n, m in ((4, 6), (5, 8), (9, 12))]
    assert compilations(MADE_OF_SIZES[name], calls, dynamic=True, backend=backend) == 1
