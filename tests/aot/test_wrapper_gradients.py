"""Training through tensors made of tensors: compiled on their parts, gradients as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import weft

BACKENDS = ["aot_eager", "inductor"]


class Halves(torch.Tensor):
    """A matrix kept as its upper and lower half; what is not row-wise makes it a plain one."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, upper, lower):
        return torch.Tensor._make_wrapper_subclass(
            cls, (upper.shape[0] + lower.shape[0], *upper.shape[1:]), dtype=upper.dtype,
            device=upper.device)

    def __init__(self, upper, lower):
        self.upper, self.lower = upper, lower

    def __repr__(self):
        return "Halves"

    def whole(self):
        return torch.cat([self.upper, self.lower])

    def __tensor_flatten__(self):
        return ["upper", "lower"], None

    def __coerce_same_metadata_as_tangent__(self, context, expected_type=None):
        return self

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Halves(inner["upper"], inner["lower"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in ROW_WISE:
            rows = next(t for t in args if isinstance(t, Halves)).upper.shape[0]
            return Halves(*[
                func(*tree_map(lambda t: half(t, name, rows), args), **(kwargs or {}))
                for name in ("upper", "lower")])
        plain = tree_map(lambda t: t.whole() if isinstance(t, Halves) else t, args)
        return func(*plain, **(kwargs or {}))


def half(t: Any, name: str, rows: int) -> Any:
    """A half of an argument; plain tensors are matrices or numbers."""
    if isinstance(t, Halves):
        return getattr(t, name)
    if not isinstance(t, torch.Tensor) or t.ndim == 0:
        return t
    return t[:rows] if name == "upper" else t[rows:]


aten = torch.ops.aten
ROW_WISE = {
    aten.detach.default, aten.sin.default, aten.cos.default, aten.mul.Tensor, aten.mul.Scalar,
    aten.add.Tensor, aten.alias.default, aten.clone.default, aten.ones_like.default,
    aten.pow.Tensor_Scalar, aten.zeros_like.default, aten.neg.default, aten.add_.Tensor,
}


def plain(value: Any) -> Any:
    if isinstance(value, Halves):
        return [value.upper.detach(), value.lower.detach()]
    if isinstance(value, torch.Tensor) and value.is_nested:
        return value.values().detach()
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value


def halves() -> Halves:
    return Halves(torch.arange(6.0).view(2, 3), torch.arange(3.0).view(1, 3) - 4).requires_grad_()


def same_gradients(
    f: Callable[..., Any], make: Callable[[], tuple[Any, ...]],
    differentiate: Callable[[Any, Any], Any], backend: str, uncompiled: int = 0,
) -> None:
    """`differentiate(f(*args), args)` is eager's, twice; so are the classes of what it gives."""
    weft.reset()
    compiled = weft.compile(f, backend=backend)
    for _ in range(2):
        wanted, found = make(), make()
        wanted = differentiate(f(*wanted), wanted)
        found = differentiate(compiled(*found), found)
        assert [type(x) for x in found] == [type(x) for x in wanted]
        torch.testing.assert_close(plain(found), plain(wanted))
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"]) == (1, 0)
    assert stats["uncompiled_graphs"] == uncompiled


def summed(result: Any, args: Any) -> list[Any]:
    results = result if isinstance(result, tuple) else (result,)
    torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    return [*(r.detach() for r in results), *(x.grad for x in args)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrapper_as_input_and_result(backend: str) -> None:
    same_gradients(lambda t: (t * t).sin(), lambda: (halves(),), summed, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_of_another_class_than_its_tensor(backend: str) -> None:
    """Matrix products give plain gradients, or none that has two parts."""
    def f(t, x):
        return (t.sin() @ x).sum()

    same_gradients(f, lambda: (halves(), torch.ones(3, 2, requires_grad=True)), summed, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_of_two_results_is_differentiated(backend: str) -> None:
    def f(t):
        return t.sin(), t.cos()

    def first(result: Any, args: Any) -> list[Any]:
        (result[0] * 2).backward(torch.ones_like(result[0]))
        return [args[0].grad]

    def second(result: Any, args: Any) -> list[Any]:
        result[1].backward(torch.ones_like(result[1]), retain_graph=True)
        (result[1] * 2).backward(torch.ones_like(result[1]))
        return [args[0].grad]

    for differentiate in (first, second):
        same_gradients(f, lambda: (halves(),), differentiate, backend)


def test_gradients_that_change_their_form_with_the_results_run_uncompiled() -> None:
    """That of a matrix product is plain, that of both results together is not."""
    def last(result: Any, args: Any) -> list[Any]:
        result[1].backward()
        return [args[0].grad]

    same_gradients(lambda t: (t.sin(), (t @ torch.ones(3, 2)).sum()), lambda: (halves(),), last,
                   "inductor", uncompiled=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_gradients_went_past_the_parts(backend: str) -> None:
    def twice(result: Any, args: Any) -> list[Any]:
        (gradient,) = torch.autograd.grad(
            result, args[0], torch.ones_like(result), create_graph=True)
        (second,) = torch.autograd.grad(gradient, args[0], torch.ones_like(gradient))
        return [gradient.detach(), second]

    same_gradients(lambda t: t.pow(3), lambda: (halves(),), twice, backend)


def test_results_of_several_wrappers_one_after_the_other() -> None:
    """All wrappers share one node of autograd, which each result's backward comes to."""
    def apart(results: Any, args: Any) -> list[Any]:
        first, second = results
        (own,) = torch.autograd.grad(first, args[0], torch.ones_like(first), retain_graph=True)
        second.backward(torch.ones_like(second))
        first.backward(torch.ones_like(first))
        return [own, *(arg.grad for arg in args)]

    same_gradients(lambda a, b: (a.sin(), b * 2), lambda: (halves(), halves()), apart, "inductor")


def test_a_tangent_in_another_memory_order() -> None:
    def transposed(result: Any, args: Any) -> list[Any]:
        tangent = Halves(torch.arange(6.0).view(3, 2).t(), torch.ones(3, 1).t())
        result.backward(tangent)
        return [args[0].grad]

    same_gradients(lambda t: t * 3, lambda: (halves(),), transposed, "inductor")


def test_results_of_classes_that_do_not_adapt_tangents_run_uncompiled(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain tangent arrives, of which only eager's formulas know what to do."""
    monkeypatch.delattr(Halves, "__coerce_same_metadata_as_tangent__")

    def of_plain(result: Any, args: Any) -> list[Any]:
        (result * 2).sum().backward()
        return [args[0].grad]

    same_gradients(lambda t: t.sin(), lambda: (halves(),), of_plain, "inductor", uncompiled=1)


def test_a_tangent_of_another_class_is_refused() -> None:
    t = halves()
    result = weft.compile(lambda t: t * 3, backend="aot_eager")(t)
    with pytest.raises(RuntimeError, match="another form than the Halves"):
        result.backward(torch.ones(3, 3))


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrapper_as_the_gradient_of_a_plain_result_crashed(backend: str, write: bool) -> None:
    """Kernels read its memory, which it has none of."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2).sin() if write else x.sin() * 2

    found = []
    for call in (f, weft.compile(f, backend=backend)):
        x = torch.linspace(0, 1, 9).view(3, 3).requires_grad_()
        (call(x + 1) * halves().detach()).sum().backward()
        assert isinstance(x.grad, Halves)
        found.append(x.grad.whole())
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_wrapper_that_is_transposed_in_place_kept_its_sizes(backend: str) -> None:
    """Its parts were transposed, but not the wrapper that the caller has."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.transpose_(0, 1).mul(2)

    x = TwoTensor(torch.arange(6.0).view(2, 3), torch.ones(2, 3))
    assert weft.compile(f, backend=backend)(x).shape == x.shape == x.a.shape == (3, 2)


def test_a_result_on_the_memory_of_an_input_runs_uncompiled() -> None:
    same_gradients(lambda t: (t.detach().upper, t.view_as(t).sin()), lambda: (halves(),),
                   lambda result, args: summed(result[1], args), "inductor", uncompiled=0)


def test_without_gradients_parameters_are_compiled_too() -> None:
    weft.reset()
    t = halves()
    with torch.no_grad():
        found = weft.compile(lambda t: (t * 2).sin())(t)
        torch.testing.assert_close(plain(found), plain((t * 2).sin()))
    assert weft.stats()["uncompiled_graphs"] == 0 and weft.stats()["kernels"] > 0


def jagged(*lengths: int) -> torch.Tensor:
    rows = [torch.arange(8.0 * n).view(n, 8) / 9 for n in lengths]
    return torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_tensors_train(backend: str) -> None:
    layer = torch.nn.Linear(8, 6)

    def f(nt):
        return layer(nt).relu()

    def of_padded(result: Any, args: Any) -> list[Any]:
        layer.zero_grad()
        torch.nested.to_padded_tensor(result * 2, 0.0).sum().backward()
        return [args[0].grad, layer.weight.grad]

    same_gradients(f, lambda: (jagged(2, 3),), of_padded, backend)


class ReturnsSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0], None


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_is_itself_a_gradient_failed_in_the_partition(backend: str) -> None:
    same_gradients(lambda x, w: ReturnsSaved.apply(x, w),
                   lambda: (torch.ones(3, requires_grad=True), torch.arange(3.0)),
                   summed, backend)
