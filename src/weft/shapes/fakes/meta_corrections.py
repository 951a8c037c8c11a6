"""Corrects meta kernels of PyTorch that promise another type or layout than the CPU kernels give.

Place in the pipeline: `MemoFakeMode` passes each newly computed result through here. A norm whose
input is in half precision while its parameters are in float32 - the usual case under autocast on a
CPU - returns its statistics in float32; the meta kernels say they have the input's type. What reads
the statistics (a kernel of the backward) would take the bytes of one type for another::

    mean of native_layer_norm(bfloat16 x, float32 weight)    meta: bfloat16    CPU: float32
    batch_norm(x.transpose(1, 2))                            meta: as x        CPU: row-major
    group_norm(x[:, :1].transpose(1, 2))                     meta: (8, 1, 8)   CPU: (8, 1, 1)
    group_norm(channels-last x)                              meta: row-major   CPU: as x   (2.14)
    roll(channels-last x, 1, 2), reflection_pad2d(x, ...)    meta: row-major   CPU: as x
    slice_scatter(x.expand(3, 4), ...)                       meta: (0, 1)      CPU: (4, 1)
    pow(bool x, True)                                        meta: int64       CPU: bool
    angle, isin, 2 ** x of column-major x                    meta: as x        CPU: row-major
    _fft_r2c(x, [0])                                         meta: row-major   CPU: column-major

Some meta kernels accept what the kernels refuse: see `_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import torch

from weft._torch import OpOverload, no_modes
from weft.shapes.algebra.layout import suggests_channels_last
from weft.shapes.algebra.views import Permute
from weft.shapes.symnode import is_hinted

aten = torch.ops.aten

_PARAMETERS: Final[dict[OpOverload, tuple[int, ...]]] = {
    aten.native_layer_norm.default: (2, 3),
    aten.native_group_norm.default: (1, 2),
    aten.native_batch_norm.default: (1, 2, 3, 4),
    aten._native_batch_norm_legit.default: (1, 2, 3, 4),
    aten._native_batch_norm_legit.no_stats: (1, 2),
    aten._native_batch_norm_legit_functional.default: (1, 2, 3, 4),
    aten._batch_norm_with_update_functional.default: (1, 2, 3, 4),
    aten._native_batch_norm_legit_no_training.default: (1, 2, 3, 4),
}
"""Norms, and the positions of their parameters and running statistics."""

_SCATTERS: Final = {
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
}

_PADS: Final = {
    op: position
    for kind in ("reflection", "replication") for rank in ("2d", "3d")
    for name, position in ((f"{kind}_pad{rank}", 0), (f"{kind}_pad{rank}_backward", 1))
    for op in (getattr(aten, name).default,)
}
"""Operators whose result has the layout of the image among their arguments."""

_SOFTMAXES: Final = {aten._softmax.default, aten._safe_softmax.default}

_INDEX_ADDS: Final = {aten.index_add.default, aten.index_add_.default}

_DRAWS: Final = {
    aten.random_.to, getattr(aten.random_, "from"), aten.uniform_.default, aten.bernoulli_.float,
    aten.randint_like.default, aten.randint_like.low_dtype,
}
"""Operators that refuse an empty range of numbers, or no probability, before they draw."""

_SPECTRA: Final = {aten._fft_r2c.default, aten._fft_c2c.default}

_ROW_MAJOR: Final = {aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar, aten.pow.Scalar}
"""Operators whose results are row-major, on all devices; so is the angle of complex numbers."""

_ROW_MAJOR_ON_CPUS: Final = {
    aten.log_sigmoid_forward.default, aten.rrelu_with_noise.default,
    aten.rrelu_with_noise_functional.default,
}

_HALF: Final = (torch.float16, torch.bfloat16)

_PLAIN: Final[dict[type, type]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
"""The types of the numbers that symbolic ones stand for."""


_RUNNING: Final[dict[OpOverload, tuple[int, int]]] = {
    aten._native_batch_norm_legit_functional.default: (3, 3),
    aten._batch_norm_with_update_functional.default: (3, 4),
}
"""Position of the running mean among the arguments, and of its new value among the results."""


_IMAGES: Final = {4: torch.channels_last, 5: torch.channels_last_3d}

Cast = Callable[..., torch.Tensor]


def corrected(func: OpOverload, args: Sequence[Any], result: Any, cast: Cast) -> object:
    """`result` with the types and layouts that a CPU kernel returns; `cast` is `_to_copy` of a
    fake."""
    _check(func, args)
    if func is aten.roll.default:
        return _as_image(args[0], result, cast) if len(args) > 2 and args[2] else result
    if func in _PADS:
        return _as_image(args[_PADS[func]], result, cast)
    if func is aten.pow.Tensor_Scalar:
        boolean = args[0].dtype is torch.bool and isinstance(args[1], bool)
        return cast(result, dtype=torch.bool) if boolean else result
    if func in _ROW_MAJOR or (func is aten.angle.default and args[0].is_complex()):
        return cast(result, memory_format=torch.contiguous_format)
    if func in _ROW_MAJOR_ON_CPUS and args[0].device.type == "cpu":
        parts = result if isinstance(result, tuple) else (result,)
        parts = tuple(cast(part, memory_format=torch.contiguous_format) for part in parts)
        return parts if isinstance(result, tuple) else parts[0]
    if func in _SCATTERS:
        return _without_overlap(result, cast)
    if func in _SPECTRA and result.device.type == "cpu":
        ends = args[1][-1:] if func is aten._fft_r2c.default else ()
        return _spectrum(args[0], args[1], ends, result, cast)
    if func not in _PARAMETERS:
        return result
    result = _with_types(func, args, result, cast)
    if args[0].device.type == "cpu":
        if "batch_norm" in func.name():
            result = (_known_layout(result[0], cast), *result[1:])
        elif func is aten.native_group_norm.default:
            image_format = _suggested_format(args[0])
            result = (cast(result[0], memory_format=image_format), *result[1:])
    return result


def _check(func: OpOverload, args: Sequence[Any]) -> None:
    """Raise for arguments that the kernels refuse; they have the words of the error."""
    if func in _SOFTMAXES:
        rank = max(args[0].dim(), 1)
        if not -rank <= args[1] < rank:
            raise IndexError(f"dimension {args[1]} of {rank}")
    if func in _INDEX_ADDS:
        x, dim, _, source = args[:4]
        kept = [[n for d, n in enumerate(t.shape) if d != dim % max(x.dim(), 1)]
                for t in (x, source)]
        if len(kept[0]) != len(kept[1]) or any(
                type(a) is type(b) is int and a != b for a, b in zip(*kept, strict=True)):
            raise RuntimeError(f"index_add of {source.shape} to {x.shape}")
    if func in _DRAWS and all(map(is_hinted, args[1:])):
        with no_modes():
            func(torch.empty(0, dtype=args[0].dtype), *args[1:])
    if func._schema.is_mutable and torch.Tag.pointwise in func.tags:
        _check_cast(func, args)
    if func in _PARAMETERS and args[0].device.type == "cpu":
        _check_parameters(args, _PARAMETERS[func])


def _check_parameters(args: Sequence[Any], positions: Sequence[int]) -> None:
    """A norm's parameters and statistics have its input's type, or all float32 beside halves."""
    dtypes = {args[p].dtype for p in positions if p < len(args) and args[p] is not None}
    x = args[0].dtype
    if dtypes - {x} and not (x in _HALF and dtypes == {torch.float32}):
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")


def _check_cast(func: OpOverload, args: Sequence[object]) -> None:
    """An elementwise operator writes no float into integers, and nothing else into bools."""
    x = args[0]
    if not isinstance(x, torch.Tensor) or func.__name__.startswith("logical_"):
        return
    for arg, operand in zip(func._schema.arguments[1:], args[1:], strict=False):
        if str(arg.type) not in ("Tensor", "number"):
            continue
        common = _common_type(_kind(x), _kind(operand))
        if not torch.can_cast(common, x.dtype):
            raise RuntimeError(f"result type {common} can't be cast to {x.dtype}")


def _kind(operand: object) -> tuple[torch.dtype, bool] | type:
    """What decides the types of results: of a number its type; of a tensor its type, and whether it
    has dimensions."""
    if isinstance(operand, torch.Tensor):
        return operand.dtype, operand.dim() > 0
    number: type = type(operand)
    return _PLAIN.get(number, number)


@cache
def _common_type(*kinds: tuple[torch.dtype, bool] | type) -> torch.dtype:
    with no_modes():
        return torch.result_type(*(
            torch.empty((1,) * kind[1], dtype=kind[0]) if isinstance(kind, tuple) else kind(1)
            for kind in kinds
        ))


def _as_image(x: torch.Tensor, result: torch.Tensor, cast: Cast) -> torch.Tensor:
    """On a CPU, `roll` (a `cat` of two parts) and padding keep the layout of images."""
    image_format = _IMAGES.get(x.dim())
    if x.device.type != "cpu" or image_format is None or x.is_contiguous():
        return result
    if not x.is_contiguous(memory_format=image_format):
        return result
    return cast(result, memory_format=image_format)


def _without_overlap(result: torch.Tensor, cast: Cast) -> torch.Tensor:
    """A copy of an expanded tensor has memory for all its elements."""
    overlaps = any(s == 0 and n != 1 for n, s in zip(result.shape, result.stride(), strict=True))
    return cast(result) if overlaps else result


def _spectrum(
    x: torch.Tensor, dims: Sequence[int], ends: Sequence[int], result: torch.Tensor, cast: Cast
) -> torch.Tensor:
    """MKL writes the transformed dimensions innermost, `ends` behind them; each part in the order
    of the input."""
    strides = x.stride()
    order = sorted(range(x.dim()), key=lambda d: (d in dims, d in ends, -strides[d]))
    laid_out = cast(result.permute(order), memory_format=torch.contiguous_format)
    return laid_out.permute(Permute(tuple(order)).inverse().order)


def _suggested_format(x: torch.Tensor) -> torch.memory_format:
    """The format in which kernels that take images as they are write their results."""
    image_format = _IMAGES.get(x.dim())
    if image_format is None or x.is_contiguous() or not suggests_channels_last(x.shape, x.stride()):
        return torch.contiguous_format
    return image_format


def _known_layout(result: torch.Tensor, cast: Cast) -> torch.Tensor:
    """The kernels write row-major or channels-last memory."""
    known = {torch.contiguous_format, _IMAGES.get(result.dim(), torch.contiguous_format)}
    if any(result.is_contiguous(memory_format=image_format) for image_format in known):
        return result
    return cast(result, memory_format=torch.contiguous_format)


def _with_types(func: OpOverload, args: Sequence[Any], result: Any, cast: Cast) -> object:
    """The statistics of a norm of mixed types are float32; new running statistics have the type of
    the old ones."""
    wanted: dict[int, torch.dtype] = {}
    if func in _RUNNING:
        old, new = _RUNNING[func]
        wanted.update({new + k: args[old + k].dtype for k in (0, 1)})
    if _is_mixed(args, _PARAMETERS[func]):
        wanted.update(dict.fromkeys((1, 2), torch.float32))
    if all(result[k].dtype == dtype for k, dtype in wanted.items()):
        return result
    return tuple(cast(v, dtype=wanted.get(k, v.dtype)) for k, v in enumerate(result))


def _is_mixed(args: Sequence[Any], positions: Sequence[int]) -> bool:
    x = args[0]
    if x.dtype not in _HALF or x.device.type != "cpu":
        return False
    parameters = [args[p] for p in positions if p < len(args)]
    return any(isinstance(t, torch.Tensor) and t.dtype == torch.float32 for t in parameters)
