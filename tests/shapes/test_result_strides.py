"""Strides that fakes promise for results against those that eager's kernels give.

`heaviside`, `copysign`, `xlogy`, the logical operators and others had those of row-major memory, or
of their operand, where the kernels have the other: code that was compiled for a view failed, or a
result had other strides than eager's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from weft._torch import OpOverload, tree_flatten
from weft.aot.evaluate import Evaluator

aten = torch.ops.aten

COLUMNS = torch.randn(5, 4).t()
OPERANDS = (COLUMNS, torch.randn(4, 5), torch.randn(5), torch.randn(1, 5).expand(4, 5),
            torch.tensor(2.0))
COMPOSITE = {aten.ldexp.Tensor, aten.float_power.Tensor_Tensor}
"""They are recorded as the operators that they call."""


def pointwise_operators() -> Iterator[tuple[OpOverload, list[str]]]:
    """Those that return one tensor, with the kinds of their arguments."""
    for name in dir(aten):
        packet = getattr(aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            op = getattr(packet, overload)
            if op in COMPOSITE or op._schema.is_mutable or torch.Tag.pointwise not in op.tags:
                continue
            kinds = [str(a.type) for a in op._schema.arguments if not a.has_default_value()]
            results = [(str(r.type), r.alias_info) for r in op._schema.returns]
            if results == [("Tensor", None)] and {"Tensor"} <= {*kinds} <= {
                    "Tensor", "number", "float"}:
                yield op, kinds


def strides(tensor: torch.Tensor) -> list[int]:
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=str)
def test_pointwise_results_of_mixed_layouts(dtype: torch.dtype) -> None:
    evaluator = Evaluator.current()
    n_calls = 0
    for op, kinds in pointwise_operators():
        count = kinds.count("Tensor")
        for chosen in itertools.product(OPERANDS, repeat=min(count, 2)):
            tensors = iter([t.to(dtype) for t in (*chosen, *chosen[:1] * (count - len(chosen)))])
            args: list[Any] = [next(tensors) if k == "Tensor" else 2 for k in kinds]
            fakes = [evaluator.intern(a) if isinstance(a, torch.Tensor) else a for a in args]
            try:
                wanted, promised = op(*args), evaluator.run(op, fakes, {}).value
            except Exception:  # of another type, which both or the kernel refuses
                continue
            n_calls += 1
            assert promised.dtype == wanted.dtype, op
            assert strides(promised) == strides(wanted), (op, [strides(a) for a in args
                                                              if isinstance(a, torch.Tensor)])
    assert n_calls > (1200 if dtype is torch.float32 else 250)


def test_results_of_columns() -> None:
    z, i = COLUMNS.to(torch.complex64) * 1j, torch.arange(6).view(2, 3).t()

    def program(x, z, i):
        y = x.exp()
        return (
            z.angle(), z.abs(), z.sgn(), torch.isin(x, x[0]), 2**x, F.logsigmoid(x), F.rrelu(x),
            F.one_hot(i, 7), torch.copysign(x, y.contiguous()), torch.heaviside(x, y),
            torch.heaviside(x, y[0]), z.diagonal() * 2, torch.meshgrid(z[0], z[1], indexing="xy"),
        )

    results = tree_flatten(weft.compile(program)(COLUMNS, z, i))[0]
    for result, wanted in zip(results, tree_flatten(program(COLUMNS, z, i))[0], strict=True):
        assert result.stride() == wanted.stride()
        torch.testing.assert_close(result, wanted)


IMAGES = {4: torch.channels_last, 5: torch.channels_last_3d}


def images(*shape: int) -> Iterator[torch.Tensor]:
    """Of one shape, in all layouts that kernels of norms tell apart."""
    batch, channels, *pixels = shape
    yield torch.randn(shape)
    yield torch.randn(*shape[:-2], shape[-1], shape[-2]).mT
    yield torch.randn(channels, batch, *pixels).transpose(0, 1)
    yield torch.randn(1, *shape[1:]).expand(shape)
    yield torch.randn(batch, 2 * channels, *pixels)[:, ::2]
    if form := IMAGES.get(len(shape)):
        image = torch.randn(2 * batch, 2 * channels, *pixels).contiguous(memory_format=form)
        yield from (image[:batch, :channels], image[:, :channels][::2],
                    torch.randn(shape).contiguous(memory_format=form),
                    torch.randn(shape).contiguous(memory_format=form).mT)


def norms(x: torch.Tensor) -> Iterator[tuple[OpOverload, tuple[Any, ...]]]:
    batch, channels = x.shape[:2]
    running = (torch.zeros(channels), torch.ones(channels))
    for w in (None, torch.randn(channels)):
        yield aten.native_group_norm.default, (
            x, w, w, batch, channels, x[0, 0].numel(), 2, 1e-5)
        yield aten.native_batch_norm.default, (x, w, w, *running, True, 0.1, 1e-5)
        yield aten._native_batch_norm_legit.no_stats, (x, w, w, True, 0.1, 1e-5)
        yield aten._native_batch_norm_legit_functional.default, (
            x, w, w, *running, True, 0.1, 1e-5)
        yield aten._native_batch_norm_legit_no_training.default, (x, w, w, *running, 0.1, 1e-5)
    for sizes in (x.shape[-1:], x.shape[-2:]):
        yield aten.native_layer_norm.default, (x, sizes, None, None, 1e-5)
        yield aten._fused_rms_norm.default, (x, sizes, torch.randn(sizes), 1e-5)


@pytest.mark.parametrize("shape", [
    (3, 4, 6, 5), (1, 4, 6, 1), (3, 4, 5), (2, 4, 3, 5, 6)], ids=str)
def test_norms_of_images_in_all_layouts(shape: tuple[int, ...]) -> None:
    """PyTorch 2.14's rule for group norms gives row-major results of channels-last images."""
    evaluator = Evaluator.current()
    n_calls = 0
    for x in images(*shape):
        for op, args in norms(x):
            fakes = [evaluator.intern(a) if isinstance(a, torch.Tensor) else a for a in args]
            try:
                results = op(*args)
            except RuntimeError:  # before 2.14 group norms refused images with gaps
                continue
            n_calls += 1
            for promised, wanted in zip(evaluator.run(op, fakes, {}).value, results, strict=True):
                assert promised.shape == wanted.shape and promised.dtype == wanted.dtype, op
                assert strides(promised) == strides(wanted), (op, x.shape, x.stride())
    assert n_calls > 60


@pytest.mark.parametrize("layout", [0, 1, 5, 7], ids=["rows", "columns", "slice", "channels last"])
def test_group_norms_of_images_whose_sizes_change(layout: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.group_norm(x, 2) + 1

    compiled = weft.compile(program, dynamic=True)
    for shape in ((3, 4, 6, 5), (2, 4, 8, 9)):
        x = list(images(*shape))[layout]
        assert strides(compiled(x)) == strides(program(x))
        torch.testing.assert_close(compiled(x), program(x))
