"""Loop nests: layouts, broadcasts, sizes around the vector length, reductions, masks, indirect
indices.
"""

from __future__ import annotations

import random
from math import prod

import pytest
import torch

from tests.codegen_cpp.checking import Buffers, builder, check, check_all, flat
from weft.codegen.cpp import compile_kernels, source_of
from weft.codegen.cpp.plan import FEW_ROWS
from weft.codegen.ir.dtypes import to_torch
from weft.codegen.ir.loop_ir import Indirect, Kernel, KernelBuilder
from weft.codegen.ir.scalar_ops import REDUCTIONS
from weft.config import config
from weft.shapes.algebra.expr import IntExpr, symbol

LENGTHS = (1, 3, 15, 16, 17, 64, 100, 257)


def zeros(n: int, dtype: str) -> torch.Tensor:
    return torch.zeros(n, dtype=to_torch(dtype))


def values(n: int, dtype: str = "f32") -> torch.Tensor:
    if dtype == "bool":
        return torch.rand(n) < 0.5
    if dtype in ("f32", "f64", "bf16", "f16"):
        return torch.randn(n, dtype=torch.float64).to(to_torch(dtype))
    return torch.randint(0, 20, (n,)).to(to_torch(dtype))


def test_pointwise_of_every_length() -> None:
    def case(n: int) -> tuple[Kernel, Buffers]:
        b = builder([n])
        i = flat(b.outer)
        b.store("o", "f32", i, b.op("mul", b.load("x", "f32", i), b.load("y", "f32", i)))
        return b.build("mul"), {"x": values(n), "y": values(n), "o": zeros(n, "f32")}

    check_all([case(n) for n in LENGTHS])


def test_functions_called_often_are_not_inlined() -> None:
    """Hundreds of sines took the compiler seconds."""
    b = builder([40])
    i = flat(b.outer)
    x = b.load("x", "f32", i)
    for _ in range(6):
        x = b.op("maximum", b.op("sin", x), b.op("cos", x))
    b.store("o", "f32", i, x)
    kernel = b.build("sines")
    check(kernel, {"x": values(40), "o": zeros(40, "f32")})
    assert "= sin(" not in source_of(kernel)


def test_broadcast_strided_and_transposed_loads() -> None:
    b = builder([5, 7, 33])
    i, j, k = (v.symbol for v in b.outer)
    total = b.load("row", "f32", k)
    for name, index in {
        "column": j, "plane": i, "transposed": k * 35 + j * 5 + i,
        "every_third": (i * 7 + j) * 99 + 3 * k,
        "reversed": (i * 7 + j) * 33 + 32 - k,
    }.items():
        total = b.op("add", total, b.load(name, "f32", index))
    b.store("o", "f32", flat(b.outer), total)
    n = 5 * 7 * 33
    check(b.build("mixed"), {
        "row": values(33), "column": values(7), "plane": values(5), "transposed": values(n),
        "every_third": values(3 * n), "reversed": values(n), "o": zeros(n, "f32")})


def test_transposed_loads_go_through_tiles() -> None:
    def transpose(b_: int, m: int, n: int, dtype: str) -> tuple[Kernel, Buffers]:
        b = builder([b_, m, n])
        i, j, k = (v.symbol for v in b.outer)
        x = b.load("x", dtype, i * m * n + k * m + j)
        b.store("o", dtype, flat(b.outer), b.op("maximum", x, b.load("y", dtype, flat(b.outer))))
        kernel = b.build("transpose")
        assert "transpose_tile" in source_of(kernel)
        size = b_ * m * n
        return kernel, {"x": values(size, dtype), "y": values(size, dtype), "o": zeros(size, dtype)}

    check_all([
        transpose(2, 70, 150, "f32"), transpose(1, 64, 64, "f32"), transpose(3, 100, 33, "bf16"),
        transpose(2, 40, 90, "f64"), transpose(1, 50, 70, "u8"), transpose(1, 50, 70, "bool"),
    ])


