"""Bandwidth of hand-made Triton kernels on a GPU: the target alone, without capture or scheduling.

    python -m benchmarks.gpu_kernels

Prints TB/s (the fewest bytes the kernel must move over the median time) beside a device-to-device
copy.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Final

import torch

from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, LoopVar
from weft.codegen.triton.target import compile_kernels
from weft.shapes.algebra.expr import loop_index

REPEATS: Final = 50


def seconds(run: Callable[[], object]) -> float:
    """Median GPU time of one call."""
    for _ in range(5):
        run()
    times = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def pointwise(count: int, dtype: str) -> Kernel:
    """A chain of eight operators over one array."""
    i = loop_index("i0", count)
    b = KernelBuilder((LoopVar(i, count),), ())
    x = b.load("in0", dtype, i)
    y = b.op("add", b.op("sigmoid", x), b.op("tanh", x))
    y = b.op("mul", b.op("maximum", y, b.const(0.0, "f32")), b.op("sub", x, b.const(0.5, "f32")))
    b.store("out0", dtype, i, b.op("exp", b.op("neg", b.op("abs", y))))
    return b.build("chain")


def softmax(rows: int, columns: int, dtype: str) -> Kernel:
    """Softmax over rows."""
    i, r = loop_index("i0", rows), loop_index("r0", columns)
    b = KernelBuilder((LoopVar(i, rows),), (LoopVar(r, columns),))
    x = b.load("in0", dtype, i * columns + r)
    e = b.op("exp", b.op("sub", x, b.reduce("max", x)))
    b.store("out0", dtype, i * columns + r, b.op("div", e, b.reduce("sum", e)))
    return b.build("softmax")


def layer_norm(rows: int, columns: int, dtype: str) -> Kernel:
    """Residual + layer norm, two-pass variance."""
    i, r = loop_index("i0", rows), loop_index("r0", columns)
    b = KernelBuilder((LoopVar(i, rows),), (LoopVar(r, columns),))
    x = b.op("add", b.load("in0", dtype, i * columns + r), b.load("in1", dtype, i * columns + r))
    scale = b.const(1.0 / columns, "f32")
    centred = b.op("sub", x, b.op("mul", b.reduce("sum", x), scale))
    variance = b.op("mul", b.reduce("sum", b.op("mul", centred, centred)), scale)
    unit = b.op("mul", centred, b.op("rsqrt", b.op("add", variance, b.const(1e-5, "f32"))))
    b.store("out0", dtype, i * columns + r, b.op("mul", unit, b.load("in2", dtype, r)))
    return b.build("layer_norm")


def row_sum(rows: int, columns: int, *, over_rows: bool) -> Kernel:
    """Sums over the last or over the first dimension of a matrix."""
    i, r = (
        loop_index("i0", columns if over_rows else rows),
        loop_index("r0", rows if over_rows else columns),
    )
    extent = (columns, rows) if over_rows else (rows, columns)
    b = KernelBuilder((LoopVar(i, extent[0]),), (LoopVar(r, extent[1]),))
    index = r * columns + i if over_rows else i * columns + r
    b.store("out0", "f32", i, b.reduce("sum", b.load("in0", "f32", index)))
    return b.build("sums")


def transpose(rows: int, columns: int, dtype: str) -> Kernel:
    """A materialised transpose."""
    i, j = loop_index("i0", rows), loop_index("i1", columns)
    b = KernelBuilder((LoopVar(i, rows), LoopVar(j, columns)), ())
    b.store("out0", dtype, i * columns + j, b.load("in0", dtype, j * rows + i))
    return b.build("transpose")


TYPES: Final = {"f32": torch.float32, "bf16": torch.bfloat16}


def main() -> None:
    """Time every case and print the table."""
    copy_from = torch.randn(1 << 29, device="cuda")
    copy_to = torch.empty_like(copy_from)
    copy = 2 * copy_from.nbytes / seconds(partial(copy_to.copy_, copy_from)) / 1e12
    del copy_from, copy_to
    print(f"{'copy':40} {copy:6.2f} TB/s")
    n = 8192 * 8192
    cases: list[tuple[str, Kernel, dict[str, int]]] = [
        ("pointwise chain bf16 8192²", pointwise(n, "bf16"), {"in0": n, "out0": n}),
        ("pointwise chain f32 8192²", pointwise(n, "f32"), {"in0": n, "out0": n}),
        ("softmax f32 16384 x 4096", softmax(16384, 4096, "f32"), {"in0": n, "out0": n}),
        ("softmax bf16 16384 x 4096", softmax(16384, 4096, "bf16"), {"in0": n, "out0": n}),
        ("softmax bf16 4096 x 50304 (looped)", softmax(4096, 50304, "bf16"), dict.fromkeys(("in0", "out0"), 4096 * 50304)),
        ("softmax f32 65536 x 512", softmax(131072, 512, "f32"), {"in0": n, "out0": n}),
        ("layer norm bf16 16384 x 4096", layer_norm(16384, 4096, "bf16"), {"in0": n, "in1": n, "in2": 4096, "out0": n}),
        ("sum over columns f32 16384 x 4096", row_sum(16384, 4096, over_rows=False), {"in0": n, "out0": 16384}),
        ("sum over rows f32 16384 x 4096", row_sum(16384, 4096, over_rows=True), {"in0": n, "out0": 4096}),
        ("sum of all f32 8192²", row_sum(1, n, over_rows=False), {"in0": n, "out0": 1}),
        ("transpose f32 8192²", transpose(8192, 8192, "f32"), {"in0": n, "out0": n}),
        ("transpose bf16 8192²", transpose(8192, 8192, "bf16"), {"in0": n, "out0": n}),
    ]
    for name, kernel, counts in cases:
        (run,) = compile_kernels([kernel])
        kinds = {b.name: TYPES[b.dtype] for b in kernel.buffers}
        buffers = [
            torch.randn(counts[b.name], device="cuda").to(kinds[b.name]) for b in kernel.buffers
        ]
        moved = sum(t.nbytes for t in buffers)
        time = seconds(lambda run=run, buffers=buffers: run(*buffers))  # type: ignore[misc]
        print(f"{name:40} {moved / time / 1e12:6.2f} TB/s {time * 1e3:8.3f} ms")


if __name__ == "__main__":
    main()
