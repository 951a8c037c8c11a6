"""Singular values and eigenvalues are computed without vectors, unless something reads these."""

import pytest
import torch

import weft
from weft.diagnostics.memory import peak_memory

FUNCTIONS = {
    "svdvals": torch.linalg.svdvals, "eigvalsh": torch.linalg.eigvalsh,
    "nuclear": lambda x: torch.linalg.norm(x, "nuc"), "spectral": lambda x: torch.linalg.norm(x, 2),
    "cond": torch.linalg.cond, "rank": torch.linalg.matrix_rank,
    "values of svd": lambda x: torch.linalg.svd(x)[1],
    "all of svd": lambda x: [t.abs() for t in torch.linalg.svd(x)],
    "values of eigh": lambda x: torch.linalg.eigh(x, UPLO="U")[0] + 1,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_eagers(name, fresh):
    function = FUNCTIONS[name]
    x = torch.randn(6, 6)
    x = x + x.t()
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(function)(x), function(x), atol=1e-5, rtol=1e-5)
    if name in ("rank", "all of svd"):
        return
    gradients = []
    for run in (weft.compile(function), function):
        leaf = x.clone().requires_grad_()
        gradients += torch.autograd.grad(run(leaf).sum(), leaf)
    torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)


def test_no_memory_is_taken_for_vectors(fresh):
    x = torch.randn(200, 200)
    compiled = weft.compile(torch.linalg.svdvals)
    with torch.no_grad():
        compiled(x)
        eager = peak_memory(lambda: torch.linalg.svdvals(x), "cpu")
        assert peak_memory(lambda: compiled(x), "cpu") <= eager + x.nbytes / 2