def test_results_in_two_layouts_go_through_tiles() -> None:
    """One of them was scattered: 20 times the time where its rows lie a power of two apart."""
    b = builder([2, 70, 33])
    k, i, j = (v.symbol for v in b.outer)
    x = b.op("neg", b.load("x", "f32", flat(b.outer)))
    b.store("o", "bf16", flat(b.outer), x)
    b.store("turned", "f32", k * 70 * 33 + j * 70 + i, b.op("exp", x))
    kernel = b.build("both")
    assert "transpose_tile" in source_of(kernel)
    n = 2 * 70 * 33
    check(kernel, {"x": values(n), "o": zeros(n, "bf16"), "turned": zeros(n, "f32")})


def test_norm_over_strided_channels_goes_through_tiles() -> None:
    b = builder([2, 49], [96])
    (n, h), (c,) = (v.symbol for v in b.outer), (v.symbol for v in b.inner)
    x = b.load("x", "f32", n * 4704 + c * 49 + h)
    d = b.op("sub", x, b.op("mul", b.reduce("sum", x), b.const(1 / 96, "f32")))
    scale = b.op("rsqrt", b.reduce("sum", b.op("mul", d, d)))
    b.store("o", "f32", n * 4704 + h * 96 + c, b.op("mul", d, scale))
    kernel = b.build("channels_last_norm")
    assert "transpose_tile" in source_of(kernel)
    check(kernel, {"x": values(9408), "o": zeros(9408, "f32")})


