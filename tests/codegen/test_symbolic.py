"""Symbolic sizes: one artifact for many sizes, with the fusions of the static one."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

import weft
from tests.codegen.compiling import assert_same_strides
from tests.codegen.random_graphs import RandomProgram
from tests.codegen.symbolic import compiled_dynamic
from weft.codegen import targets


def block(x: Any, w: Any) -> Any:
    y = F.gelu(F.layer_norm(x, (64,))) + x
    z = y @ w
    heads = z.view(z.shape[0], z.shape[1], 4, 16).transpose(1, 2)
    return torch.softmax(z, -1), y.sum(0), torch.cat([y, x], 1), heads.contiguous(), z[:, 1:]


def attention(x: Any, w: Any) -> Any:
    batch, length, _ = x.shape
    q, k, v = (t.transpose(1, 2) for t in (x @ w).view(batch, length, 3, 4, 16).unbind(2))
    mask = torch.ones(length, length, dtype=torch.bool).tril()
    scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~mask, float("-inf"))
    result = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, 64)
    return result, torch.arange(length) + x[:, 0, 0].sum(), x.mean()


@pytest.mark.parametrize("oracle", [True, False], ids=["interpreter", "cpp"])
@pytest.mark.parametrize(("function", "columns"), [(block, 64), (attention, 192)])
def test_one_artifact_for_many_sizes(function: Any, columns: int, oracle: bool) -> None:
    def inputs(batch: int, length: int) -> list[torch.Tensor]:
        return [torch.randn(batch, length, 64), torch.randn(64, columns)]

    with torch.no_grad():
        call, artifact = compiled_dynamic(function, inputs(4, 8), {0: {0, 1}}, oracle=oracle)
        assert artifact.kernels and len(artifact.kernels) <= 8
        for batch, length in [(4, 8), (3, 5), (2, 17)]:
            example = inputs(batch, length)
            for result, wanted in zip(call(list(example)), function(*example), strict=True):
                torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
                assert_same_strides(result, wanted)


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_random_programs_with_symbolic_sizes(start: int) -> None:
    for seed in range(start, start + 20):
        program = RandomProgram(seed, length=10)
        program.inputs[0] = program.inputs[0].contiguous()
        if not program.is_stable():
            continue
        sizes = {i: set(range(t.dim())) for i, t in enumerate(program.inputs)}
        with torch.no_grad():
            call, _ = compiled_dynamic(program.run, program.inputs, sizes)
            expected = program.run(*program.inputs)
            for result, wanted in zip(call(list(program.inputs)), expected, strict=True):
                torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)


def test_a_number_that_follows_from_sizes_may_be_an_input() -> None:
    """Its place was named by the formula: the call sequence was no Python."""
    def heads(x, h, y):
        return x.reshape(x.shape[0], h, 4).sum(-1) * y.view(-1, h), h * 2

    weft.reset()
    compiled = weft.compile(heads, dynamic=True)
    with weft.config.patch(strict=True):
        for n, h in ((5, 24), (6, 48), (7, 12)):
            x, y = torch.randn(n, 4 * h), torch.randn(n * h)
            torch.testing.assert_close(compiled(x, h, y), heads(x, h, y))
    assert weft.stats()["graphs"] <= 2


def test_kernels_are_made_ready_for_the_quotients_of_the_call() -> None:
    seen: dict[str, int] = {}
    compile_kernels = targets.compile_kernels

    def noting(kernels: Any, devices: Any, hints: Any) -> Any:
        seen.update(hints)
        return compile_kernels(kernels, devices, hints)

    def heads(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], -1, w.shape[0]).sum(1) * w

    with mock.patch.object(targets, "compile_kernels", noting):
        compiled_dynamic(heads, [torch.randn(3, 28), torch.randn(4)], {0: {0, 1}, 1: {0}},
                         oracle=False)
    assert 28 // 4 in seen.values()
