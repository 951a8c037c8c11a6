"""Runs a loop IR kernel with NumPy: slow, simple, and the oracle for every target.

Tests compare what C++ and Triton kernels compute with it, or put `compile_kernels` in the place of
the targets'. Each node is evaluated over the whole iteration domain at once, as an array with one
axis per loop variable (outer ones first), of size 1 where the node does not vary.

>>> from weft.codegen.ir.loop_ir import KernelBuilder, LoopVar
>>> from weft.shapes.algebra.expr import loop_index
>>> i0 = loop_index("i0", 3)
>>> builder = KernelBuilder(outer=(LoopVar(i0, 3),), inner=())
>>> builder.store("out0", "f32", i0, builder.op("neg", builder.load("in0", "f32", i0)))
>>> x, out = np.array([1, 2, 3], np.float32), np.zeros(3, np.float32)
>>> run_kernel(builder.build("negate"), {"in0": x, "out0": out})
>>> out
array([-1., -2., -3.], dtype=float32)

Buffers are flat arrays, and outputs are filled in. bf16 buffers are `uint16` arrays holding the
bits (NumPy has no bfloat16); see `from_torch_tensor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from weft.codegen.ir.loop_ir import (
    Const,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    Op,
    Reduce,
    Store,
)
from weft.shapes.algebra.atoms import FloorDiv, Max, Min, Mod, Symbol
from weft.shapes.algebra.expr import Expr, IntExpr

Array = Any

NUMPY_TYPE: Final = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "u8": np.uint8,
    "bool": np.bool_,
}


def run_kernel(
    kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int] | None = None
) -> None:
    """Execute `kernel` on flat arrays; raises IndexError where a checked index is out of bounds."""
    with np.errstate(all="ignore"):
        _Run(kernel, buffers, sizes or {}).execute()


def compile_kernels(
    kernels: Sequence[Kernel], devices: Sequence[torch.device], hints: Mapping[str, int]
) -> list[Callable[..., None]]:
    """Callables that run kernels on tensors, as those that `codegen.targets` compiles."""
    return [_callable(kernel) for kernel in kernels]


def _callable(kernel: Kernel) -> Callable[..., None]:
    names = {b.name: b.dtype for b in kernel.buffers}
    sizes = [str(s) for s in kernel.sizes]

    def call(*args: Any) -> None:
        tensors = zip(names.items(), args, strict=False)
        arrays = {name: _as_memory(tensor, dtype) for (name, dtype), tensor in tensors}
        run_kernel(kernel, arrays, dict(zip(sizes, args[len(names) :], strict=True)))

    return call


def from_torch_tensor(tensor: torch.Tensor) -> Array:
    """A flat array sharing the memory of a tensor, from its first element to the end of its
    storage.
    """
    flat = tensor.as_strided((_reach(tensor),), (1,))
    if tensor.dtype == torch.bfloat16:
        return flat.view(torch.uint16).numpy()
    return flat.numpy()


def _as_memory(tensor: torch.Tensor, dtype: str) -> Array:
    """A tensor's array for a buffer; half-precision elements that are only moved are integers."""
    array = from_torch_tensor(tensor)
    return array.view(np.int16) if dtype == "i16" else array


def _reach(tensor: torch.Tensor) -> int:
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


