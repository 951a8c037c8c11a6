"""Saved-tensor hooks that the program installs around a part of the function: in the graph."""

from __future__ import annotations

import pytest
import torch

import weft

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
