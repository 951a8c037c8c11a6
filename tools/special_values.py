"""Every pointwise lowering at special values against eager: zeros of both signs, infinities, NaN,
the largest and the least numbers, and each pair of them.

    python -m tools.special_values                       # all types, kernels run by the interpreter
    python -m tools.special_values --types f32,i8 --simd avx2,portable --operators asinh,pow  # C++

The operators are those of the table of lowerings whose results are as large as their operands, with
arguments by their schemas; then Python's operators with numbers of each type. Where eager's own
result is not that of float64 (its vectors and its tails differ in places), either is right.
"""

from __future__ import annotations

import argparse
import itertools
import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, final
from unittest import mock

import torch
from torch.fx import Graph, GraphModule

import weft
from tools import kernel_interpreter
from weft._torch import OpOverload, tree_flatten
from weft.aot.pipeline import compile_aot
from weft.codegen import compile_graph, targets
from weft.codegen.lowering import LOWERINGS

Tensor = torch.Tensor

TYPES: Final = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64,
}
aten = torch.ops.aten

NUMBERS: Final = (2, -1, 0, 3, 0.5, -0.0, 2.5, 1e19, math.inf, math.nan, True, 1 - 2j)
BATCH: Final = 24
"""Calls in one graph."""
_TOLERANCE: Final = {torch.float32: 2e-6, torch.float64: 2e-12, torch.bfloat16: 8e-3,
                     torch.float16: 1e-3, torch.complex64: 5e-6}


