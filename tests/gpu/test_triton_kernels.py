"""Triton kernels made by hand from the loop IR, against its NumPy interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tools.kernel_interpreter import from_torch_tensor, run_kernel
from weft.codegen.ir.dtypes import to_torch
from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, LoopVar
from weft.codegen.ir.scalar_ops import OPS
from weft.shapes.algebra.expr import loop_index, symbol

FLOATS = ["f32", "f64"]


def make_input(dtype: str, count: int) -> torch.Tensor:
    """Random values of a memory type, with zeros and negative numbers among them."""
    if dtype == "bool":
        return torch.rand(count) > 0.5
    kind = to_torch(dtype)
    if kind.is_floating_point:
        return (torch.randn(count) * 2).to(kind)
    low = 0 if dtype == "u8" else -20
    return torch.randint(low, 20, (count,)).to(kind)


def check(kernel: Kernel, counts: dict[str, int], sizes: dict[str, int] | None = None) -> None:
    """Run the kernel on the GPU and in the interpreter and compare every output."""
    from weft.codegen.triton import compile_kernels

    host: dict[str, torch.Tensor] = {}
    for buffer in kernel.buffers:
        kind = to_torch(buffer.dtype)
        count = counts[buffer.name]
        host[buffer.name] = (
            torch.zeros(count, dtype=kind)
            if buffer.mode == "out"
            else make_input(buffer.dtype, count)
        )
    device = {name: tensor.cuda() for name, tensor in host.items()}
    (compiled,) = compile_kernels([kernel])
    values = [(sizes or {})[str(s)] for s in kernel.sizes]
    compiled(*(device[b.name] for b in kernel.buffers), *values)
    torch.cuda.synchronize()
    arrays = {name: from_torch_tensor(tensor) for name, tensor in host.items()}
    run_kernel(kernel, arrays, sizes)
    for buffer in kernel.buffers:
        if buffer.mode == "in":
            continue
        tolerance = 1e-2 if buffer.dtype in ("bf16", "f16") else 2e-5
        torch.testing.assert_close(
            device[buffer.name].cpu(), host[buffer.name], rtol=tolerance, atol=tolerance,
            equal_nan=True,
        )


def rows(n: int, m: int) -> tuple[KernelBuilder, object, object]:
    i, r = loop_index("i0", n), loop_index("r0", m)
    return KernelBuilder((LoopVar(i, n),), (LoopVar(r, m),)), i, r


def softmax(n: int, m: int, dtype: str) -> Kernel:
    b, i, r = rows(n, m)
    x = b.load("in0", dtype, i * m + r)
    e = b.op("exp", b.op("sub", x, b.reduce("max", x)))
    b.store("out0", dtype, i * m + r, b.op("div", e, b.reduce("sum", e)))
    return b.build("softmax")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("shape", [(64, 768), (7, 77), (3, 50304), (1, 1)])
def test_softmax_is_one_kernel(shape: tuple[int, int], dtype: str) -> None:
    n, m = shape
    check(softmax(n, m, dtype), {"in0": n * m, "out0": n * m})


def test_transpose() -> None:
    i, j = loop_index("i0", 1000), loop_index("i1", 513)
    b = KernelBuilder((LoopVar(i, 1000), LoopVar(j, 513)), ())
    b.store("out0", "f32", i * 513 + j, b.op("neg", b.load("in0", "f32", j * 1000 + i)))
    check(b.build("transpose"), {"in0": 513000, "out0": 513000})


def test_batched_transpose() -> None:
    k, i, j = loop_index("i0", 5), loop_index("i1", 100), loop_index("i2", 33)
    b = KernelBuilder((LoopVar(k, 5), LoopVar(i, 100), LoopVar(j, 33)), ())
    source = b.load("in0", "f32", k * 3300 + j * 100 + i)
    b.store("out0", "f32", k * 3300 + i * 33 + j, source)
    check(b.build("transpose3"), {"in0": 16500, "out0": 16500})


@pytest.mark.parametrize("rows_count", [10, 5000])
def test_sum_over_the_outer_dimension(rows_count: int) -> None:
    i, r = loop_index("i0", 200), loop_index("r0", rows_count)
    b = KernelBuilder((LoopVar(i, 200),), (LoopVar(r, rows_count),))
    b.store("out0", "f64", i, b.reduce("sum", b.load("in0", "f64", r * 200 + i)))
    check(b.build("column_sums"), {"in0": 200 * rows_count, "out0": 200})


@pytest.mark.parametrize("count", [100, 100_000])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin", "prod"])
def test_reduction_to_a_scalar(kind: str, count: int) -> None:
    r = loop_index("r0", count)
    b = KernelBuilder((), (LoopVar(r, count),))
    value = b.load("in0", "f64", r)
    value = b.op("sign", value) if kind == "prod" else value
    result = b.reduce(kind, value)
    b.store("out0", result.dtype, 0, result)
    check(b.build("full"), {"in0": count, "out0": 1})


@pytest.mark.parametrize("kind", ["any", "all"])
def test_boolean_reductions(kind: str) -> None:
    b, i, r = rows(50, 3)
    b.store("out0", "bool", i, b.reduce(kind, b.load("in0", "bool", i * 3 + r)))
    check(b.build("flags"), {"in0": 150, "out0": 50})


def test_nan_wins_in_max() -> None:
    from weft.codegen.triton import compile_kernels

    b, i, r = rows(2, 100)
    b.store("out0", "f32", i, b.reduce("max", b.load("in0", "f32", i * 100 + r)))
    (kernel,) = compile_kernels([b.build("row_max")])
    x = torch.randn(2, 100, device="cuda")
    x[1, 37] = float("nan")
    out = torch.empty(2, device="cuda")
    kernel(x, out)
    torch.testing.assert_close(out, x.amax(1), equal_nan=True)


def test_gather_with_negative_indices() -> None:
    i, j = loop_index("i0", 40), loop_index("i1", 16)
    b = KernelBuilder((LoopVar(i, 40), LoopVar(j, 16)), ())
    at = b.indirect(b.load("in0", "i64", i), 20, wrap=True, check=True)
    b.store("out0", "f32", i * 16 + j, b.load("in1", "f32", at * 16 + j))
    check(b.build("gather"), {"in0": 40, "in1": 320, "out0": 640})


def test_symbolic_size() -> None:
    n = symbol("s0", 1)
    i = loop_index("i0", n)
    b = KernelBuilder((LoopVar(i, n),), ())
    b.store("out0", "f32", i, b.op("exp", b.load("in0", "f32", i)))
    for count in (3, 5000):
        check(b.build("pointwise"), {"in0": count, "out0": count}, {"s0": count})


def test_unaligned_buffers() -> None:
    from weft.codegen.triton import compile_kernels

    i = loop_index("i0", 1000)
    b = KernelBuilder((LoopVar(i, 1000),), ())
    b.store("out0", "f32", i, b.op("exp", b.load("in0", "f32", i)))
    (kernel,) = compile_kernels([b.build("pointwise")])
    x, out = torch.randn(1001, device="cuda")[1:], torch.empty(1000, device="cuda")
    kernel(x, out)
    torch.testing.assert_close(out, x.exp())


SIGNED_AND_BOOL: dict[str, list[str]] = {
    "float": FLOATS,
    "int": ["i64", "i32"],
    "bits": ["i64"],
    "integral": ["i64", "bool"],
    "number": ["f32", "f64", "i64"],
    "any": ["f32", "i64", "bool"],
    "where": ["f32", "i64"],
}
CASES = [
    (name, dtype)
    for name, op in OPS.items()
    for dtype in SIGNED_AND_BOOL[op.operands]
    if not name.startswith("philox") and not (name == "pow" and dtype == "i64")
    and not (name.startswith("round_") and dtype != "f32")
    and name not in ("shl", "shr", "lgamma", "divisor")
]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_scalar_operator(name: str, dtype: str) -> None:
    i = loop_index("i0", 300)
    b = KernelBuilder((LoopVar(i, 300),), ())
    load: Callable[[int], object] = lambda n: b.load(f"in{n}", dtype, i)
    args = [load(n) for n in range(OPS[name].arity)]
    if OPS[name].operands == "where":
        args[0] = b.load("in0", "bool", i)
    value = b.op(name, *args, dtype="f32" if name == "cast" else None)
    if name == "cast" and dtype == "f32":
        pytest.skip("a cast to the same type does not exist")
    b.store("out0", value.dtype, i, value)
    kernel = b.build("one_op")
    check(kernel, {buffer.name: 300 for buffer in kernel.buffers})


def test_masked_load_of_a_fixed_element() -> None:
    i = loop_index("i0", 8)
    b = KernelBuilder((LoopVar(i, 8),), ())
    first = b.op("lt", b.index(i), b.const(1, "i64"))
    with b.masked(first, 0):
        value = b.load("in0", "f32", 0)
    b.store("out0", "f32", i, value)
    check(b.build("first_only"), {"in0": 1, "out0": 8})
