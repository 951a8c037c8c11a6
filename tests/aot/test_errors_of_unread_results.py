"""What eager raises because of data is raised, also if the program reads the result in part or not.

Each case is an operator, arguments that make it raise, and arguments that do not. Dead code
elimination dropped the unread ones; a formula of which a part was read computed only that part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft

Tensor = torch.Tensor
ints = torch.tensor
X = torch.arange(12.0).reshape(3, 4)
PLACES, SIZES = (ints([0, 9]), ints([0, 1])), (ints([1, 0]), ints([1, 2]))
MATRICES = torch.zeros(2, 2), torch.eye(2)

OPERATORS: dict[str, tuple[Callable[[Tensor, Tensor], Any], Tensor, Tensor]] = {
    "floor division": (lambda x, n: 6 // n, *SIZES),
    "remainder": (lambda x, n: n % n, *SIZES),
    "fmod": (lambda x, n: torch.fmod(n, n), *SIZES),
    "division with rounding": (lambda x, n: torch.div(n, n, rounding_mode="trunc"), *SIZES),
    "index": (lambda x, n: x[n], *PLACES),
    "index by one number": (lambda x, n: x[n[1]], *PLACES),
    "index_select": (lambda x, n: x.index_select(0, n), *PLACES),
    "gather": (lambda x, n: x.gather(0, n[None].expand(4, 2).T), *PLACES),
    "take": (lambda x, n: x.take(n + 6), *PLACES),
    "embedding": (lambda x, n: F.embedding(n, x), *PLACES),
    "embedding_bag": (lambda x, n: F.embedding_bag(n[None], x), *PLACES),
    "scatter": (lambda x, n: x.scatter(0, n[None], 1.0), *PLACES),
    "scatter_reduce": (lambda x, n: x.scatter_reduce(0, n[None], x[:1, :2], "sum"), *PLACES),
    "index_add": (lambda x, n: x.index_add(0, n, x[:2]), *PLACES),
    "index_copy": (lambda x, n: x.index_copy(0, n, x[:2]), *PLACES),
    "index_fill": (lambda x, n: x.index_fill(0, n, 1), *PLACES),
    "index_put": (lambda x, n: x.index_put((n,), x[:2]), *PLACES),
    "one_hot": (lambda x, n: F.one_hot(n, 4), *PLACES),
    "bincount": (lambda x, n: torch.bincount(n - 1), ints([0, 1]), ints([1, 2])),
    "repeat_interleave": (lambda x, n: torch.repeat_interleave(n - 1), ints([0, 1]), ints([1, 2])),
    "nll_loss": (lambda x, n: F.nll_loss(x[:2], n, reduction="none"), *PLACES),
    "cross_entropy": (lambda x, n: F.cross_entropy(x[:2], n, reduction="none"), *PLACES),
    "binary_cross_entropy": (lambda x, n: F.binary_cross_entropy(n, n, reduction="none"),
                             ints([0.5, 2.0]), ints([0.5, 0.5])),
    "narrow": (lambda x, n: x.narrow(0, n[1].item(), 2), *PLACES),
    "cholesky": (lambda x, n: torch.linalg.cholesky(n), -torch.eye(2), torch.eye(2)),
    "inverse": (lambda x, n: torch.linalg.inv(n), *MATRICES),
    "solve": (lambda x, n: torch.linalg.solve(n, n), *MATRICES),
    "negative power of a matrix": (lambda x, n: torch.linalg.matrix_power(n, -1), *MATRICES),
}
UNREAD: dict[str, Callable[[Any, Tensor], Any]] = {
    "nothing": lambda y, x: x * 2,
    "metadata": lambda y, x: torch.zeros_like(y) + y.dim(),
    "its first row": lambda y, x: y[0] * 2,
    "one of its pieces": lambda y, x: y.split(1)[0] + 1,
    "another item of a stack": lambda y, x: torch.stack([torch.ones_like(y), y])[0] * 2,
}
FORMULAS = ("index", "floor division", "binary_cross_entropy")


def _outcome(function: Callable[..., Any], x: Tensor, n: Tensor) -> Any:
    try:
        return function(x.clone(), n.clone()).tolist()
    except Exception as error:
        return type(error)


def _check(name: str, read: str, backend: str, dynamic: bool | None, trains: bool = False) -> None:
    compute, wrong, right = OPERATORS[name]

    def program(x: Tensor, n: Tensor) -> Any:
        return UNREAD[read](compute(x, n), x)

    x = X.clone().requires_grad_(trains)
    weft.reset()
    compiled = weft.compile(program, backend=backend, dynamic=dynamic)
    for n in (right, wrong, right):
        assert _outcome(compiled, x, n) == _outcome(program, x, n)
    assert isinstance(_outcome(program, x, wrong), type)


@pytest.mark.parametrize("name", OPERATORS)
def test_error_of_an_operator_whose_result_nothing_reads(name: str) -> None:
    _check(name, "nothing", "aot_eager", None if len(name) % 2 else True, trains=len(name) % 3 == 0)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("read", UNREAD)
def test_error_in_the_part_of_a_formula_that_nothing_reads(name: str, read: str) -> None:
    _check(name, read, "inductor", None)


def test_error_of_the_forward_whose_result_only_the_backward_reads() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        return x[:2] * (6 // n)[:, None].float()

    weft.reset()
    compiled = weft.compile(program)
    x = X.clone().requires_grad_()
    compiled(x, ints([1, 2])).sum().backward()
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        compiled(x, ints([1, 0]))


def test_places_along_a_dimension_of_unknown_size_count_from_the_end_as_in_eager() -> None:
    def program(x: Tensor, n: Tensor) -> Tensor:
        return torch.take_along_dim(x, n[:, None], 0)

    weft.reset()
    compiled = weft.compile(program, dynamic=True)
    for n in (ints([0, 1]), ints([-1, 9]), ints([-7, 2])):
        assert torch.equal(compiled(X, n), program(X, n))