class _Run:
    """One execution: the values of all nodes and symbols."""

    def __init__(self, kernel: Kernel, buffers: Mapping[str, Array], sizes: Mapping[str, int]):
        self.kernel, self.buffers = kernel, buffers
        self.symbols: dict[Expr, Array] = {s: sizes[str(s)] for s in kernel.sizes}
        self.values: dict[int, Array] = {}
        self.dtypes = {b.name: b.dtype for b in kernel.buffers}
        loops = (*kernel.outer, *kernel.inner)
        self.extents = [int(self.evaluate(v.extent)) for v in loops]
        for axis, (var, extent) in enumerate(zip(loops, self.extents, strict=True)):
            shape = [1] * len(loops)
            shape[axis] = extent
            self.symbols[var.symbol] = np.arange(extent, dtype=np.int64).reshape(shape)
        self.n_outer = len(kernel.outer)

    def execute(self) -> None:
        for node in self.kernel.nodes:
            self.values[node.id] = _EVALUATE[type(node)](self, node)
        for store in self.kernel.stores:
            self.store(store)

    def evaluate(self, expr: IntExpr) -> Array:
        """The value of an index expression over the domain."""
        if isinstance(expr, int):
            return expr
        total: Array = expr.const
        for monomial, coefficient in expr.terms.items():
            term: Array = coefficient
            for atom in monomial:
                term = term * self._atom(atom)
            total = total + term
        return total

    def _atom(self, atom: Any) -> Array:
        if isinstance(atom, Symbol):
            return self.symbols[atom.expr]
        if isinstance(atom, FloorDiv):
            return self.evaluate(atom.left) // self.evaluate(atom.right)
        if isinstance(atom, Mod):
            return self.evaluate(atom.left) % self.evaluate(atom.right)
        assert isinstance(atom, Min | Max)
        pick = np.minimum if isinstance(atom, Min) else np.maximum
        values = [self.evaluate(a) for a in atom.args]
        total = values[0]
        for value in values[1:]:
            total = pick(total, value)
        return total

    def domain(self, inner: bool) -> list[int]:
        """The shape of the domain of a level (inner axes of size 1 at outer level)."""
        n = self.n_outer
        return self.extents if inner else self.extents[:n] + [1] * len(self.kernel.inner)

    def const(self, node: Const) -> Array:
        return NUMPY_TYPE[node.dtype](node.value)

    def index_value(self, node: IndexValue) -> Array:
        return np.asarray(self.evaluate(node.expr), dtype=np.int64)

    def indirect(self, node: Indirect) -> Array:
        value = self.values[node.value.id].astype(np.int64)
        size = self.evaluate(node.size)
        if node.wrap:
            value = np.where(value < 0, value + size, value)
        if node.check:
            self._check(node, value, size)
        value = np.clip(value, 0, np.maximum(size - 1, 0))  # masked points: any valid index
        self.symbols[node.symbol] = value
        return value

    def _check(self, node: Indirect, value: Array, size: Array) -> None:
        bad = (value < 0) | (value >= size)
        if node.mask is not None:
            bad = bad & self.values[node.mask.id]
        if 0 not in self.domain(node.inner) and np.any(bad):
            raise IndexError(f"index out of range for size {size}")

    def load(self, node: Load) -> Array:
        memory = self.buffers[node.buffer]
        index = np.asarray(self.evaluate(node.index))
        if node.mask is None:
            return _to_compute(memory[index], self.dtypes[node.buffer])
        mask = self.values[node.mask.id]
        index, mask = np.broadcast_arrays(index, mask)
        result = np.full(index.shape, NUMPY_TYPE[node.dtype](node.other))
        result[mask] = _to_compute(memory[index[mask]], self.dtypes[node.buffer])
        return result

    def op(self, node: Op) -> Array:
        args = [self.values[a.id] for a in node.args]
        result = _cast(args[0], node.dtype) if node.name == "cast" else _NUMPY[node.name](*args)
        return np.asarray(result).astype(NUMPY_TYPE[node.dtype], copy=False)

    def reduce(self, node: Reduce) -> Array:
        n = self.n_outer
        value = np.broadcast_to(self.values[node.value.id], self.domain(True))
        flat = value.reshape([*self.extents[:n], -1]) if value.size else value.reshape(
            [*self.extents[:n], math.prod(self.extents[n:])])
        result = _REDUCE[node.kind](flat)
        return result.astype(NUMPY_TYPE[node.dtype]).reshape(self.domain(False))

    def store(self, store: Store) -> None:
        shape = self.domain(store.inner)
        if 0 in shape:
            return
        memory = self.buffers[store.buffer]
        index = np.broadcast_to(self.evaluate(store.index), shape)
        value = np.broadcast_to(self.values[store.value.id], shape)
        value = _to_memory(value, self.dtypes[store.buffer])
        if store.mask is not None:
            wanted = np.broadcast_to(self.values[store.mask.id], shape)
            index, value = index[wanted], value[wanted]
        if store.mode == "assign":
            memory[index] = value
        else:
            _COMBINE[store.mode].at(memory, index, value)


_EVALUATE: Final[dict[type, Callable[[_Run, Any], Array]]] = {
    Const: _Run.const,
    IndexValue: _Run.index_value,
    Indirect: _Run.indirect,
    Load: _Run.load,
    Op: _Run.op,
    Reduce: _Run.reduce,
}


def _to_compute(values: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32) if dtype == "f16" else values


def _to_memory(values: Array, dtype: str) -> Array:
    if dtype == "bf16":
        return _bf16_bits(values)
    return values.astype(NUMPY_TYPE[dtype])


def _bf16_bits(values: Array) -> Array:
    bits = np.array(values, dtype=np.float32, order="C").view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def _cast(value: Array, dtype: str) -> Array:
    return value != 0 if dtype == "bool" else value.astype(NUMPY_TYPE[dtype])


def _torch(function: Callable[..., torch.Tensor]) -> Callable[..., Array]:
    """Special functions NumPy has not."""

    def call(*args: Array) -> Array:
        return function(*(torch.from_numpy(np.array(a)) for a in args)).numpy()

    return call


def _shift(
    function: Callable[..., Array], overflow: Callable[[Array], Array]
) -> Callable[..., Array]:
    def call(a: Array, b: Array) -> Array:
        width = a.dtype.itemsize * 8
        bad = (b < 0) | (b >= width) if a.dtype != np.uint8 else b >= width
        return np.where(bad, overflow(a), function(a, np.where(bad, 0, b).astype(a.dtype)))

    return call


