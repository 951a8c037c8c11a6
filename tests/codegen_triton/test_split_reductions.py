"""Splitting a reduction in two must not change its result (checked with the NumPy interpreter)."""

from __future__ import annotations

import numpy as np
import pytest

from tools.kernel_interpreter import run_kernel
from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, LoopVar, verify
from weft.codegen.triton.split_reductions import split_in, split_reduction
from weft.codegen.triton.tiling import choose_tiling
from weft.shapes.algebra.expr import IntExpr, loop_index, subs, symbol


def norm(points: int, row: int, *, columns: bool) -> Kernel:
    """sqrt(sum of squares) + maximum, over rows or over columns."""
    i, r = loop_index("i0", points), loop_index("r0", row)
    builder = KernelBuilder((LoopVar(i, points),), (LoopVar(r, row),))
    x = builder.load("in0", "f64", r * points + i if columns else i * row + r)
    total = builder.op("sqrt", builder.reduce("sum", builder.op("mul", x, x)))
    builder.store("out0", "f64", i, builder.op("add", total, builder.reduce("max", x)))
    return builder.build("norm")


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("points", "row"), [(1, 4096), (3, 7007), (5, 513), (64, 2000)])
def test_split_equals_whole(points: int, row: int, columns: bool) -> None:
    kernel = norm(points, row, columns=columns)
    split = split_reduction(kernel, choose_tiling(kernel))
    assert split is not None
    verify(split.first)
    verify(split.second)
    source = np.random.default_rng(0).normal(size=points * row)
    buffers = {"in0": source, "out0": np.zeros(points)}
    run_kernel(kernel, buffers)
    parts = {name: np.full(count, np.nan) for name, (_, count) in split.partials.items()}
    again = {"in0": source, "out0": np.zeros(points), **parts}
    run_kernel(split.first, again)
    run_kernel(split.second, again)
    np.testing.assert_allclose(again["out0"], buffers["out0"], rtol=1e-12)


def gradient_and_column_sums(points: int, row: IntExpr) -> Kernel:
    """A linear layer's gradient before its activation, and its column sums: the bias's gradient."""
    i, r = loop_index("i0", points), loop_index("r0", row)
    builder = KernelBuilder((LoopVar(i, points),), (LoopVar(r, row),))
    at = r * points + i
    made = builder.op("mul", builder.load("in0", "f64", at), builder.load("in1", "f64", at))
    builder.store("out0", "f64", at, made)
    builder.store("out1", "f64", i, builder.reduce("sum", made))
    return builder.build("backward")


@pytest.mark.parametrize(("points", "row"), [(1, 4096), (12, 6000), (12, 6007)])
def test_stores_inside_the_row_are_made_by_the_first_kernel(points: int, row: int) -> None:
    kernel = gradient_and_column_sums(points, row)
    split = split_reduction(kernel, choose_tiling(kernel))
    assert split is not None
    verify(split.first)
    verify(split.second)
    random = np.random.default_rng(0)
    sources = {name: random.normal(size=points * row) for name in ("in0", "in1")}
    whole = {**sources, "out0": np.zeros(points * row), "out1": np.zeros(points)}
    run_kernel(kernel, whole)
    parts = {name: np.full(count, np.nan) for name, (_, count) in split.partials.items()}
    again = {**sources, "out0": np.zeros(points * row), "out1": np.zeros(points), **parts}
    run_kernel(split.first, again)
    run_kernel(split.second, again)
    np.testing.assert_array_equal(again["out0"], whole["out0"])
    np.testing.assert_allclose(again["out1"], whole["out1"], rtol=1e-12)


def test_enough_rows_are_not_split() -> None:
    kernel = norm(100_000, 768, columns=False)
    assert split_reduction(kernel, choose_tiling(kernel)) is None


def test_softmax_is_not_split() -> None:
    i, r = loop_index("i0", 2), loop_index("r0", 50000)
    builder = KernelBuilder((LoopVar(i, 2),), (LoopVar(r, 50000),))
    x = builder.load("in0", "f32", i * 50000 + r)
    e = builder.op("exp", builder.op("sub", x, builder.reduce("max", x)))
    builder.store("out0", "f32", i * 50000 + r, builder.op("div", e, builder.reduce("sum", e)))
    kernel = builder.build("softmax")
    assert split_reduction(kernel, choose_tiling(kernel)) is None


