"""The fixed table of scalar operators of the loop IR, with their exact semantics.

Place in the pipeline: `loop_ir.Op` nodes name an entry of `OPS`; lowerings build them, targets
spell them (C++, Triton) and `tools/kernel_interpreter.py` runs them with NumPy. An operator that is
not in the table does not exist.

Rules common to all:
- Operands all have the same compute type, which is the result's too, unless the entry says
  otherwise.
- Floating point follows IEEE 754 (NaN, infinities, signed zeros); nothing may assume finite values.
- Integers wrap modulo 2^n in their own type (`u8`: 255 + 1 = 0). Integer division by zero is
  undefined
  (the C++ target must not crash: it yields 0).
- `bool` is 0/1; `and_/or_/xor/not_` on it are logical.

>>> OPS["add"].arity
2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final


@final
@dataclass(frozen=True)
class ScalarOp:
    """A scalar operator; `operands` and `result` are type classes.

    operands: "float" (f32, f64), "int" (the integer types), "bits" (i64), "integral" (int or bool),
    "number" (float or int), "any"; result: "same" (as the operands), "bool", "double" (f64),
    "given" (the node's own dtype).
    """

    name: str
    arity: int
    operands: str
    result: str
    semantics: str


_TABLE: Final = [
    # arithmetic
    ("add", 2, "number", "same", "a + b"),
    ("sub", 2, "number", "same", "a - b"),
    ("mul", 2, "number", "same", "a * b"),
    ("neg", 1, "number", "same", "-a"),
    ("abs", 1, "number", "same", "|a|; the most negative integer maps to itself"),
    ("div", 2, "float", "same", "IEEE quotient"),
    ("floordiv", 2, "number", "same", "towards -inf; as torch.div(rounding_mode='floor')"),
    ("truncdiv", 2, "number", "same", "rounds towards zero"),
    ("mod", 2, "number", "same", "remainder with the sign of b (Python's %)"),
    ("fmod", 2, "number", "same", "remainder with the sign of a (C's fmod and %)"),
    ("pow", 2, "number", "same", "C pow; integers: negative exponents give 1/a^|b| truncated"),
    ("fma", 3, "float", "same", "a * b + c, one rounding or two, but a * b does not overflow"),
    ("maximum", 2, "any", "same", "greater one; NaN if either is NaN"),
    ("minimum", 2, "any", "same", "smaller one; NaN if either is NaN"),
    ("sign", 1, "number", "same", "-1, 0, 1; sign(NaN) = 0"),
    # floating point, unary
    ("sqrt", 1, "float", "same", "square root"),
    ("rsqrt", 1, "float", "same", "1 / sqrt(a), full precision"),
    ("reciprocal", 1, "float", "same", "1 / a"),
    ("exp", 1, "float", "same", "e^a"),
    ("exp2", 1, "float", "same", "2^a"),
    ("expm1", 1, "float", "same", "e^a - 1, accurate near 0"),
    ("log", 1, "float", "same", "natural logarithm"),
    ("log2", 1, "float", "same", "base 2"),
    ("log10", 1, "float", "same", "base 10"),
    ("log1p", 1, "float", "same", "log(1 + a), accurate near 0"),
    ("sin", 1, "float", "same", ""),
    ("cos", 1, "float", "same", ""),
    ("tan", 1, "float", "same", ""),
    ("asin", 1, "float", "same", ""),
    ("acos", 1, "float", "same", ""),
    ("atan", 1, "float", "same", ""),
    ("sinh", 1, "float", "same", ""),
    ("cosh", 1, "float", "same", ""),
    ("tanh", 1, "float", "same", ""),
    ("asinh", 1, "float", "same", ""),
    ("acosh", 1, "float", "same", ""),
    ("atanh", 1, "float", "same", ""),
    ("erf", 1, "float", "same", "Gauss error function"),
    ("erfc", 1, "float", "same", "1 - erf(a), accurate for large a"),
    ("normal_cdf", 1, "float", "same", "(1 + erf(a / sqrt(2))) / 2, to 1e-7 in f32"),
    ("lgamma", 1, "float", "same", "log |gamma(a)|"),
    ("sigmoid", 1, "float", "same", "1 / (1 + e^-a)"),
    ("floor", 1, "float", "same", ""),
    ("ceil", 1, "float", "same", ""),
    ("trunc", 1, "float", "same", "towards zero"),
    ("round", 1, "float", "same", "to nearest, ties to even"),
    # floating point, binary
    ("atan2", 2, "float", "same", "C atan2(a, b)"),
    ("hypot", 2, "float", "same", "C hypot"),
    ("copysign", 2, "float", "same", "magnitude of a, sign of b"),
    ("nextafter", 2, "float", "same", "C nextafter"),
    # predicates and comparisons
    ("isnan", 1, "float", "bool", ""),
    ("isinf", 1, "float", "bool", "either infinity"),
    ("signbit", 1, "number", "bool", "is the sign bit set (also -0.0 and -NaN)"),
    ("eq", 2, "any", "bool", "false if either is NaN"),
    ("ne", 2, "any", "bool", "true if either is NaN"),
    ("lt", 2, "any", "bool", ""),
    ("le", 2, "any", "bool", ""),
    ("gt", 2, "any", "bool", ""),
    ("ge", 2, "any", "bool", ""),
    # bits and logic
    ("and_", 2, "integral", "same", "bitwise"),
    ("or_", 2, "integral", "same", "bitwise"),
    ("xor", 2, "integral", "same", "bitwise"),
    ("not_", 1, "integral", "same", "bitwise complement; logical on bool"),
    ("shl", 2, "int", "same", "a << b; 0 if b < 0 or b >= width"),
    ("shr", 2, "int", "same", "arithmetic a >> b; all sign bits if b < 0 or b >= width"),
    ("divisor", 2, "where", "same", "b, an integer; 0 where a is true ends the kernel: an error"),
    # choice and conversion
    ("where", 3, "where", "same", "a ? b : c; a is bool, b and c have the result's type"),
    ("cast", 1, "any", "given", "float to int truncates, anything to bool is a != 0"),
    ("round_bf16", 1, "float", "same", "f32 only: rounds to the nearest bf16 value (ties to even)"),
    ("round_f16", 1, "float", "same", "f32 only: rounds to the nearest f16 value (ties to even)"),
    ("double_of", 1, "bits", "double", "the f64 that the bits of an i64 are"),
    # random numbers (counter based; see runtime's Philox 4x32-10)
    ("philox", 2, "int", "given", "f32 uniform in [0, 1) of (seed i64, counter i64)"),
    ("philox_normal", 2, "int", "given", "f32 standard normal of (seed i64, counter i64)"),
]

OPS: Final[dict[str, ScalarOp]] = {row[0]: ScalarOp(*row) for row in _TABLE}

COMPARISONS: Final = ("lt", "le", "gt", "ge", "eq", "ne")

REDUCTIONS: Final[dict[str, str]] = {
    "sum": "sum; f32 and f64 in any order of addition, integers wrap",
    "prod": "product",
    "max": "maximum, NaN if any is NaN",
    "min": "minimum, NaN if any is NaN",
    "any": "or over bool",
    "all": "and over bool",
    "argmax": "flat index (i64) over the inner variables; first one wins; NaN is greatest",
    "argmin": "the same for the minimum; NaN is smallest",
}
"""Reduction kinds. Over an empty domain: sum 0, prod 1, any 0, all 1; others are not allowed."""

COMBINING: Final = ("add", "mul", "maximum", "minimum")
"""Operators that stores combine a value with what is there by."""

DEAR: Final = frozenset({
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "atan2", "erf", "erfc", "erfinv",
    "normal_cdf", "pow", "lgamma", "digamma", "sigmoid",
})
"""Operators that cost as much as ten others."""
