"""Specializations for symbolic sizes: which sizes get which, what texts take for granted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.codegen_triton.kernels import COLUMNS, ROWS, repeat
from weft._cuda import reciprocal
from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, LoopVar
from weft.codegen.triton.specializations import (
    WORTH_SPECIALIZING,
    Specialization,
    Specializations,
    SpecializedKernel,
)
from weft.codegen.triton.target import spell
from weft.shapes.algebra.expr import loop_index, symbol


def softmax() -> Kernel:
    i, r = loop_index("i0", ROWS), loop_index("r0", COLUMNS)
    builder = KernelBuilder((LoopVar(i, ROWS),), (LoopVar(r, COLUMNS),))
    x = builder.load("in0", "f32", i * COLUMNS + r)
    e = builder.op("exp", builder.op("sub", x, builder.reduce("max", x)))
    builder.store("out0", "f32", i * COLUMNS + r, builder.op("div", e, builder.reduce("sum", e)))
    return builder.build("softmax")


def column_sums() -> Kernel:
    i, r = loop_index("i0", COLUMNS), loop_index("r0", ROWS)
    builder = KernelBuilder((LoopVar(i, COLUMNS),), (LoopVar(r, ROWS),))
    x = builder.load("in0", "f32", r * COLUMNS + i)
    builder.store("out0", "f32", i, builder.reduce("sum", x))
    return builder.build("sums")


def test_a_row_that_fits_is_one_tile_of_its_size() -> None:
    choices = Specializations(softmax())
    short, long = choices.best((4096, 100)), choices.best((4097, 100_001))
    assert [t.axis("r").block for t in (short.tilings[0], long.tilings[0])] == [128, 4096]  # type: ignore[union-attr]
    assert short.tilings[0].persistent
    assert not long.tilings[0].persistent
    assert choices.holds(short, (16, 124))
    assert not choices.holds(short, (16, 132))
    assert choices.holds(long, (7, 1))


def test_tiles_without_an_end_have_no_masks() -> None:
    choices = Specializations(softmax())
    choice = choices.best((4096, 1024))
    (part,), _ = spell(softmax(), choice)
    assert "mask" not in part.source.text
    assert choices.holds(choice, (16, 1024))
    assert not choices.holds(choice, (16, 1008))


def test_variables_that_lie_flat_are_one_index() -> None:
    i, j = loop_index("i0", ROWS), loop_index("i1", COLUMNS)
    builder = KernelBuilder((LoopVar(i, ROWS), LoopVar(j, COLUMNS)), ())
    flat = builder.load("in0", "f32", i * COLUMNS + j)
    builder.store("out0", "f32", i * COLUMNS + j,
                  builder.op("add", flat, builder.load("in1", "f32", j)))
    kernel = builder.build("add")
    (part,), _ = spell(kernel, Specializations(kernel).best((100, 100)))
    assert "tl.load(b0 + (xindex)" in part.source.text
    assert "tl.load(b1 + (i1)" in part.source.text


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 64, 66, 1000, 65537, 2**30 - 1, 2**30, 2**31 - 1])
def test_a_reciprocal_gives_the_quotient_of_every_index(divisor: int) -> None:
    multiplier, shift = reciprocal(divisor)
    assert multiplier < 2**32
    largest = (2**31 - 1) // divisor * divisor
    near = [n + step for n in range(0, largest, max(1, largest // 1000)) for step in (0, divisor)]
    for index in (*near, largest - 1, largest, 2**31 - 1):
        for n in (index - 1, index, index // divisor * divisor - 1):
            if 0 <= n < 2**31:
                assert (2 * n * multiplier >> 32) >> shift == n // divisor


def test_reciprocals_are_those_of_possible_sizes() -> None:
    with pytest.raises(ValueError, match="from 1 to"):
        reciprocal(0)


def test_indices_are_divided_by_sizes_with_reciprocals_of_the_host() -> None:
    kernel = repeat()
    (part,), _ = spell(kernel, Specializations(kernel).best((100, 100)))
    assert part.source.divisors == (COLUMNS, ROWS)
    assert part.source.signature[2:] == ("i32",) * 6  # two sizes, two reciprocals
    assert "//" not in part.source.text
    assert "% " not in part.source.text


def test_pieces_of_equal_length_have_no_end_to_test() -> None:
    choices = Specializations(column_sums())
    even, uneven = choices.best((256 * 256, 64)), choices.best((256 * 256 + 1, 64))
    assert even.even
    assert not uneven.even
    assert "where" not in spell(column_sums(), even)[0][0].source.text
    assert choices.holds(even, (256 * 64, 64))
    assert not choices.holds(even, (256 * 64 + 128, 64))


def test_sizes_near_each_other_share_a_specialization() -> None:
    choices = Specializations(softmax())
    assert len({choices.best((rows, length)) for rows in (97, 101, 999) for length in range(65, 127)
                if rows % 2 and length % 4}) == 1


def test_half_of_a_row_is_known_to_be_a_multiple() -> None:
    i, j = loop_index("i0", ROWS), loop_index("i1", COLUMNS)
    builder = KernelBuilder((LoopVar(i, ROWS), LoopVar(j, COLUMNS)), ())
    half = (COLUMNS + 1) // 2
    builder.store("out0", "f32", i * COLUMNS + j, builder.load("in0", "f32", i * COLUMNS + half))
    kernel = builder.build("second_half")
    (part,), _ = spell(kernel, Specializations(kernel).best((128, 128)))
    assert "    s1_16 = s1 // 16\n" in part.source.text
    assert "tl.load(b0 + (16*i0*s1_16+8*s1_16)" in part.source.text


def blocks() -> Kernel:
    """The length of a part, that many times (known where the columns are a multiple of 16), and
    what lies a number of columns before the end."""
    i = loop_index("i0", ROWS)
    builder = KernelBuilder((LoopVar(i, ROWS),), ())
    length = builder.op("cast", builder.index(3 * COLUMNS // (COLUMNS // 16)), dtype="f32")
    before = builder.load("in0", "f32", (i - COLUMNS) % 12 + COLUMNS // 16)
    builder.store("out0", "f32", i, builder.op("mul", length, before))
    return builder.build("blocks")


def test_index_that_a_specialization_knows_is_a_typed_constant() -> None:
    (part,), _ = spell(blocks(), Specializations(blocks()).best((100, 128)))
    assert "tl.full([1], 48, tl.int64)" in part.source.text


def test_constants_of_divisions_fit_in_32_bits() -> None:
    (part,), _ = spell(blocks(), Specializations(blocks()).best((100, 128)))
    assert "p.floor_mod(" in part.source.text
    assert not any(int(n) >= 2**31 for n in re.findall(r"\d+", part.source.text))


def test_multiples_of_16_hold_only_where_they_are() -> None:
    choices = Specializations(softmax())
    choice = choices.best((33, 128))
    assert choice.multiples == {("s1", 16)}
    assert choices.best((36, 72)).multiples == {("s0", 4), ("s1", 8)}
    assert choices.holds(choice, (5, 128))
    assert not choices.holds(choice, (32, 120))


def test_indices_of_large_tensors_are_wide() -> None:
    choices = Specializations(softmax())
    assert choices.best((1024, 1024)).narrow
    assert not choices.best((1 << 20, 4096)).narrow
    assert not choices.holds(choices.best((1024, 1024)), (1 << 20, 1024))
    (part,), _ = spell(softmax(), choices.best((1 << 20, 4096)))
    assert "i64" in part.source.signature


def test_positions_that_are_read_are_bounded_by_what_they_index() -> None:
    i = loop_index("i0", ROWS)
    builder = KernelBuilder((LoopVar(i, ROWS),), ())
    at = builder.indirect(builder.load("in0", "i64", i), COLUMNS, wrap=True, check=True)
    builder.store("out0", "f32", i, builder.load("in1", "f32", at))
    choices = Specializations(builder.build("gather"))
    assert choices.best((64, 1024)).narrow
    assert not choices.best((64, 1 << 32)).narrow


def scaled() -> Kernel:
    """x times a double whose bits the call brings."""
    i = loop_index("i0", ROWS)
    builder = KernelBuilder((LoopVar(i, ROWS),), ())
    number = builder.op("cast", builder.op("double_of", builder.index(symbol("f0"))), dtype="f32")
    builder.store("out0", "f32", i, builder.op("mul", builder.load("in0", "f32", i), number))
    return builder.build("scale")


def test_bits_of_doubles_are_no_sizes() -> None:
    choices = Specializations(scaled())
    assert choices.names == ("s0",)
    choice = choices.best((1000,))
    assert choice.narrow
    (part,), _ = spell(scaled(), choice)
    kinds = dict(zip(map(str, part.kernel.sizes), part.source.signature[2:], strict=True))
    assert kinds == {"s0": "i32", "f0": "i64"}
    seen: list[Any] = []
    kernel = SpecializedKernel(choices, {choice: lambda *args: seen.append(args)}, pytest.fail)  # type: ignore[arg-type]
    for bits in (-4616189618054758400, 4607182418800017408):  # -1.0 and 1.0
        numbers = {"s0": 1000, "f0": bits}
        kernel.launch("x", "y", *(numbers[str(s)] for s in choices.kernel.sizes))
    assert list(kernel.bound) == [(1000,)]
    assert len(seen) == 2


def test_few_results_of_long_columns_are_computed_in_pieces() -> None:
    choices = Specializations(column_sums())
    choice = choices.best((100_000, 64))
    assert choice.chunks > 1
    parts, split = spell(column_sums(), choice)
    assert split is not None
    assert len(parts) == 2
    assert choices.best((100, 100_000)).chunks == 0


def test_rows_shorter_than_the_pieces_are_not_split() -> None:
    """Their partial results would be more than the indices that were looked at."""
    choices = Specializations(column_sums())
    choice = choices.general((100_000, 64))
    assert choice.narrow
    assert choice.chunks > 2
    assert choices.holds(choice, (choice.chunks, 64))
    assert not choices.holds(choice, (2, 10_000_000))


@pytest.mark.parametrize("sizes", [(4096, 128), (33, 100), (100_000, 64), (3, 50_000)])
@pytest.mark.parametrize("make", [softmax, column_sums, scaled, blocks])
def test_specializations_compile_to_cubins(make: Any, sizes: tuple[int, int]) -> None:
    pytest.importorskip("triton")
    from weft.codegen.triton.target import _request
    from weft.runtime.triton_build import compile_here

    kernel = make()
    choices = Specializations(kernel)
    parts, _ = spell(kernel, choices.best(tuple({"s0": sizes[0], "s1": sizes[1]}[n]
                                              for n in choices.names)))
    for part in parts:
        assert compile_here(_request(part.source, 90, aligned=True)).image.startswith(b"\x7fELF")


def test_sizes_that_come_back_get_their_own_specialization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    choices, built, seen = Specializations(softmax()), [], []

    def build(choice: Specialization) -> Any:
        built.append(choice)
        return lambda *args: seen.append((choice, args))

    first = choices.best((33, 1000))
    kernel = SpecializedKernel(choices, {first: build(first)}, build)
    for length in (900, 901, 902, 300, 300, 300, 300):
        kernel.launch("x", "y", 33, length)
    assert built == [first, choices.general((33, 900)), choices.best((33, 300))]
    used = [built.index(choice) for choice, _ in seen]
    assert used == [1] * (3 + WORTH_SPECIALIZING - 1) + [2] * 2
    kernel.launch("x", "y", 33, 2000)  # no specialization holds
    assert built[3:] == [choices.general((33, 2000))]


def test_an_empty_row_is_no_whole_tile() -> None:
    """The sum of no elements read a tile of others."""
    i, r = loop_index("i0", 3), loop_index("r0", symbol("u0", 0))
    builder = KernelBuilder((LoopVar(i, 3),), (LoopVar(r, symbol("u0", 0)),))
    x = builder.load("in0", "f32", r)
    builder.store("out0", "f32", i, builder.reduce("sum", x))
    kernel = builder.build("total")
    choices = Specializations(kernel)
    assert not choices.holds(choices.best((8,)), (0,))
    (part,), _ = spell(kernel, choices.best((0,)))
    assert "rmask" in part.source.text
