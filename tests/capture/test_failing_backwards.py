"""A backward that fails midway leaves the gradients that eager's leaves.

Autograd frees what a backward has used, so that a second one through a part of it fails, after it
has reached the leaves on other ways. Each seed writes a program of a few such passes.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import same

_SEEDS = int(os.environ.get("WEFT_FUZZ_BACKWARDS", "10"))

_STEPS = (
    "x = x * p", "x = x + q", "x = (x * w).sin()", "x = x @ m", "x = x.exp() * q.sum()",
    "x = x.detach() * p", "x = F.linear(x, m, q)", "x = x + y", "y = x * q", "y = (x + w) * 2",
    "x = x.clone()", "loss = (x * w).sum() + q.sum()",
)

_PASSES = (
    "x.sum().backward()", "(x * w).sum().backward()", "(x + q).sum().backward()",
    "(x * p).sum().backward(retain_graph=True)", "y.sum().backward()", "loss.backward()",
    "(x.sum() + y.sum()).backward()", "torch.autograd.grad(x.sum(), p, allow_unused=True)",
    "x.backward(torch.ones(3))", "(x * q).sum().backward(inputs=[q])",
    "torch.autograd.backward([x.sum(), y.sum()])",
)


def _program(seed: int) -> Callable[..., Any]:
    rng = random.Random(seed)
    lines = ["def f(x, p, q, w, m, log):", "    y = x * p", "    loss = y.sum()"]
    for _ in range(rng.randint(3, 8)):
        if rng.random() < 0.55:
            lines.append(f"    {rng.choice(_STEPS)}")
        elif rng.random() < 0.4:
            lines.append(f"    {rng.choice(_PASSES)}")
        else:
            lines += ["    try:", f"        {rng.choice(_PASSES)}",
                      "    except RuntimeError as error:", "        log.append(str(error))"]
    lines.append("    return x, y")
    return _function("\n".join(lines))


def _function(source: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(source, "<backwards>", "exec"), namespace)
    function: Callable[..., Any] = namespace["f"]
    return function


def _outcome(function: Callable[..., Any], call: int) -> list[Any]:
    """What a call and backwards of its results leave."""
    torch.manual_seed(call)
    leaves = [torch.nn.Parameter(torch.randn(3)) for _ in range(3)]
    leaves.append(torch.nn.Parameter(torch.eye(3)))
    x, log = torch.randn(3, requires_grad=call % 2 == 1), []
    try:
        results = function(x, *leaves, log)
        _differentiate(results, log)
    except RuntimeError as error:
        results = str(error)
    return [results, log, [leaf.grad for leaf in (x, *leaves)]]


def _differentiate(results: tuple[torch.Tensor, ...], log: list[str]) -> None:
    for result in results:
        try:
            result.sum().backward(retain_graph=True)
        except RuntimeError as error:
            log.append(str(error))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_seed(seed: int) -> None:
    """More: WEFT_FUZZ_BACKWARDS=500."""
    weft.reset()
    function = _program(seed)
    compiled = weft.compile(function, backend="eager")
    for call in range(3):
        assert same(_outcome(function, call), _outcome(compiled, call))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_second_backward_through_a_freed_part_reaches_the_other_leaves(backend: str) -> None:
    """Gradients of a layer were half of eager's: the second pass stopped at once."""
    function = _function("""
def f(x, p, q, w, m, log):
    for _ in range(2):
        x = x * p
        try:
            (F.linear(x, m, q) * w).sum().backward()
        except RuntimeError as error:
            log.append(str(error))
    return x, x * 2
""")
    weft.reset()
    compiled = weft.compile(function, backend=backend)
    for call in range(3):
        assert same(_outcome(function, call), _outcome(compiled, call))


def test_a_loss_whose_graph_is_freed_still_leads_to_the_leaves() -> None:
    """`grad` said that the leaf was not used, and `inputs=` passed silently."""
    def step(x: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        loss = (x * p).sum()
        loss.backward()
        return loss

    weft.reset()
    x, p = torch.ones(3), torch.ones(3, requires_grad=True)
    loss = weft.compile(step, backend="eager", fullgraph=True)(x, p)
    for later in (lambda: torch.autograd.grad(loss, p, allow_unused=True),
                  lambda: loss.backward(inputs=[p])):
        with pytest.raises(RuntimeError, match="second time"):
            later()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_backward_that_looks_at_data_behind_another_that_reached_its_leaf(backend: str) -> None:
    """It shared nothing but a leaf with what was freed, and was said to be the second one."""
    class Refuses(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(k)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            if ctx.saved_tensors[0].item() > 2:
                raise ValueError("large")
            return gradient * 2, None

    def f(x: torch.Tensor, p: torch.Tensor, k: torch.Tensor, again: bool) -> torch.Tensor:
        y = (x * p).sum()
        y.backward()
        (Refuses.apply(x * p * (y if again else 1), k)).sum().backward()
        return y

    weft.reset()
    compiled = weft.compile(f, backend=backend)
    for k, again in ((0, False), (3, False), (1, True), (4, True)):
        outcomes = []
        for function in (f, compiled):
            x, p = torch.arange(3.0), torch.ones(3, requires_grad=True)
            try:
                result: Any = function(x, p, torch.tensor(k), again)
            except (RuntimeError, ValueError) as error:
                result = str(error)
            outcomes.append((result, p.grad))
        assert same(*outcomes)
