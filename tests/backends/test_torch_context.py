"""Backends that trace their graph again with PyTorch's tools."""

from __future__ import annotations

import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func

import weft


def traces_again(gm, example_inputs):
    return aot_module_simplified(gm, example_inputs, fw_compiler=lambda gm, _: make_boxed_func(gm))


def refuses_symbols(gm, example_inputs):
    if any(isinstance(x, torch.SymInt) for x in example_inputs):
        raise ValueError("a symbol")
    return traces_again(gm, example_inputs)


def by_size(x):
    return x * x.shape[0] + x.new_ones(x.shape[0], 1).sum()


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("by_name", [True, False])
def test_sizes_of_the_first_call_were_kept_by_backends_that_trace_again(dynamic, by_name):
    weft.reset()
    weft.register_backend("traces-again", traces_again)
    backend = "traces-again" if by_name else traces_again
    compiled = weft.compile(by_size, backend=backend, dynamic=dynamic)
    for n in (3, 4, 5, 6):
        x = torch.randn(n, 2, requires_grad=True)
        y = compiled(x)
        assert torch.allclose(y, by_size(x))
        y.sum().backward()
        assert (x.grad == n).all()
    assert weft.stats()["graphs"] == (1 if dynamic else 2)


def test_numbers_of_the_first_call_were_kept_by_backends_that_trace_again():
    weft.reset()
    compiled = weft.compile(
        lambda x, d: torch.add(x, x, alpha=d), backend=traces_again, dynamic=True)
    x = torch.ones(3)
    assert [compiled(x, d)[0].item() for d in (5, 6, 7)] == [6, 7, 8]
    assert weft.stats()["graphs"] == 1


def test_a_backend_that_refuses_symbols_gets_numbers():
    weft.reset()
    compiled = weft.compile(by_size, backend=refuses_symbols)
    for n in (3, 4, 5, 4):
        x = torch.randn(n, 2)
        assert torch.allclose(compiled(x), by_size(x))
    assert weft.stats()["graphs"] == 3
