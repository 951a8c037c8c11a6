"""The Triton text compiles for an H200 without having one (needs the triton package, no GPU)."""

from __future__ import annotations

import pytest

from weft.codegen.loop_ir import Kernel, KernelBuilder, LoopVar
from weft.codegen.triton.emit import emit
from weft.codegen.triton.target import spell
from weft.codegen.triton.tiling import choose_tiling
from weft.shapes.expr import loop_index

SM90 = 90


@pytest.mark.parametrize("row", [77, 4096, 50304])
def test_softmax_compiles_to_a_cubin(row: int) -> None:
    pytest.importorskip("triton")
    from weft.runtime.triton_build import TritonRequest, _compile

    i, r = loop_index("i0", 128), loop_index("r0", row)
    builder = KernelBuilder((LoopVar(i, 128),), (LoopVar(r, row),))
    x = builder.load("in0", "bf16", i * row + r)
    e = builder.op("exp", builder.op("sub", x, builder.reduce("max", x)))
    builder.store("out0", "bf16", i * row + r, builder.op("div", e, builder.reduce("sum", e)))
    kernel = builder.build("softmax")
    source = emit(kernel, choose_tiling(kernel), kernel.name)
    request = TritonRequest(source.text, source.name, source.signature, source.num_warps, SM90)
    assert _compile(request).image.startswith(b"\x7fELF")


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
