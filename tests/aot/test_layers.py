"""Results that other results depend on: gradients with respect to them, hooks, `retain_grad`."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

import weft

Use = Callable[..., object]


def chain(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.tanh(x @ w)
    o = torch.sin(h @ v)
    s = o.exp() + h.sum()
    return h, o, s, (s * o).sum() + h.mean()


def views(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.tanh(x @ w)
    o = h[:2]
    s = o[0]
    return h, o, s, (s * s.exp()).sum() + (o @ v).sin().sum() + h.mean()


def positive_rows(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    h = torch.tanh(x @ w)
    o = torch.sin(h[h[:, 0] > 0] @ v)  # of a size that depends on data
    s = o.exp() + h.sum()
    return h, o, s, (s * o).sum() + h.mean()


def retained(h, o, s, loss, *inputs):
    for result in (h, o, s):
        result.retain_grad()
    loss.backward()
    return h.grad, o.grad, s.grad


def hooked(h, o, s, loss, *inputs):
    handle = o.register_hook(lambda g: g + 1)
    handle.remove()
    h.register_hook(lambda g: 2 * g + 1)
    loss.backward()


def backward_of_what_a_hook_sees(f: Use, *inputs) -> None:
    def loss() -> torch.Tensor:  # the hooked result is gone when the backward runs
        h, _, _, loss = f(*inputs)
        h.register_hook(lambda g: 2 * g + 1)
        return loss

    loss().backward()


def asked_for(h, o, s, loss, *inputs):
    return torch.autograd.grad(loss + o.sum(), [h, s, *inputs])


def asked_for_one(h, o, s, loss, *inputs):
    (gradient,) = torch.autograd.grad(loss, h, retain_graph=True)
    loss.backward()
    return gradient


def penalized(h, o, s, loss, x, w, v):
    gradients = torch.autograd.grad(loss, [h, o, w], create_graph=True)
    (loss + sum(g.pow(2).sum() for g in gradients)).backward()
    return [g.detach() for g in gradients]


def differentiated_twice(h, o, s, loss, x, w, v):
    (first,) = torch.autograd.grad(loss, h, create_graph=True)
    return torch.autograd.grad(first.pow(2).sum(), [h, o, x])


def differentiated_by_a_saved_result(h, o, s, loss, x, w, v):
    (first,) = torch.autograd.grad(loss, w, create_graph=True)
    second = torch.autograd.grad(first.pow(2).sum(), [h, x, o], create_graph=True)
    return first.detach(), torch.autograd.grad(sum(g.sum() for g in second), [h, w])


def hooked_inputs(h, o, s, loss, *inputs):
    for tensor in inputs:
        tensor.register_hook(lambda g: 2 * g)
    gradients = torch.autograd.grad(loss, inputs, create_graph=True)
    sum(g.pow(2).sum() for g in gradients).backward()


def batched(h, o, s, loss, *inputs):
    losses, rows = torch.stack([loss, loss * 2]), torch.eye(2, dtype=loss.dtype)
    return torch.autograd.grad(losses, [h, inputs[1]], rows, is_grads_batched=True)


def plain(h, o, s, loss, *inputs):
    versions = [t._version for t in (h, o, s, loss)]
    loss.mul_(2)
    (loss + h.sum()).backward()
    return versions


def seen(call: Use, use: Use) -> tuple[object, ...]:
    torch.manual_seed(0)
    sizes = (4, 3), (3, 5), (5, 2)
    inputs = [torch.randn(n, dtype=torch.float64, requires_grad=True) for n in sizes]
    found = use(call, *inputs) if use is backward_of_what_a_hook_sees else use(
        *call(*inputs), *inputs)
    return found, [i.grad for i in inputs]


@pytest.mark.parametrize(
    ("program", "backend"), [(chain, "aot_eager"), (chain, "inductor"), (views, "aot_eager"),
                             (positive_rows, "aot_eager")]
)
def test_gradients_of_results_that_others_depend_on(program: Use, backend: str) -> None:
    """`torch.autograd.grad` raised, hooks saw the direct part: results of one node are siblings,
    and the loss did not depend on the views that the wrapper made."""
    compiled = weft.compile(program, backend=backend, fullgraph=True)
    uses = [retained, hooked, backward_of_what_a_hook_sees, asked_for, asked_for_one, penalized,
            differentiated_twice, differentiated_by_a_saved_result, hooked_inputs, batched]
    for use in uses + [plain] * (backend == "aot_eager"):
        torch.testing.assert_close(seen(compiled, use), seen(program, use), msg=use.__name__)


def test_variables_that_live_across_a_graph_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        h = x.exp()
        y = (h * h).sum()
        print(end="")
        return torch.autograd.grad(y, h)[0] + 1

    x = torch.linspace(0, 1, 3, requires_grad=True)
    torch.testing.assert_close(weft.compile(f, backend="aot_eager")(x), f(x))


def test_hooks_of_results_that_a_backward_passes_by_are_not_called() -> None:
    compiled = weft.compile(lambda x: (x.exp(), x.sin()), backend="aot_eager", fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    y, z = compiled(x)
    y.register_hook(lambda g: g * 2)  # raised: it got None
    z.sum().backward(retain_graph=True)
    torch.testing.assert_close(x.grad, x.detach().cos())
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() + 2 * x.detach().exp())


def test_hooks_of_parameters_that_a_backward_does_not_reach_are_not_called() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = (x @ w).tanh()
        return h @ v, h.sum()

    x, w, v = (torch.ones(2, 2, requires_grad=True) for _ in range(3))
    v.register_hook(lambda g: g.clamp(max=0.5))  # raised: it got None
    first, second = weft.compile(f, backend="aot_eager", fullgraph=True)(x)
    second.backward(retain_graph=True)
    assert v.grad is None
    first.sum().backward()
    torch.testing.assert_close(v.grad, torch.full((2, 2), 0.5))


def test_a_view_that_is_returned_twice_is_one_object() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.t()
        return y, y, x.sin()

    compiled = weft.compile(f, backend="aot_eager", fullgraph=True)
    first, second, _ = compiled(torch.ones(2, 3, requires_grad=True))
    assert first is second


def test_random_numbers_of_a_gradient_with_respect_to_a_result_are_those_of_the_forward() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = torch.nn.functional.dropout(x * 2)
        return h, (torch.nn.functional.dropout(h) * x).sum()

    x = torch.ones(64, requires_grad=True)
    h, loss = weft.compile(f, backend="aot_eager", fullgraph=True)(x)
    (again,) = torch.autograd.grad(loss, h, create_graph=True)
    (gradient,) = torch.autograd.grad(loss, h)
    assert torch.equal(again, gradient)
    assert torch.equal((gradient * h).sum(), loss)


def test_results_die_after_a_backward_that_is_differentiated() -> None:
    """Another run of the captured graph was held by what it computed."""
    compiled = weft.compile(chain, backend="aot_eager", fullgraph=True)
    uses = asked_for_one, penalized, differentiated_twice, differentiated_by_a_saved_result
    for use in uses:
        inputs = [torch.ones(n, dtype=torch.float64, requires_grad=True)
                  for n in ((4, 3), (3, 5), (5, 2))]
        results = compiled(*inputs)
        use(*results, *inputs)
        held = [weakref.ref(t) for t in (*results, *inputs)]
        del results, inputs
        assert not any(t() is not None for t in held), use.__name__
