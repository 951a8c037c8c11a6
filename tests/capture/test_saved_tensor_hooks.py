"""Saved-tensor hooks that the program installs around a part of the function: in the graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import weft
from weft._torch import top_saved_tensors_default_hooks
from weft.capture.replacement.reruns import end_frames
from weft.interrupts import surface

hooks = torch.autograd.graph.saved_tensors_hooks


def halved(x, w):
    with hooks(lambda t: t.half(), lambda t: t.float()):
        y = (x.sin() * w).exp()
    return y.cos().sum()


def of_parameters(x, w):
    def pack(t):
        return t if isinstance(t, torch.nn.Parameter) else (t.half(), t.dtype)

    def unpack(packed):
        return packed[0].to(packed[1]) if isinstance(packed, tuple) else packed

    with hooks(pack, unpack):
        y = (x.sin() * w).exp()
        z = y @ y
    return z.cos().sum()


def quantized(x, w):
    def pack(t):
        if t.dtype != torch.float32 or t.numel() < 4:
            return t
        scale = t.abs().max() / 127
        return (t / scale).round().to(torch.int8), scale

    def unpack(packed):
        return packed[0].float() * packed[1] if isinstance(packed, tuple) else packed

    with hooks(pack, unpack):
        h = torch.relu(x @ w.expand(4, 4))
        values, _ = torch.nn.functional.gelu(h @ h).max(0)
    return (values * h).sum()


def on_cpu(x, w):
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        y = (x.sin() * w).exp()
    return y.cos().sum()


def nested(x, w):
    with hooks(lambda t: t.half(), lambda t: t.float()):
        y = x.sin() * w
        with hooks(lambda t: t * 1, lambda t: t * 2):
            y = y * y
        y = y.exp() * w
    return y.sum()


def with_backward(x, w):
    with hooks(lambda t: t.half(), lambda t: t.float()):
        y = (x.sin() * w).exp()
    y.sum().backward()
    return y.detach().sum()


def outcome(f):
    torch.manual_seed(0)
    x, w = torch.randn(4, 4, requires_grad=True), torch.nn.Parameter(torch.randn(4))
    loss = f(x, w)
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), x.grad, w.grad


@pytest.mark.parametrize("f", [halved, of_parameters, quantized, on_cpu, nested, with_backward])
def test_hooks_that_only_compute_broke_the_graph(f):
    compiled = weft.compile(f, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), outcome(f))


def breaking(x, w):
    with hooks(lambda t: t.half(), lambda t: t.float()):
        y = (x.sin() * w).exp()
        print(end="")
        z = (y * w).cos()
    return (z * y).sum()


def counting(x, w):
    calls = []

    def pack(t):
        calls.append(t.shape)
        return t

    with hooks(pack, lambda t: t):
        y = (x.sin() * w).exp()
    return y.sum() + len(calls)


def rebinding(x, w):
    factor = 2.0
    with hooks(lambda t: t, lambda t: t * factor):
        y = (x.sin() * w).exp()
    factor = 3.0
    return y.sum() * factor


@pytest.mark.parametrize("f", [breaking, counting, rebinding])
def test_hooks_with_effects_and_breaks_between_them(f):
    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(outcome(compiled), outcome(f))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_an_error_between_hooks_leaves_none_installed(backend):
    def f(x, n):
        with hooks(lambda t: t.half(), lambda t: t.float()):
            return x.sin().view(n.item())

    compiled = weft.compile(f, backend=backend)
    x = torch.ones(4, requires_grad=True)
    compiled(x, torch.tensor(4))
    with pytest.raises(RuntimeError, match="invalid for input"):
        compiled(x, torch.tensor(5))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_failed_guess_in_nested_checkpoints_leaves_no_hooks(backend):
    """Before PyTorch 2.13 their hooks stayed as long as the error that the guess raised: the eager
    run saved its tensors for the graph's checkpoint, which raised again in the backward."""
    def gradient(function, number):
        x = torch.arange(3.0, requires_grad=True)
        result = function(x, torch.tensor([number, 0]))
        assert top_saved_tensors_default_hooks(True) is None
        return torch.autograd.grad(result.sum(), x)

    def program(x, data):
        n = data.sum().item()

        def inner(y):
            return y.sin() if n > 1 else y.cos()

        def outer(y):
            return checkpoint(inner, y * 2, use_reentrant=False).exp()

        return checkpoint(outer, x, use_reentrant=False)

    compiled = weft.compile(program, backend=backend)
    for number in (0, 3, 1, 2, 0):
        torch.testing.assert_close(gradient(compiled, number), gradient(program, number))


def test_what_a_failing_graph_began_ends_before_the_eager_run():
    ended = []

    def region(name: str) -> Iterator[None]:
        try:
            yield
        finally:
            ended.append(name)

    def fail(name: str, *inner: str) -> None:
        begun = region(name)
        next(begun)
        if inner:
            fail(*inner)
        raise ValueError(name)

    with pytest.raises(ValueError, match="inner") as caught:
        fail("outer", "middle", "inner")
    assert not ended
    surface(caught.value)  # looks at all variables
    end_frames(caught.value)
    assert ended == ["inner", "middle", "outer"]
