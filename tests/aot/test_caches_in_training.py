"""A tensor without gradients that a training graph writes is written in place, not copied."""

import pytest
import torch

import weft
from weft.diagnostics.memory import peak_memory


def cases():
    def row(cache, x, w, at):
        cache[at] = (x @ w).detach()[0]
        return cache.sum() * x.sum()

    def rows(cache, x, w, at):
        cache[:, 2 : 2 + len(x)] = (x @ w).detach().t()[: len(cache)]
        return (x @ w).tanh(), cache[:, 3]

    def whole(cache, x, w, at):
        with torch.no_grad():
            cache.mul_(0.9).add_(x.mean() * 0.1)
        return x * cache.mean()

    def twice(cache, x, w, at):
        cache[1] = x.detach()[0]
        cache.select(1, 0).index_fill_(0, torch.tensor([at]), 5.0)
        return (x * w[0]).relu() + cache[1].sum()

    def read_by_the_backward(cache, x, w, at):
        cache[at] = x.detach()[0]
        return (x @ cache.t()).relu()

    return [row, rows, whole, twice, read_by_the_backward]


def run(function, alias):
    torch.manual_seed(0)
    cache = torch.zeros(8, 8)
    x, w = (torch.randn(3, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True))
    seen = []
    for at in (1, 4):
        given = cache.view(8, 8) if alias else cache
        results = function(given, x, w, at)
        results = results if isinstance(results, tuple) else (results,)
        loss = sum((r * r).sum() for r in results if r.requires_grad)
        (first,) = torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
        seen += [*results, cache.clone(), cache._version, first]
    return [*seen, x.grad, w.grad]


@pytest.mark.parametrize("function", cases(), ids=lambda f: f.__name__)
@pytest.mark.parametrize("alias", [False, True])
def test_results_gradients_and_versions_are_eagers(function, alias, fresh):
    compiled = weft.compile(function)
    for found, wanted in zip(run(compiled, alias), run(function, alias), strict=True):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(found, wanted)
        else:
            assert found == wanted


def test_a_row_is_written_without_a_copy_of_the_cache(fresh):
    def write(cache, x):
        cache[:4] = (x * 2).detach()
        return (x * 2 + 1).relu() + cache[:4]

    cache, x = torch.zeros(4096, 64), torch.randn(4, 64, requires_grad=True)
    compiled = weft.compile(write)
    address = cache.data_ptr()
    compiled(cache, x)
    assert cache.data_ptr() == address and torch.equal(cache[:4], (x * 2).detach())
    assert peak_memory(lambda: compiled(cache, x), "cpu") < cache.nbytes / 4


def test_what_the_backward_read_keeps_its_numbers_or_is_an_error(fresh):
    """Eager saves the cache itself, and its backward refuses after another write."""
    def attend(cache, x):
        cache[0] = x.detach()[0]
        return (x @ cache.t()).relu()

    def gradient(function):
        cache, x = torch.eye(8), torch.ones(2, 8, requires_grad=True)
        y = function(cache, x)
        wanted = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
        cache.zero_()
        try:
            y.sum().backward()
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            return wanted, None
        return wanted, x.grad

    found, wanted = gradient(weft.compile(attend)), gradient(attend)
    assert torch.equal(found[0], wanted[0]) and wanted[1] is None
    assert found[1] is None or torch.equal(found[1], found[0])


def test_a_cache_that_shares_memory_with_another_input_is_written_as_in_eager(fresh):
    def write(cache, view, x):
        cache[0] = x.detach()
        return (x * 2 + view.sum()).relu()

    def run(function):
        cache, x = torch.zeros(4, 3), torch.ones(3, requires_grad=True)
        return function(cache, cache[0], x), cache

    for found, wanted in zip(run(weft.compile(write)), run(write), strict=True):
        assert torch.equal(found, wanted)
