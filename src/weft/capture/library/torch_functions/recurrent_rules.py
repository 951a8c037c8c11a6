"""Rules for `torch.lstm`, `torch.gru` and the like: calls of oneDNN's or cuDNN's kernels.

Place in the pipeline: see `weft.capture.library`; the forms are in `recurrent_polyfills.py`. All
take `input, hx, params, has_biases, num_layers, dropout, train, bidirectional, batch_first`. Packed
sequences have another order of arguments and are left to PyTorch, between two graphs.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

import torch

from weft._torch import no_dispatch, pack_padded_sequence, pad_packed_sequence
from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import constant
from weft.capture.library.functions.functions import rule
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.capture.library.torch_functions import (
    packed_polyfills,
    recurrent_polyfills,
)
from weft.config import config
from weft.runtime.cudnn_rnn import GRU, RNN_RELU, RNN_TANH
from weft.shapes.symnode import certainly_equal

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_LONGEST_UNROLLED: Final = 32
"""The most steps of a layer that are unrolled."""


def _layer(function: Any, mode: int) -> None:
    @rule(function)
    def handler(tx: Interpreter, /, *values: SymbolicValue, **kwargs: SymbolicValue
                ) -> SymbolicValue:
        args = [tx.force(value) for value in values]
        if not _is_of_one_length(args):
            return _packed_layer(tx, function, args, kwargs)
        args = _with_plain_options(args)
        if _is_cudnns(args):
            return tx.call_python(recurrent_polyfills.cudnn_layer, [constant(mode), *args], kwargs)
        if _is_long(args):
            raise graph_break("unrolled-loop", f"{function.__name__} of {args[0]!r}")
        return record(tx, function, args, kwargs)


_layer(torch.gru, GRU)
_layer(torch.rnn_tanh, RNN_TANH)
_layer(torch.rnn_relu, RNN_RELU)


@rule(torch.lstm)
def _lstm(tx: Interpreter, /, *values: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
    """A library call, if PyTorch would make one for plain sizes."""
    args = [tx.force(value) for value in values]
    if not _is_of_one_length(args):
        return _packed_layer(tx, torch.lstm, args, kwargs)
    args = _with_plain_options(args)
    if _is_cudnns(args):
        return tx.call_python(recurrent_polyfills.cudnn_lstm, args, kwargs)
    if _is_onednns(tx, args):
        if _has_symbolic_sizes(args):
            return tx.call_python(recurrent_polyfills.lstm_by_layers, args, kwargs)
    elif _has_symbolic_sizes(args) or _is_long(args):
        raise graph_break("unrolled-loop", f"lstm of {args[0]!r}")
    return record(tx, torch.lstm, args, kwargs)


@rule(torch.nn.RNNBase.flatten_parameters)
def _flatten_parameters(tx: Interpreter, layer: SymbolicValue, /) -> SymbolicValue:
    """Moves the weights in memory, which programs cannot see: layers do it themselves when they are
    made and when they change their device."""
    return constant(None)


def _packed_layer(tx: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Packed sequences, whose lengths the kernel reads from a tensor."""
    if all(isinstance(arg, TensorValue) for arg in args[:2]):
        raise graph_break("data-dependent-value", f"{function.__name__} of packed sequences")
    return record(tx, function, args, kwargs)


def _of_lengths(function: object, form: object) -> None:
    @rule(function)
    def handler(tx: Interpreter, /, *values: SymbolicValue, **kwargs: SymbolicValue
                ) -> SymbolicValue:
        args = [tx.force(value) for value in values]
        if not kwargs and _are_data_and_lengths(args):
            return tx.call_python(form, args)
        return record(tx, function, args, kwargs)


_of_lengths(pack_padded_sequence, packed_polyfills.pack_padded)
_of_lengths(pad_packed_sequence, packed_polyfills.pad_packed)


def _are_data_and_lengths(args: Args) -> bool:
    """Whether the arguments are a non-empty tensor and lengths as the C functions need them."""
    if len(args) < 2 or not all(isinstance(arg, TensorValue) for arg in args[:2]):
        return False
    lengths = _example(args[1])
    return (lengths.dim() == 1 and lengths.dtype is torch.int64 and lengths.device.type == "cpu"
            and not any(certainly_equal(n, 0) for n in _example(args[0]).shape))


def _is_of_one_length(args: Args) -> bool:
    return len(args) == 9 and isinstance(args[0], TensorValue) and args[3].python_type() is bool


def _with_plain_options(args: Args) -> list[SymbolicValue]:
    """The arguments with numbers (a dropout rate that changed) guarded to be those of this call."""
    return [*args[:3], *(constant(arg.constant()) for arg in args[3:])]


def _example(value: SymbolicValue) -> torch.Tensor:
    """The fake of a tensor."""
    assert isinstance(value, TensorValue)
    return value.example


def _has_symbolic_sizes(args: Args) -> bool:
    return any(type(n) is not int for n in _example(args[0]).shape)


def _is_long(args: Args) -> bool:
    """Whether the steps are too many to unroll, or their number is symbolic."""
    length = _example(args[0]).shape[1 if args[8].constant() else 0]
    return type(length) is not int or length > _LONGEST_UNROLLED


def _is_onednns(tx: Interpreter, args: Args) -> bool:
    """Whether oneDNN's kernel applies: on a CPU in single precision, no projections, four weights
    for each layer and direction."""
    if _example(args[0]).device.type != "cpu":
        return False
    has_biases, layers, bidirectional = (args[i].constant() for i in (3, 4, 7))
    count = layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    plain = len(list(args[2].iterate(tx))) == count
    is_float = _example(args[0]).dtype is torch.float32
    return plain and is_float and torch.backends.mkldnn.is_available()


def _is_cudnns(args: Args) -> bool:
    """Whether PyTorch would call cuDNN's kernel."""
    example = _example(args[0])
    if example.device.type != "cuda" or torch.version.hip is not None:
        return False
    if not torch.backends.cudnn.enabled or not _has_kernel(example.dtype):
        return False
    dropout, train = args[5].constant(), args[6].constant()
    if config.fallback_random and dropout and train:
        raise graph_break("unknown-c-function", "cuDNN's layers draw random numbers of their own")
    return True


@cache
def _has_kernel(dtype: torch.dtype) -> bool:
    """Whether cuDNN is there and has recurrent layers of this type."""
    with no_dispatch():
        return bool(torch.cudnn_is_acceptable(torch.empty(1, dtype=dtype, device="cuda")))
