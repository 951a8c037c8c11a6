"""The loop IR: building, verifying, printing, interpreting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tools.kernel_interpreter import from_torch_tensor, run_kernel
from weft.codegen.ir.loop_ir import (
    BufferArg,
    InvalidKernel,
    Kernel,
    KernelBuilder,
    LoopVar,
    verify,
)
from weft.shapes.algebra.expr import loop_index, symbol


def softmax_kernel() -> Kernel:
    i, r = loop_index("i0", 4), loop_index("r0", 8)
    b = KernelBuilder((LoopVar(i, 4),), (LoopVar(r, 8),))
    x = b.load("in0", "f32", 8 * i + r)
    power = b.op("exp", b.op("sub", x, b.reduce("max", x)))
    b.store("out0", "f32", 8 * i + r, b.op("div", power, b.reduce("sum", power)))
    return b.build("softmax", ("model.py:3",))


def test_softmax_prints_as_readable_text() -> None:
    text = str(softmax_kernel())
    assert text.splitlines()[1] == "def softmax(in0: f32, out0: f32):"
    assert "v1 = max(v0)" in text and "# outer" in text


def test_softmax_by_the_interpreter() -> None:
    kernel = softmax_kernel()
    verify(kernel)
    x, out = torch.randn(4, 8), torch.empty(4, 8)
    run_kernel(kernel, {"in0": from_torch_tensor(x), "out0": from_torch_tensor(out)})
    torch.testing.assert_close(out, x.softmax(-1))


def test_equal_nodes_are_one_object() -> None:
    i = loop_index("i0", 4)
    b = KernelBuilder((LoopVar(i, 4),), ())
    x = b.load("in0", "f32", i)
    assert b.op("exp", x) is b.op("exp", b.load("in0", "f32", i))
    assert b.const(0.0, "f32") is not b.const(-0.0, "f32")
    assert b.const(float("nan"), "f32") is b.const(float("nan"), "f32")


def test_integer_constants_wrap() -> None:
    b = KernelBuilder((), ())
    assert b.const(-5, "u8").value == 251
    assert b.const(200, "i8").value == -56


def test_nodes_that_no_store_needs_are_dropped() -> None:
    i = loop_index("i0", 4)
    b = KernelBuilder((LoopVar(i, 4),), ())
    b.op("exp", b.load("in1", "f32", i))
    b.store("out0", "f32", i, b.load("in0", "f32", i))
    assert [a.name for a in b.build("k").buffers] == ["in0", "out0"]


def test_a_size_symbol_becomes_a_parameter() -> None:
    n = symbol("s0", 2)
    i = loop_index("i0", n)
    b = KernelBuilder((LoopVar(i, n),), ())
    b.store("out0", "i64", i, b.index(i * n))
    kernel = b.build("k")
    assert kernel.sizes == (n,)
    out = np.zeros(5, dtype=np.int64)
    run_kernel(kernel, {"out0": out}, {"s0": 5})
    assert out.tolist() == [0, 5, 10, 15, 20]


def test_indirect_indices_wrap_and_are_checked() -> None:
    i = loop_index("i0", 3)
    b = KernelBuilder((LoopVar(i, 3),), ())
    j = b.indirect(b.load("index", "i64", i), 4, wrap=True, check=True)
    b.store("out0", "f32", i, b.load("in0", "f32", j))
    kernel = b.build("gather")
    verify(kernel)
    table, out = np.arange(4, dtype=np.float32), np.zeros(3, dtype=np.float32)
    run_kernel(kernel, {"index": np.array([-1, 0, 2]), "in0": table, "out0": out})
    assert out.tolist() == [3, 0, 2]
    with pytest.raises(IndexError):
        run_kernel(kernel, {"index": np.array([-5, 0, 4]), "in0": table, "out0": out})


def test_masked_loads_do_not_touch_memory() -> None:
    i = loop_index("i0", 4)
    b = KernelBuilder((LoopVar(i, 4),), ())
    inside = b.op("lt", b.index(i), b.const(2, "i64"))
    with b.masked(inside, 7):
        x = b.load("in0", "f32", i)
    b.store("out0", "f32", i, x)
    out = np.zeros(4, dtype=np.float32)
    run_kernel(b.build("k"), {"in0": np.ones(2, dtype=np.float32), "out0": out})
    assert out.tolist() == [1, 1, 7, 7]


def _store_inner_value_at_outer_level(b: KernelBuilder) -> None:
    x = b.load("in0", "f32", b.inner[0].symbol)
    b.store("out0", "f32", b.outer[0].symbol, x, inner=False)


def _mix_types(b: KernelBuilder) -> None:
    x = b.op("add", b.const(1, "i64"), b.const(1.0, "f32"))
    b.store("out0", "f32", b.outer[0].symbol, x)


def _unknown_symbol_is_a_size(b: KernelBuilder) -> None:
    x = b.load("in0", "f32", loop_index("other", 9))
    b.store("out0", "f32", b.inner[0].symbol, x, inner=False)


@pytest.mark.parametrize(
    "build", [_store_inner_value_at_outer_level, _mix_types, _unknown_symbol_is_a_size]
)
def test_the_verifier_finds(build) -> None:
    b = KernelBuilder((LoopVar(loop_index("i0", 4), 4),), (LoopVar(loop_index("r0", 4), 4),))
    build(b)
    with pytest.raises(InvalidKernel):
        verify(b.build("bad"))


def test_the_verifier_finds_a_store_to_an_input() -> None:
    kernel = softmax_kernel()
    kernel.buffers = (*kernel.buffers[:1], BufferArg("out0", "f32", "in"))
    with pytest.raises(InvalidKernel):
        verify(kernel)


def test_exact_simplifications_as_nodes_are_built() -> None:
    i = loop_index("i0", 4)
    b = KernelBuilder((LoopVar(i, 4),), ())
    x, c = b.load("in0", "f32", i), b.load("in1", "bool", i)
    true, false = b.const(True, "bool"), b.const(False, "bool")
    assert b.op("where", true, x, b.const(0.0, "f32")) is x
    assert b.op("where", c, true, false) is c
    assert b.op("not_", b.op("not_", c)) is c
    assert b.op("and_", c, true) is c and b.op("or_", c, true) is true
    assert b.op("mul", x, b.const(1.0, "f32")) is x and b.op("sub", x, b.const(0, "f32")) is x
    assert b.op("add", x, b.const(0.0, "f32")) is not x  # -0.0 + 0.0 is 0.0
    assert b.op("mul", x, b.const(0.0, "f32")) is not x  # NaN * 0 is NaN
    assert b.op("cast", true, dtype="i64").value == 1
    assert b.op("lt", b.const(1, "i64"), b.const(2, "i64")) is true
    assert b.indirect(b.const(-1, "i64"), 4, wrap=True, check=True) == 3
    assert b.indirect(b.index(i), 4, wrap=True, check=True) is i
    assert b.indirect(b.index(i), 3, wrap=True, check=True) is not i
