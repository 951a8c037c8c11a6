"""Runs a kernel compiled to C++ and the same kernel in the NumPy interpreter, and compares.

    check(kernel, {"x": torch.randn(8), "o": torch.empty(8)})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tools.kernel_interpreter import from_torch_tensor, run_kernel
from weft.codegen.cpp import compile_kernels
from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, LoopVar, verify
from weft.shapes.algebra.expr import Expr, IntExpr, loop_index

Buffers = Mapping[str, torch.Tensor]
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 3e-6, torch.float64: 1e-13}


def loops(prefix: str, extents: Sequence[IntExpr]) -> tuple[LoopVar, ...]:
    """Loop variables prefix0, prefix1, …"""
    return tuple(LoopVar(loop_index(f"{prefix}{i}", e), e) for i, e in enumerate(extents))


def builder(outer: Sequence[IntExpr], inner: Sequence[IntExpr] = ()) -> KernelBuilder:
    return KernelBuilder(loops("i", outer), loops("r", inner))


def flat(variables: Sequence[LoopVar]) -> Expr:
    """The row-major position in the domain of `variables`."""
    position: IntExpr = 0
    for variable in variables:
        position = position * variable.extent + variable.symbol
    assert isinstance(position, Expr)
    return position


def expected(kernel: Kernel, buffers: Buffers, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """What the interpreter leaves in the buffers."""
    copies = {name: tensor.clone() for name, tensor in buffers.items()}
    run_kernel(kernel, {n: from_torch_tensor(t) for n, t in copies.items()}, sizes)
    return copies


def check(kernel: Kernel, buffers: Buffers, sizes: Mapping[str, int] | None = None) -> None:
    check_all([(kernel, buffers)], sizes or {})


def check_all(
    cases: Sequence[tuple[Kernel, Buffers]], sizes: Mapping[str, int] | None = None
) -> None:
    """Compile all kernels at once; compare what each writes with the interpreter."""
    for kernel, _ in cases:
        verify(kernel)
    compiled = compile_kernels([kernel for kernel, _ in cases])
    for (kernel, buffers), run in zip(cases, compiled, strict=True):
        wanted = expected(kernel, buffers, sizes or {})
        numbers = [(sizes or {})[str(s)] for s in kernel.sizes]
        run(*(buffers[b.name] for b in kernel.buffers), *numbers)
        for argument in kernel.buffers:
            compare(buffers[argument.name], wanted[argument.name], f"{argument.name} of\n{kernel}")


def compare(got: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    tolerance = TOLERANCE.get(got.dtype, 0)
    near = torch.isclose(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    if not near.all():
        where = (~near).nonzero()[:8]
        lines = [f"{i.tolist()}: {got[tuple(i)]} instead of {wanted[tuple(i)]}" for i in where]
        raise AssertionError("\n".join([f"{int((~near).sum())} wrong values", *lines, what]))
