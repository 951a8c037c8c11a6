"""The Triton text compiles for an H200 without having one (needs the triton package, no GPU)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

import weft
from tests.codegen_triton.kernels import repeat
from weft.codegen.ir.loop_ir import Kernel, KernelBuilder, LoopVar
from weft.codegen.triton.emit import emit
from weft.codegen.triton.specializations import Specializations
from weft.codegen.triton.target import spell
from weft.codegen.triton.tiling import choose_tiling
from weft.runtime.triton_build import TritonRequest, build, compile_here
from weft.runtime.triton_pool import pool
from weft.runtime.triton_worker import with_enough_warps, without_packed_sums
from weft.shapes.algebra.expr import loop_index, symbol

SM90 = 90


def _softmax(row: int) -> TritonRequest:
    i, r = loop_index("i0", 128), loop_index("r0", row)
    builder = KernelBuilder((LoopVar(i, 128),), (LoopVar(r, row),))
    x = builder.load("in0", "bf16", i * row + r)
    e = builder.op("exp", builder.op("sub", x, builder.reduce("max", x)))
    builder.store("out0", "bf16", i * row + r, builder.op("div", e, builder.reduce("sum", e)))
    kernel = builder.build("softmax")
    source = emit(kernel, choose_tiling(kernel), kernel.name)
    return TritonRequest(source.text, source.name, source.signature, source.num_warps, SM90)


@pytest.fixture
def _triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    with weft.config.patch(cache_dir=str(tmp_path)):
        yield


@pytest.mark.usefixtures("_triton")
def test_softmax_compiles_to_cubins_in_other_processes() -> None:
    requests = [_softmax(row) for row in (77, 4096, 50304, 77)]
    binaries = build(requests)
    assert all(binary.image.startswith(b"\x7fELF") for binary in binaries)
    assert binaries[0].image == binaries[3].image != binaries[1].image
    assert build(requests) == binaries  # from the cache
    assert binaries[0].entry == compile_here(requests[0]).entry


@pytest.mark.usefixtures("_triton")
def test_a_server_that_was_killed_is_replaced_and_errors_are_those_of_triton() -> None:
    server = pool()
    server.process.kill()
    server.process.wait()
    (binary,) = build([_softmax(78)])
    assert binary.image.startswith(b"\x7fELF")
    wrong = replace(_softmax(79), text=_softmax(79).text.replace("tl.load", "tl.no_such_function"))
    with pytest.raises(Exception, match="no_such_function"):
        build([wrong])
    assert build([_softmax(80)])[0].image.startswith(b"\x7fELF")
    assert pool() is not server


def test_rows_that_fit_are_read_once() -> None:
    i, r = loop_index("i0", 128), loop_index("r0", 768)
    builder = KernelBuilder((LoopVar(i, 128),), (LoopVar(r, 768),))
    x = builder.load("in0", "f32", i * 768 + r)
    centred = builder.op("sub", x, builder.reduce("max", x))
    builder.store("out0", "f32", i * 768 + r, centred)
    kernel = builder.build("centre")
    text = emit(kernel, choose_tiling(kernel), kernel.name).text
    assert text.count("tl.load") == 1
    assert "for " not in text


def test_equal_kernels_of_different_layers_have_one_text() -> None:
    def layer(number: int) -> Kernel:
        i = loop_index("i0", 4096)
        builder = KernelBuilder((LoopVar(i, 4096),), ())
        x = builder.load(f"buf{number}", "f32", i)
        builder.store(f"buf{number + 1}", "f32", i, builder.op("exp", x))
        return builder.build(f"k{number}_exp", (f"exp  model.py:{number}",))

    (first,), _ = spell(layer(3))
    (second,), _ = spell(layer(17))
    assert first.source == second.source
    assert first.listing != second.listing
    assert "model.py:17" in second.listing
    assert "b0: buf17" in second.listing


ROLLED_WINDOWS = """
import triton
import triton.language as tl


