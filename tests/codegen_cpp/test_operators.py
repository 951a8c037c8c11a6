"""Every scalar operator, in every type it takes, in vector bodies and tails, against the
interpreter.
"""

from __future__ import annotations

import math

import pytest
import torch

import weft
from tests.codegen_cpp.checking import builder, check, flat
from tools.special_values import values as special_values
from weft.codegen.ir.dtypes import to_torch
from weft.codegen.ir.loop_ir import Kernel, Node
from weft.codegen.ir.scalar_ops import OPS, ScalarOp

FLOATS = ("f32", "f64")
INTS = ("i64", "i32", "i16", "i8", "u8")
TYPES = {
    "float": FLOATS,
    "number": FLOATS + INTS,
    "int": INTS,
    "bits": ("i64",),
    "integral": (*INTS, "bool"),
    "any": (*FLOATS, *INTS, "bool"),
    "where": (*FLOATS, *INTS, "bool"),
}
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 0.5, -2.5, 100.0, 1e-37,
    -95.0, -103.9, -110.0, -149.5, -200.0,
]
OTHERS = ("cast", "philox", "philox_normal", "divisor")
"""Operators with tests of their own; `divisor` may end the kernel."""


def operators(dtype: str) -> list[ScalarOp]:
    return [op for op in OPS.values()
            if dtype in TYPES[op.operands] and op.name not in OTHERS]


def sample(dtype: str, n: int, seed: int) -> torch.Tensor:
    """Values of all sizes, special ones among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.rand(n, generator=generator) < 0.5
    if dtype in INTS:
        low = 0 if dtype == "u8" else -100
        values = torch.randint(low, 101, (n,), generator=generator)
        values[:: 3] = torch.randint(0, 4, values[::3].shape, generator=generator)
        return values.to(to_torch(dtype))
    values = torch.randn(n, generator=generator, dtype=torch.float64) * 3
    order = torch.randperm(n, generator=generator)[: len(SPECIAL)]
    values[order] = torch.tensor(SPECIAL, dtype=torch.float64)[: len(order)]
    return values.to(to_torch(dtype))


def special_pairs(dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Each special value of a type beside each other one."""
    if dtype == "bool":
        return torch.tensor([False, True, False, True]), torch.tensor([False, False, True, True])
    some = special_values(to_torch(dtype))
    return some.repeat_interleave(len(some)), some.repeat(len(some))


def operator_kernel(dtype: str, n_random: int) -> tuple[Kernel, dict[str, torch.Tensor]]:
    """One kernel with an output for each operator of `dtype`, on random numbers and on all pairs of
    special ones."""
    pairs = special_pairs(dtype)
    buffers = {f"x{i}": torch.cat([sample(dtype, n_random, i), pairs[i % 2]]) for i in range(3)}
    n = len(buffers["x0"])
    buffers["c"] = sample("bool", n, 9)
    b = builder([n])
    index = flat(b.outer)
    arguments: list[Node] = [b.load(f"x{i}", dtype, index) for i in range(3)]
    condition = b.load("c", "bool", index)
    for op in operators(dtype):
        if dtype == "f64" and op.name.startswith("round_"):
            continue
        used = arguments[: op.arity]
        if op.operands == "where":
            used = [condition, *arguments[:2]]
        value = b.op(op.name, *used)
        buffers[op.name] = torch.zeros(n, dtype=to_torch(value.dtype))
        b.store(op.name, value.dtype, index, value)
    return b.build(f"operators_{dtype}"), buffers


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
def test_operators_in_vectors_and_tails(dtype: str) -> None:
    check(*operator_kernel(dtype, 16 * 5 + 11))


@pytest.mark.parametrize("source", ["f32", "f64", "i64", "i32", "i8", "u8", "bool", "bf16", "f16"])
def test_conversions(source: str) -> None:
    n = 53
    b = builder([n])
    index = flat(b.outer)
    x = torch.randn(n) * 5 if source != "bool" else torch.rand(n) < 0.5
    buffers = {"x": (x.abs() if source == "u8" else x).to(to_torch(source))}
    value = b.load("x", source, index)
    for target in ("f32", "f64", "i64", "i32", "i16", "i8", "bool", "bf16", "f16"):
        kind = "f32" if target in ("bf16", "f16") else target
        buffers[target] = torch.zeros(n, dtype=to_torch(target))
        b.store(target, target, index, b.cast(value, kind))
    check(b.build("conversions"), buffers)


