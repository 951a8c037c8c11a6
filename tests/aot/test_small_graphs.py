"""Small training graphs and graphs of views run as they are; others are compiled."""

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.config import config


@pytest.fixture(autouse=True)
def by_autograd(fresh):
    with config.patch(small_graphs_by_autograd=True):
        yield


def grad_fn_of(function, *inputs):
    result = weft.compile(function, fullgraph=True)(*inputs)
    return type(result.grad_fn).__name__


def rows(*size):
    return torch.randn(*size, requires_grad=True)


@pytest.mark.parametrize(("function", "name"), [
    (lambda x: x * 2, "MulBackward0"),
    (lambda x: x.softmax(-1), "SoftmaxBackward0"),
    (lambda x: F.dropout(x, 0.5), "MulBackward0"),
    (lambda x: x + torch.randn_like(x), "AddBackward0"),
    (lambda x: x[1:] * 3, "MulBackward0"),
    (lambda x: x.t(), "TBackward0"),
    (lambda x: x[:, ::2].unsqueeze(0), "UnsqueezeBackward0"),
])
def test_small_graphs_have_eagers_nodes(function, name):
    assert grad_fn_of(function, rows(4, 6)) == name
    assert weft.stats()["uncompiled_graphs"] == 0


@pytest.mark.parametrize(("function", "size"), [
    (lambda x: (x * 2 + 1).relu(), (4, 6)),  # three operators
    (lambda x: F.softmax(x * 2, -1), (200, 100)),  # many elements
    (lambda x: (x * 2).requires_grad_(), (200, 100)),
])
def test_others_are_compiled(function, size):
    assert grad_fn_of(function, rows(*size)).startswith("weft: ")


def test_symbolic_sizes_are_compiled():
    compiled = weft.compile(lambda x: x * 2, dynamic=True)
    assert type(compiled(rows(4, 6)).grad_fn).__name__.startswith("weft: ")


def test_writes_users_passes_and_the_setting_keep_graphs_compiled():
    def write(x, y):
        y.mul_(2)
        return x * y

    assert grad_fn_of(write, rows(4), torch.ones(4)).startswith("weft: ")
    with config.patch(small_graphs_by_autograd=False):
        assert grad_fn_of(lambda x: x * 5, rows(4)).startswith("weft: ")


def test_everything_that_autograd_does_is_as_in_eager():
    def run(function):
        torch.manual_seed(1)
        x = torch.arange(6.0).view(2, 3).requires_grad_()
        seen = []
        y = function(x)
        y.register_hook(lambda g: seen.append(g.clone()))
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.sum().backward()
        return first, second, x.grad, *seen

    for function in (lambda x: x.pow(3), lambda x: x.softmax(-1) * x):
        for found, wanted in zip(run(weft.compile(function)), run(function), strict=True):
            assert torch.equal(found, wanted)


def test_a_saved_tensor_that_was_written_is_an_error_as_in_eager():
    x, w = rows(3), torch.ones(3)
    y = weft.compile(lambda x, w: x * w)(x, w)
    w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_and_results_share_memory_as_in_eager():
    def run(function):
        x = rows(4, 6)
        y, z = function(x)
        y.detach().fill_(7)
        grad = torch.ones(6, 4)
        y.backward(grad)
        return y._base is x, z.data_ptr() == x.data_ptr(), x.grad.stride(), x[0, 0].item()

    def views(x):
        return x.t(), x[0]

    assert run(weft.compile(views)) == run(views)
    compiled = weft.compile(views)
    with torch.no_grad():
        x = torch.zeros(4, 6)
        compiled(x)[0].add_(1)
    assert x.sum() == 24


def test_modes_are_those_of_the_call():
    def cast(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ w

    x, w = rows(4, 6), rows(6, 2)
    found, wanted = weft.compile(cast)(x, w), cast(x, w)
    assert found.dtype == wanted.dtype == torch.bfloat16
    assert torch.equal(found, wanted)
    compiled = weft.compile(lambda x: x * 2)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad


def test_library_calls_run_as_they_are_and_loops_of_elements_are_not_written_out():
    x = torch.randn(40, 40)
    for function in (torch.linalg.svd, lambda x: x.sort(-1), torch.linalg.svdvals):
        compiled = weft.compile(function)
        with torch.no_grad():
            found, wanted = compiled(x), function(x)
        pairs = [(found, wanted)] if isinstance(wanted, torch.Tensor) else zip(
            found, wanted, strict=True)
        assert type(found) is type(wanted)
        for left, right in pairs:
            assert torch.equal(left, right)
    a, tau = torch.randn(140, 20, requires_grad=True), torch.randn(20, requires_grad=True)
    result = weft.compile(torch.linalg.householder_product)(a, tau)
    assert type(result.grad_fn).__name__ == "LinalgHouseholderProductBackward0"