def values(dtype: torch.dtype, few: bool = False) -> Tensor:
    """The special values of an element type; `few`: for each of three operands."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if dtype.is_complex:
        parts = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan, 1e19]
        pairs = itertools.product(parts[1:7:2] if few else parts, repeat=2)
        return torch.tensor([complex(a, b) for a, b in pairs], dtype=dtype)
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        some = [0, 1, 2, 3, 7, limits.max, limits.min, -1 if limits.min else 5]
        more = [-2, -7, 8, 31, 33, 64, 100, limits.max - 1, limits.min + 1]
        chosen = some if few else [*some, *(m for m in more if m >= limits.min)]
        return torch.tensor(chosen, dtype=torch.int64).to(dtype)
    form = torch.finfo(dtype)
    least = form.smallest_normal * form.eps
    some = [0.0, -0.0, 1.0, -1.5, math.inf, -math.inf, math.nan, form.max]
    more = [0.5, -0.5, 0.3, -1.0, 2.0, 2.5, -7.0, 100.25, form.min, form.tiny, -form.tiny, least,
            -least, form.eps, 88.9, -104.0, math.log(form.max) + 0.4, 1e19, -1e19, 3.0, 7.0]
    return torch.tensor(some if few else [*some, *more], dtype=torch.float64).to(dtype)


@final
@dataclass(frozen=True)
class Case:
    """A call and its tensors."""

    name: str
    call: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    signless: bool = False
    """Whether the result may be a zero of either sign: an extreme of both depends on the order."""


# -- which calls -----------------------------------------------------------------------------------


def cases(dtype: torch.dtype, names: Sequence[str] = ()) -> Iterator[Case]:
    """All calls on tensors of a type that eager takes."""
    for case in itertools.chain(_of_table(dtype, names), _of_python(dtype, names)):
        if _is_pointwise(_outcome(case), case):
            yield case
    for case in _of_rows(dtype, names):
        if isinstance(_outcome(case), Tensor):
            yield case


def _of_table(dtype: torch.dtype, names: Sequence[str]) -> Iterator[Case]:
    operators = [op for op in LOWERINGS if isinstance(op, OpOverload)]
    for op in sorted(operators, key=str):
        if names and op._schema.name.partition("::")[2] not in names:
            continue
        kinds = [str(a.type) for a in op._schema.arguments]
        if torch.Tag.nondeterministic_seeded in op.tags:
            continue
        takes_number = any(
            kind == "number" and not a.has_default_value()
            for kind, a in zip(kinds, op._schema.arguments, strict=True))
        for number in NUMBERS if takes_number else (None,):
            yield from _filled(op, kinds, number, dtype)


def _filled(op: OpOverload, kinds: Sequence[str], number: Any, dtype: torch.dtype
            ) -> Iterator[Case]:
    """The call with as many tensors as its schema asks for."""
    arguments: list[Any] = []
    places: list[int] = []
    named: dict[str, Any] = {}
    for argument, kind in zip(op._schema.arguments, kinds, strict=True):
        if kind == "Tensor":
            places.append(len(arguments))
            arguments.append(None)
        elif kind == "number" and not argument.has_default_value():
            arguments.append(number)
        elif argument.has_default_value():
            break
        elif kind == "float":
            arguments.append(0.5)
        else:
            return
    if any(argument.name == "rounding_mode" for argument in op._schema.arguments):
        named["rounding_mode"] = "floor"

    def call(*tensors: Tensor) -> Any:
        filled = list(arguments)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        return op(*filled, **named)

    if dtype.is_complex and op is aten.silu_backward.default:
        return  # a formula with other intermediate values than the kernel's
    shown = f"{op}" if number is None else f"{op}[{number!r}]"
    divides = any(word in op.name() for word in ("div", "remainder", "fmod"))
    for case in _with_tensors(shown, call, len(places), dtype, divides):
        normal = isinstance(number, complex) and len(places) == 1
        yield replace(case, tensors=(_normal(case.tensors[0]),)) if normal else case


def _with_tensors(
    name: str, call: Callable[..., Any], count: int, dtype: torch.dtype, divides: bool
) -> Iterator[Case]:
    if not 1 <= count <= 3:
        return
    grid = [values(dtype, few=count > 2 or (dtype.is_complex and count > 1)) for _ in range(count)]
    if divides and count == 2 and not dtype.is_floating_point and not dtype.is_complex:
        grid[1] = grid[1][grid[1] != 0]
    tensors = tuple(t.flatten() for t in torch.meshgrid(*grid, indexing="ij"))
    yield Case(name, call, tensors)
    if name.endswith("]") and not name.endswith("[0.5]"):
        return
    yield Case(f"{name} of rank 0", call, tuple(t[len(t) // 3] for t in tensors))
    yield Case(f"{name} of nothing", call, tuple(t[:0] for t in tensors))


def _normal(x: Tensor) -> Tensor:
    """Without subnormal numbers: products with complex ones underflow, to zeros of some sign."""
    if not x.is_floating_point():
        return x
    return x[(x.abs() >= torch.finfo(x.dtype).tiny) | (x == 0) | x.isnan()]


_REDUCTIONS: Final[dict[str, Callable[[Tensor, int], Any]]] = {
    **{
        name: lambda x, d, name=name: getattr(x, name)(d)
        for name in ("amax", "amin", "argmax", "argmin", "logsumexp", "logcumsumexp", "softmax",
                     "log_softmax", "sum", "prod", "mean", "var", "std", "any", "all", "cumsum",
                     "cumprod", "nansum", "count_nonzero", "norm")
    },
    **{
        f"{name} and its place": lambda x, d, name=name: torch.stack([
            part.double() for part in getattr(x, name)(d)])
        for name in ("max", "min", "cummax", "cummin")
    },
    "aminmax": lambda x, d: torch.stack([*torch.aminmax(x, dim=d)]),
    "norm of inf": lambda x, d: x.norm(math.inf, d),
    "norm of 0": lambda x, d: x.norm(0, d),
    "softmax of the negative": lambda x, d: (-x).softmax(d),
    "all of it": lambda x, d: torch.stack([x.sum(), x.amax(), x.amin()]),
}


_EXTREMES: Final = {
    "amin", "amax", "aminmax", "max and its place", "min and its place", "all of it"}


def _of_rows(dtype: torch.dtype, names: Sequence[str]) -> Iterator[Case]:
    """Reductions and scans of rows of special values, along either dimension, and of nothing."""
    some = [0.0, -0.0, 1.0, math.inf, math.nan, -1.5, 2.0, -math.inf, -math.inf, 0.5, 1.0, math.inf]
    rows = torch.tensor(some if dtype.is_floating_point else [0, 1, 2, 100, 3, 1, 1, 0, 0, 5, 7, 9])
    if dtype.is_complex:
        return
    alike = [rows[at].expand(1, 4) for at in (1, 4, 7)]
    x = torch.cat([rows.unfold(0, 4, 1), *alike]).to(dtype).repeat(1, 5).contiguous()
    parts = ((0, x), (1, x), (0, x[:, :0]), (1, x[:, :0]), (0, x[0, 0]), (0, x[:1]))
    for name, function in _REDUCTIONS.items():
        for dim, tensor in parts if not names or name.split(" ")[0] in names else ():
            yield Case(f"{name} along {dim} of {list(tensor.shape)}",
                       lambda t, f=function, d=dim: f(t, d), (tensor,), name in _EXTREMES)


_OPERATORS: Final = {
    f.__name__: f for f in (
        operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
        operator.pow, operator.lt, operator.le, operator.eq, operator.ne, operator.and_,
        operator.or_, operator.xor, operator.lshift, operator.rshift)
}


def _of_python(dtype: torch.dtype, names: Sequence[str]) -> Iterator[Case]:
    """Python's operators with a number on either side, and conversions."""
    x = values(dtype)
    for name, function in _OPERATORS.items():
        if names and name not in names:
            continue
        for number in NUMBERS:
            if isinstance(number, complex):
                x = _normal(x)
            yield Case(f"x {name} {number!r}", lambda x, f=function, n=number: f(x, n), (x,))
            yield Case(f"{number!r} {name} x", lambda x, f=function, n=number: f(n, x),
                       (x[x != 0] if name in ("floordiv", "mod") else x,))
    for target in TYPES.values():
        if not names or "to" in names:
            yield Case(f"to {target}", lambda x, t=target: x.to(t),
                       (_in_range(x, target),))


