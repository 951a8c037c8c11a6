"""Gathers and scatters on CPUs: what becomes a kernel, and indices at the ends of rows."""

from __future__ import annotations

import pytest
import torch

from tests.codegen.compiling import check, compiled


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 9, 17])
def test_computed_indices_behind_the_end_of_a_row_are_not_tested(n: int) -> None:
    """Lanes behind the end hold the index 5, which is outside."""
    check(lambda x, i: x[:, i + 5] + 1, torch.randn(3, 5), torch.randint(-10, 0, (n,)))


@pytest.mark.parametrize("bad", [35, -46, 2**62, -(2**63)])
def test_indices_outside_raise(bad: int) -> None:
    for n in (1, 4, 6):
        index = torch.full((n,), 3)
        index[-1] = bad
        call, _ = compiled(lambda x, i: x[:, i] + 1, torch.randn(5, 35), index)
        with pytest.raises(IndexError):
            call([torch.randn(5, 35), index])


def test_gathers_within_rows_were_slower_than_eager() -> None:
    x, at = torch.randn(20, 30), torch.randint(20, (20, 30))
    assert not check(lambda x, i: x.gather(1, i), x, at).kernels
    assert not check(lambda x, i: x.index_select(1, i), x, at[0]).kernels
    assert check(lambda x, i: x.gather(1, i) + 1, x, at).kernels
    assert check(lambda x, i: x.gather(0, i), x, at).kernels


def test_sums_at_places_within_rows_were_slower_than_eager() -> None:
    x, at = torch.randn(20, 30), torch.randint(20, (20, 30))
    assert not check(lambda x, i, s: x.scatter_add(1, i, s), x, at, x.exp()).kernels
    assert check(lambda x, i, s: x.scatter_add(0, i, s), x, at, x.exp()).kernels
    assert check(lambda x, i, s: x.scatter_add(1, i, s.exp()), x, at, x).kernels


def test_one_row_was_compared_with_every_place() -> None:
    x, at = torch.randn(20, 30), torch.randint(20, (1, 30))
    assert not check(lambda x, i, s: x.scatter(0, i, s), x, at, x[:1].clone()).kernels
    assert check(lambda x, i: torch.zeros_like(x).scatter(0, i, 1), x, at).kernels


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("moved", [
    lambda x, mask: x.flip(0), lambda x, mask: torch.cat([x, x.roll(1, 1)]),
    lambda x, mask: torch.nn.functional.pad(x, (1, 2), value=1.5),
    lambda x, mask: torch.where(mask, x, x[0, 0]), lambda x, mask: x.t().contiguous(),
])
def test_moved_halves_were_converted_there_and_back(moved, dtype: torch.dtype) -> None:
    """Which also changed the bits of NaNs."""
    x = torch.arange(-300, 300).to(torch.int16).mul(109).view(10, 60).view(dtype)
    mask = torch.rand(10, 60) > 0.5
    call, artifact = compiled(moved, x, mask)
    result = call([x, mask])
    assert torch.equal(result.view(torch.int16), moved(x, mask).view(torch.int16))
    assert all(b.dtype in ("i16", "bool") for k in artifact.kernels for b in k.buffers)
    check(moved, torch.randn(10, 60).to(dtype), mask, oracle=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changed", [
    lambda x, mask: -x, lambda x, mask: x.abs().roll(1, 0),
    lambda x, mask: torch.where(mask, x, -x).copysign(x.flip(0)),
    lambda x, mask: torch.where(mask, x.copysign(-1.0), 0.1),
])
def test_signs_of_halves_were_changed_in_float32(changed, dtype: torch.dtype) -> None:
    x = torch.randn(10, 60).to(dtype)
    x[0, :4] = torch.tensor([0.0, -0.0, float("inf"), float("-inf")])
    mask = torch.rand(10, 60) > 0.5
    call, artifact = compiled(changed, x, mask)
    result = call([x, mask])
    assert torch.equal(result.view(torch.int16), changed(x, mask).view(torch.int16))
    assert all(b.dtype in ("i16", "bool") for k in artifact.kernels for b in k.buffers)
    check(changed, x, mask, oracle=True)
