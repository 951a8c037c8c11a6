"""Tensors made of tensors (`_make_wrapper_subclass`): whole graphs, computed on their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import weft

BACKENDS = ["eager", "aot_eager", "inductor"]


class Pair(torch.Tensor):
    """Two tensors that go through everything together."""

    @staticmethod
    def __new__(cls, first, second):
        return torch.Tensor._make_wrapper_subclass(
            cls, first.shape, dtype=first.dtype, device=first.device, strides=first.stride(),
            requires_grad=first.requires_grad)

    def __init__(self, first, second):
        self.first, self.second = first, second

    def __repr__(self):
        return f"Pair({self.first}, {self.second})"

    def __tensor_flatten__(self):
        return ["first", "second"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Pair(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        parts = [func(*tree_map(lambda t: getattr(t, name) if isinstance(t, Pair) else t, args),
                      **(kwargs or {})) for name in ("first", "second")]
        return Pair(*parts) if isinstance(parts[0], torch.Tensor) else parts[0]


class Scaled(torch.Tensor):
    """A quantised matrix: integers, and a number of Python that they are multiplied by."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, dtype=torch.float32, device=numbers.device)

    def __init__(self, numbers, scale):
        self.numbers, self.scale = numbers, scale

    def __repr__(self):
        return "Scaled"

    def dequantize(self):
        return self.numbers.float() * self.scale

    def __tensor_flatten__(self):
        return ["numbers"], {"scale": self.scale}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["numbers"], context["scale"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.t.default):
            return Scaled(func(args[0].numbers), args[0].scale)
        plain = tree_map(lambda t: t.dequantize() if isinstance(t, Scaled) else t, args)
        return func(*plain, **(kwargs or {}))


def plain(value: Any) -> Any:
    if isinstance(value, Pair):
        return plain(value.first), plain(value.second)
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def pair(sign: float = 1.0) -> Pair:
    return Pair(torch.ones(2, 3) * sign, torch.arange(6.0).view(2, 3))


def same(function: Any, backend: str, *calls: Any) -> None:
    """Calls with fresh arguments, compared with eager: one graph each, no breaks."""
    weft.reset()
    compiled = weft.compile(function, backend=backend)
    for make in calls:
        wanted, found = make(), make()
        torch.testing.assert_close(plain(compiled(*found)), plain(function(*wanted)))
        torch.testing.assert_close(plain(found), plain(wanted))
    assert weft.stats()["graph_breaks"] == 0 and weft.stats()["graphs"] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_operations_on_wrappers(backend: str) -> None:
    def f(t, x):
        made = Pair(x, x + 1)
        t.mul_(2)
        y = (t + made).relu()
        return y, y.first.sum(), t.view(-1)[0], type(y) is Pair, y.shape

    call = lambda: (pair(), torch.ones(3).expand(2, 3).clone())
    same(f, backend, call, call)


class Dequantised(Pair):
    """A matrix and its scales, to which all operators, `detach` too, are those on plain tensors."""

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Dequantised(inner["first"], inner["second"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = tree_map(lambda t: t.first * t.second if isinstance(t, Dequantised) else t, args)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("trained", [False, True])
def test_a_class_that_detaches_to_plain_tensors_lost_what_it_computes(
        backend: str, trained: bool) -> None:
    def make() -> tuple[Any, Any]:
        return (Dequantised(torch.arange(6.0).view(2, 3), torch.full((2, 3), 2.0)),
                torch.ones(3, 2, requires_grad=trained))

    same(lambda t, x: (x @ t).relu() + 1, backend, make, make)


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_of_wrappers(backend: str) -> None:
    same(lambda t: t.sin() @ t.t(), backend, lambda: (Pair(pair(), pair(-1.0)),))


@pytest.mark.parametrize("backend", BACKENDS)
def test_training_around_quantised_weights(backend: str) -> None:
    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
        numbers = torch.randint(-9, 9, (4, 4), dtype=torch.int8)
        made[0].weight = torch.nn.Parameter(Scaled(numbers, 0.1), requires_grad=False)
        return made

    weft.reset()
    eager, other = model(), model()
    compiled = weft.compile(other, backend=backend)
    for _ in range(2):
        x, y = (torch.ones(3, 4, requires_grad=True) for _ in range(2))
        eager(x).sum().backward()
        compiled(y).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        torch.testing.assert_close(other[2].weight.grad, eager[2].weight.grad)
    assert weft.stats()["graph_breaks"] == 0 and weft.stats()["graphs"] == 1


def test_what_else_a_wrapper_is_made_of_is_guarded() -> None:
    same(lambda t: t.dequantize() + t.scale, "eager",
         *[lambda scale=scale: (Scaled(torch.ones(2, 2, dtype=torch.int8), scale),)
           for scale in (0.5, 0.5, 2.0)])
    assert weft.stats()["graphs"] == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_wrappers(backend: str) -> None:
    weft.reset()
    compiled = weft.compile(lambda t: (t * t).sum(), backend=backend)
    for _ in range(2):
        t = pair().requires_grad_()
        compiled(t).backward()
        torch.testing.assert_close(plain(t.grad), plain(2 * t.detach()))


def jagged(*lengths: int) -> torch.Tensor:
    rows = [torch.arange(8.0 * n).view(n, 8) / 9 for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


@pytest.mark.parametrize(("backend", "dynamic"), [
    ("eager", None), ("eager", True), ("aot_eager", None), ("inductor", None)])
def test_nested_tensors_of_changing_lengths(backend: str, dynamic: bool | None) -> None:
    """All sizes symbolic: strides are products of ragged and symbolic sizes."""
    weft.reset()
    layer = torch.nn.Linear(8, 6)

    def f(nt, rows):
        heads = layer(nt).view(nt.size(0), nt.size(1), 2, 3)
        made = torch.nested.nested_tensor([rows, rows[1:]], layout=torch.jagged)
        loss = torch.nested.to_padded_tensor(heads.relu(), 0.0).sum()
        loss.backward()
        return nt * 2, loss, (made + made).values(), nt.shape[2]

    compiled = weft.compile(f, backend=backend, dynamic=dynamic)
    for n in (2, 3, 4, 5):
        results = []
        for call in (f, compiled):
            layer.zero_grad()
            doubled, *rest = call(jagged(n, 1, 3), torch.ones(n, 8))
            results.append([doubled.values(), doubled.offsets(), *rest, layer.weight.grad])
        torch.testing.assert_close(results[1], results[0])
    assert weft.stats()["graph_breaks"] == 0 and weft.stats()["graphs"] <= 2


def test_ragged_sizes_are_compared_again_in_later_calls() -> None:
    def f(a, b):
        return (a + b if a.size(1) == b.size(1) else a * 2).values()

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    for shared in (True, False, True):
        a = jagged(2, 3)
        b = a * 3 if shared else jagged(2, 3)
        torch.testing.assert_close(compiled(a, b), f(a, b))
    assert weft.stats()["graphs"] == 2
