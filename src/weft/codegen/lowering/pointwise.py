"""Pointwise operators: one table, each entry a formula over scalar nodes.

Place in the pipeline: part of `lowering/`. An entry is `operator: (rule, body)` where `body(b,
*operands)` builds nodes and the rule says in which type:

- OUT: operands are converted to the result's type (torch's promotion, which the node's metadata
  has);
- COMMON: operands are converted to their common type, the result is what the body gives
  (comparisons).

    aten.tanh.default: (OUT, unary("tanh"))
    aten.lt.Tensor:    (COMMON, binary("lt"))
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from weft.codegen.ir.dtypes import FLOAT_TYPES, HALF_TYPES, from_torch, is_supported
from weft.codegen.ir.loop_ir import IndexValue, Node
from weft.codegen.ir.simplify import literal
from weft.codegen.lowering.registry import (
    LOWERINGS,
    NUMBER_OPERATORS,
    Body,
    LoweringContext,
    NotLowered,
    lowering,
    number_value,
)
from weft.codegen.values import Emitter, Value
from weft.config import config
from weft.shapes.algebra.bounds import lower_bound
from weft.shapes.algebra.expr import Expr
from weft.shapes.algebra.floats import SYMBOLIC_FLOATS

aten = torch.ops.aten

OUT: Final = "out"
COMMON: Final = "common"
LARGEST_SQUARE: Final = 172.8
"""Of a float32 x whose normal density exp(-x * x / 2) / sqrt(2 * pi) is a normal number."""


def unary(name: str) -> Body:
    return lambda b, x: b.op(name, x)


def binary(name: str) -> Body:
    return lambda b, x, y: b.op(name, x, y)


def _division(name: str) -> Body:
    """A quotient or remainder; of integers by what may be 0 it checks that."""
    def body(b: Emitter, x: Node, y: Node) -> Node:
        if not is_float(y) and not literal(y) and not _is_positive(y):
            used = b.const(True, "bool") if b.mask is None else b.mask
            y = b.op("divisor", used, y)
        return b.op(name, x, y)
    return body


def _is_positive(node: Node) -> bool:
    return isinstance(node, IndexValue) and lower_bound(node.expr) > 0


def is_float(node: Node) -> bool:
    return node.dtype in FLOAT_TYPES


def _const(b: Emitter, value: float | Expr, like: Node) -> Node:
    return b.number(value, like.dtype)


def _float_only(name: str) -> Body:
    """Rounding functions, which are the identity on integers."""
    return lambda b, x: b.op(name, x) if is_float(x) else x


def _neg(b: Emitter, x: Node) -> Node:
    return b.op("neg", x)


def _to_bool(b: Emitter, x: Node) -> Node:
    return b.cast(x, "bool")


def _logical(name: str) -> Body:
    return lambda b, x, y: b.op(name, _to_bool(b, x), _to_bool(b, y))


def _false(b: Emitter, x: Node) -> Node:
    return b.const(False, "bool")


def _if_float(body: Body, otherwise: Body) -> Body:
    return lambda b, x: body(b, x) if is_float(x) else otherwise(b, x)


def _signbit(b: Emitter, x: Node) -> Node:
    return _false(b, x) if x.dtype == "bool" else b.op("signbit", x)


def _isfinite(b: Emitter, x: Node) -> Node:
    return b.op("lt", b.op("abs", x), _const(b, math.inf, x))


def relu(b: Emitter, x: Node) -> Node:
    return b.op("maximum", x, _const(b, 0, x))


def _square(b: Emitter, x: Node) -> Node:
    return b.op("mul", x, x)


def silu(b: Emitter, x: Node) -> Node:
    return b.op("mul", x, b.op("sigmoid", x))


def _clip(b: Emitter, x: Node, low: float, high: float) -> Node:
    return b.op("minimum", b.op("maximum", x, _const(b, low, x)), _const(b, high, x))


def _shifted_relu6(b: Emitter, x: Node) -> Node:
    return _clip(b, b.op("add", x, _const(b, 3.0, x)), 0.0, 6.0)


def _hardsigmoid(b: Emitter, x: Node) -> Node:
    return b.op("mul", _shifted_relu6(b, x), _const(b, 1 / 6, x))


def _hardswish(b: Emitter, x: Node) -> Node:
    return b.op("mul", b.op("mul", x, _shifted_relu6(b, x)), _const(b, 1 / 6, x))


def gelu_tanh(b: Emitter, x: Node) -> Node:
    cube = b.op("mul", b.op("mul", x, x), x)
    inside = b.op("add", x, b.op("mul", cube, _const(b, 0.044715, x)))
    bent = b.op("tanh", b.op("mul", inside, _const(b, math.sqrt(2 / math.pi), x)))
    factor = b.op("add", bent, _const(b, 1.0, x))
    return b.op("mul", b.op("mul", x, _const(b, 0.5, x)), factor)


def gelu_erf(b: Emitter, x: Node) -> Node:
    return b.op("mul", x, b.op("normal_cdf", x))


def softplus_of(b: Emitter, x: Node) -> Node:
    """log(1 + e^x) without overflow."""
    tail = b.op("log1p", b.op("exp", b.op("neg", b.op("abs", x))))
    return b.op("add", relu(b, x), tail)


def _mish(b: Emitter, x: Node) -> Node:
    return b.op("mul", x, b.op("tanh", softplus_of(b, x)))


def _frac(b: Emitter, x: Node) -> Node:
    return b.op("sub", x, b.op("trunc", x))


def _pick_number(b: Emitter, name: str, x: Node, y: Node) -> Node:
    """fmax / fmin, which ignore a NaN."""
    picked = b.op(name, x, y)
    if not is_float(x):
        return picked
    return b.op("where", b.op("isnan", x), y, b.op("where", b.op("isnan", y), x, picked))


def power(b: Emitter, x: Node, y: Node) -> Node:
    """pow, with the usual constant exponents made cheap."""
    exponent = getattr(y, "value", None)
    known = _POWERS.get(exponent) if is_float(x) or exponent in (1, 2, 3) else None
    return b.op("pow", x, y) if known is None else known(b, x)


_POWERS: Final[dict[Any, Body]] = {
    1: lambda b, x: x,
    2: _square,
    3: lambda b, x: b.op("mul", b.op("mul", x, x), x),
    4: lambda b, x: _square(b, _square(b, x)),
    0.5: lambda b, x: b.op("sqrt", x),
    -0.5: lambda b, x: b.op("rsqrt", x),
    -1: lambda b, x: b.op("reciprocal", x),
    -2: lambda b, x: b.op("reciprocal", _square(b, x)),
}


def _zero_times_log(name: str) -> Body:
    """xlogy(x, y): x * log(y), 0 where x is 0 and y is a number."""

    def body(b: Emitter, x: Node, y: Node) -> Node:
        product = b.op("mul", x, b.op(name, y))
        zero = b.op("where", b.op("eq", x, _const(b, 0, x)), _const(b, 0, x), product)
        return b.op("where", b.op("isnan", y), y, zero)

    return body


def _logaddexp(b: Emitter, x: Node, y: Node) -> Node:
    top = b.op("maximum", x, y)
    gap = b.op("neg", b.op("abs", b.op("sub", x, y)))
    total = b.op("add", top, b.op("log1p", b.op("exp", gap)))
    same = b.op("and_", b.op("isinf", x), b.op("eq", x, y))
    return b.op("where", same, x, total)


def _heaviside(b: Emitter, x: Node, value: Node) -> Node:
    step = b.cast(b.op("gt", x, _const(b, 0, x)), x.dtype)
    return b.op("where", b.op("eq", x, _const(b, 0, x)), value, step)


def _multiply(b: Emitter, x: Node, y: Node) -> Node:
    return b.op("and_" if x.dtype == "bool" else "mul", x, y)


def _add(b: Emitter, x: Node, y: Node) -> Node:
    return b.op("or_" if x.dtype == "bool" else "add", x, y)


def _sigmoid_backward(b: Emitter, grad: Node, y: Node) -> Node:
    return b.op("mul", grad, b.op("mul", y, b.op("sub", _const(b, 1, y), y)))


def _tanh_backward(b: Emitter, grad: Node, y: Node) -> Node:
    return b.op("mul", grad, b.op("sub", _const(b, 1, y), b.op("mul", y, y)))


def _silu_backward(b: Emitter, grad: Node, x: Node) -> Node:
    s = b.op("sigmoid", x)
    one = _const(b, 1, x)
    slope = b.op("add", one, b.op("mul", x, b.op("sub", one, s)))
    return b.op("mul", grad, b.op("mul", s, slope))


_FLOAT_FUNCTIONS: Final = (
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "lgamma", "sigmoid",
)
_ROUNDINGS: Final = ("floor", "ceil", "trunc", "round")

_TABLE: Final[dict[Any, tuple[str, Body]]] = {
    # unary, floating point results
    **{
        getattr(aten, name).default: (OUT, unary(name))
        for name in _FLOAT_FUNCTIONS
    },
    **{getattr(aten, name).default: (OUT, _float_only(name)) for name in _ROUNDINGS},
    aten.neg.default: (OUT, _neg),
    aten.abs.default: (OUT, lambda b, x: x if x.dtype == "bool" else b.op("abs", x)),
    aten.sign.default: (OUT, lambda b, x: x if x.dtype == "bool" else b.op("sign", x)),
    aten.sgn.default: (OUT, lambda b, x: x if x.dtype == "bool" else b.op("sign", x)),
    aten.relu.default: (OUT, relu),
    aten.silu.default: (OUT, silu),
    aten.mish.default: (OUT, _mish),
    aten.square.default: (OUT, _square),
    aten.frac.default: (OUT, _frac),
    aten.hardsigmoid.default: (OUT, _hardsigmoid),
    aten.hardswish.default: (OUT, _hardswish),
    aten.relu6.default: (OUT, lambda b, x: _clip(b, x, 0, 6)),
    aten.bitwise_not.default: (OUT, unary("not_")),
    aten.logical_not.default: (COMMON, lambda b, x: b.op("not_", _to_bool(b, x))),
    aten.isnan.default: (COMMON, _if_float(unary("isnan"), _false)),
    aten.isinf.default: (COMMON, _if_float(unary("isinf"), _false)),
    aten.isfinite.default: (COMMON, _if_float(_isfinite, lambda b, x: b.const(True, "bool"))),
    aten.signbit.default: (COMMON, _signbit),
    # binary, in the result's type
    aten.mul.Tensor: (OUT, _multiply),
    aten.mul.Scalar: (OUT, _multiply),
    aten.div.Tensor: (OUT, binary("div")),
    aten.div.Scalar: (OUT, binary("div")),
    aten.true_divide.Tensor: (OUT, binary("div")),
    aten.floor_divide.default: (OUT, _division("floordiv")),
    aten.remainder.Tensor: (OUT, _division("mod")),
    aten.remainder.Scalar: (OUT, _division("mod")),
    aten.fmod.Tensor: (OUT, _division("fmod")),
    aten.fmod.Scalar: (OUT, _division("fmod")),
    aten.maximum.default: (OUT, binary("maximum")),
    aten.minimum.default: (OUT, binary("minimum")),
    aten.fmax.default: (OUT, lambda b, x, y: _pick_number(b, "maximum", x, y)),
    aten.fmin.default: (OUT, lambda b, x, y: _pick_number(b, "minimum", x, y)),
    aten.pow.Tensor_Tensor: (OUT, power),
    aten.pow.Scalar: (OUT, power),
    aten.atan2.default: (OUT, binary("atan2")),
    aten.hypot.default: (OUT, binary("hypot")),
    aten.copysign.Tensor: (OUT, binary("copysign")),
    aten.copysign.Scalar: (OUT, binary("copysign")),
    aten.nextafter.default: (OUT, binary("nextafter")),
    aten.xlogy.Tensor: (OUT, _zero_times_log("log")),
    aten.xlogy.Scalar_Other: (OUT, _zero_times_log("log")),
    aten.xlogy.Scalar_Self: (OUT, _zero_times_log("log")),
    aten.special_xlog1py.default: (OUT, _zero_times_log("log1p")),
    aten.logaddexp.default: (OUT, _logaddexp),
    aten.heaviside.default: (OUT, _heaviside),
    aten.sigmoid_backward.default: (OUT, _sigmoid_backward),
    aten.tanh_backward.default: (OUT, _tanh_backward),
    aten.silu_backward.default: (OUT, _silu_backward),
    **{
        getattr(getattr(aten, f"bitwise_{word}"), overload): (OUT, binary(name))
        for word, name in (("and", "and_"), ("or", "or_"), ("xor", "xor"))
        for overload in ("Tensor", "Scalar")
    },
    **{
        getattr(getattr(aten, f"bitwise_{side}_shift"), overload): (OUT, binary(name))
        for side, name in (("left", "shl"), ("right", "shr"))
        for overload in ("Tensor", "Tensor_Scalar")
    },
    # comparisons and logic
    **{
        getattr(getattr(aten, name), overload): (COMMON, binary(name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    aten.logical_and.default: (COMMON, _logical("and_")),
    aten.logical_or.default: (COMMON, _logical("or_")),
    aten.logical_xor.default: (COMMON, _logical("xor")),
}


def _register(operator: Any, rule: str, body: Body) -> None:
    def lower(cx: LoweringContext, *operands: Any) -> Value:
        compute = common_type(operands) if rule == COMMON else None
        return cx.pointwise(_rounded(body, cx.dtype), *operands, compute=compute)

    LOWERINGS[operator] = lower


def _rounded(body: Body, dtype: torch.dtype) -> Body:
    """With `emulate_precision_casts`, round to a half type after every operator, as eager does."""
    if not config.emulate_precision_casts or dtype not in (torch.bfloat16, torch.float16):
        return body
    name = f"round_{from_torch(dtype)}"
    return lambda b, *operands: b.op(name, body(b, *operands))


for _operator, (_rule, _body) in _TABLE.items():
    _register(_operator, _rule, _body)

NUMBER_OPERATORS.update(_TABLE)
NUMBER_OPERATORS.update(
    getattr(getattr(aten, name), overload)
    for name in ("add", "sub", "rsub")
    for overload in ("Tensor", "Scalar")
)
NUMBER_OPERATORS.update((
    aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default, aten.pow.Tensor_Scalar,
    aten.addcmul.default, aten.addcdiv.default, aten.lerp.Scalar))


def common_type(operands: Any) -> torch.dtype:
    """torch's promoted type of tensors and Python scalars."""
    tensors = [o for o in operands if isinstance(o, Value)]
    scalars = [o for o in operands if not isinstance(o, Value)]
    if not scalars and len({v.dtype for v in tensors}) == 1:
        return tensors[0].dtype
    stand_ins: list[Any] = [
        torch.empty((1,) * min(len(v.shape), 1), dtype=v.dtype, device="meta") for v in tensors
    ]
    stand_ins += [
        1 if isinstance(s, Expr) else 1.0 if isinstance(s, SYMBOLIC_FLOATS) else s for s in scalars
    ]
    result = stand_ins[0]
    if len(stand_ins) == 1:
        return tensors[0].dtype
    return torch.result_type(result, stand_ins[1])