def _in_range(x: Tensor, target: torch.dtype) -> Tensor:
    """The values that the type has: the others' conversion is not defined."""
    if target.is_floating_point or target.is_complex or target is torch.bool:
        return x
    real = x.real if x.dtype.is_complex else x
    if not x.dtype.is_floating_point and not x.dtype.is_complex:
        return x
    limits = torch.iinfo(target)
    return x[(real.double() > limits.min - 1.0) & (real.double() < limits.max)]


def _outcome(case: Case) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return case.call(*(t.clone(memory_format=torch.preserve_format) if t.is_contiguous()
                               else t for t in case.tensors))
        except (RuntimeError, NotImplementedError, TypeError, IndexError, ZeroDivisionError):
            return None


def _is_refused(case: Case) -> bool:
    """Whether PyTorch's own meta kernels refuse what its kernels do."""
    try:
        case.call(*[t.to("meta") for t in case.tensors])
    except RuntimeError:
        return True
    return False


def _is_pointwise(result: Any, case: Case) -> bool:
    return isinstance(result, Tensor) and result.shape == case.tensors[0].shape


# -- comparison ------------------------------------------------------------------------------------


def differences(batch: Sequence[Case]) -> list[str]:
    """What differs from eager in one graph of all the cases."""

    def program(*tensors: Tensor) -> list[Any]:
        rest = iter(tensors)
        return [case.call(*(next(rest) for _ in case.tensors)) for case in batch]

    inputs = [t.clone() for case in batch for t in case.tensors]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            results = _compiled(program, inputs)
        except Exception as error:  # noqa: BLE001  one of the calls: which?
            if len(batch) == 1:
                if _is_refused(batch[0]):
                    return []  # capture leaves it to eager
                return [f"{batch[0].name} of {batch[0].tensors[0].dtype}: raises {error!r}"[:300]]
            return [line for case in batch for line in differences([case])]
        return [text for case, result in zip(batch, results, strict=True)
                if (text := _difference(case, result))]


def _compiled(program: Callable[..., Any], inputs: list[Tensor]) -> list[Any]:
    graph = Graph()
    nodes = [graph.placeholder(f"x{i}") for i in range(len(inputs))]
    graph.output(graph.call_function(program, tuple(nodes)))
    gm = GraphModule({}, graph)
    call = compile_aot(gm, inputs, lambda gm: compile_graph(gm).graph_call(),
                       lowered=LOWERINGS.__contains__)
    return tree_flatten(call(list(inputs)))[0]


