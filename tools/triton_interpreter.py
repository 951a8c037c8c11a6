"""Finds wrong Triton texts without a GPU: kernels run in Triton's interpreter, on CPU tensors.

    pip install --target DIR --no-deps triton==3.6.0
    PYTHONPATH=src:.:DIR python -m tools.triton_interpreter bert,resnet            # inference
    PYTHONPATH=src:.:DIR python -m tools.triton_interpreter --train vit,swin

Small transformers models (`benchmarks/small_models.py`) are compiled for the CPU, scheduled as on a
GPU. Beside each C++ kernel's first call the same kernel's Triton text is interpreted, and what both
store is compared; loads and stores outside of the kernel's buffers are found, too. `--dynamic`
makes sizes symbolic. Library calls are not looked at.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import numpy as np
import scipy.special
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tools.kernel_comparison import OutsideMemory, Report, compared_kernels, main
from weft._cuda import reciprocal
from weft.aot.tracing import record_special
from weft.codegen.ir.dtypes import to_torch
from weft.codegen.ir.loop_ir import Kernel
from weft.codegen.lowering import variance
from weft.codegen.scheduling import rematerialization, schedule
from weft.codegen.triton import prelude
from weft.codegen.triton.emit import TritonSource
from weft.codegen.triton.specializations import Specializations
from weft.codegen.triton.target import spell
from weft.shapes.algebra.expr import Expr
from weft.shapes.algebra.printing import python_text

_SAME_NAME = (
    "copysign", "fmod", "trunc", "rint", "floor", "ceil", "log", "log1p", "expm1", "sin", "cos",
    "tan", "sinh", "cosh", "tanh", "log2", "log10", "exp", "exp2", "sqrt", "signbit",
)
DEVICE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _SAME_NAME},
    "erf": scipy.special.erf, "erfc": scipy.special.erfc, "lgamma": scipy.special.gammaln,
    "pow": np.power, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
"""CUDA's functions, which the interpreter does not know."""


@contextmanager
def comparing(most: int) -> Iterator[Report]:
    """Within: kernels of at most so many elements are compared, scheduled as on a GPU."""
    library = SimpleNamespace(**{n: _interpreted(f) for n, f in DEVICE_FUNCTIONS.items()})
    with (
        mock.patch.object(prelude, "libdevice", library),
        mock.patch.object(schedule, "is_on_gpu", lambda group: True),
        mock.patch.object(variance, "CUT_ON", {"cpu"}),
        mock.patch.object(record_special, "BIAS_APART_ON", {"cpu"}),
        mock.patch.dict(
            rematerialization.MOST_OPERATORS, cpu=rematerialization.MOST_OPERATORS["cuda"]),
        compared_kernels(_interpret, most, sizes=True) as report,
    ):
        yield report


def _interpreted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A NumPy function on the interpreter's tensors."""

    def call(*given: Any) -> Any:
        values = [g.handle.data if isinstance(g, tl.tensor) else g for g in given]
        like = next(g for g in given if isinstance(g, tl.tensor))
        result = np.asarray(function(*values)).astype(like.handle.data.dtype)
        kind = tl.block_type(like.dtype, list(result.shape)) if result.shape else like.dtype
        return tl.tensor(TensorHandle(result, like.dtype), kind)

    return call


def _interpret(kernel: Kernel, arguments: Sequence[Any]) -> None:
    """The kernel's Triton text, interpreted; raises OutsideMemory if it leaves its buffers."""
    memory = dict(zip([b.name for b in kernel.buffers], arguments, strict=False))
    sizes = dict(zip(map(str, kernel.sizes), arguments[len(memory) :], strict=True))
    choice = Specializations(kernel).best(tuple(sizes.values())) if sizes else None
    parts, split = spell(kernel, choice)
    for name, (dtype, count) in (split.partials if split is not None else {}).items():
        memory[name] = torch.zeros(_value(count, sizes), dtype=to_torch(dtype))
    for part in parts:
        function = getattr(_module(part.source), part.source.name)
        buffers = [memory[b.name] for b in part.kernel.buffers]
        divisors = [_value(d, sizes) for d in part.source.divisors]
        values = [*(sizes[n] for n in part.sizes), *chain.from_iterable(map(reciprocal, divisors))]
        with bounded(buffers):
            function[(_value(part.source.programs, sizes),)](*buffers, *values)


def _value(number: Expr | int, sizes: dict[str, int]) -> int:
    """A number of programs or elements at these sizes."""
    return int(eval(python_text(number), {"min": min, "max": max, **sizes}))


@contextmanager
def bounded(buffers: Sequence[torch.Tensor]) -> Iterator[None]:
    """Within: loads and stores outside of the buffers' memory raise OutsideMemory."""
    ranges = [(t.untyped_storage().data_ptr(), t.untyped_storage().nbytes()) for t in buffers]

    def check(pointers: Any, mask: Any) -> None:
        size = pointers.get_element_ty().primitive_bitwidth // 8 or 1
        used = pointers.data[np.broadcast_to(mask.data.astype(bool), pointers.data.shape)]
        inside = np.zeros(used.shape, bool)
        for start, count in ranges:
            inside |= (used >= start) & (used + size <= start + count)
        if not inside.all():
            raise OutsideMemory(f"{(~inside).sum()} of {used.size} elements")

    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    with (
        mock.patch.object(InterpreterBuilder, "create_masked_load", checked_load),
        mock.patch.object(InterpreterBuilder, "create_masked_store", checked_store),
    ):
        yield


def _module(source: TritonSource) -> ModuleType:
    """The text as a module; Triton wants it in a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(source.text)
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(__doc__, "cpu", 600_000, comparing)
