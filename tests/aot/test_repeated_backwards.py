"""Backwards that run again: only what saved something refuses a second one, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import weft

PROGRAMS: dict[str, Callable[..., object]] = {
    "product": lambda x, p: x * p,
    "multiple": lambda x, p: x * 2,
    "sum": lambda x, p: x + p,
    "total": lambda x, p: (x - p).sum(),
    "mean": lambda x, p: x.mean(),
    "scaled sum": lambda x, p: torch.add(x, p, alpha=2),
    "views": lambda x, p: x.view(3, 1).expand(3, 2) + p[0],
    "concatenated": lambda x, p: torch.cat([x, p]),
    "stacked": lambda x, p: torch.stack([x, p]),
    "padded": lambda x, p: F.pad(x, (1, 1)),
    "converted": lambda x, p: x.double() + p,
    "written": lambda x, p: x.clone().add_(p),
    "chosen": lambda x, p: torch.where(x.detach() > 1, x, p),
    "by position": lambda x, p: x[torch.tensor([0, 1])],
    "apart": lambda x, p: (x + p, x * p),
    "three apart": lambda x, p: (x + p, (x * p).exp(), x - p),
    "on each other": lambda x, p: ((h := x + p), h * 2, h + 1),
    "on a product": lambda x, p: ((h := x * p), h + 1, x + 1),
    "in a chain": lambda x, p: ((h := x + p), (k := h + 1), k - x),
}


def backwards(f: Callable[..., object]) -> tuple[list[str], list[object]]:
    """Which of three rounds of backwards ran, and the gradients."""
    x = torch.arange(1.0, 4.0).requires_grad_()
    p = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    results = f(x, p)
    log = []
    for _ in range(3):
        for result in results if isinstance(results, tuple) else [results]:
            try:
                result.sum().backward()
                log.append("ran")
            except RuntimeError as error:
                log.append(str(error)[:40])
    return log, [None if t.grad is None else t.grad.tolist() for t in (x, p)]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_what_saves_something_has_one_backward(name, backend):
    program = PROGRAMS[name]
    compiled = weft.compile(program, backend=backend)
    assert backwards(compiled) == backwards(program)