@pytest.mark.parametrize("row", [1, 15, 16, 1000, 4099])
def test_stores_along_rows_of_symbolic_length_in_pieces(row: int) -> None:
    """They were not split: a training step of symbolic sizes ran on a dozen multiprocessors."""
    length = symbol("s0", 1)
    kernel = gradient_and_column_sums(12, length)
    split = split_in(kernel, 16)
    random = np.random.default_rng(0)
    sources = {name: random.normal(size=12 * row) for name in ("in0", "in1")}
    parts = {name: np.full(subs(count, {length: row}), np.nan)  # type: ignore[arg-type]
             for name, (_, count) in split.partials.items()}
    again = {**sources, "out0": np.zeros(12 * row), "out1": np.zeros(12), **parts}
    for part in (split.first, split.second):
        run_kernel(part, again, {str(s): row for s in part.sizes})
    np.testing.assert_array_equal(again["out0"], sources["in0"] * sources["in1"])
    np.testing.assert_allclose(again["out1"], again["out0"].reshape(row, 12).sum(0), rtol=1e-12)


@pytest.mark.parametrize("row", [1, 15, 16, 1000, 4099])
def test_rows_of_symbolic_length_in_pieces(row: int) -> None:
    length = symbol("s0", 1)
    i, r = loop_index("i0", 3), loop_index("r0", length)
    builder = KernelBuilder((LoopVar(i, 3),), (LoopVar(r, length),))
    x = builder.load("in0", "f64", r * 3 + i)
    builder.store("out0", "f64", i, builder.op("add", builder.reduce("sum", x),
                                               builder.reduce("max", x)))
    kernel = builder.build("sums")
    split = split_in(kernel, 16)
    verify(split.first)
    verify(split.second)
    source = np.random.default_rng(0).normal(size=3 * row)
    parts = {name: np.full(subs(count, {length: row}), np.nan)  # type: ignore[arg-type]
             for name, (_, count) in split.partials.items()}
    again = {"in0": source, "out0": np.zeros(3), **parts}
    for part in (split.first, split.second):
        run_kernel(part, again, {str(s): row for s in part.sizes})
    columns = source.reshape(row, 3)
    np.testing.assert_allclose(again["out0"], columns.sum(0) + columns.max(0), rtol=1e-12)


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
@pytest.mark.parametrize(("points", "row", "columns"), [(1, 4096, False), (3, 7007, True)])
def test_positions_of_extrema(kind: str, points: int, row: int, columns: bool) -> None:
    i, r = loop_index("i0", points), loop_index("r0", row)
    builder = KernelBuilder((LoopVar(i, points),), (LoopVar(r, row),))
    x = builder.load("in0", "f64", r * points + i if columns else i * row + r)
    builder.store("out0", "i64", i, builder.reduce(kind, x))
    kernel = builder.build(kind)
    split = split_in(kernel, 8)
    verify(split.first)
    verify(split.second)
    source = np.random.default_rng(0).integers(0, 50, points * row).astype(np.float64)
    source[row // 2] = np.nan
    buffers = {"in0": source, "out0": np.zeros(points, np.int64)}
    run_kernel(kernel, buffers)
    parts = {n: np.zeros(count, np.int64 if dtype == "i64" else np.float64)
             for n, (dtype, count) in split.partials.items()}
    again = {"in0": source, "out0": np.zeros(points, np.int64), **parts}
    run_kernel(split.first, again)
    run_kernel(split.second, again)
    np.testing.assert_array_equal(again["out0"], buffers["out0"])


def test_what_is_read_once_a_row_does_not_decide_the_order_of_programs() -> None:
    images, channels, pixels = 256, 64, 1024
    n, c, p = loop_index("r0", images), loop_index("i0", channels), loop_index("r1", pixels)
    inner = (LoopVar(n, images), LoopVar(p, pixels))
    builder = KernelBuilder((LoopVar(c, channels),), inner)
    x = builder.load("in0", "f32", (n * channels + c) * pixels + p)
    centred = builder.op("sub", x, builder.load("mean", "f32", c))
    builder.store("out0", "f32", c, builder.reduce("sum", builder.op("mul", centred, centred)))
    kernel = builder.build("variance")
    split = split_reduction(kernel, choose_tiling(kernel))
    assert split is not None
    tiling = choose_tiling(split.first)
    assert [a.block for a in tiling.axes if a.name == "x"] == [1]
    means = [n for n in split.first.nodes if getattr(n, "buffer", "") == "mean"]
    assert [n.inner for n in means] == [False]