@triton.jit
def rolled(b0, b1):
    x = tl.program_id(0) * 16 + tl.arange(0, 16)[:, None]
    i = x % 16
    r = tl.arange(0, 64)[None, :]
    place = 2352 * (x // 16) + 336 * ((i // 4 + 4) % 7) + 48 * ((i % 4 + 4) % 7) + r
    tl.store(b1 + (64 * x + r), tl.load(b0 + place, r < 48, other=0.0))
"""


PACKED_SUM = """{
\t.reg .b32 %packed<2>;
\tmov.b32 %packed0, 65537;
\tadd.s16x2 %packed1, %packed0, %packed0;
\t}
\tret;"""


@pytest.mark.usefixtures("_triton")
def test_sums_of_packed_integers_reach_the_assembler_one_by_one() -> None:
    """Triton before 3.8 packs sums of this kernel; one more stands for those of any version."""
    import triton.backends.nvidia.compiler as nvidia

    request = TritonRequest(ROLLED_WINDOWS, "rolled", ("*fp32", "*fp32"), 2, SM90)
    made: list[str] = []
    assembled: list[str] = []
    make_ptx, make_cubin = nvidia.CUDABackend.make_ptx, nvidia.CUDABackend.make_cubin

    def ptx(self: object, *args: object) -> str:
        made.append(make_ptx(self, *args).replace("ret;", PACKED_SUM, 1))
        return made[-1]

    def cubin(self: object, text: str, *args: object) -> bytes:
        assembled.append(text)
        return make_cubin(self, text, *args)

    with (
        mock.patch.object(nvidia.CUDABackend, "make_ptx", ptx),
        mock.patch.object(nvidia.CUDABackend, "make_cubin", cubin),
    ):
        compile_here(request)
    n_packed = made[0].count("add.s16x2")
    assert n_packed > 0
    assert assembled == [without_packed_sums(made[0])]
    assert "16x2" not in assembled[0]
    assert assembled[0].count("add.s16") == made[0].count("add.s16 ") + 2 * n_packed


@pytest.mark.usefixtures("_triton")
def test_quotients_of_sizes_that_may_be_negative() -> None:
    rows, columns = symbol("s0", 2), symbol("s1", 2)
    i = loop_index("i0", rows)
    builder = KernelBuilder((LoopVar(i, rows),), ())
    x = builder.load("in0", "f32", i + (rows - columns) // (rows + 3) + (3 - columns) // 2 + 1)
    builder.store("out0", "f32", i, x)
    kernel = builder.build("shifted")
    (part,), _ = spell(kernel, Specializations(kernel).best((100, 300)))
    source = part.source
    assert "p.floor_div" in source.text
    request = TritonRequest(source.text, source.name, source.signature, source.num_warps, SM90)
    assert compile_here(request).image.startswith(b"\x7fELF")


@pytest.mark.usefixtures("_triton")
def test_indices_divided_by_sizes_keep_wide_loads(tmp_path: Path) -> None:
    kernel = repeat()
    (part,), _ = spell(kernel, Specializations(kernel).best((128, 128)))
    source = part.source
    compile_here(TritonRequest(source.text, source.name, source.signature, source.num_warps, SM90,
                               multiples=source.multiples))
    (text,) = (p.read_text() for p in (tmp_path / "triton").rglob("repeat.ptx"))
    assert "ld.global.v4" in text
    assert "div.u32" not in text
    assert "div.s32" not in text


def test_warps_that_triton_cannot_compile_for_are_doubled() -> None:
    tried: list[int] = []

    def compiled(warps: int) -> str:
        tried.append(warps)
        if warps < 4:
            raise RuntimeError("PassManager::run failed")
        return f"for {warps}"

    assert with_enough_warps(1, compiled) == "for 4"
    assert tried == [1, 2, 4]

    def refused(warps: int) -> str:
        raise RuntimeError(f"{warps} warps")

    with pytest.raises(RuntimeError, match="16 warps"):
        with_enough_warps(4, refused)