# --- operators with more to them than a table entry


def _scaled(cx: LoweringContext, alpha: Any) -> Callable[[Emitter, Node], Node]:
    """Multiplication by a Python scalar, omitted for 1."""
    number = number_value(cx, alpha)
    if isinstance(number, Value):
        return lambda b, x: b.op("mul", x, b.cast(number.at(b, ()), x.dtype))
    if isinstance(alpha, (int, float)) and alpha == 1:
        return lambda b, x: x
    if isinstance(alpha, Expr):
        return lambda b, x: b.op("mul", x, b.number(alpha, x.dtype))
    return lambda b, x: _multiply(b, x, b.const(alpha, x.dtype))


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(cx: LoweringContext, x: Any, y: Any, scalar_alpha: Any = 1, *, alpha: Any = 1) -> Value:
    scale = _scaled(cx, alpha if scalar_alpha == 1 else scalar_alpha)
    return cx.pointwise(lambda b, u, v: _add(b, u, scale(b, v)), x, y)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(cx: LoweringContext, x: Any, y: Any, scalar_alpha: Any = 1, *, alpha: Any = 1) -> Value:
    scale = _scaled(cx, alpha if scalar_alpha == 1 else scalar_alpha)
    return cx.pointwise(lambda b, u, v: b.op("sub", u, scale(b, v)), x, y)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(cx: LoweringContext, x: Any, y: Any, scalar_alpha: Any = 1, *, alpha: Any = 1) -> Value:
    return sub(cx, y, x, alpha=alpha if scalar_alpha == 1 else scalar_alpha)


