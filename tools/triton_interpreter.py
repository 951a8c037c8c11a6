"""Finds wrong Triton texts without a GPU: kernels run in Triton's interpreter, on CPU tensors.

    pip install --target DIR --no-deps triton==3.6.0
    PYTHONPATH=src:.:DIR python -m tools.triton_interpreter bert,resnet            # inference
    PYTHONPATH=src:.:DIR python -m tools.triton_interpreter --train vit,swin

Small transformers models (`benchmarks/small_models.py`) are compiled for the CPU, scheduled as on a
GPU. Beside each C++ kernel's first call the same kernel's Triton text is interpreted, and what both
store is compared. Library calls and symbolic sizes are not looked at.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import numpy as np
import scipy.special
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

import weft
from benchmarks.small_models import NotBuildable, build
from weft.aot import record_special
from weft.codegen import recomputed, schedule, targets
from weft.codegen.dtypes import to_torch
from weft.codegen.loop_ir import Kernel
from weft.codegen.lowering import variance
from weft.codegen.triton import prelude
from weft.codegen.triton.emit import TritonSource
from weft.codegen.triton.target import spell

Call = Callable[..., None]

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


@dataclass
class Report:
    """Kernels that were compared, and the names of those that differ, with how far."""

    compared: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


@contextmanager
def compared_kernels(most: int) -> Iterator[Report]:
    """Within: kernels of at most so many elements are compared, equal ones once."""
    report, compile_kernels = Report(), targets.compile_kernels

    def compiled(kernels: Sequence[Kernel], devices: Any, hints: Any) -> list[Call]:
        made = compile_kernels(kernels, devices, hints)
        return [_beside(k, c, report, most) for k, c in zip(kernels, made, strict=True)]

    library = SimpleNamespace(**{n: _interpreted(f) for n, f in DEVICE_FUNCTIONS.items()})
    with (
        mock.patch.object(prelude, "libdevice", library),
        mock.patch.object(targets, "compile_kernels", compiled),
        mock.patch.object(schedule, "is_on_gpu", lambda group: True),
        mock.patch.object(variance, "CUT_ON", {"cpu"}),
        mock.patch.object(record_special, "BIAS_APART_ON", {"cpu"}),
        mock.patch.dict(recomputed.MOST_OPERATORS, cpu=recomputed.MOST_OPERATORS["cuda"]),
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


def _beside(kernel: Kernel, call: Call, report: Report, most: int) -> Call:
    """The compiled kernel, which at its first call is compared with its Triton text."""
    text = str(kernel).partition("\n")[2]

    def run(*arguments: Any) -> None:
        tensors = arguments[: len(kernel.buffers)]
        small = not kernel.sizes and sum(t.numel() for t in tensors) <= most
        if not small or text in report.compared:
            call(*arguments)
            return
        report.compared.add(text)
        copies = _copies(tensors)
        call(*arguments)
        _interpret(kernel, copies)
        report.wrong += _differences(kernel, copies, tensors)

    return run


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies that share memory where the tensors do."""
    storages: dict[int, torch.UntypedStorage] = {}
    made = []
    for t in tensors:
        storage = t.untyped_storage()
        own = storages.setdefault(storage.data_ptr(), storage.clone())
        empty = torch.empty(0, dtype=t.dtype)
        made.append(empty.set_(own, t.storage_offset(), t.size(), t.stride()))
    return made


def _interpret(kernel: Kernel, buffers: Sequence[torch.Tensor]) -> None:
    parts, split = spell(kernel)
    memory = dict(zip([b.name for b in kernel.buffers], buffers, strict=True))
    for name, (dtype, count) in (split.partials if split is not None else {}).items():
        memory[name] = torch.zeros(int(count), dtype=to_torch(dtype))
    for part in parts:
        function = getattr(_module(part.source), part.source.name)
        function[(part.source.programs,)](*[memory[b.name] for b in part.kernel.buffers])


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


def _differences(
    kernel: Kernel, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> Iterator[str]:
    stored = {s.buffer for s in kernel.stores}
    for buffer, f, w in zip(kernel.buffers, found, wanted, strict=True):
        if buffer.name in stored:
            try:
                torch.testing.assert_close(f, w, rtol=1e-3, atol=1e-4, equal_nan=True)
            except AssertionError as error:
                yield f"{kernel.name} {buffer.name}: {' '.join(str(error).split())}\n{kernel}"


def examine(name: str, train: bool, most: int) -> str:
    """A line about a model, and more for each kernel that differs."""
    try:
        case = build(name)
    except NotBuildable as error:
        return f"{name}: not buildable: {str(error)[:100]}"
    weft.reset()
    with compared_kernels(most) as report, torch.set_grad_enabled(train):
        output = weft.compile(case.model.train(train))(**case.kwargs)
        losses = [t.float().square().mean() for t in output.values()
                  if isinstance(t, torch.Tensor) and t.requires_grad] if train else []
        if losses:
            torch.stack(losses).sum().backward()
    return "\n".join([
        f"{name}: {len(report.compared)} kernels, {len(report.wrong)} differ", *report.wrong])


def main() -> None:
    """Examine the models named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", help="comma-separated transformers types")
    parser.add_argument("--train", action="store_true", help="a training step")
    parser.add_argument("--most", type=int, default=600_000, help="elements of a kernel's tensors")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.models.split(","):
        print(examine(name, options.train, options.most), flush=True)


if __name__ == "__main__":
    main()
