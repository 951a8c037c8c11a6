"""Types that the CPU's kernels refuse, while the meta kernels accept them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.shapes.fakes.kernel_trials import _known

aten = torch.ops.aten
BOOLS, INTS, HALVES = torch.ones(3, 2).bool(), torch.ones(3, 2).int(), torch.ones(3, 2).half()
FLOATS, COMPLEX = torch.ones(3, 2), torch.ones(3, 2, dtype=torch.complex64)

REFUSED: dict[str, tuple[Callable[..., Any], torch.Tensor]] = {
    "difference of bools": (lambda x: x - x, BOOLS),
    "difference of bools in place": (lambda x: x.clone().sub_(x), BOOLS),
    "relu of bools": (torch.relu, BOOLS),
    "relu of bools in place": (lambda x: x.clone().relu_(), BOOLS),
    "logit of integers in place": (lambda x: x.clone().logit_(), INTS),
    "ldexp of integers in place": (lambda x: x.clone().ldexp_(x), INTS),
    "bools times an integer of no dimension": (lambda x: x.clone().mul_(torch.tensor(2)), BOOLS),
    "gcd of floats": (torch.gcd, FLOATS),
    "shift of floats": (lambda x: x << 1, FLOATS),
    "silu of integers": (F.silu, INTS),
    "order of complex numbers": (lambda x: x < x.real, COMPLEX),
    "integers to a negative power": (lambda x: x ** -1, INTS),
    "a number that a byte cannot hold": (lambda x: x.byte().fill_(300), INTS),
    "half filled with more than it holds": (lambda x: x.clone().fill_(1e6), HALVES),
    "deviation of integers": (lambda x: x.std(0), INTS),
    "product of two types": (lambda x: x @ torch.ones(2, 3), HALVES),
    "place of the largest bool": (lambda x: x.argmax(0), BOOLS),
    "softmax of integers": (lambda x: x.softmax(0), INTS),
    "sums of bools along a dimension in place": (lambda x: x.clone().cumsum_(0), BOOLS),
    "sums at indices of another type": (
        lambda x: x.index_add(0, torch.tensor([0, 1]), torch.ones(2, 2)), INTS),
    "norm with parameters of another type": (
        lambda x: F.layer_norm(x, (2,), torch.ones(2).double()), FLOATS),
    "written to bools": (lambda x: torch.sin(x, out=torch.empty(3, 2).bool()), FLOATS),
}


def _calls(function: Callable[..., Any], x: torch.Tensor) -> tuple[Any, str]:
    try:
        return function(x), ""
    except Exception as error:
        return None, type(error).__name__


def _together(*functions: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: torch.Tensor) -> list[Any]:
        return [_calls(function, x)[1] for function in functions]
    return run


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_types_that_kernels_refuse_raise_as_in_eager(name: str, dynamic: bool) -> None:
    """Kernels of our own computed something where eager raises."""
    function, x = REFUSED[name]
    wanted = _calls(function, x)[1]
    assert wanted
    assert _calls(weft.compile(function, dynamic=dynamic), x)[1] == wanted
    caught = weft.compile(_together(function), dynamic=dynamic)
    assert caught(x) == [wanted]


def test_empty_tensors_are_refused_as_in_eager() -> None:
    """Some kernels look at the types of empty tensors, others do not."""
    for function in (torch.gcd, lambda x, y: x.argmax(0)):
        for x in (torch.ones(0, 2), torch.ones(2, 0), torch.ones(0, 2).int(), torch.ones(0).bool()):
            call = lambda x, function=function: function(x, x)
            assert _calls(weft.compile(call), x)[1] == _calls(call, x)[1]


def test_trials_draw_no_random_numbers_and_warn_of_nothing() -> None:
    """The deviation of a single element warns."""
    def f(x: torch.Tensor) -> Any:
        return x.var(), F.dropout(x), x.bernoulli(), torch.randn_like(x), x.std(0)

    _known.clear()
    torch.manual_seed(3)
    f(FLOATS)
    after = torch.get_rng_state()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.manual_seed(3)
        weft.compile(f, options={"fallback_random": True})(FLOATS)
    assert torch.equal(torch.get_rng_state(), after)


def test_a_kernel_is_tried_once_for_the_same_types() -> None:
    """Whatever the sizes and usual numbers are."""
    _known.clear()

    @weft.compile
    def f(x: torch.Tensor, n: float) -> torch.Tensor:
        return torch.sin(x * n + x * 3.5)

    f(torch.ones(3), 2.0)
    f(torch.ones(5), 2.5)
    f(torch.ones(5, 6), 4.5)
    operators = [key[0] for key in _known]  # those whose results no earlier test has left behind
    assert len(set(operators)) == len(operators) > 0