@pytest.mark.parametrize("half", ["bf16", "f16"])
def test_half_types_round_to_nearest_even_for_all_values(half: str) -> None:
    """All 2^16 values survive a round trip; values half way between two go to the even one."""
    dtype = to_torch(half)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    wide = every.float()
    between = [torch.nextafter(wide, wide * 2), (wide + wide.roll(1)) / 2, wide * 1.001]
    wide = torch.cat([wide, *between])
    n = len(wide)
    b = builder([n])
    index = flat(b.outer)
    b.store("o", half, index, b.load("x", "f32", index))
    b.store("back", "f32", index, b.op(f"round_{half}", b.load("x", "f32", index)))
    buffers = {"x": wide, "o": torch.zeros(n, dtype=dtype), "back": torch.zeros(n)}
    from weft.codegen.cpp import compile_kernels

    compile_kernels([b.build("halves")])[0](*(buffers[k] for k in ("x", "o", "back")))
    torch.testing.assert_close(buffers["o"], wide.to(dtype), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        buffers["back"], wide.to(dtype).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_trigonometric_functions_are_exact_to_four_ulp(dtype: torch.dtype) -> None:
    """Also at multiples of pi/2 and near 1; zeros keep their signs (sin(-0) of float did not)."""
    names = ("sin", "cos", "tan", "atan", "asin", "acos")
    turns = torch.arange(-500, 500, dtype=dtype) * (math.pi / 2)
    near = 1 - torch.exp2(-torch.linspace(0, 22, 999, dtype=dtype))
    x = torch.cat([torch.linspace(-9, 9, 5000, dtype=dtype), turns, near, -near,
                   torch.tensor([0.0, -0.0] * 40, dtype=dtype)])
    small = x.abs() <= 1
    wide, narrow = x, x[small]

    def functions(wide, narrow):
        return [getattr(torch, n)(narrow if n in ("asin", "acos") else wide) for n in names]

    found, expected = weft.compile(functions)(wide, narrow), functions(wide, narrow)
    exact = functions(wide.double(), narrow.double()) if dtype == torch.float32 else expected
    for made, wanted, true in zip(found, expected, exact, strict=True):
        step = torch.nextafter(true.to(dtype).abs(), torch.tensor(math.inf, dtype=dtype)).sub_(
            true.to(dtype).abs())
        assert ((made.double() - true.double()).abs() <= 4 * step).all()
        zeros = wanted == 0
        assert torch.equal(made[zeros].signbit(), wanted[zeros].signbit())


@pytest.mark.parametrize("simd", ["", "avx2", "portable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_below_the_normal_numbers(simd: str, dtype: torch.dtype) -> None:
    """They are computed another way, which takes a hundredth of the time."""
    tiny, least = torch.finfo(dtype).tiny, math.log(torch.finfo(dtype).smallest_normal)
    x = torch.cat([torch.linspace(1.06 * least, 0.98 * least, 3001, dtype=dtype),
                   torch.tensor([*SPECIAL, 1.2 * least, -1e30, 1e30], dtype=dtype)])

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.exp(), (x / math.log(2)).exp2(), x.sigmoid(), (x - x.amax()).exp().sum()

    with weft.config.patch(simd=simd):
        found = weft.compile(program)(x)
    expected = [x.exp(), (x / math.log(2)).exp2(), x.sigmoid(), (x - x.amax()).exp().sum()]
    assert ((expected[0] > 0) & (expected[0] < tiny)).sum() > 500
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=4 * torch.finfo(dtype).eps, atol=0.0 if a.dim() == 0
                                   else 2 * torch.finfo(dtype).smallest_normal
                                   * torch.finfo(dtype).eps, equal_nan=True)


@pytest.mark.parametrize("simd", ["", "portable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_erfc_is_exact_to_five_ulp_down_to_the_least_number(
    dtype: torch.dtype, simd: str
) -> None:
    """Its tail is a small number, not one less a number near one."""
    end = 10.1 if dtype == torch.float32 else 26.7
    x = torch.cat([torch.linspace(-7, end, 4000, dtype=dtype), torch.tensor(SPECIAL, dtype=dtype)])
    with weft.config.patch(simd=simd):
        weft.reset()
        found = weft.compile(torch.special.erfc)(x)
    true = torch.special.erfc(x.double())  # itself exact to one
    step = torch.nextafter(true.to(dtype), torch.tensor(math.inf, dtype=dtype)) - true.to(dtype)
    off = (found.double() - true).abs() <= 5 * step.double()
    assert (off | (found.isnan() & true.isnan())).all()
