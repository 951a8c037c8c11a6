"""How an operator's result on fakes is computed: PyTorch's rules, in PyTorch's order.

Place in the pipeline: what `MemoFakeMode` asks, in the order of ``OPERATOR_RULES``, for an operator
whose result it does not remember. A rule returns NotImplemented for operators that are not its
own. `FakeTensorMode` does the same with more cases, and loads torch._dynamo on its way.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Final

import torch

import weft.shapes.fakes.pooling_rules
import weft.shapes.fakes.view_rules  # noqa: F401  both register their formulas
from weft._torch import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    decomposition_table,
    has_meta,
    in_kernel_invocation,
    meta_table,
    op_implementations_checks,
    stride_incorrect_op,
    torch_decomp_decompositions,
)
from weft.shapes.fakes.make_fake import make_fake, make_meta, meta_of, meta_view
from weft.shapes.fakes.result_memo import CallReader
from weft.shapes.fakes.shape_rules import Result, infer
from weft.shapes.fakes.without_sympy import python_kernels

_COPY: Final = torch.ops.aten.copy_.default


def _by_formula(mode: Any, func: OpOverload, args: Any, kwargs: Any, call: CallReader) -> object:
    """Plain cases of common operators, by formula."""
    results = infer(func, args, kwargs, call.context() if call.symbolic else None)
    if results is None:
        return NotImplemented
    tensors = [_make(mode, result, call) for result in results]
    return tensors[0] if len(func._schema.returns) == 1 else tuple(tensors)


def _make(mode: FakeTensorMode, result: Result, call: CallReader) -> torch.Tensor:
    size, stride, offset = result.sizes, result.strides, result.offset
    if any(type(n) is not int for n in (*size, *stride, offset)):
        context = call.context()
        size = tuple([context.as_int(n) for n in size])
        stride = tuple([context.as_int(n) for n in stride])
        offset = context.as_int(offset)
    if result.view:
        meta = meta_view(call.tensors[0], result.dtype, size, stride, offset)
        return make_fake(mode, meta, result.device)
    return make_fake(mode, make_meta(size, stride, result.dtype), result.device)


def _decomposed(mode: Any, func: OpOverload, args: Any, kwargs: Any, call: CallReader) -> object:
    """Operators whose meta kernel is missing or takes no symbolic sizes, by decomposition."""
    if func in meta_table or mode.cpp_meta_supports_symint(func):
        return NotImplemented
    if call.symbolic and func in mode._unbacked_special_fake_handling_ops:
        return NotImplemented
    decomposition = decomposition_table.get(func)
    if call.symbolic and torch.Tag.pointwise in func.tags and any(
            t.is_complex() for t in call.tensors):
        args = [_any_number(arg) for arg in args]
        kwargs = {name: _any_number(arg) for name, arg in kwargs.items()}
    with mode:
        if decomposition and (call.symbolic or torch_decomp_decompositions(func)):
            return decomposition(*args, **kwargs)
        return func.decompose(*args, **kwargs)


def _any_number(value: object) -> object:
    """A plain number for a symbolic one: which it is does not matter to the form of the result, and
    decompositions make complex numbers of it, which would fix it."""
    return {torch.SymInt: 3, torch.SymFloat: 3.0}.get(type(value), value)


def _by_prim(mode: Any, func: OpOverload, args: Any, kwargs: Any, call: CallReader) -> object:
    if func.namespace != "prims" or not hasattr(func, "prim_meta_impl"):
        return NotImplemented
    if stride_incorrect_op(func):
        return NotImplemented
    with mode:
        return func.prim_meta_impl(*args, **kwargs)


def _by_special_rule(
    mode: Any, func: OpOverload, args: Any, kwargs: Any, call: CallReader
) -> object:
    """PyTorch's special rules for fakes: factories, device conversions, indexing. (What they ask of
    a fake outside its mode loads DTensor.)"""
    for applies, rule in op_implementations_checks:
        if applies(func):
            with mode:
                result = rule(mode, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
    return NotImplemented


def _as_on_real_tensors(
    mode: object, func: OpOverload, args: object, kwargs: object, call: CallReader
) -> object:
    """Copies, and views of plain sizes, which C++ computes for meta tensors as for any others."""
    if (func.is_view and not call.symbolic) or func is _COPY:
        return _by_meta_kernel(mode, func, args, kwargs, call)
    return NotImplemented


def _by_meta_kernel(
    mode: Any, func: OpOverload, args: Any, kwargs: Any, call: CallReader
) -> object:
    if not has_meta(func):
        return NotImplemented
    metas: dict[int, FakeTensor] = {}
    try:
        with in_kernel_invocation(mode), _dispatcher_for(func, call):
            if _asks_for_the_device(func):
                result = func(*args, **kwargs)
            else:
                result = func(*_on_meta(args, metas), **_on_meta(kwargs, metas))
    except NotImplementedError:
        return NotImplemented
    if id(result) in metas:
        return metas[id(result)]  # an operator in place
    return mode.wrap_meta_outputs_with_default_device_logic(
        result, func, call.tensors, device=_wanted_device(kwargs)
    )


def _wanted_device(kwargs: Mapping[str, Any]) -> torch.device | None:
    """The device of what a factory makes."""
    return kwargs.get("device")


@cache
def _asks_for_the_device(func: OpOverload) -> bool:
    """Whether a Python kernel chooses layouts by the device, which meta tensors hide."""
    kernel = inspect.unwrap(meta_table.get(func, len))
    return _reads(getattr(kernel, "__code__", None), "device_hint")


def _reads(code: object, name: str) -> bool:
    """Whether code, or that of a function defined in it, reads the name."""
    return isinstance(code, types.CodeType) and (
        name in code.co_names or any(_reads(part, name) for part in code.co_consts))


def _on_meta(value: Any, metas: dict[int, FakeTensor]) -> Any:
    """The arguments with fake tensors replaced by meta tensors, which are recorded in ``metas``."""
    kind = type(value)
    if kind is FakeTensor:
        meta = meta_of(value)
        metas[id(meta)] = value
        return meta
    if kind is dict:
        return {name: _on_meta(item, metas) for name, item in value.items()}
    return [_on_meta(item, metas) for item in value] if kind in (list, tuple) else value


def _dispatcher_for(func: OpOverload, call: CallReader) -> AbstractContextManager[Any]:
    """The Python dispatcher for meta kernels of Fourier transforms: they reshape, which in C++
    needs plain sizes."""
    reshapes = call.symbolic and func.name().startswith("aten::_fft")
    return python_kernels() if reshapes else nullcontext()


OPERATOR_RULES: Final = (
    _by_formula, _decomposed, _by_prim, _as_on_real_tensors, _by_special_rule, _by_meta_kernel,
)
