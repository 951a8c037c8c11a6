"""Which matrix product of torch is faster on this machine: measured, and stored on disk.

Place in the pipeline: used by `codegen/calls/gemm_calls.py`. torch multiplies float32 matrices with
MKL, which on processors of other makers uses half of the vector width; oneDNN, which torch includes
too, does not::

    onednn_is_faster()     # True on an AMD processor with AVX-512
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from weft.runtime.cpp_build import machine_features
from weft.runtime.disk_cache import DiskCache
from weft.runtime.onednn import LinearPacking, onednn_linear

SHAPE: Final = (256, 512, 512)
"""Rows, inner size and columns of the trial that stands for all: about a millisecond."""
PACKED_SHAPES: Final = ((4, 1024, 1024), (16, 1024, 1024), (64, 512, 512), SHAPE)
PACKED_MARGIN: Final = 1.1
TRIALS: Final = 5
MARGIN: Final = 1.2
"""oneDNN must be this much faster: its calls cost a little more."""


def linear_or_empty(
    x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *activation: object
) -> torch.Tensor:
    """oneDNN's linear, also for sizes of zero, which it refuses."""
    linear = onednn_linear()
    assert linear is not None
    rows, columns = x.size(0), w.size(0)
    if rows == 0 or columns == 0:
        return x.new_empty(rows, columns)
    if x.size(1) == 0:
        x, w = x.new_zeros(rows, 1), w.new_zeros(columns, 1)
    return linear(x, w, bias, *activation)


@cache
def onednn_is_faster(shape: tuple[int, int, int] = SHAPE) -> bool:
    """Whether oneDNN is clearly faster than `torch.mm` for float32 here, for products like
    SHAPE."""
    linear = onednn_linear()
    if linear is None:
        return False
    known_for: tuple[object, ...] = () if shape == SHAPE else (shape,)
    return _known(known_for, lambda: _advantage(linear, shape)) > MARGIN


@cache
def packed_is_faster(rows: int) -> bool:
    """The same for weights that oneDNN has packed before; one measurement is for about as many
    rows."""
    linear = onednn_linear()
    if linear is None:
        return False
    sample = next((s for s in PACKED_SHAPES if rows <= 2 * s[0]), PACKED_SHAPES[-1])
    return _known(("packed", sample), lambda: _advantage(
        linear, sample, lambda weight, n: LinearPacking(n)(weight))
                  ) > PACKED_MARGIN


def _known(question: tuple[object, ...], measure: Callable[[], float]) -> float:
    """A number that was measured on this machine before, or is now."""
    machine = (torch.__version__, sorted(machine_features()))
    key = hashlib.sha256(repr((*machine, *question) if question else machine).encode()).hexdigest()
    disk = DiskCache("machine", _is_number)
    known = disk.get(key)
    if known is None:
        known = repr(measure()).encode()
        disk.put(key, known)
    return float(known)


def _is_number(content: bytes) -> bool:
    try:
        return float(content) > 0
    except ValueError:
        return False


def _advantage(
    linear: Callable[..., torch.Tensor], shape: tuple[int, int, int],
    prepare: Callable[[torch.Tensor, int], torch.Tensor] = lambda weight, rows: weight,
) -> float:
    """The time of MKL divided by the time of oneDNN, with the weight prepared before."""
    rows, inner, columns = shape
    with torch.inference_mode(), torch.device("cpu"):
        x, w = torch.ones(rows, inner), torch.ones(columns, inner)
        slow = _fastest(lambda: torch.mm(x, w.t()))
        prepared = prepare(w, rows)
        return slow / _fastest(lambda: linear(x, prepared, None, "none", [], ""))


def _fastest(call: Callable[[], object]) -> float:
    times = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
