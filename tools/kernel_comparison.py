"""Compares kernels of whole models with another way to run them, call by call.

Used by `triton_interpreter` (no GPU: Triton's interpreter) and `gpu_kernels` (a GPU: the same
kernel in C++). Each kernel's first call is made on its own tensors and, the other way, on copies
of them; what both store is compared.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch

import weft
from benchmarks.small_models import NotBuildable, build, on_device
from weft.codegen import targets
from weft.codegen.ir.loop_ir import Kernel

Call = Callable[..., None]
OtherWay = Callable[[Kernel, Sequence[Any]], None]
"""Runs a kernel on copies of its arguments (on the CPU): its buffers, then its sizes."""


class OutsideMemory(Exception):
    """A kernel, run the other way, leaves its buffers."""


@dataclass
class Report:
    """Kernels that were compared, and the names of those that differ, with how far."""

    compared: set[str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


@contextmanager
def compared_kernels(run_otherwise: OtherWay, most: int, sizes: bool) -> Iterator[Report]:
    """Within: kernels of at most so many elements are compared, equal ones once.

    sizes: also those with symbolic sizes.
    """
    report, compile_kernels = Report(), targets.compile_kernels

    def compiled(kernels: Sequence[Kernel], devices: Any, hints: Any) -> list[Call]:
        made = compile_kernels(kernels, devices, hints)
        pairs = zip(kernels, made, strict=True)
        return [c if k.sizes and not sizes else _beside(k, c, run_otherwise, report, most)
                for k, c in pairs]

    with mock.patch.object(targets, "compile_kernels", compiled):
        yield report


def _beside(kernel: Kernel, call: Call, otherwise: OtherWay, report: Report, most: int) -> Call:
    """The compiled kernel, which at its first call is compared with the other way to run it."""
    text = str(kernel).partition("\n")[2]

    def run(*arguments: Any) -> None:
        tensors = arguments[: len(kernel.buffers)]
        if text in report.compared or sum(t.numel() for t in tensors) > most:
            call(*arguments)
            return
        report.compared.add(text)
        copies = _copies(tensors)
        call(*arguments)
        try:
            otherwise(kernel, [*copies, *arguments[len(copies) :]])
        except OutsideMemory as error:
            report.wrong.append(f"{kernel.name}: {error} outside of its buffers\n{kernel}")
        else:
            report.wrong += _differences(kernel, copies, tensors)

    return run


def _copies(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies on the CPU that share memory where the tensors do."""
    storages: dict[int, torch.UntypedStorage] = {}
    made = []
    for t in tensors:
        storage = t.untyped_storage()
        own = storages.setdefault(storage.data_ptr(), storage.cpu().clone())
        empty = torch.empty(0, dtype=t.dtype)
        made.append(empty.set_(own, t.storage_offset(), t.size(), t.stride()))
    return made


def _differences(
    kernel: Kernel, found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]
) -> Iterator[str]:
    stored = {s.buffer for s in kernel.stores}
    for buffer, f, w in zip(kernel.buffers, found, wanted, strict=True):
        if buffer.name in stored:
            try:
                torch.testing.assert_close(f, w.cpu(), rtol=1e-3, atol=1e-4, equal_nan=True)
            except AssertionError as error:
                yield f"{kernel.name} {buffer.name}: {' '.join(str(error).split())}\n{kernel}"


def examine(
    name: str, device: str, train: bool, comparing: Callable[[], AbstractContextManager[Report]],
    dynamic: bool = False,
) -> str:
    """A line about a model, and more for each kernel that differs."""
    try:
        case = on_device(build(name), device)
    except NotBuildable as error:
        return f"{name}: not buildable: {str(error)[:100]}"
    weft.reset()
    with comparing() as report, torch.set_grad_enabled(train):
        compiled = weft.compile(case.model.train(train), dynamic=dynamic or None)
        output = compiled(**case.kwargs)
        losses = [t.float().square().mean() for t in output.values()
                  if isinstance(t, torch.Tensor) and t.requires_grad] if train else []
        if losses:
            torch.stack(losses).sum().backward()
    return "\n".join([
        f"{name}: {len(report.compared)} kernels, {len(report.wrong)} differ", *report.wrong])


def main(description: str | None, device: str, most: int,
         comparing: Callable[[int], AbstractContextManager[Report]]) -> None:
    """Examine the models named on the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", help="comma-separated transformers types")
    parser.add_argument("--train", action="store_true", help="a training step")
    parser.add_argument("--dynamic", action="store_true", help="symbolic sizes")
    parser.add_argument("--most", type=int, default=most, help="elements of a kernel's tensors")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in options.models.split(","):
        print(examine(name, device, options.train, lambda: comparing(options.most),
                      options.dynamic), flush=True)
