"""Pointwise operators: one table, each entry a formula over scalar nodes.

Place in the pipeline: part of `lowering/`. An entry is `operator: (rule, body)` where
`body(*operands)` computes with terms (`terms.py`) and the rule says in which type:

- OUT: operands are converted to the result's type (torch's promotion, which the node's metadata
  has);
- COMMON: operands are converted to their common type, the result is what the body gives
  (comparisons).

    aten.tanh.default: (OUT, scalar("tanh"))
    aten.lt.Tensor:    (COMMON, scalar("lt"))
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from weft.codegen.ir.dtypes import HALF_TYPES, DType, from_torch, is_supported
from weft.codegen.ir.loop_ir import IndexValue, Node
from weft.codegen.ir.simplify import literal
from weft.codegen.lowering.registry import (
    LOWERINGS,
    NUMBER_OPERATORS,
    Body,
    LoweringContext,
    NotLowered,
    cost_of,
    lowering,
    number_value,
)
from weft.codegen.lowering.terms import (
    Term,
    apply,
    exp,
    expm1,
    fma,
    isinf,
    isnan,
    log1p,
    maximum,
    minimum,
    normal_cdf,
    reciprocal,
    rsqrt,
    scalar,
    sigmoid,
    sqrt,
    square,
    tanh,
    trunc,
    unchanged,
    where,
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


def _division(name: str) -> Body:
    """A quotient or remainder; of integers by what may be 0 it checks that."""

    def body(x: Term, y: Term) -> Term:
        if not y.is_float and not literal(y.node) and not _is_positive(y.node):
            em = y.em
            used = em.const(True, "bool") if em.mask is None else em.mask
            y = Term(em, em.op("divisor", used, y.node))
        return apply(name, x, y)

    return body


def _is_positive(node: Node) -> bool:
    return isinstance(node, IndexValue) and lower_bound(node.expr) > 0


def _float_only(name: str) -> Body:
    """Rounding functions, which are the identity on integers."""
    return lambda x: apply(name, x) if x.is_float else x


def _to_bool(x: Term) -> Term:
    return x.cast("bool")


def _logical(name: str) -> Body:
    return lambda x, y: apply(name, _to_bool(x), _to_bool(y))


def _constant(value: bool) -> Body:
    return lambda x: Term(x.em, x.em.const(value, "bool"))


def _if_float(body: Body, otherwise: Body) -> Body:
    return lambda x: body(x) if x.is_float else otherwise(x)


def _unless_bool(name: str) -> Body:
    return lambda x: x if x.dtype == "bool" else apply(name, x)


def _signbit(x: Term) -> Term:
    return _constant(False)(x) if x.dtype == "bool" else apply("signbit", x)


def relu(x: Term) -> Term:
    return maximum(x, 0)


def silu(x: Term) -> Term:
    return x * sigmoid(x)


def _clip(x: Term, low: float, high: float) -> Term:
    return minimum(maximum(x, low), high)


def _shifted_relu6(x: Term) -> Term:
    return _clip(x + 3.0, 0.0, 6.0)


def _hardsigmoid(x: Term) -> Term:
    return _shifted_relu6(x) * (1 / 6)


def _hardswish(x: Term) -> Term:
    return x * _shifted_relu6(x) * (1 / 6)


def gelu_tanh(x: Term) -> Term:
    bent = tanh((x + x * x * x * 0.044715) * math.sqrt(2 / math.pi))
    factor = bent + 1.0
    return x * 0.5 * factor


def gelu_erf(x: Term) -> Term:
    return x * normal_cdf(x)


def softplus_of(x: Term) -> Term:
    """log(1 + e^x) without overflow."""
    tail = log1p(exp(-abs(x)))
    return relu(x) + tail


def _mish(x: Term) -> Term:
    return x * tanh(softplus_of(x))


def _frac(x: Term) -> Term:
    return x - trunc(x)


def _last_of_equals(name: str) -> Body:
    """Of zeros of both signs eager takes the second if both operands are tensors."""
    return lambda x, y: apply(name, y, x)


def _pick_number(name: str) -> Body:
    """fmax / fmin, which ignore a NaN."""

    def body(x: Term, y: Term) -> Term:
        picked = apply(name, x, y)
        return where(isnan(x), y, where(isnan(y), x, picked)) if x.is_float else picked

    return body


def power(x: Term, y: Term) -> Term:
    """pow, with the usual constant exponents made cheap."""
    exponent = getattr(y.node, "value", None)
    known = _POWERS.get(exponent) if x.is_float or exponent in (1, 2, 3) else None
    return apply("pow", x, y) if known is None else known(x)


_POWERS: Final[dict[Any, Body]] = {
    1: unchanged,
    2: square,
    3: lambda x: x * x * x,
    4: lambda x: square(square(x)),
    0.5: sqrt,
    -0.5: rsqrt,
    -1: reciprocal,
    -2: lambda x: reciprocal(square(x)),
}


def _zero_times_log(name: str) -> Body:
    """xlogy(x, y): x * log(y), 0 where x is 0 and y is a number."""

    def body(x: Term, y: Term) -> Term:
        product = x * apply(name, y)
        zero = where(x.equals(0), 0, product)
        return where(isnan(y), y, zero)

    return body


def _logaddexp(x: Term, y: Term) -> Term:
    top = maximum(x, y)
    total = top + log1p(exp(-abs(x - y)))
    return where(isinf(x) & x.equals(y), x, total)


def _heaviside(x: Term, value: Term) -> Term:
    step = (x > 0).cast(x.dtype)
    return where(x.equals(0), value, step)


def _multiply(x: Term, y: Term) -> Term:
    return x & y if x.dtype == "bool" else x * y


def _add(x: Term, y: Term) -> Term:
    return x | y if x.dtype == "bool" else x + y


def _sigmoid_backward(grad: Term, y: Term) -> Term:
    return grad * (1 - y) * y


def _tanh_backward(grad: Term, y: Term) -> Term:
    one = y.number(1)
    return grad * (one - y * y)


def _silu_backward(grad: Term, x: Term) -> Term:
    s, one = sigmoid(x), x.number(1)
    slope = one + x * (one - s)
    return grad * (s * slope)


_FLOAT_FUNCTIONS: Final = (
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "erfc", "lgamma", "sigmoid",
)
_ROUNDINGS: Final = ("floor", "ceil", "trunc", "round")

_TABLE: Final[dict[Any, tuple[str, Body]]] = {
    # unary, floating point results
    **{
        getattr(aten, name).default: (OUT, scalar(name))
        for name in _FLOAT_FUNCTIONS
    },
    **{getattr(aten, name).default: (OUT, _float_only(name)) for name in _ROUNDINGS},
    aten.neg.default: (OUT, scalar("neg")),
    aten.abs.default: (OUT, _unless_bool("abs")),
    aten.sign.default: (OUT, _unless_bool("sign")),
    aten.sgn.default: (OUT, _unless_bool("sign")),
    aten.relu.default: (OUT, relu),
    aten.silu.default: (OUT, silu),
    aten.mish.default: (OUT, _mish),
    aten.square.default: (OUT, square),
    aten.frac.default: (OUT, _frac),
    aten.hardsigmoid.default: (OUT, _hardsigmoid),
    aten.hardswish.default: (OUT, _hardswish),
    aten.relu6.default: (OUT, lambda x: _clip(x, 0, 6)),
    aten.bitwise_not.default: (OUT, scalar("not_")),
    aten.logical_not.default: (COMMON, lambda x: ~_to_bool(x)),
    aten.isnan.default: (COMMON, _if_float(isnan, _constant(False))),
    aten.isinf.default: (COMMON, _if_float(isinf, _constant(False))),
    aten.isfinite.default: (COMMON, _if_float(lambda x: abs(x) < math.inf, _constant(True))),
    aten.signbit.default: (COMMON, _signbit),
    # binary, in the result's type
    aten.mul.Tensor: (OUT, _multiply),
    aten.mul.Scalar: (OUT, _multiply),
    aten.div.Tensor: (OUT, scalar("div")),
    aten.div.Scalar: (OUT, scalar("div")),
    aten.true_divide.Tensor: (OUT, scalar("div")),
    aten.floor_divide.default: (OUT, _division("floordiv")),
    aten.remainder.Tensor: (OUT, _division("mod")),
    aten.fmod.Tensor: (OUT, _division("fmod")),
    aten.maximum.default: (OUT, _last_of_equals("maximum")),
    aten.minimum.default: (OUT, _last_of_equals("minimum")),
    aten.fmax.default: (OUT, _pick_number("maximum")),
    aten.fmin.default: (OUT, _pick_number("minimum")),
    aten.pow.Tensor_Tensor: (OUT, power),
    aten.pow.Scalar: (OUT, power),
    aten.atan2.default: (OUT, scalar("atan2")),
    aten.hypot.default: (OUT, scalar("hypot")),
    aten.copysign.Tensor: (OUT, scalar("copysign")),
    aten.copysign.Scalar: (OUT, scalar("copysign")),
    aten.nextafter.default: (OUT, scalar("nextafter")),
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
        getattr(getattr(aten, f"bitwise_{word}"), overload): (OUT, scalar(name))
        for word, name in (("and", "and_"), ("or", "or_"), ("xor", "xor"))
        for overload in ("Tensor", "Scalar")
    },
    **{
        getattr(getattr(aten, f"bitwise_{side}_shift"), overload): (OUT, scalar(name))
        for side, name in (("left", "shl"), ("right", "shr"))
        for overload in ("Tensor", "Tensor_Scalar")
    },
    # comparisons and logic
    **{
        getattr(getattr(aten, name), overload): (COMMON, scalar(name))
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for overload in ("Tensor", "Scalar")
    },
    aten.logical_and.default: (COMMON, _logical("and_")),
    aten.logical_or.default: (COMMON, _logical("or_")),
    aten.logical_xor.default: (COMMON, _logical("xor")),
}


def _register(operator: object, rule: str, body: Body) -> None:
    def lower(cx: LoweringContext, *operands: Any) -> Value:
        compute = common_type(operands) if rule == COMMON else None
        if compute is not None and not is_supported(compute):
            raise NotLowered(f"a comparison in {compute}")
        return cx.pointwise(_rounded(body, cx.dtype), *operands, compute=compute)

    LOWERINGS[operator] = lower


def _rounded(body: Body, dtype: torch.dtype) -> Body:
    """With `emulate_precision_casts`, round to a half type after every operator, as eager does."""
    if not config.emulate_precision_casts or dtype not in (torch.bfloat16, torch.float16):
        return body
    name = f"round_{from_torch(dtype)}"
    return lambda *operands: apply(name, body(*operands))


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


def _scaled(cx: LoweringContext, alpha: object) -> Body:
    """Multiplication by a Python scalar, omitted for 1."""
    number = number_value(cx, alpha)
    if isinstance(number, Value):
        return lambda x: x * Term(x.em, number.at(x.em, ())).cast(x.dtype)
    if isinstance(alpha, (int, float)) and alpha == 1:
        return unchanged
    return lambda x: x * alpha if isinstance(alpha, Expr) else _multiply(x, x.number(alpha))


@lowering(aten.add.Tensor, aten.add.Scalar)
def add(
    cx: LoweringContext, x: Any, y: Any, scalar_alpha: object = 1, *, alpha: object = 1
) -> Value:
    scale = _scaled(cx, alpha if scalar_alpha == 1 else scalar_alpha)
    return cx.pointwise(lambda u, v: _add(u, scale(v)), x, y)


@lowering(aten.sub.Tensor, aten.sub.Scalar)
def sub(
    cx: LoweringContext, x: Any, y: Any, scalar_alpha: object = 1, *, alpha: object = 1
) -> Value:
    scale = _scaled(cx, alpha if scalar_alpha == 1 else scalar_alpha)
    return cx.pointwise(lambda u, v: u - scale(v), x, y)


@lowering(aten.rsub.Tensor, aten.rsub.Scalar)
def rsub(
    cx: LoweringContext, x: object, y: object, scalar_alpha: object = 1, *, alpha: object = 1
) -> Value:
    return sub(cx, y, x, alpha=alpha if scalar_alpha == 1 else scalar_alpha)


@lowering(aten.pow.Tensor_Scalar)
def pow_scalar(cx: LoweringContext, x: Value, exponent: Any) -> Value:
    if isinstance(exponent, (int, float)) and exponent == 0:
        return cx.pointwise(lambda u: u.number(1), x)
    return cx.pointwise(power, x, exponent)


@lowering(aten.div.Tensor_mode, aten.div.Scalar_mode)
def div_mode(cx: LoweringContext, x: Any, y: Any, *, rounding_mode: str | None = None) -> Value:
    name = {None: "div", "floor": "floordiv", "trunc": "truncdiv"}[rounding_mode]
    return cx.pointwise(_division(name), x, y)


@lowering(aten.remainder.Scalar, aten.fmod.Scalar)
def remainder_scalar(cx: LoweringContext, x: Value, y: Any) -> Value:
    """By a number that is rounded to the type, half types too."""
    if isinstance(y, float):
        y = torch.tensor(y, dtype=cx.dtype).item()
    name = "mod" if cx.target is aten.remainder.Scalar else "fmod"
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


def _gelu_erf_backward(grad: Term, x: Term) -> Term:
    squared = x * x
    bell = exp(squared * -0.5)
    if x.dtype == "f32":  # no subnormal numbers, which products take a hundred times as long over
        bell = where(squared > LARGEST_SQUARE, 0.0, bell)
    density = bell * (1 / math.sqrt(2 * math.pi))
    return grad * (normal_cdf(x) + x * density)


def _gelu_tanh_backward(grad: Term, x: Term) -> Term:
    one, beta = x.number(1.0), math.sqrt(2 / math.pi)
    squared = x * x
    bent = tanh((x + squared * x * 0.044715) * beta)
    slope = one + squared * (3 * 0.044715)
    inner = x * (0.5 * beta) * slope
    steep = (one - bent * bent) * inner
    return grad * ((bent + one) * 0.5 + steep)


@lowering(aten.where.self, aten.where.ScalarSelf, aten.where.ScalarOther, aten.where.Scalar)
def where_(cx: LoweringContext, condition: Value, x: object, y: object) -> Value:
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
    return cx.pointwise(scalar("shl" if left else "shr"), x, count)


def select_by(cx: LoweringContext, condition: Value, x: Any, y: Any) -> Value:
    """condition ? x : y in the node's type."""
    picks = cx.pointwise(unchanged, x), cx.pointwise(unchanged, y)
    at = cx.pointwise(unchanged, condition, dtype=torch.bool)

    def formula(em: Emitter, index: Any) -> Node:
        return em.op("where", at.at(em, index), picks[0].at(em, index), picks[1].at(em, index))

    cost, reads = cost_of(condition, x, y)
    return cx.lazy(cx.shape, cx.dtype, formula, cost + 1, reads, cx.layouts[0])


