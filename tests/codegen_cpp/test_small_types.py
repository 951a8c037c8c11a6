"""Kernels of small integers and bools, whose vectors have more lanes than those of float32."""

from __future__ import annotations

import random

import pytest
import torch

from tests.codegen_cpp.checking import Buffers, builder, check_all, flat
from weft.codegen.cpp import compile_kernels
from weft.codegen.ir.dtypes import to_torch
from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, Node

SMALL = ("i8", "u8", "i16", "bool")
ARITHMETIC = ("add", "sub", "mul", "maximum", "minimum", "and_", "or_", "xor", "shl", "shr",
              "floordiv", "mod")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
LONG = (64, 96, 256, 257, 300, 1000)
SHORT = (1, 3, 16, 17, 31, 33)


def values(n: int, dtype: str) -> torch.Tensor:
    if dtype == "bool":
        return torch.rand(n) < 0.5
    least, most = (0, 256) if dtype == "u8" else (-128, 128) if dtype == "i8" else (-500, 500)
    return torch.randint(least, most, (n,)).to(to_torch(dtype))


def _combined(b: KernelBuilder, rng: random.Random, x: Node, y: Node) -> Node:
    """One more value of these two: of their type, a bool, or a choice."""
    if x.dtype == "bool":
        return b.op(rng.choice(("and_", "or_", "xor", "eq", "ne", "lt", "le")), x, y)
    kind = rng.randrange(3)
    compared = b.op(rng.choice(COMPARISONS), x, y)
    if kind == 0:
        return compared
    return b.op("where", compared, x, y) if kind == 1 else b.op(rng.choice(ARITHMETIC), x, y)


def _stored(b: KernelBuilder, buffers: Buffers, index: object, value: Node, n: int) -> None:
    name = f"o{len(buffers)}"
    buffers[name] = torch.zeros(n, dtype=to_torch(value.dtype))
    b.store(name, value.dtype, index, value)


def random_case(rng: random.Random, *, reduced: bool) -> tuple[Kernel, Buffers]:
    rows, columns = rng.choice((1, 2, 5)), rng.choice(LONG + SHORT)
    inner = [columns] if reduced else []
    b = builder([rows] if reduced else [rows, columns], inner)
    index = flat((*b.outer, *b.inner))
    buffers: Buffers = {}
    dtype = rng.choice(SMALL)
    nodes: list[Node] = []
    for k in range(3):
        buffers[f"x{k}"] = values(rows * columns, dtype)
        nodes.append(b.load(f"x{k}", dtype, index))
    for _ in range(rng.randint(0, 4)):
        x = rng.choice(nodes)
        nodes.append(_combined(b, rng, x, rng.choice([n for n in nodes if n.dtype == x.dtype])))
    nodes += [b.op("not_", nodes[0])] * rng.randrange(2)
    target = rng.choice(("f32", "f64", "i32", "i64", "bool"))
    nodes += [b.cast(nodes[-1], target)] * rng.randrange(2)
    for value in {nodes[-1].id: nodes[-1], nodes[-2].id: nodes[-2]}.values():
        if not reduced:
            _stored(b, buffers, index, value, rows * columns)
            continue
        kinds = ("any", "all", "argmax") if value.dtype == "bool" else ("max", "min", "argmin")
        _stored(b, buffers, b.outer[0].symbol, b.reduce(rng.choice(kinds), value), rows)
    return b.build("small"), buffers


@pytest.mark.parametrize("seed", range(3))
def test_random_kernels_of_small_types(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    check_all([random_case(rng, reduced=k % 3 == 0) for k in range(12)])


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64])
def test_quotients_of_all_kinds_of_integers(dtype: torch.dtype) -> None:
    """Which go through float, double or, beyond what these hold, through the processor's."""
    name = {to_torch(n): n for n in ("i8", "u8", "i16", "i32", "i64")}[dtype]
    info = torch.iinfo(dtype)
    edges = [info.min, info.min + 1, info.max, info.max - 1, 1, 2, 3, 7, 100, *range(-3, 0)]
    edges += [2**50, 2**50 + 1, -(2**50) - 1, 2**51 + 1, 2**52 + 1, 2**53 + 1, 3**31]
    known = torch.tensor([e for e in edges if info.min <= e <= info.max], dtype=dtype)
    small = torch.randint(max(info.min, -(2**50)), min(info.max, 2**50), (2000,), dtype=dtype)
    x, y = (torch.cat([known.repeat(len(known)), small]),
            torch.cat([known.repeat_interleave(len(known)), small.roll(7)]))
    y = torch.where((y == 0) | ((x == info.min) & (y == -1)), 1, y)  # eager's crashes
    b = builder([len(x)])
    i = flat(b.outer)
    pair = b.load("x", name, i), b.load("y", name, i)
    for operator in ("floordiv", "mod", "fmod", "truncdiv"):
        b.store(operator, name, i, b.op(operator, *pair))
    results = [torch.empty_like(x) for _ in range(4)]
    compile_kernels([b.build("quotients")])[0](x, y, *results)
    for result, expected in zip(results, (x // y, x % y, torch.fmod(x, y),
                                          torch.div(x, y, rounding_mode="trunc")), strict=True):
        assert torch.equal(result, expected)
