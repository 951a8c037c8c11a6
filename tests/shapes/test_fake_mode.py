"""`MemoFakeMode` against PyTorch's own fake mode: computed, remembered, and with symbolic sizes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from weft._torch import FakeTensor, FakeTensorMode
from weft.shapes.algebra import expr as ex
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake import FakeContext
from weft.shapes.fakes.fake_mode import MemoFakeMode
from weft.shapes.symnode import expr_of

X = torch.randn(4, 6, 8)
Y = torch.randn(6, 8)
COLUMN = torch.randn(8, 6).t()
INTS = torch.arange(24).view(4, 6)
W = torch.randn(8, 8)
LAST = torch.randn(4, 8, 6, 6).contiguous(memory_format=torch.channels_last)

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "add": (torch.add, (X, Y)),
    "add transposed": (torch.add, (COLUMN, COLUMN)),
    "add transposed and not": (torch.add, (COLUMN, Y)),
    "add channels last": (torch.add, (LAST, LAST)),
    "mul int by float": (lambda x: x * 2.5, (INTS,)),
    "mul half by double 0-d": (torch.mul, (X.half(), torch.tensor(2.0, dtype=torch.float64))),
    "div ints": (lambda x: x / 3, (INTS,)),
    "compare": (lambda x, y: x > y, (X, Y)),
    "sigmoid of ints": (torch.sigmoid, (INTS,)),
    "where": (lambda x: torch.where(x > 0, x, -x), (X,)),
    "singular vectors": (lambda x: torch.linalg.svd(x, full_matrices=False), (Y,)),
    "relu of a slice": (lambda x: x[:, ::2].relu(), (X,)),
    "size one": (lambda x: x[:1] + x[:, :1], (X,)),
    "matmul": (lambda x, w: x @ w, (X, W)),
    "linear": (F.linear, (X, W)),
    "softmax": (lambda x: x.softmax(-1), (X,)),
    "layer norm": (lambda x: F.layer_norm(x, (8,)), (X,)),
    "layer norm transposed": (lambda x: F.layer_norm(x, (8,)), (COLUMN,)),
    "embedding": (lambda i, w: F.embedding(i % 8, w), (INTS, W)),
    "sum": (lambda x: x.sum((0, 2), keepdim=True), (X,)),
    "mean": (lambda x: x.mean(-1), (X,)),
    "mean transposed": (lambda x: x.mean(0), (COLUMN,)),
    "amax": (lambda x: x.amax(1), (X,)),
    "view": (lambda x: x.view(4, -1), (X,)),
    "view with ones": (lambda x: x.view(1, 4, 1, -1), (X,)),
    "transpose": (lambda x: x.transpose(0, 1), (X,)),
    "view of a permuted": (lambda x: x.transpose(0, 1).unflatten(-1, (2, 4)), (X,)),
    "view of a slice": (lambda x: x[:, 1:3].view(4, 2, 2, 4), (X,)),
    "slices": (lambda x: (x[1:, :-2, ::3], x[..., -1], x[:, 2:5].select(1, 1)), (X,)),
    "expand": (lambda x: x[:, None].expand(4, 3, -1, 8), (X,)),
    "ones in and out": (lambda x: x.unsqueeze(1).unsqueeze(-1).squeeze(), (X,)),
    "add permuted": (lambda x, y: x.transpose(0, 2) * y.t()[..., None], (X, Y)),
    "add slices": (lambda x: x[:, 1:, 1:6] + x[:, :-1, :5].transpose(1, 2), (X,)),
    "clone permuted": (lambda x: (x.permute(1, 0, 2).clone(), x.mT.double()), (X,)),
    "stack": (lambda x: torch.stack([x.mT, x.mT], 1), (X,)),
    "cat slices": (lambda x: torch.cat([x[:, 1:], x[:, :2]], 1), (X,)),
    "convolution 1d": (lambda x: F.conv1d(x, torch.ones(3, 6, 2), stride=2, padding=1), (X,)),
    "transposed convolution": (lambda x: F.conv_transpose1d(x, torch.ones(6, 3, 2), None, 2), (X,)),
    "pooled": (lambda x: F.max_pool2d(F.pad(x[None], (1, 0, 0, 2)), 3, 2, 1), (X,)),
    "reshape copy": (lambda x: x.transpose(0, 1).reshape(6, -1), (X,)),
    "split": (lambda x: x.split(3, 1), (X,)),
    "cat": (lambda x: torch.cat([x, x], 1), (X,)),
    "in-place": (lambda x: x.clone().add_(1), (X,)),
    "dtype": (lambda x: x.to(torch.float64), (X,)),
    "arange": (lambda x: torch.arange(x.shape[0]), (X,)),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), (X,)),
    "convolution": (lambda x: F.conv2d(x, torch.ones(3, 8, 3, 3)), (LAST,)),
    "sort": (lambda x: x.sort(1), (X,)),
    "masked": (lambda x: x.masked_fill(x > 0, 0.0), (X,)),
    "pad": (lambda x: F.pad(x, (1, 2)), (X,)),
}


def describe(result: Any, inputs: list[Any], env: dict[ex.Expr, int]) -> list[Any]:
    """Geometry, dtype, device and aliasing of all tensors in a result."""

    def plain(sizes: Any) -> tuple[Any, ...]:
        return tuple(n if isinstance(n, int) else ex.subs(expr_of(n), env) for n in sizes)

    storages = {t.untyped_storage()._cdata: i for i, t in enumerate(inputs)}
    return [
        (
            plain(t.shape),
            plain(t.stride()),
            plain([t.storage_offset()]),
            t.dtype,
            t.device,
            storages.get(t.untyped_storage()._cdata),
        )
        for t in tree_leaves(result)
        if isinstance(t, torch.Tensor)
    ]


def run(mode: FakeTensorMode, program: Callable[..., Any], tensors: tuple[Any, ...]) -> list[Any]:
    context = FakeContext(mode)
    fakes = [context.fake(t) for t in tensors]
    with mode:
        return describe(program(*fakes), fakes, {})


@pytest.mark.parametrize("name", CASES)
def test_same_metadata_as_pytorch(name: str) -> None:
    program, tensors = CASES[name]
    expected = run(FakeTensorMode(allow_non_fake_inputs=True), program, tensors)
    assert run(MemoFakeMode(), program, tensors) == expected  # computed
    assert run(MemoFakeMode(), program, tensors) == expected  # remembered


@pytest.mark.parametrize("name", CASES)
def test_symbolic_sizes_give_the_same_after_substitution(name: str) -> None:
    program, tensors = CASES[name]
    expected = run(FakeTensorMode(allow_non_fake_inputs=True), program, tensors)
    shapes, context = ShapeContext(), FakeContext()
    fakes: list[FakeTensor] = []
    for number, tensor in enumerate(tensors):
        sizes = [shapes.size(n, (number, d)) for d, n in enumerate(tensor.shape)]
        fakes.append(context.fake(tensor, sizes=sizes))
    result, _ = context.mode.run(program, fakes, {})
    env = {s: int(h) for s, h in shapes.hints.known.items() if isinstance(s, ex.Expr)}
    assert describe(result, fakes, env) == expected


def test_guard_names_the_condition() -> None:
    shapes, context = ShapeContext(), FakeContext()
    x = context.fake(torch.randn(8, 4), sizes=[shapes.size(8, "x"), 4])
    with context.mode:
        assert x[:5].shape[0] == 5
        assert bool(x.shape[0] > 6)
    assert [str(g) for g in shapes.guards] == ["s0 >= 5", "s0 >= 7"]


def test_implied_conditions_make_no_guard() -> None:
    shapes = ShapeContext()
    n = shapes.size(64, "n")
    assert n % 8 == 0 and n > 10
    made = len(shapes.guards)
    assert n % 4 == 0 and n * 2 > 15 and n != 7 and (n // 8) * 8 == n
    assert len(shapes.guards) == made


def test_first_operators_load_neither_dynamo_nor_sympy() -> None:
    program = (
        "import sys, torch; from weft.shapes.fakes.fake import FakeContext; c = FakeContext()\n"
        "x = c.fake(torch.ones(3, 4))\n"
        "with c.mode: y = (x.relu() + x.sigmoid() * 2) @ x.t()\n"
        "assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_making_a_view_is_no_operation_that_an_active_mode_sees():
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    mode = MemoFakeMode()
    with mode:
        x = torch.empty(4, 6)
    for _ in range(2):  # computed, remembered
        with Watch():
            view = mode.dispatch(torch.ops.aten.select.int, (), (x, 0, 1))
        assert view.shape == (6,) and view.storage_offset() == 6 and not seen


def test_remembered_results_of_symbolic_sizes_share_neither_storage_nor_version():
    mode, context = MemoFakeMode(), ShapeContext()
    with mode:
        x = torch.empty(context.size(8, "b"), 3)
        first, second, third = (torch.relu(x) for _ in range(3))
        second.add_(1)
        view = third.view(-1)
        view.mul_(2)
    storages = {one.untyped_storage()._cdata for one in (x, first, second, third)}
    assert len(storages) == 4 and third._version == view._version == 1
    assert (first._version, second._version) == (0, 1)
    assert view.untyped_storage()._cdata == third.untyped_storage()._cdata