def test_index_with_division_and_remainder() -> None:
    b = builder([6, 48])
    i, j = (v.symbol for v in b.outer)
    x = b.load("x", "f32", (j // 8) * 48 + i * 8 + j % 8)
    b.store("o", "f32", i * 48 + j, b.op("neg", x))
    check(b.build("heads"), {"x": values(288), "o": zeros(288, "f32")})


def test_mixed_types_in_one_kernel() -> None:
    n = 77
    b = builder([n])
    i = flat(b.outer)
    total = b.cast(b.load("half", "bf16", i), "f64")
    for name, dtype in {"d": "f64", "l": "i64", "s": "i8", "m": "bool"}.items():
        total = b.op("add", total, b.cast(b.load(name, dtype, i), "f64"))
    b.store("o", "f64", i, total)
    b.store("p", "bf16", i, b.cast(total, "f32"))
    b.store("q", "bool", i, b.op("gt", total, b.const(3.0, "f64")))
    check(b.build("mixed"), {
        "half": values(n, "bf16"), "d": values(n, "f64"), "l": values(n, "i64"),
        "s": values(n, "i8"), "m": values(n, "bool"), "o": zeros(n, "f64"), "p": zeros(n, "bf16"),
        "q": zeros(n, "bool")})


def test_wide_constants_beside_narrow_vectors() -> None:
    """A 64-bit constant stored beside 32-bit values: a vector of it must fit a register."""
    n = 37
    b = builder([n])
    i = flat(b.outer)
    b.store("o", "f32", i, b.op("neg", b.load("x", "f32", i)))
    b.store("p", "i64", i, b.const(7, "i64"))
    rows = builder([5], [n])
    (j,), (r,) = (v.symbol for v in rows.outer), (v.symbol for v in rows.inner)
    rows.store("o", "f32", j, rows.reduce("max", rows.load("x", "f32", j * n + r)))
    rows.store("count", "i64", j, rows.reduce("sum", rows.const(1, "i64")))
    check_all([
        (b.build("neg"), {"x": values(n), "o": zeros(n, "f32"), "p": zeros(n, "i64")}),
        (rows.build("count"), {"x": values(5 * n), "o": zeros(5, "f32"), "count": zeros(5, "i64")}),
    ])


def test_symbolic_sizes() -> None:
    s0, s1 = symbol("s0", 1), symbol("s1", 1)
    b = builder([s0, s1])
    i, j = (v.symbol for v in b.outer)
    x = b.load("x", "f32", i * s1 + j)
    b.store("o", "f32", i * s1 + j, b.op("add", x, b.cast(b.index(i * s1 + j), "f32")))
    rows = builder([s0], [s1])
    (i,), (r,) = (v.symbol for v in rows.outer), (v.symbol for v in rows.inner)
    x = rows.load("x", "f32", i * s1 + r)
    e = rows.op("exp", rows.op("sub", x, rows.reduce("max", x)))
    rows.store("o", "f32", i * s1 + r, rows.op("div", e, rows.reduce("sum", e)))
    kernels = [b.build("iota"), rows.build("softmax")]
    for m, n in ((1, 1), (3, 40), (9, 129), (2, 70000)):
        check_all(
            [(k, {"x": values(m * n), "o": zeros(m * n, "f32")}) for k in kernels],
            {"s0": m, "s1": n})


def reduction_case(
    kind: str, dtype: str, outer: int, inner: int, contiguous: str
) -> tuple[Kernel, Buffers]:
    b = builder([outer], [inner])
    (i,), (r,) = (v.symbol for v in b.outer), (v.symbol for v in b.inner)
    index: IntExpr = i * inner + r if contiguous == "inner" else r * outer + i
    assert not isinstance(index, int)
    result = b.reduce(kind, b.load("x", dtype, index))
    b.store("o", result.dtype, i, result)
    x = values(outer * inner, dtype)
    if kind == "prod" and dtype in ("f32", "f64"):
        x = 1 + x * 0.01
    return b.build(f"{kind}_{dtype}"), {"x": x, "o": zeros(outer, result.dtype)}


@pytest.mark.parametrize("contiguous", ["inner", "outer"])
@pytest.mark.parametrize("kind", list(REDUCTIONS))
def test_reductions(kind: str, contiguous: str) -> None:
    torch.manual_seed(0)  # else 513 numbers now and then have a sum near 0, which order decides
    dtypes = ["bool"] if kind in ("any", "all") else ["f32", "f64", "i64", "i32", "u8"]
    lengths = (1, 5, 100) if dtypes == ["bool"] else (100,)
    cases = [reduction_case(kind, d, 37, n, contiguous) for d in dtypes for n in lengths]
    if kind not in ("any", "all"):
        shapes = ((1, 7), (70, 3), (2, 513))
        cases += [reduction_case(kind, "f32", m, n, contiguous) for m, n in shapes]
    check_all(cases)


@pytest.mark.parametrize("contiguous", ["inner", "outer"])
@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_nan_and_ties_in_extremes(kind: str, contiguous: str) -> None:
    cases = []
    for n in (40, 70):
        kernel, buffers = reduction_case(kind, "f32", 24, n, contiguous)
        x = buffers["x"].round()
        x[torch.randint(0, len(x), (24,))] = float("nan")
        x[torch.randint(0, len(x), (24,))] = float("inf")
        cases.append((kernel, {**buffers, "x": x}))
        kernel, buffers = reduction_case(kind, "f32", 3, n, contiguous)
        cases.append((kernel, {**buffers, "x": torch.full_like(buffers["x"], -float("inf"))}))
    check_all(cases)


def test_reduction_over_nothing() -> None:
    b = builder([5], [0])
    (i,), (r,) = (v.symbol for v in b.outer), (v.symbol for v in b.inner)
    x = b.load("x", "f32", i + r)
    b.store("s", "f32", i, b.reduce("sum", x))
    b.store("p", "f32", i, b.reduce("prod", x))
    check(b.build("empty"), {"x": values(5), "s": values(5), "p": values(5)})


def test_long_float_sums_are_accurate() -> None:
    for shape in ((1, 1 << 20), (3, 300_000)):
        for contiguous in ("inner", "outer"):
            kernel, buffers = reduction_case("sum", "f32", *shape, contiguous)
            x = torch.rand(shape[0] * shape[1])
            check(kernel, {**buffers, "x": x})


@pytest.mark.parametrize("kind", ["argmax", "max", "sum"])
def test_few_points_share_their_long_reduction_between_threads(kind: str) -> None:
    cases = []
    for dtype in ("f32", "i64"):
        for shape in ((1, 70_001), (5, 40_000)):
            for contiguous in ("inner", "outer"):
                kernel, buffers = reduction_case(kind, dtype, *shape, contiguous)
                x = buffers["x"].abs() if kind == "sum" else buffers["x"]  # no cancellation
                cases.append((kernel, {**buffers, "x": x}))
    check_all(cases)


def test_symbolic_full_reduction() -> None:
    n = symbol("s0", 0)
    b = builder([], [n])
    x = b.load("x", "f32", b.inner[0].symbol)
    b.store("o", "f32", 0, b.reduce("sum", x))
    kernel = b.build("total")
    for size in (1, 5, 100_003):
        x = values(size).abs()  # no cancellation
        check_all([(kernel, {"x": x, "o": zeros(1, "f32")})], {"s0": size})


def test_comparisons_of_the_vectorised_variable_cut_the_loop() -> None:
    """Rotary embedding, concatenation: halves of a row come from different places."""

    def case(n: int, cut: int) -> tuple[Kernel, Buffers]:
        b = builder([3, n])
        i, j = (v.symbol for v in b.outer)
        left = b.op("lt", b.index(j), b.const(cut, "i64"))
        with b.masked(left, 0.0):
            x = b.load("x", "f32", i * cut + j)
        with b.masked(b.op("not_", left), 0.0):
            y = b.load("y", "f32", i * (n - cut) + j - cut)
        late = b.op("ge", b.const(n - 5, "i64"), b.index(j))
        z = b.op("where", late, b.op("where", left, x, b.op("neg", y)), b.const(9.0, "f32"))
        b.store("o", "f32", i * n + j, z)
        buffers = {"x": values(3 * cut), "y": values(3 * (n - cut)), "o": zeros(3 * n, "f32")}
        return b.build("cat"), buffers

    check_all([case(n, cut) for n, cut in ((64, 32), (50, 7), (10_000, 4100), (9, 2))])


def test_causal_mask_compares_two_loop_variables() -> None:
    b = builder([20], [37])
    (i,), (r,) = (v.symbol for v in b.outer), (v.symbol for v in b.inner)
    seen = b.op("le", b.index(r), b.index(i + 5))
    x = b.op("where", seen, b.load("x", "f32", i * 37 + r), b.const(-float("inf"), "f32"))
    e = b.op("exp", b.op("sub", x, b.reduce("max", x)))
    b.store("o", "f32", i * 37 + r, b.op("div", e, b.reduce("sum", e)))
    check(b.build("causal"), {"x": values(740), "o": zeros(740, "f32")})


def test_reduction_over_two_loops() -> None:
    b = builder([6], [4, 50])
    (i,), (r, q) = (v.symbol for v in b.outer), (v.symbol for v in b.inner)
    x = b.load("x", "f32", r * 300 + i * 50 + q)
    mean = b.op("mul", b.reduce("sum", x), b.const(1 / 200, "f32"))
    d = b.op("sub", x, mean)
    b.store("var", "f32", i, b.reduce("sum", b.op("mul", d, d)))
    b.store("arg", "i64", i, b.reduce("argmax", x))
    b.store("o", "f32", r * 300 + i * 50 + q, b.op("exp", d))
    check(b.build("channels"), {"x": values(1200), "var": zeros(6, "f32"), "arg": zeros(6, "i64"),
                                "o": zeros(1200, "f32")})


def norm_kernel(b: KernelBuilder, dtype: str, n: int) -> Kernel:
    """Residual add, layer norm, tanh: three loop nests and values worth keeping."""
    (i,), (r,) = (v.symbol for v in b.outer), (v.symbol for v in b.inner)
    index = i * n + r
    x = b.op("add", b.load("x", dtype, index), b.load("y", dtype, index))
    mean = b.op("mul", b.reduce("sum", x), b.const(1 / n, "f32"))
    d = b.op("sub", x, mean)
    variance = b.op("mul", b.reduce("sum", b.op("mul", d, d)), b.const(1 / n, "f32"))
    scale = b.op("rsqrt", b.op("add", variance, b.const(1e-5, "f32")))
    y = b.op("mul", b.op("mul", d, scale), b.load("w", dtype, r))
    y = b.op("add", y, b.load("b", dtype, r))
    b.store("o", dtype, index, b.op("tanh", y))
    b.store("mean", "f32", i, mean)
    return b.build("norm")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("n", [10, 64, 200])
def test_layer_norm(dtype: str, n: int) -> None:
    buffers = {k: values(9 * n, dtype) for k in ("x", "y", "o")}
    buffers |= {k: values(n, dtype) for k in ("w", "b")}
    check(norm_kernel(builder([9], [n]), dtype, n), {**buffers, "mean": zeros(9, "f32")})


def test_masked_loads_do_not_read_outside() -> None:
    """Padding: the mask guards memory that does not exist; also a mask that is the same in all
    lanes.
    """
    n, m = 70, 5
    b = builder([m, n])
    i, j = (v.symbol for v in b.outer)
    inside = b.op("and_", b.op("ge", b.index(j - 3), b.const(0, "i64")),
                  b.op("lt", b.index(j - 3), b.const(60, "i64")))
    row = b.op("lt", b.index(i), b.const(4, "i64"))
    with b.masked(inside, 7.0):
        x = b.load("x", "f32", i * 60 + j - 3)
    with b.masked(row, -1.0):
        y = b.load("y", "f32", i * n + j)
        with b.masked(inside, 2.0):
            z = b.load("z", "f32", (i * 60 + j - 3) * 2)
    b.store("o", "f32", i * n + j, b.op("add", b.op("add", x, y), z))
    check(b.build("pad"), {"x": values(300), "y": values(4 * n), "z": values(600),
                           "o": zeros(m * n, "f32")})


def embedding(check_range: bool = True) -> Kernel:
    b = builder([9, 40])
    i, j = (v.symbol for v in b.outer)
    row = b.indirect(b.load("index", "i64", i), 12, wrap=True, check=check_range)
    b.store("o", "f32", i * 40 + j, b.load("table", "f32", row * 40 + j))
    return b.build("embedding")


def test_indirect_loads() -> None:
    index = torch.tensor([0, 11, -1, -12, 5, 5, 3, 2, 1])
    check(embedding(), {"index": index, "table": values(480), "o": zeros(360, "f32")})


@pytest.mark.parametrize("bad", [12, -13, 2**40])
def test_index_out_of_range_raises_index_error(bad: int) -> None:
    run = compile_kernels([embedding()])[0]
    index = torch.zeros(9, dtype=torch.int64)
    index[7] = bad
    with pytest.raises(IndexError, match="out of range"):
        run(index, values(480), zeros(360, "f32"))


def test_indirect_along_the_vector() -> None:
    """gather(x, 0, index): every lane has its own index; the tail's lanes must not be checked."""
    b = builder([3, 21])
    i, j = (v.symbol for v in b.outer)
    row = b.indirect(b.load("index", "i64", i * 21 + j), 50, wrap=False, check=True)
    b.store("o", "f32", i * 21 + j, b.load("x", "f32", row * 21 + j))
    run = b.build("gather")
    buffers = {"index": torch.randint(0, 50, (63,)), "x": values(1050), "o": zeros(63, "f32")}
    check(run, buffers)
    buffers["index"][62] = 50
    with pytest.raises(IndexError):
        compile_kernels([run])[0](*(buffers[a.name] for a in run.buffers))


@pytest.mark.parametrize("index", ["i64", "i32"])
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "i64", "u8"])
def test_sums_of_indices_and_steps_are_gathered(dtype: str, index: str) -> None:
    """Two indices in memory and the loop itself, with slopes, beneath a mask too."""
    b = builder([3, 37])
    i, j = (v.symbol for v in b.outer)
    row = b.indirect(b.load("rows", index, j), 40, wrap=True, check=True)
    column = b.indirect(b.load("columns", index, i * 37 + j), 40, wrap=False, check=True)
    place = 40 * row + column - 3 * j + 120
    b.store("all", dtype, i * 37 + j, b.load("x", dtype, place))
    some = b.op("ne", b.load("rows", index, j), b.const(7, index))
    with b.masked(some, 3):
        b.store("some", dtype, i * 37 + j, b.load("x", dtype, place))
    b.store("far", dtype, i * 37 + j, b.load("x", dtype, 1700 - 45 * j))
    rows, columns = torch.arange(-37, 0) % 40 - 40, torch.randint(0, 40, (111,))
    rows[::5] = 7
    check(b.build("gathered"), {
        "rows": rows.to(to_torch(index)), "columns": columns.to(to_torch(index)),
        "x": values(1760, dtype), "all": zeros(111, dtype), "some": zeros(111, dtype),
        "far": zeros(111, dtype)})


