"""Users' autograd functions behind which results lie that are differentiated in parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft


class _OneOfTwo(torch.autograd.Function):
    """Gives a gradient to the inputs of those results that get one."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return a * 2, b.sin()

    @staticmethod
    def backward(ctx, of_a, of_b):
        return None if of_a is None else of_a * 2, None if of_b is None else of_b * 3


@pytest.mark.parametrize("is_leaf", [True, False])
@pytest.mark.parametrize("which", [0, 1])
def test_an_input_whose_function_gives_no_gradient_has_none(is_leaf: bool, which: int) -> None:
    def f(a, b):
        return _OneOfTwo.apply(a.cos(), b)[which]

    found = []
    for call in (f, weft.compile(f, backend="aot_eager")):
        leaves = [torch.ones(3, requires_grad=True) for _ in range(2)]
        inputs = leaves if is_leaf else [leaf * 1 for leaf in leaves]
        for x in inputs:
            x.retain_grad()
        call(*inputs).sum().backward()
        found.append([x.grad is None for x in (*inputs, *leaves)])
    assert found[1] == found[0]
    assert any(found[0])


class _Clipped(torch.autograd.Function):
    """Clips the gradient: two halves of it clipped are another sum."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


class _Counting(torch.autograd.Function):
    """Its gradient depends on how many of its results get one."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.set_materialize_grads(False)
        return a * 2, b.sin(), b.cos()

    @staticmethod
    def backward(ctx, *gradients):
        count = sum(g is not None for g in gradients)
        first, *others = (None if g is None else g * count for g in gradients)
        present = [g for g in others if g is not None]
        return first, sum(present) if present else None


def _clipped(a, b):
    y = _Clipped.apply(a * 3 + b)
    r = y * 2
    return y + r, r


def _hooked(a, b):
    y = a * 3 + b
    y.register_hook(lambda g: g.clamp(-1, 1))
    r = y * 2
    return y + r, r


def _counting(a, b):
    p, q, _ = _Counting.apply(a, b)
    return p + q, q


def _between(a, b):
    r = _Clipped.apply(a * b) * 2
    return r.sin(), r


@pytest.mark.parametrize("f", [_clipped, _hooked, _counting, _between])
def test_a_users_backward_runs_once_for_the_whole_gradient(f: Callable[..., object]) -> None:
    found = []
    for call in (f, weft.compile(f, backend="aot_eager")):
        a, b = (torch.linspace(-1, 2, 6).requires_grad_() for _ in range(2))
        results = call(a, b)
        found.append([
            torch.autograd.grad([results[k].sum() for k in which], [a, b], retain_graph=True,
                                allow_unused=True) for which in ([1], [0], [0, 1], [1])])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_result_without_gradients_requires_them_as_in_eager(is_leaf: bool) -> None:
    """The constant's sine: no gradient leads on from there."""
    def f(a, b):
        return _Counting.apply(a.cos(), b)[1], a * 1

    found = []
    for call in (f, weft.compile(f, backend="aot_eager")):
        a = torch.ones(3, requires_grad=True)
        results = call(a if is_leaf else a * 1, torch.ones(3))
        results[0].sum().backward()
        found.append(([r.requires_grad for r in results], a.grad is None))
    assert found[1] == found[0]
