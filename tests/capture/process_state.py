"""All of PyTorch's (and NumPy's) process-wide state that a program can read and set."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Setting:
    """One setting: how it is read and set, a value other than the usual one, and that."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    other: Any
    usual: Any


def _attribute(owner: Any, name: str, other: Any, usual: Any) -> Setting:
    return Setting(lambda: operator.attrgetter(name)(owner),
                   lambda value: setattr(owner, name, value), other, usual)


def _autocast(read: Any, write: Any, other: Any, usual: Any) -> Setting:
    return Setting(lambda: read("cpu"), lambda value: write("cpu", value), other, usual)


def _print_option(name: str, other: Any, usual: Any) -> Setting:
    return Setting(lambda: getattr(torch._tensor_str.PRINT_OPTS, name),
                   lambda value: torch.set_printoptions(**{name: value}), other, usual)


_B = torch.backends
_CUDA = _B.cuda

SETTINGS: dict[str, Setting] = {
    "print precision": _print_option("precision", 2, 4),
    "print threshold": _print_option("threshold", 3, 1000),
    "print edge items": _print_option("edgeitems", 1, 3),
    "print width": _print_option("linewidth", 20, 80),
    "print scientific": _print_option("sci_mode", True, None),
    "numpy precision": Setting(lambda: np.get_printoptions()["precision"],
                               lambda v: np.set_printoptions(precision=v), 2, 8),
    "numpy errors": Setting(lambda: np.geterr()["divide"], lambda v: np.seterr(divide=v),
                            "ignore", "warn"),
    "flush denormal": Setting(lambda: (torch.tensor(1e-40) * 1).item() == 0,
                              torch.set_flush_denormal, True, False),
    "threads": Setting(torch.get_num_threads, torch.set_num_threads, 2, 1),
    "default dtype": Setting(torch.get_default_dtype, torch.set_default_dtype,
                             torch.float64, torch.float32),
    "default tensor type": Setting(torch.get_default_dtype, torch.set_default_tensor_type,
                                   torch.DoubleTensor, torch.FloatTensor),
    "default device": Setting(torch.get_default_device, torch.set_default_device, "meta", None),
    "deterministic": Setting(torch.are_deterministic_algorithms_enabled,
                             torch.use_deterministic_algorithms, True, False),
    "deterministic debug": Setting(torch.get_deterministic_debug_mode,
                                   torch.set_deterministic_debug_mode, "warn", "default"),
    "fill": _attribute(torch.utils.deterministic, "fill_uninitialized_memory", False, True),
    "warn always": Setting(torch.is_warn_always_enabled, torch.set_warn_always, True, False),
    "matmul precision": Setting(torch.get_float32_matmul_precision,
                                torch.set_float32_matmul_precision, "high", "highest"),
    "gradients": Setting(torch.is_grad_enabled, torch._C._set_grad_enabled, False, True),
    "anomaly": Setting(torch.is_anomaly_enabled, torch.autograd.anomaly_mode.set_detect_anomaly,
                       True, False),
    "autocast": _autocast(torch.is_autocast_enabled, torch.set_autocast_enabled, True, False),
    "autocast dtype": _autocast(torch.get_autocast_dtype, torch.set_autocast_dtype,
                                torch.float16, torch.bfloat16),
    "autocast cpu": Setting(torch.is_autocast_cpu_enabled, torch.set_autocast_cpu_enabled,
                            True, False),
    "autocast cpu dtype": Setting(torch.get_autocast_cpu_dtype, torch.set_autocast_cpu_dtype,
                                  torch.float16, torch.bfloat16),
    "autocast gpu dtype": Setting(torch.get_autocast_gpu_dtype, torch.set_autocast_gpu_dtype,
                                  torch.bfloat16, torch.float16),
    "autocast cache": Setting(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled,
                              False, True),
    "multithreading": Setting(torch._C._is_multithreading_enabled,
                              torch._C._set_multithreading_enabled, False, True),
    "view replay": Setting(torch._C._is_view_replay_enabled, torch._C._set_view_replay_enabled,
                           True, False),
    "seed": Setting(torch.initial_seed, torch.manual_seed, 5, 0),
    "attention fast path": Setting(_B.mha.get_fastpath_enabled, _B.mha.set_fastpath_enabled,
                                   False, True),
    "fp32": _attribute(_B, "fp32_precision", "tf32", "none"),
    "cudnn fp32": _attribute(_B.cudnn, "fp32_precision", "tf32", "none"),
    "cudnn convolutions": _attribute(_B.cudnn.conv, "fp32_precision", "ieee", "tf32"),
    "cuda products": _attribute(_CUDA.matmul, "fp32_precision", "tf32", "none"),
    "mkldnn fp32": _attribute(_B.mkldnn, "fp32_precision", "bf16", "none"),
    "mkldnn products": _attribute(_B.mkldnn.matmul, "fp32_precision", "bf16", "none"),
    "mkldnn convolutions": _attribute(_B.mkldnn.conv, "fp32_precision", "bf16", "none"),
    "mkldnn rnn": _attribute(_B.mkldnn.rnn, "fp32_precision", "bf16", "none"),
    "tf32": _attribute(_CUDA.matmul, "allow_tf32", True, False),
    "cudnn tf32": _attribute(_B.cudnn, "allow_tf32", False, True),
    "half reductions": _attribute(
        _CUDA.matmul, "allow_fp16_reduced_precision_reduction", False, True),
    "bfloat16 reductions": _attribute(
        _CUDA.matmul, "allow_bf16_reduced_precision_reduction", False, True),
    "half accumulation": _attribute(_CUDA.matmul, "allow_fp16_accumulation", True, False),
    "cudnn": _attribute(_B.cudnn, "enabled", False, True),
    "cudnn benchmark": _attribute(_B.cudnn, "benchmark", True, False),
    "cudnn benchmark limit": _attribute(_B.cudnn, "benchmark_limit", 5, 10),
    "cudnn deterministic": _attribute(_B.cudnn, "deterministic", True, False),
    "mkldnn": _attribute(_B.mkldnn, "enabled", False, True),
    "mkldnn deterministic": _attribute(_B.mkldnn, "deterministic", True, False),
    "nnpack": Setting(torch._C._get_nnpack_enabled, _B.nnpack.set_flags, False, True),
    "einsum": _attribute(_B.opt_einsum, "enabled", False, True),
    "einsum strategy": _attribute(_B.opt_einsum, "strategy", "greedy", "auto"),
    "flash": Setting(_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp, False, True),
    "efficient": Setting(_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp,
                         False, True),
    "math": Setting(_CUDA.math_sdp_enabled, _CUDA.enable_math_sdp, False, True),
    "cudnn attention": Setting(_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp, False, True),
    "math in half": Setting(_CUDA.fp16_bf16_reduction_math_sdp_allowed,
                            _CUDA.allow_fp16_bf16_reduction_math_sdp, True, False),
    "swap": Setting(torch.__future__.get_swap_module_params_on_conversion,
                    torch.__future__.set_swap_module_params_on_conversion, True, False),
    "overwrite": Setting(torch.__future__.get_overwrite_module_params_on_conversion,
                         torch.__future__.set_overwrite_module_params_on_conversion, True, False),
    "validation": Setting(lambda: torch.distributions.Distribution._validate_args,
                          torch.distributions.Distribution.set_default_validate_args, False, True),
    "crc32": Setting(torch.serialization.get_crc32_options, torch.serialization.set_crc32_options,
                     False, True),
    "autograd fallback": Setting(torch._C._get_autograd_fallback_mode,
                                 torch._C._set_autograd_fallback_mode, "nothing", "warn"),
    "script optimizer": Setting(torch._C._get_graph_executor_optimize,
                                torch._C._set_graph_executor_optimize, False, True),
}


def shown(x: torch.Tensor) -> tuple[Any, ...]:
    """What such state shows in."""
    array, ones = np.array([1.23456789, 2.0]), torch.ones(7) * 1.23456789
    return (str(array), f"{ones}", str(x * 1.23456789), repr(x.sum()), torch.ones(2) * 1.5,
            torch.arange(3.0), x @ x, torch.full((2,), 1e-40) * 1.5, x * 1e-40)
