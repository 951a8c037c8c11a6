"""Complex tensors as pairs of real ones: values, strides, conjugation and gradients as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import weft
from tests.codegen.compiling import check

Z = torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, 6, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))


def rotary(x: Tensor, f: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * f[:, :3]).flatten(-2)


def arithmetic(z: Tensor, w: Tensor) -> Any:
    return z * w + z / w - w.conj(), z * 2j + 1, -z / 3, 1 / w, z == w, z != z


def functions(z: Tensor) -> Any:
    return z.abs(), z.angle(), z.real, z.imag, z.exp(), z.log(), z.reciprocal(), z.sgn()


def structure(z: Tensor, w: Tensor) -> Any:
    whole = torch.cat([z, w]).t(), z.mean(), z.sum(0), z.flip(1), z[1:, ::2] * 2
    return *whole, *(a * 2 for a in z.split(2)), *(a + 1 for a in w.unbind(0)), z.mT.conj()


def beside_real_ones(z: Tensor, x: Tensor) -> Any:
    made = torch.polar(x.abs(), x), torch.complex(x, x * 2), z.real.to(torch.complex64)
    return *made, z * x, x + z, torch.where(x > 0, z, 0.5), torch.zeros_like(z) + x


def library_calls(z: Tensor, x: Tensor) -> Any:
    filtered = torch.fft.ifft(torch.fft.fft(x) * torch.exp(-1j * x))
    return filtered.real, z @ (z * 2).mH, (z * 2).pow(2), torch.linalg.norm(z), z.prod()


@pytest.mark.parametrize("program, inputs", [
    (rotary, (X, W)), (arithmetic, (Z, W)), (functions, (Z,)), (structure, (Z, W)),
    (beside_real_ones, (Z, X)), (library_calls, (Z, X)),
], ids=lambda p: getattr(p, "__name__", ""))
@pytest.mark.parametrize("dynamic", [False, True])
def test_complex_programs(
    program: Callable[..., Any], inputs: tuple[Tensor, ...], dynamic: bool
) -> None:
    compiled = weft.compile(program, dynamic=dynamic, fullgraph=True)
    _same(compiled(*inputs), program(*inputs))
    ours, theirs = ([t.detach().clone().requires_grad_() for t in inputs] for _ in range(2))
    _loss(compiled(*ours)).backward()
    _loss(program(*theirs)).backward()
    _same([t.grad for t in ours], [t.grad for t in theirs])


def test_numbers_of_two_widths_are_compared_as_the_wider() -> None:
    wide = Z.to(torch.complex128) + 1e-12
    _same(weft.compile(lambda z, w: (z == w, w != z))(Z, wide), (Z == wide, wide != Z))


def test_parts_of_a_split_keep_their_phase() -> None:
    """A gradient that is taken apart, in the backward."""
    def program(z: Tensor) -> Tensor:
        return torch.cat([a * z[:2] for a in torch.cat([z, z * 2]).split(2)]).abs()

    ours, theirs = (Z.clone().requires_grad_() for _ in range(2))
    weft.compile(program)(ours).sum().backward()
    program(theirs).sum().backward()
    _same(ours.grad, theirs.grad)


def test_rotary_embedding_on_complex_numbers_is_one_kernel(fresh: None) -> None:
    with torch.no_grad():
        weft.compile(rotary)(X, W)
    assert weft.stats()["kernels"] == 1


def _same(found: Any, wanted: Any) -> None:
    for ours, theirs in zip(_list(found), _list(wanted), strict=True):
        assert ours.stride() == theirs.stride() and ours.is_conj() == theirs.is_conj()
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def _loss(results: Any) -> Tensor:
    used = [t for t in _list(results) if t.requires_grad]
    return torch.stack([t.abs().sum() if t.is_complex() else t.sum() for t in used]).sum()


def _list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, (list, tuple)) else [results]


def test_views_of_complex_results_and_new_zeros_are_no_library_calls() -> None:
    def padded(x: Tensor) -> Any:
        f = torch.fft.rfft(x)
        z = f.new_zeros(4, 9)
        z[:, :5] = f[:, :5]
        return torch.fft.irfft(z, 16), torch.fft.ifft(f[1:].mT.unsqueeze(0)).real

    called = {name.split(".")[1] for name in check(padded, torch.randn(4, 16)).extern_ops}
    assert called == {"_fft_r2c", "view_as_real", "view_as_complex", "_fft_c2r", "_fft_c2c"}


@pytest.mark.parametrize("dynamic", [False, True])
def test_quotients_of_zeros_and_infinities(dynamic: bool) -> None:
    """They were NaN: both were divided by the divisor's larger part, though that was 0 or infinite.
    """
    parts = torch.tensor([0.0, -0.0, 1.0, -2.0, torch.inf, -torch.inf, torch.nan, 1e30, 1e-30])
    numbers = torch.cartesian_prod(parts, parts)
    z = torch.complex(*numbers.unbind(1))
    for program in (
        lambda z: z[:, None] / z, torch.reciprocal, lambda z: z / 0, lambda z: z / 0j,
        lambda z: z / z.real, lambda z: z.real / z, lambda z: 2 / z, lambda z: z / torch.inf,
        lambda z: z / 3, lambda z: z / (3 + 1j), lambda z: (1 + 2j) / z.imag,
    ):
        found, wanted = weft.compile(program, dynamic=dynamic)(z), program(z)
        ordinary = torch.view_as_real(wanted).abs().amax(-1) < 1e29  # else eager's lanes differ
        for f, w in ((found.real, wanted.real), (found.imag, wanted.imag)):
            odd = ~w.isfinite() | ordinary
            torch.testing.assert_close(f[odd], w[odd], equal_nan=True, rtol=1e-5, atol=1e-30)


def test_the_gradient_of_a_sum_after_a_complex_layer_was_refused():
    """Expanded gradients have strides of zero, with which pairs were not innermost."""
    layer = torch.nn.Linear(10, 10, dtype=torch.complex64)

    def program(x):
        return layer(x).sum().abs()

    x, found = torch.randn(3, 4, 10, dtype=torch.complex64), []
    for call in (program, weft.compile(program)):
        layer.zero_grad()
        call(x).backward()
        found.append([layer.weight.grad.clone(), layer.bias.grad.clone()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
