"""How each scalar operator, type and constant of the loop IR is written in Triton.

Place in the pipeline: `nodes.py` looks operators up here. An operator that is missing for a type
raises `Unsupported`, and the code generator then calls ATen for that node.

    >>> spell_op("add", "f32", ["v0", "v1"])
    'v0 + v1'
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from weft.codegen.ir.dtypes import INT_TYPES, DType

TYPE: Final[dict[DType, str]] = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16",
    "i64": "tl.int64", "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8", "u8": "tl.uint8",
    "bool": "tl.int1",
}

POINTER: Final[dict[DType, str]] = {
    "f64": "*fp64", "f32": "*fp32", "f16": "*fp16", "bf16": "*bf16",
    "i64": "*i64", "i32": "*i32", "i16": "*i16", "i8": "*i8", "u8": "*u8", "bool": "*i1",
}
"""The signature entry of a buffer of each memory type."""


class Unsupported(Exception):
    """This target cannot spell the kernel; the caller uses ATen instead."""


# {0}, {1}, … are the operands' variable names.
_ANY_TYPE: Final[dict[str, str]] = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "neg": "-{0}",
    "abs": "tl.abs({0})",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "where": "tl.where({0}, {1}, {2})",
    "signbit": "{0} < 0",
}

_FLOAT: Final[dict[str, str]] = {
    "div": "tl.div_rn({0}, {1})",
    "floordiv": "p.float_floor_div({0}, {1})",
    "truncdiv": "p.libdevice.trunc({0} / {1})",
    "mod": "p.float_mod({0}, {1})",
    "fmod": "p.libdevice.fmod({0}, {1})",
    "pow": "p.libdevice.pow({0}, {1})",
    "fma": "tl.fma({0}, {1}, {2})",
    "maximum": "p.nan_max({0}, {1})",
    "minimum": "p.nan_min({0}, {1})",
    "sign": "tl.where({0} > 0, 1.0, tl.where({0} < 0, -1.0, 0.0)).to({0}.dtype)",
    "sqrt": "tl.sqrt_rn({0})",
    "reciprocal": "tl.div_rn(tl.full([], 1.0, {0}.dtype), {0})",
    "sigmoid": "tl.sigmoid({0})",
    "normal_cdf": "p.libdevice.erf({0} * 0.7071067811865476) * 0.5 + 0.5",
    "exp": "tl.exp({0})",
    "sin": "p.libdevice.sin({0})",
    "cos": "p.libdevice.cos({0})",
    "log": "p.libdevice.log({0})",
    "round": "p.libdevice.rint({0})",
    "isnan": "{0} != {0}",
    "isinf": "tl.abs({0}) == float('inf')",
    "signbit": "p.libdevice.signbit({0}) != 0",
    "round_bf16": "{0}.to(tl.bfloat16).to(tl.float32)",
    "round_f16": "{0}.to(tl.float16).to(tl.float32)",
}
for _name in (
    "rsqrt", "exp2", "expm1", "log2", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh",
    "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma", "floor", "ceil", "trunc",
):
    _FLOAT[_name] = f"p.libdevice.{_name}({{0}})"
for _name in ("atan2", "hypot", "copysign", "nextafter"):
    _FLOAT[_name] = f"p.libdevice.{_name}({{0}}, {{1}})"

_FLOAT64: Final[dict[str, str]] = {
    "div": "{0} / {1}",
    "sqrt": "tl.sqrt({0})",
    "reciprocal": "1.0 / {0}",
    "sigmoid": "1.0 / (1.0 + tl.exp(-{0}))",
    "maximum": "tl.where({0} != {0}, {0}, tl.where({0} > {1}, {0}, {1}))",
    "minimum": "tl.where({0} != {0}, {0}, tl.where({0} < {1}, {0}, {1}))",
}

_INT: Final[dict[str, str]] = {
    "divisor": "{1}",  # eager's kernels do not check it
    "floordiv": "tl.where({1} == 0, 0, p.floor_div({0}, tl.where({1} == 0, 1, {1})))",
    "truncdiv": "tl.where({1} == 0, 0, {0} // tl.where({1} == 0, 1, {1}))",
    "mod": "p.floor_mod({0}, tl.where({1} == 0, 1, {1}))",
    "fmod": "{0} % tl.where({1} == 0, 1, {1})",
    "pow": "p.int_pow({0}, {1})",
    "maximum": "tl.maximum({0}, {1})",
    "minimum": "tl.minimum({0}, {1})",
    "sign": "({0} > 0).to({0}.dtype) - ({0} < 0).to({0}.dtype)",
    "and_": "{0} & {1}",
    "or_": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not_": "~{0}",
    "double_of": "{0}.to(tl.float64, bitcast=True)",
}

_BOOL: Final[dict[str, str]] = {
    "and_": "{0} & {1}",
    "or_": "{0} | {1}",
    "xor": "{0} ^ {1}",
    "not_": "{0} == 0",
    "maximum": "{0} | {1}",
    "minimum": "{0} & {1}",
    "lt": "{0}.to(tl.int8) < {1}.to(tl.int8)",
    "le": "{0}.to(tl.int8) <= {1}.to(tl.int8)",
    "gt": "{0}.to(tl.int8) > {1}.to(tl.int8)",
    "ge": "{0}.to(tl.int8) >= {1}.to(tl.int8)",
}


def _tables(dtype: DType) -> tuple[dict[str, str], ...]:
    """The tables to search for operands of `dtype`, most specific first."""
    if dtype == "f64":
        return _FLOAT64, _FLOAT, _ANY_TYPE
    if dtype == "f32":
        return _FLOAT, _ANY_TYPE
    if dtype == "bool":
        return _BOOL, _ANY_TYPE
    return _INT, _ANY_TYPE


def spell_op(name: str, dtype: DType, args: Sequence[str]) -> str:
    """Triton text of one operator on operands of `dtype`."""
    for table in _tables(dtype):
        template = table.get(name)
        if template is not None:
            return template.format(*args)
    raise Unsupported(f"Triton has no '{name}' for {dtype}")


def spell_cast(value: str, source: DType, target: DType) -> str:
    """A value conversion: anything to bool is `!= 0`; float to u8 goes through i32 as in C."""
    if target == "bool":
        return f"{value} != 0"
    if source in ("f32", "f64") and target in INT_TYPES - {"i64", "i32"}:
        return f"{value}.to(tl.int32).to({TYPE[target]})"
    return f"{value}.to({TYPE[target]})"


def spell_const(value: float | int | bool, dtype: DType, rank: int) -> str:
    """A typed constant that broadcasts against a tile of `rank` dimensions."""
    shape = ", ".join(["1"] * rank)
    return f"tl.full([{shape}], {spell_literal(value)}, {TYPE[dtype]})"


def spell_quotient(index: str, divisor: str) -> str:
    """An index, from 0 to 2**31 - 1, divided by a size that is given as its reciprocal (unsigned).

    Not a function of the prelude: Triton forgets hints about the results of functions.
    """
    doubled, multiplier, shift = (f"{index}.to(tl.uint32) << 1", f"{divisor}.to(tl.uint32)",
                                  f"{divisor}_shift.to(tl.uint32)")
    return f"tl.umulhi({doubled}, {multiplier}) >> {shift}"


def spell_literal(value: float | int | bool) -> str:
    """A Python literal as Triton reads it (infinities and NaN have none)."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)