@lowering(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(cx: LoweringContext, x: Value, mask: Value, value: object) -> Value:
    return select_by(cx, mask, value, x)


@lowering(aten.clamp.default, aten.clamp.Tensor, aten.hardtanh.default)
def clamp(
    cx: LoweringContext, x: Value, low: object = None, high: object = None, **named: object
) -> Value:
    low, high = named.get("min", low), named.get("max", high)
    if cx.target is aten.hardtanh.default:
        low, high = -1.0 if low is None else low, 1.0 if high is None else high
    result = cx.pointwise(unchanged, x, cost=0)
    if low is not None:
        result = _bounded(cx, "maximum", result, low)
    return result if high is None else _bounded(cx, "minimum", result, high)


def _bounded(cx: LoweringContext, name: str, x: Value, bound: Any) -> Value:
    body = _last_of_equals(name) if isinstance(bound, Value) else scalar(name)
    return cx.pointwise(body, x, bound)


@lowering(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(cx: LoweringContext, x: Value, low: object) -> Value:
    return _bounded(cx, "maximum", x, low)


@lowering(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(cx: LoweringContext, x: Value, high: object) -> Value:
    return _bounded(cx, "minimum", x, high)


@lowering(aten.leaky_relu.default)
def leaky_relu(cx: LoweringContext, x: Value, slope: float = 0.01) -> Value:
    def body(u: Term) -> Term:
        small = u * slope
        return where(u > 0, u, small)

    return cx.pointwise(body, x, cost=3)


@lowering(aten.elu.default)
def elu(
    cx: LoweringContext, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    def body(u: Term) -> Term:
        negative = expm1(u * input_scale) * (alpha * scale)
        positive = u * scale
        return where(u > 0, positive, negative)

    return cx.pointwise(body, x, cost=5)


@lowering(aten.softplus.default)
def softplus(cx: LoweringContext, x: Value, beta: float = 1, threshold: float = 20) -> Value:
    if not isinstance(beta, (int, float)):
        raise NotLowered("a symbolic slope")

    def body(u: Term) -> Term:
        scaled = u * beta
        curved = log1p(exp(scaled)) * (1 / beta)
        return where(scaled > threshold, u, curved)

    return cx.pointwise(body, x, cost=5)


@lowering(aten.threshold_backward.default)
def threshold_backward(cx: LoweringContext, grad: Value, x: Value, threshold: float) -> Value:
    return cx.pointwise(lambda g, u: where(u <= threshold, 0, g), grad, x)


@lowering(aten.addcmul.default)
def addcmul(cx: LoweringContext, x: Value, y: Value, z: Value, *, value: object = 1) -> Value:
    scale = _scaled(cx, value)
    return cx.pointwise(lambda u, v, w: _fused(scale(v), w, u), x, y, z)


def _fused(x: Term, y: Term, z: Term) -> Term:
    """x * y + z, of floats with one rounding, as in eager's vectors: x * y may overflow."""
    return fma(x, y, z) if x.is_float else z + x * y


@lowering(aten.addcdiv.default)
def addcdiv(cx: LoweringContext, x: Value, y: Value, z: Value, *, value: object = 1) -> Value:
    scale = _scaled(cx, value)
    return cx.pointwise(lambda u, v, w: u + scale(v) / w, x, y, z)


@lowering(aten.lerp.Scalar, aten.lerp.Tensor)
def lerp(cx: LoweringContext, x: Value, y: Value, weight: Any) -> Value:
    def body(u: Term, v: Term, w: Term) -> Term:
        small = abs(w) < 0.5
        return _fused(where(small, w, w - 1.0), v - u, where(small, u, v))

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

    def body(u: Term) -> Term:
        result = where(isnan(u), values[0], u)
        result = where(u.equals(math.inf), values[1], result)
        return where(u.equals(-math.inf), values[2], result)

    return cx.pointwise(body, x, cost=6)


@lowering(aten._to_copy.default, aten.to.dtype, aten._to_dense.default)
def to_copy(cx: LoweringContext, x: Value, *args: object, **named: object) -> Value:
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
    return cx.pointwise(_rounding_to(from_torch(dtype)), x, dtype=dtype, compute=x.dtype)


def _rounding_to(dtype: DType) -> Body:
    if dtype not in HALF_TYPES:
        return unchanged
    return lambda u: apply(f"round_{dtype}", u.cast("f32"))


@lowering(aten.clone.default, aten.contiguous.default)
def clone(cx: LoweringContext, x: Value, *, memory_format: object = None) -> Value:
    return cx.copy(x)


@lowering(aten.copy.default)
def copy(cx: LoweringContext, x: Value, source: Value, non_blocking: bool = False) -> Value:
    moved = cx.pointwise(unchanged, source, dtype=source.dtype, cost=0)
    return convert(cx, moved, cx.dtype)