def test_dear_parts_of_a_short_row_have_vectors_of_their_own() -> None:
    b = builder([5, 16])
    i, j = (v.symbol for v in b.outer)
    first = b.op("lt", b.index(j), b.const(8, "i64"))
    x = b.load("x", "f32", i)
    o = b.op("where", first, b.op("sin", x), b.op("cos", x))
    b.store("o", "f32", i * 16 + j, o)
    kernel = b.build("sines")
    check(kernel, {"x": values(5), "o": zeros(80, "f32")})


def test_a_resolved_index_is_a_value_too() -> None:
    """An index after wrapping, compared and stored: uniform and along the vector."""
    b = builder([3, 40])
    i, j = (v.symbol for v in b.outer)
    row = b.indirect(b.load("rows", "i64", i), 3, wrap=True, check=True)
    column = b.indirect(b.load("columns", "i64", j), 40, wrap=True, check=True)
    both = [n for n in b.nodes if isinstance(n, Indirect)]
    b.store("o", "f32", i * 40 + j, b.load("x", "f32", row * 40 + column))
    b.store("seen", "bool", i * 40 + j, b.op("le", both[1], both[0]))
    b.store("row", "i64", i * 40 + j, both[0])
    check(b.build("index_values"), {
        "rows": torch.tensor([2, -1, 0]), "columns": torch.arange(-40, 0), "x": values(120),
        "o": zeros(120, "f32"), "seen": zeros(120, "bool"), "row": zeros(120, "i64")})


