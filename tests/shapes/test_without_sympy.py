"""PyTorch's meta kernels do not load sympy, and the stand-ins go on working once it is loaded."""

import subprocess
import sys
import textwrap

import pytest
import torch

from weft.shapes.fakes import without_sympy as module
from weft.shapes.fakes.without_sympy import without_sympy

_HEAVY = "{'sympy', 'torch._dynamo', 'torch.distributed.tensor'} & set(sys.modules)"


def _in_new_process(program: str) -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)], check=True)


def test_first_calls_load_neither_sympy_nor_dynamo_nor_dtensor():
    _in_new_process(f"""
        import sys, torch, weft
        from torch import nn
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(36, 8), nn.Softmax(-1))
        def step(x, scale):
            y = model(x)[:, ::2] * scale + torch.tensor(2.0).item() + torch.tensor([1.0])
            return torch.cat([y, y.flip(1)], 1).clamp(-1, 1)
        compiled = weft.compile(step, backend="aot_eager")
        for scale in (1.5, 2.5):
            compiled(torch.randn(2, 3, 8, 8), scale).sum().backward()
        assert weft.stats()["graph_breaks"] == 0
        assert not ({_HEAVY}), {_HEAVY}
    """)


def test_slices_resizing_and_questions_of_symbolic_sizes_load_none_of_them():
    _in_new_process(f"""
        import sys, torch, weft
        from torch.nn import functional as F
        def grow(x):
            y = F.interpolate(x[:, :, 1:, : x.shape[3] // 2], scale_factor=2.0, mode="nearest")
            return y * 2 if x.is_cpu and not x.is_quantized else y
        compiled = weft.compile(grow, backend="aot_eager", dynamic=True)
        compiled(torch.randn(2, 3, 8, 8, requires_grad=True)).sum().backward()
        assert weft.stats()["graph_breaks"] == 0
        assert not ({_HEAVY}), {_HEAVY}
    """)


def test_attention_with_a_mask_made_of_constants_loads_none_of_them():
    _in_new_process(f"""
        import sys, torch, weft
        def attend(q):
            mask = torch.ones(8, 8, dtype=torch.bool).tril()
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        compiled = weft.compile(attend)
        compiled(torch.randn(1, 2, 8, 16))
        weft.explain(compiled)(torch.randn(1, 2, 8, 16))  # graphs as text
        assert not ({_HEAVY}), {_HEAVY}
    """)


def test_stand_ins_kept_by_a_module_go_on_working_when_the_real_ones_are_loaded():
    _in_new_process("""
        import sys, torch
        from weft.shapes.fakes.without_sympy import without_sympy
        with without_sympy():
            import sympy
            from torch.fx.experimental.symbolic_shapes import guard_or_false, sym_eq
            assert not isinstance(3, sympy.Basic)
            assert guard_or_false(True) and sym_eq((1, [2]), (1, [2]))
        assert "sympy" not in sys.modules
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv
        size = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.ones(5)).size(0)
        assert guard_or_false(sym_eq(size, 5)) and isinstance(size.node.expr, sympy.Basic)
        assert sympy.Symbol("x") + 1 == sympy.sympify("x + 1")
    """)


def test_nested_contexts_leave_nothing_behind():
    placed = [m.__name__ for m in module._STAND_INS if m.__name__ not in sys.modules]
    with without_sympy():
        with without_sympy():
            pass
        assert all(name in sys.modules for name in placed)
    assert not any(name in sys.modules for name in placed)


@pytest.mark.parametrize("value", [3, 2.5])
def test_plain_numbers_have_no_symbols(value):
    engine = module._engine
    assert engine.has_hint(value) and not engine.is_symbolic(value)
    assert engine.free_unbacked_symbols(value) == set()
    assert engine.free_unbacked_symbols(torch.ones(2, 3)) == set()
