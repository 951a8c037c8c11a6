"""Which functions are graph operations, and which C functions are pure.

Place in the pipeline: tables for `builtins` and `functions`. A call of a graph operation is
recorded as one node and run on fakes; Python itself runs a pure function if its arguments are
constants.
"""

from __future__ import annotations

import binascii
import builtins
import cmath
import datetime
import math
import operator
import os
import re
import sys
import types
import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import torch
import torch.nn.functional

from weft._torch import (
    OpOverload,
    OpOverloadPacket,
    VariableFunctions,
    function_spaces,
    get_tracing_state,
)

_NOT_GRAPH: Final = frozenset({
    "is_grad_enabled", "get_default_dtype", "is_inference_mode_enabled", "set_grad_enabled",
    "is_autocast_enabled", "is_storage", "is_tensor", "typename", "compiled_with_cxx11_abi",
    "get_device", "is_floating_point", "is_complex", "is_signed", "is_same_size", "numel",
    "result_type", "promote_types", "can_cast", "is_nonzero", "equal", "allclose", "is_conj",
    "is_neg", "is_inference", "is_distributed", "is_vulkan_available", "init_num_threads",
    "handle_torch_function", "has_torch_function", "has_torch_function_unary",
    "has_torch_function_variadic", "assert_int_or_pair", "boolean_dispatch", "from_numpy",
    "from_file", "frombuffer", "get_num_threads", "_assert_async", "_verify_batch_size",
})


_QUANTISED: Final = (
    "quantize", "_make_per_", "_empty_affine_", "_empty_per_channel_", "dequantize",
)
"""Beginnings of names of functions that make or take quantised tensors, which fakes do not tell
from others."""


def _members(namespace: object) -> Iterator[object]:
    for name in dir(namespace):
        if name in _NOT_GRAPH or name.startswith(("__", *_QUANTISED)):
            continue
        member = getattr(namespace, name, None)
        if callable(member) and not isinstance(member, type):
            yield member


def _graph_functions() -> dict[int, object]:
    table = {id(f): f for space in function_spaces() for f in _members(space)}
    for name in torch.functional.__all__:
        table[id(getattr(torch.functional, name))] = getattr(torch.functional, name)
    functional = torch.nn.functional
    for f in _members(functional):
        home = getattr(f, "__module__", "") or ""
        if isinstance(f, types.FunctionType) and home.startswith("torch"):
            table[id(f)] = f
    for name in dir(torch):
        function = getattr(torch, name)
        known = id(function) in table or name in _NOT_GRAPH or name.startswith(_QUANTISED)
        if isinstance(function, types.BuiltinFunctionType) and not known and hasattr(
                VariableFunctions, name):
            table[id(function)] = function
    for excluded in ("multi_head_attention_forward", "gumbel_softmax", "_canonical_mask"):
        table.pop(id(getattr(functional, excluded, None)), None)
    return table


_GRAPH: Final = _graph_functions()


def is_graph_function(function: object) -> bool:
    """Whether a call of the function is one node of the graph."""
    if id(function) in _GRAPH:
        return True
    return is_operator(function)


def is_operator(function: object) -> bool:
    """Whether the function is an operator of torch's dispatcher."""
    return isinstance(function, (OpOverload, OpOverloadPacket))


def _pure_functions() -> set[int]:
    spaces = (math, cmath, operator, re, binascii, *map(import_module, ("_string", "_json")))
    pure = {id(f) for space in spaces for f in vars(space).values() if callable(f)}
    names = ("abs", "all", "any", "ascii", "bin", "chr", "divmod", "format", "hash", "hex", "len",
             "max", "min", "oct", "ord", "pow", "repr", "round", "sorted", "sum")
    pure.update(id(getattr(builtins, name)) for name in names)
    torch_pure = ("promote_types", "can_cast", "get_default_dtype", "is_inference_mode_enabled")
    pure.update(id(getattr(torch, name)) for name in torch_pure)
    pure.update(map(id, (
        os.fspath, str.maketrans, dict.fromkeys, get_tracing_state, sys.intern, zlib.crc32,
        zlib.adler32, zlib.compress, zlib.decompress)))
    return pure


_PURE: Final = _pure_functions()


_IMMUTABLE: Final = (str, int, float, complex, bool, bytes)
_DATES: Final = (datetime.date, datetime.datetime, datetime.time)
_BY_CLOCK: Final = frozenset({"now", "today", "utcnow", "fromtimestamp", "utcfromtimestamp"})
"""Class methods of dates that depend on the time or the time zone."""


def is_pure(function: Any) -> bool:
    """Whether the function's result depends on its arguments (and guarded state) alone."""
    if id(function) in _PURE:
        return True
    owner = getattr(function, "__self__", None)
    if owner is None:
        return getattr(function, "__objclass__", None) in _IMMUTABLE
    if owner in _DATES:
        return function.__name__ not in _BY_CLOCK
    return owner in (*_IMMUTABLE, dict) or isinstance(owner, (str, bytes, re.Pattern))