@lowering(aten.pow.Tensor_Scalar)
def pow_scalar(cx: LoweringContext, x: Value, exponent: Any) -> Value:
    if isinstance(exponent, (int, float)) and exponent == 0:
        return cx.pointwise(lambda b, u: b.const(1, u.dtype), x)
    return cx.pointwise(power, x, exponent)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(cx: LoweringContext, x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    name = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    return cx.pointwise(_division(name), x, y)


@lowering(aten.gelu.default)
def gelu(cx: LoweringContext, x: Value, *, approximate: str = "none") -> Value:
    if approximate not in ("none", "tanh"):
        raise NotLowered("ATen refuses it")
    return cx.pointwise(gelu_tanh if approximate == "tanh" else gelu_erf, x, cost=5)


@lowering(aten.gelu_backward.default)
def gelu_backward(
    cx: LoweringContext, grad: Value, x: Value, *, approximate: str = "none"
) -> Value:
    body = _gelu_tanh_backward if approximate == "tanh" else _gelu_erf_backward
    return cx.pointwise(body, grad, x, cost=8)


def _gelu_erf_backward(b: Emitter, grad: Node, x: Node) -> Node:
    square = b.op("mul", x, x)
    bell = b.op("exp", b.op("mul", square, _const(b, -0.5, x)))
    if x.dtype == "f32":  # no subnormal numbers, which products take a hundred times as long over
        far = b.op("gt", square, _const(b, LARGEST_SQUARE, x))
        bell = b.op("where", far, _const(b, 0.0, x), bell)
    pdf = b.op("mul", bell, _const(b, 1 / math.sqrt(2 * math.pi), x))
    return b.op("mul", grad, b.op("add", b.op("normal_cdf", x), b.op("mul", x, pdf)))


def _gelu_tanh_backward(b: Emitter, grad: Node, x: Node) -> Node:
    one, beta = _const(b, 1.0, x), math.sqrt(2 / math.pi)
    square = b.op("mul", x, x)
    inside = b.op("add", x, b.op("mul", b.op("mul", square, x), _const(b, 0.044715, x)))
    bent = b.op("tanh", b.op("mul", inside, _const(b, beta, x)))
    slope = b.op("add", one, b.op("mul", square, _const(b, 3 * 0.044715, x)))
    inner = b.op("mul", b.op("mul", x, _const(b, 0.5 * beta, x)), slope)
    steep = b.op("mul", b.op("sub", one, b.op("mul", bent, bent)), inner)
    flat = b.op("mul", b.op("add", bent, one), _const(b, 0.5, x))
    return b.op("mul", grad, b.op("add", flat, steep))


@lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where(cx: LoweringContext, condition: Value, x: Any, y: Any) -> Value:
    chosen = cx.pointwise(_to_bool, condition, dtype=torch.bool, compute=condition.dtype,
                          shape=condition.shape, cost=0)
    return select_by(cx, chosen, x, y)


@lowering(
    aten.__lshift__.Scalar, aten.__lshift__.Tensor, aten.__rshift__.Scalar, aten.__rshift__.Tensor
)
def shift(cx: LoweringContext, x: Value, count: Any) -> Value:
    """`x << count` and `x >> count`, which are products with powers of two for floats."""
    if cx.dtype.is_floating_point:
        raise NotLowered("shift of floats")
    left = cx.target in (aten.__lshift__.Scalar, aten.__lshift__.Tensor)
    return cx.pointwise(binary("shl" if left else "shr"), x, count)


def select_by(cx: LoweringContext, condition: Value, x: Any, y: Any) -> Value:
    """condition ? x : y in the node's type."""
    picks = cx.pointwise(lambda b, v: v, x), cx.pointwise(lambda b, v: v, y)
    at = cx.pointwise(lambda b, v: v, condition, dtype=torch.bool)

    def formula(em: Emitter, index: Any) -> Node:
        return em.op("where", at.at(em, index), picks[0].at(em, index), picks[1].at(em, index))

    from_ = [v for v in (condition, x, y) if isinstance(v, Value)]
    cost, reads = _total(from_)
    return cx.lazy(cx.shape, cx.dtype, formula, cost + 1, reads, cx.layouts[0])


def _total(values: list[Value]) -> tuple[int, int]:
    cost = sum(getattr(v.impl, "cost", 0) for v in values)
    return cost, sum(getattr(v.impl, "reads", 1) for v in values)


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(cx: LoweringContext, x: Value, mask: Value, value: Any) -> Value:
    return select_by(cx, mask, value, x)


@lowering(aten.clamp.default, aten.clamp.Tensor, aten.hardtanh.default)
def clamp(cx: LoweringContext, x: Value, low: Any = None, high: Any = None, **named: Any) -> Value:
    low, high = named.get("min", low), named.get("max", high)
    if cx.target is aten.hardtanh.default:
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    result = cx.pointwise(lambda b, u: u, x, cost=0)
    if low is not None:
        result = cx.pointwise(binary("maximum"), result, low)
    return result if high is None else cx.pointwise(binary("minimum"), result, high)


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(cx: LoweringContext, x: Value, low: Any) -> Value:
    return cx.pointwise(binary("maximum"), x, low)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(cx: LoweringContext, x: Value, high: Any) -> Value:
    return cx.pointwise(binary("minimum"), x, high)


@lowering(aten.leaky_relu.default)
def leaky_relu(cx: LoweringContext, x: Value, slope: float = 0.01) -> Value:
    def body(b: Emitter, u: Node) -> Node:
        small = b.op("mul", u, _const(b, slope, u))
        return b.op("where", b.op("gt", u, _const(b, 0, u)), u, small)

    return cx.pointwise(body, x, cost=3)


@lowering(aten.elu.default)
def elu(
    cx: LoweringContext, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    def body(b: Emitter, u: Node) -> Node:
        bent = b.op("expm1", b.op("mul", u, _const(b, input_scale, u)))
        negative = b.op("mul", bent, _const(b, alpha * scale, u))
        positive = b.op("mul", u, _const(b, scale, u))
        return b.op("where", b.op("gt", u, _const(b, 0, u)), positive, negative)

    return cx.pointwise(body, x, cost=5)


@lowering(aten.softplus.default)
def softplus(cx: LoweringContext, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if not isinstance(beta, (int, float)):
        raise NotLowered("a symbolic slope")

    def body(b: Emitter, u: Node) -> Node:
        scaled = b.op("mul", u, _const(b, beta, u))
        curved = b.op("mul", b.op("log1p", b.op("exp", scaled)), _const(b, 1 / beta, u))
        return b.op("where", b.op("gt", scaled, _const(b, threshold, u)), u, curved)

    return cx.pointwise(body, x, cost=5)


@lowering(aten.threshold_backward.default)
def threshold_backward(cx: LoweringContext, grad: Value, x: Value, threshold: float) -> Value:
    def body(b: Emitter, g: Node, u: Node) -> Node:
        return b.op("where", b.op("le", u, _const(b, threshold, u)), _const(b, 0, g), g)

    return cx.pointwise(body, grad, x)


@lowering(aten.addcmul.default)
def addcmul(cx: LoweringContext, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    scale = _scaled(cx, value)
    return cx.pointwise(lambda b, u, v, w: b.op("add", u, b.op("mul", scale(b, v), w)), x, y, z)


@lowering(aten.addcdiv.default)
def addcdiv(cx: LoweringContext, x: Value, y: Value, z: Value, *, value: Any = 1) -> Value:
    scale = _scaled(cx, value)
    return cx.pointwise(lambda b, u, v, w: b.op("add", u, b.op("div", scale(b, v), w)), x, y, z)


@lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(cx: LoweringContext, x: Value, y: Value, weight: Any) -> Value:
    def body(b: Emitter, u: Node, v: Node, w: Node) -> Node:
        gap = b.op("sub", v, u)
        near_start = b.op("add", u, b.op("mul", w, gap))
        near_end = b.op("sub", v, b.op("mul", gap, b.op("sub", _const(b, 1, w), w)))
        return b.op("where", b.op("lt", b.op("abs", w), _const(b, 0.5, w)), near_start, near_end)

    return cx.pointwise(body, x, y, weight, cost=6)


@lowering(aten.nan_to_num.default)
def nan_to_num(
    cx: LoweringContext, x: Value, nan: float | None = None, posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    if not x.dtype.is_floating_point:
        return cx.copy(x)
    limits = torch.finfo(x.dtype)
    values = (
        nan or 0.0,
        limits.max if posinf is None else posinf,
        limits.min if neginf is None else neginf,
    )

    def body(b: Emitter, u: Node) -> Node:
        result = b.op("where", b.op("isnan", u), _const(b, values[0], u), u)
        result = b.op(
            "where", b.op("eq", u, _const(b, math.inf, u)), _const(b, values[1], u), result
        )
        return b.op(
            "where", b.op("eq", u, _const(b, -math.inf, u)), _const(b, values[2], u), result
        )

    return cx.pointwise(body, x, cost=6)


@lowering(aten._to_copy.default, aten.to.dtype, aten._to_dense.default)
def to_copy(cx: LoweringContext, x: Value, *args: Any, **named: Any) -> Value:
    if x.device != cx.device:
        raise NotLowered("copy between devices")
    return convert(cx, x, cx.dtype)


@lowering(torch.ops.prims.convert_element_type.default)
def convert_element_type(cx: LoweringContext, x: Value, dtype: torch.dtype) -> Value:
    return convert(cx, x, dtype)


def convert(cx: LoweringContext, x: Value, dtype: torch.dtype) -> Value:
    """A copy in another element type; rounding to a half type is explicit, because it is
    visible."""
    if not is_supported(x.dtype) or not is_supported(dtype):
        raise NotLowered(f"{x.dtype} to {dtype}")
    if dtype == x.dtype:
        return cx.copy(x)
    body: Body = lambda b, u: u  # noqa: E731
    if from_torch(dtype) in HALF_TYPES:
        name = f"round_{from_torch(dtype)}"
        body = lambda b, u: b.op(name, b.cast(u, "f32"))  # noqa: E731
    return cx.pointwise(body, x, dtype=dtype, compute=x.dtype)


@lowering(aten.clone.default, aten.contiguous.default)
def clone(cx: LoweringContext, x: Value, *, memory_format: Any = None) -> Value:
    return cx.copy(x)


@lowering(aten.copy.default)
def copy(cx: LoweringContext, x: Value, source: Value, non_blocking: bool = False) -> Value:
    moved = cx.pointwise(lambda b, u: u, source, dtype=source.dtype, cost=0)
    return convert(cx, moved, cx.dtype)