def _power(a: Array, b: Array) -> Array:
    if np.asarray(a).dtype.kind == "f":
        return np.power(a, b)
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, negative, np.power(a, np.where(b < 0, 0, b)))


def _true_divide_ints(round_: Callable[..., Array]) -> Callable[..., Array]:
    """Division for floats and ints alike; `round_` does the ints."""

    def call(a: Array, b: Array) -> Array:
        return round_(a, np.where(b == 0, 1, b)) * (b != 0)

    return call


def _on_other_side(rest: Array, b: Array) -> Array:
    """Whether a remainder must move to the divisor's side of zero."""
    return (rest != 0) & ((b < 0) != (rest < 0))


def _fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once where a wider type is at hand."""
    wide = np.float64 if np.asarray(a).dtype == np.float32 else np.longdouble
    return np.asarray(a, wide) * b + c


def _first_of_equals(better: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """An extreme value: the first of equal ones (0 and -0), NaN if either is NaN."""
    return lambda a, b: np.where(better(b, a) | (b != b), b, a)


def _floor_divide(a: Array, b: Array) -> Array:
    if np.asarray(a).dtype.kind == "f":
        rest = np.fmod(a, b)
        quotient = (a - rest) / b - _on_other_side(rest, b)
        floor = np.floor(quotient)
        nearest = np.where(quotient - floor > 0.5, floor + 1, floor)
        exact = a / b
        zero = np.copysign(np.zeros_like(exact), exact)
        return np.where(b == 0, exact, np.where(quotient == 0, zero, nearest))
    return _true_divide_ints(np.floor_divide)(a, b)


def _trunc_divide(a: Array, b: Array) -> Array:
    if np.asarray(a).dtype.kind == "f":
        return np.trunc(a / b)
    return _true_divide_ints(lambda x, y: (x - np.fmod(x, y)) // y)(a, b)


def _modulo(a: Array, b: Array) -> Array:
    if np.asarray(a).dtype.kind == "f":
        rest = np.fmod(a, b)
        return np.where(_on_other_side(rest, b), rest + b, rest)
    return np.mod(a, np.where(b == 0, 1, b))


def _divisor(used: Array, b: Array) -> Array:
    if np.any(used & (b == 0)):
        raise RuntimeError("ZeroDivisionError")
    return b


def _half(dtype: torch.dtype) -> Callable[..., Array]:
    return _torch(lambda x: x.to(dtype).to(torch.float32))


_NUMPY: Final[dict[str, Callable[..., Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "neg": np.negative, "abs": np.abs,
    "div": np.divide, "divisor": _divisor, "floordiv": _floor_divide, "truncdiv": _trunc_divide,
    "mod": _modulo,
    "fmod": np.fmod, "pow": _power, "fma": _fused,
    "maximum": _first_of_equals(np.greater), "minimum": _first_of_equals(np.less),
    "sign": lambda a: np.where(a > 0, 1, np.where(a < 0, -1, 0)),
    "sqrt": np.sqrt, "rsqrt": lambda a: 1 / np.sqrt(a), "reciprocal": lambda a: 1 / a,
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh,
    "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "erf": _torch(torch.erf), "erfc": _torch(torch.erfc), "lgamma": _torch(torch.lgamma),
    "normal_cdf": _torch(lambda x: torch.special.ndtr(x.double())),
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)), "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "round": np.rint, "atan2": np.arctan2, "hypot": np.hypot,
    "copysign": np.copysign, "nextafter": np.nextafter, "isnan": np.isnan, "isinf": np.isinf,
    "signbit": np.signbit, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "and_": np.bitwise_and,
    "or_": np.bitwise_or, "xor": np.bitwise_xor, "not_": np.invert,
    "shl": _shift(np.left_shift, np.zeros_like),
    "shr": _shift(np.right_shift, lambda a: np.where(a < 0, -1, 0)),
    "double_of": lambda a: np.asarray(a, np.int64).view(np.float64),
    "where": np.where, "round_bf16": _half(torch.bfloat16), "round_f16": _half(torch.float16),
}


_COMBINE: Final[dict[str, np.ufunc]] = {
    "add": np.add, "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum,
}


def _arg(pick: Callable[..., Array]) -> Callable[[Array], Array]:
    def call(flat: Array) -> Array:
        return pick(flat, axis=-1)  # NumPy's argmax takes the first NaN, as eager does

    return call


_REDUCE: Final[dict[str, Callable[[Array], Array]]] = {
    "sum": lambda a: np.sum(a, axis=-1, dtype=_wide(a)),
    "prod": lambda a: np.prod(a, axis=-1, dtype=a.dtype),
    "max": lambda a: np.max(a, axis=-1),
    "min": lambda a: np.min(a, axis=-1),
    "any": lambda a: np.any(a, axis=-1),
    "all": lambda a: np.all(a, axis=-1),
    "argmax": _arg(np.argmax),
    "argmin": _arg(np.argmin),
}


def _wide(values: Array) -> Any:
    return np.float64 if values.dtype == np.float32 else values.dtype
