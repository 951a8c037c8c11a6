"""How scalars, operators and reductions of the loop IR are written in C++.

Place in the pipeline: tables for the writers; the functions named here live in `include/*.h`.
"""

from __future__ import annotations

import math
from typing import Final

from weft.codegen.ir.dtypes import FLOAT_TYPES, DType
from weft.codegen.ir.loop_ir import Op, Scalar

C_TYPE: Final[dict[DType, str]] = {
    "f64": "double", "f32": "float", "f16": "half", "bf16": "bfloat16", "i64": "int64_t",
    "i32": "int32_t", "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t", "bool": "bool",
}

FUNCTION: Final = {"xor": "xor_", "fma": "fused"}
"""Operators whose C++ function has another name."""

_MATH: Final = (
    "sqrt", "rsqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan",
    "asin", "acos", "atan", "tanh", "erf", "erfc", "normal_cdf", "sigmoid", "floor", "ceil",
    "trunc", "round", "copysign",
)
_LIBRARY: Final = (
    "sinh", "cosh", "asinh", "acosh", "atanh", "lgamma", "atan2", "hypot", "nextafter",
)
_INTEGER: Final = (
    "divisor", "floordiv", "truncdiv", "mod", "fmod", "pow", "sign", "signbit", "isinf", "shl",
    "shr",
)
HEADER: Final[dict[str, str]] = {
    **dict.fromkeys(_MATH, "math.h"),
    **dict.fromkeys(_LIBRARY, "library.h"),
    **dict.fromkeys(_INTEGER, "integer.h"),
    **dict.fromkeys(("round_bf16", "round_f16"), "half.h"),
    **dict.fromkeys(("philox", "philox_normal"), "random.h"),
}
"""The header of an operator that core.h does not have."""


def headers_of(op: Op) -> frozenset[str]:
    """The headers that have the C++ function of an operator."""
    return frozenset({HEADER[op.name]} if op.name in HEADER else ())


REDUCTION: Final = {
    "sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "any": "Any", "all": "All",
    "argmax": "ArgMax", "argmin": "ArgMin",
}


def literal(value: Scalar, dtype: DType) -> str:
    """A constant of a compute type, exactly."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in FLOAT_TYPES:
        return _float_literal(float(value), "" if dtype == "f64" else "f")
    number = int(value)
    if number == -(2**63):
        return "(-0x7fffffffffffffffLL - 1)"
    return f"({C_TYPE[dtype]}){number}LL" if dtype == "i64" else f"({C_TYPE[dtype]}){number}"


def _float_literal(value: float, suffix: str) -> str:
    if math.isnan(value):
        return f'__builtin_nan{suffix}("")'
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}__builtin_inf{suffix}()"
    return f"({'float' if suffix else 'double'}){value!r}"