def test_accumulating_stores_with_equal_indices() -> None:
    b = builder([30, 20])
    i, j = (v.symbol for v in b.outer)
    row = b.indirect(b.load("index", "i64", i), 4, wrap=False, check=True)
    b.store("o", "f32", row * 20 + j, b.load("x", "f32", i * 20 + j), mode="add")
    lanes = builder([600])
    k = flat(lanes.outer)
    cell = lanes.indirect(lanes.load("index", "i64", k), 4, wrap=False, check=True)
    lanes.store("o", "i32", cell, lanes.load("x", "i32", k), mode="add")
    check_all([
        (b.build("index_add"), {"index": torch.randint(0, 4, (30,)), "x": values(600),
                                "o": values(80)}),
        (lanes.build("histogram"), {"index": torch.randint(0, 4, (600,)), "x": values(600, "i32"),
                                    "o": values(4, "i32")}),
    ])


def test_many_threads_share_large_domains() -> None:
    b = builder([1 << 20])
    i = flat(b.outer)
    b.store("o", "f32", i, b.op("add", b.load("x", "f32", i), b.const(1.0, "f32")))
    x, o = torch.rand(1 << 20), zeros(1 << 20, "f32")
    compile_kernels([b.build("add1")])[0](x, o)
    assert torch.equal(o, x + 1)


