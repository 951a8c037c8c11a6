"""What entries depend on beside the program: versions, machine, settings, flags of PyTorch.

Place in the pipeline: a part of every entry's key. Guards compare what a program can change while
it runs; this is what is fixed when a process starts, and flags that code generation looks at::

    environment()       # ['weft', '9f3c...', 'python', '3.11.4 ...', 'threads', 2, ...]
"""

from __future__ import annotations

import hashlib
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy
import torch

from weft._torch import fill_uninitialized_memory, fp32_precision
from weft.config import KNOBS, config
from weft.passes.framework import has_passes_of_users
from weft.passes.patterns import patterns_of_users
from weft.runtime.cpp_build import machine_features
from weft.store.errors import NotStorable
from weft.store.identity import Data

_WITHOUT_EFFECT: Final = frozenset({"cache", "diagnostics", "failures"})
"""Groups of settings that do not change what is compiled."""

_PACKAGE: Final = Path(__file__).parents[1]


@cache
def _of_process() -> tuple[Data, ...]:
    return (
        "weft", _digest_of_weft(), "python", sys.version, sys.implementation.cache_tag,
        [getattr(sys.flags, name) for name in ("optimize", "dev_mode", "utf8_mode")],
        "torch", torch.__version__, torch.version.git_version, torch.__config__.show(),
        "numpy", numpy.__version__, "machine", platform.machine(), sys.platform,
        sorted(machine_features()),
    )


def _digest_of_weft() -> str:
    """A hash of weft's own sources: entries of another version are not used."""
    digest = hashlib.blake2b(digest_size=16)
    for file in sorted(_PACKAGE.rglob("*.py")):
        digest.update(str(file.relative_to(_PACKAGE)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def environment() -> list[Data]:
    """Everything as plain data; raises NotStorable under settings that have no form as data."""
    if has_passes_of_users() or patterns_of_users():
        raise NotStorable("passes or patterns of the user are registered")
    settings = [[name, _setting(getattr(config, name))] for name, knob in KNOBS.items()
                if knob.group not in _WITHOUT_EFFECT]
    return [*_of_process(), "settings", settings, "torch flags", _torch_flags()]


def _setting(value: Any) -> Data:
    if isinstance(value, tuple):
        if not all(isinstance(item, str) for item in value):
            raise NotStorable("a setting holds a function")
        return list(value)
    return value


def _torch_flags() -> list[Data]:
    return [
        torch.get_num_threads(), str(torch.get_default_dtype()),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        fill_uninitialized_memory(),
        [fp32_precision(backend, op) for backend in ("cuda", "mkldnn")
         for op in ("matmul", "conv", "rnn")],  # torch's older names raise where these differ
        torch.backends.mkldnn.enabled, torch.backends.mkldnn.is_available(),
        torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark,
        torch.backends.cudnn.deterministic,
        torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(), torch.is_anomaly_enabled(),
    ]