def _difference(case: Case, result: Any) -> str:
    wanted = _outcome(case)
    if result.dtype != wanted.dtype or result.shape != wanted.shape:
        return f"{case.name}: {result.dtype} {result.shape}, eager: {wanted.dtype} {wanted.shape}"
    if case.signless:
        result, wanted = result + 0, wanted + 0
    off = ~_alike(result, wanted)
    if off.any():
        off &= ~_alike(result, _exact(case, wanted))
    if off.any():
        off &= ~_alike(result, _in_vectors(case, wanted))
    if off.any():
        off &= ~_alike(result, _one_by_one(case, wanted))
    if not off.any():
        return ""
    at = [i for i, different in enumerate(off.flatten().tolist()) if different]
    shown = ", ".join(
        f"{[t.flatten()[i].item() for t in case.tensors]}: {result.flatten()[i].item()!r} for "
        f"{wanted.flatten()[i].item()!r}" for i in at[:4])
    return f"{case.name} of {case.tensors[0].dtype}: {len(at)} of {off.numel()}: {shown}"


def _in_vectors(case: Case, like: Tensor) -> Tensor:
    """The result by eager's vectors, of which single numbers and tails know nothing."""
    long = tuple(t.flatten().repeat(64) for t in case.tensors)
    result = _outcome(Case(case.name, case.call, long))
    if not isinstance(result, Tensor) or result.shape != long[0].shape:
        return like
    return result[: like.numel()].reshape(like.shape)


def _one_by_one(case: Case, like: Tensor) -> Tensor:
    """The result by the C library's functions, which eager uses for what does not lie densely."""
    apart = tuple(torch.stack([t, t], -1)[..., 0] for t in case.tensors)
    result = _outcome(replace(case, tensors=apart))
    return result if isinstance(result, Tensor) else like


def _exact(case: Case, like: Tensor) -> Tensor:
    """The result as float64 computes it, if that is another one."""
    if not any(t.is_floating_point() or t.is_complex() for t in case.tensors):
        return like
    wide = tuple(t.to(torch.complex128 if t.is_complex() else torch.float64)
                 if t.is_floating_point() or t.is_complex() else t for t in case.tensors)
    result = _outcome(Case(case.name, case.call, wide))
    return result.to(like.dtype) if isinstance(result, Tensor) else like


def _alike(a: Tensor, b: Tensor) -> Tensor:
    if a.is_complex():
        return _alike(a.real, b.real) & _alike(a.imag, b.imag)
    if not a.is_floating_point():
        return a == b
    rtol = _TOLERANCE[a.dtype]
    atol = torch.finfo(a.dtype).tiny  # a subnormal result may be 0
    near = torch.isclose(a.double(), b.double(), rtol=rtol, atol=atol, equal_nan=True)
    return near & ((a.signbit() == b.signbit()) | (b != 0))


def check(types: Sequence[str], names: Sequence[str] = (), every: int = 1) -> list[str]:
    """The differences for element types; of each `every` graphs one is tried."""
    found: list[str] = []
    for kind in types:
        chosen = list(cases(TYPES[kind], names))
        batches = [chosen[i : i + BATCH] for i in range(0, len(chosen), BATCH)]
        for batch in batches[::every]:
            found += differences(batch)
    return found


def interpreted() -> AbstractContextManager[Any]:
    """Within: kernels run by NumPy."""
    return mock.patch.object(targets, "compile_kernels", kernel_interpreter.compile_kernels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--types", default=",".join(TYPES))
    parser.add_argument("--operators", default="")
    parser.add_argument("--simd", default="")
    arguments = parser.parse_args()
    names = arguments.operators.split(",") if arguments.operators else ()
    total = 0
    for simd in arguments.simd.split(","):
        for kind in arguments.types.split(","):
            with weft.config.patch(simd=simd, strict=True), nullcontext() if simd else (
                    interpreted()):
                found = check([kind], names)
            print(f"{simd or 'interpreted'} {kind}: {len(found)} differ", flush=True)
            print(*(f"  {line}" for line in found), sep="\n", flush=True)
            total += len(found)
    raise SystemExit(bool(total))


if __name__ == "__main__":
    main()