@pytest.mark.parametrize("simd", ["avx512", "avx2", "portable"])
def test_every_instruction_set(simd: str) -> None:
    from weft.runtime.cpp_build import _best_simd

    order = ["portable", "avx2", "avx512"]
    if order.index(simd) > order.index(_best_simd()):
        pytest.skip(f"this machine has no {simd}")
    with config.patch(simd=simd):
        buffers = {k: values(9 * 70, "f16") for k in ("x", "y", "o")}
        buffers |= {"w": values(70, "f16"), "b": values(70, "f16"), "mean": zeros(9, "f32")}
        check(norm_kernel(builder([9], [70]), "f16", 70), buffers)
        check_all([reduction_case(k, d, 19, 41, c) for k in ("sum", "max", "argmax")
                   for d in ("f32", "u8") for c in ("inner", "outer")])
        from tests.codegen_cpp.test_operators import operator_kernel

        check(*operator_kernel("f32", 40))
        check(*operator_kernel("f64", 40))


@pytest.mark.parametrize("seed", range(6))
def test_random_kernels(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    check_all([random_case(rng) for _ in range(6)])


def random_case(rng: random.Random) -> tuple[Kernel, Buffers]:
    """A random DAG over random loops with random layouts, reductions and masks."""
    outer = [rng.choice((1, 2, 5, 17, 40)) for _ in range(rng.randint(1, 3))]
    inner = [rng.choice((1, 3, 16, 33)) for _ in range(rng.randint(0, 2))]
    b = builder(outer, inner)
    variables = [*b.outer, *b.inner]
    buffers: dict[str, torch.Tensor] = {}

    def load() -> None:
        order = rng.sample(variables, rng.randint(1, len(variables)))
        name = f"x{len(buffers)}"
        dtype = rng.choice(("f32", "f32", "f32", "bf16", "f64", "i32"))
        size = 1
        for v in order:
            assert isinstance(v.extent, int)
            size *= v.extent
        buffers[name] = values(size, dtype)
        b_value = b.load(name, dtype, flat(order))
        nodes.append(b.cast(b_value, "f32"))

    nodes: list = []
    for _ in range(rng.randint(1, 4)):
        load()
    for _ in range(rng.randint(2, 12)):
        choice = rng.random()
        if choice < 0.55:
            operator = rng.choice(("add", "sub", "mul", "maximum"))
            nodes.append(b.op(operator, *rng.choices(nodes, k=2)))
        elif choice < 0.75:
            nodes.append(b.op(rng.choice(("tanh", "sigmoid", "abs", "neg")), rng.choice(nodes)))
        elif choice < 0.85:
            condition = b.op("lt", *rng.choices(nodes, k=2))
            nodes.append(b.op("where", condition, *rng.choices(nodes, k=2)))
        elif inner:
            x = b.op("tanh", rng.choice(nodes))
            nodes.append(b.reduce(rng.choice(("sum", "max", "min")), x))
    outputs = [nodes[-1], *rng.sample(nodes, min(2, len(nodes)))]
    for value in outputs:
        name, inner_store = f"o{len(buffers)}", value.inner or (bool(inner) and rng.random() < 0.3)
        chosen = variables if inner_store else list(b.outer)
        rng.shuffle(chosen := list(chosen))
        size = 1
        for v in chosen:
            assert isinstance(v.extent, int)
            size *= v.extent
        buffers[name] = zeros(size, "f32")
        b.store(name, "f32", flat(chosen), value, inner=inner_store)
    return b.build("random"), buffers


def test_neighbouring_columns_are_reduced_row_by_row() -> None:
    """A gradient and its column sums: more rows than one partial sum holds, ends of every kind."""

    def case(
        n: IntExpr, rows: tuple[int, ...], columns: IntExpr, dtype: str, size: int
    ) -> tuple[Kernel, Buffers]:
        b = builder([n, columns], rows)
        (k, i), inner = (v.symbol for v in b.outer), flat(b.inner)
        index = (k * prod(rows) + inner) * columns + i
        x = b.load("x", dtype, index)
        y = b.op("mul", b.op("exp", b.op("neg", b.op("mul", x, x))), b.load("w", dtype, i))
        b.store("y", dtype, index, y)
        b.store("s", dtype, k * columns + i, b.op("mul", b.reduce("sum", y), b.load("w", dtype, i)))
        b.store("m", dtype, k * columns + i, b.reduce("max", y))
        kernel = b.build("columns")
        assert ("accs" in source_of(kernel)) is (prod(rows) > FEW_ROWS)
        width, height = size // 2, 2 * prod(rows)
        return kernel, {
            "x": values(width * height, dtype), "w": values(width, dtype),
            "y": zeros(width * height, dtype), "s": zeros(2 * width, dtype),
            "m": zeros(2 * width, dtype),
        }

    check_all([
        case(2, (3,), 40, "f32", 80), case(2, (600,), 17, "f32", 34),
        case(2, (5, 130), 300, "f32", 600), case(2, (7,), 256, "f64", 512),
        case(2, (2, 3), 1030, "f32", 2060),
    ])
    columns = symbol("s0", 1)
    for width in (1, 16, 700):
        check_all([case(2, (300,), columns, "f32", 2 * width)], {"s0": width})
