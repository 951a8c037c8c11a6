"""Lowerings at special values against eager; `python -m tools.special_values` has all of them."""

from __future__ import annotations

import os

import pytest
import torch

import weft
from tests.codegen.compiling import check
from tools.special_values import check as differences
from tools.special_values import interpreted

EVERY = int(os.environ.get("WEFT_SPECIAL_VALUES_EVERY", "7"))
"""Of so many graphs of 24 calls one is tried."""


@pytest.mark.parametrize("kind", ["f32", "bf16", "i8", "bool", "c64"])
def test_lowerings_at_special_values(kind: str) -> None:
    with interpreted():
        assert not differences([kind], every=EVERY)


FOUND = "maximum,lerp,addcmul,remainder,fmod,sigmoid_backward,flip,sum,pow"


@pytest.mark.parametrize("kind", ["f32", "bool"])
def test_lowerings_that_were_wrong_there(kind: str) -> None:
    """Of zeros of both signs, numbers rounded to half types, products that overflow alone."""
    with interpreted():
        assert not differences([kind], FOUND.split(","))


@pytest.mark.parametrize("simd", ["", "portable"])
def test_functions_that_overflowed_early(simd: str) -> None:
    """asinh and acosh from 1.8e19 on, sinh and cosh from 88.7; quotients gave NaN."""
    big = torch.tensor([1e19, 1.9e19, 3e38, -3e38, torch.inf, 2.0, torch.nan, 89.3, -89.3] * 4)
    exact = [torch.asinh(big), torch.acosh(big.abs()), *(f(big.double()).float() for f in (
        torch.sinh, torch.cosh)), big // 0.5, torch.zeros_like(big[4:5])]
    with weft.config.patch(simd=simd):
        results = weft.compile(lambda x: (
            x.asinh(), x.abs().acosh(), x.sinh(), x.cosh(), x // 0.5, x[2:3] % 0.5))(big)
    for result, wanted in zip(results, exact, strict=True):
        torch.testing.assert_close(result, wanted, equal_nan=True)


def test_complex_numbers_become_truth_values_by_both_parts() -> None:
    """The imaginary part was dropped."""
    z = torch.tensor([1j, 0j, 2 + 0j, complex("nan"), complex(0, -0.0)])
    check(lambda z: (z.bool(), torch.where(z.bool(), 1.0, 2.0), z.bool().sum()), z)


def test_real_and_complex_operands_broadcast() -> None:
    """The imaginary part had the sizes of the complex operand alone."""
    check(lambda x, z: (x + z, x - z, z * x, x + (1 - 2j)), torch.randn(3, 1),
          torch.randn(1, 4, dtype=torch.complex64))


def test_flips_of_rank_0() -> None:
    check(lambda x: (x.flip(0) + 1, x.flip(-1), x.flip(()) * 2), torch.tensor(2.0))


def test_zeros_that_are_subtracted_or_added_keep_signs() -> None:
    """x - -0.0 was taken for x."""
    x = torch.tensor([0.0, -0.0, 1.0])

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return (y - -0.0) * 3, (y + -0.0) * 3, (y - 0.0) * 3, (y + 0.0) * 3

    for result, wanted in zip(weft.compile(program)(x), program(x), strict=True):
        assert torch.equal(result.signbit(), wanted.signbit())
