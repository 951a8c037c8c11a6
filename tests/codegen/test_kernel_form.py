"""Kernels of one form are written once: equal layers give equal kernels on other buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn

import weft
from weft.codegen.cpp import source_of, target
from weft.codegen.ir.kernel_form import form
from weft.codegen.ir.loop_ir import Kernel, Store
from weft.diagnostics import events

pytestmark = pytest.mark.usefixtures("fresh")


class Block(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8, eps=eps), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def kernels_of(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> list[Kernel]:
    with events.collect() as seen:
        weft.compile(function)(*args).sum().backward()
    return [e.source for e in seen if e.kind == "kernel"]


X = torch.randn(4, 8, requires_grad=True)
PROGRAMS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    nn.Sequential(*(Block(1e-5) for _ in range(5))),
    nn.Sequential(*(Block(10.0 ** -k) for k in range(3, 7))),
    lambda x: x.softmax(-1).log().cumsum(0)[:, torch.tensor([1, 0, 7])] * -0.0 + x.flip(0)[:, :3],
    lambda x: torch.where(x > 0, x * 2, 0.0) + torch.where(x.sin() > 0, x.sin() * 2, -0.0),
    lambda x: x.t().contiguous().amax(0) + x.sum(-1) + x.argmax(-1),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_kernels_of_one_form_have_one_text(program: Callable[[torch.Tensor], torch.Tensor]) -> None:
    kernels = kernels_of(program, X)
    forms = {form(kernel) for kernel in kernels}
    texts = {source_of(kernel) for kernel in kernels}
    assert len(forms) == len(texts)
    by_form = {form(kernel): source_of(kernel) for kernel in kernels}
    assert all(by_form[form(kernel)] == source_of(kernel) for kernel in kernels)


def test_each_form_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Kernel] = []

    def counting(kernel: Kernel) -> str:
        written.append(kernel)
        return source_of(kernel)

    monkeypatch.setattr(target, "source_of", counting)
    kernels = kernels_of(nn.Sequential(*(Block(1e-5) for _ in range(5))), X)
    assert len(written) < len(kernels) / 2


def test_what_a_text_depends_on_is_in_the_form() -> None:
    for kernel in kernels_of(nn.Sequential(Block(1e-5)), X):
        (first, *rest) = kernel.stores
        changed = [
            replace(kernel, inner=kernel.outer, outer=kernel.inner),
            replace(kernel, buffers=kernel.buffers[::-1]) if len(kernel.buffers) > 1 else None,
            replace(kernel, stores=(_other_mode(first), *rest)),
            replace(kernel, stores=(*kernel.stores, first)),
        ]
        assert all(form(k) != form(kernel) for k in changed if k is not None)
        assert form(replace(kernel, name="other", origins=())) == form(kernel)


def _other_mode(store: Store) -> Store:
    return replace(store, mode="max" if store.mode != "max" else "add")
