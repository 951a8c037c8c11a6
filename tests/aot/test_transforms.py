"""Compiled functions under `torch.func`, batched gradients and gradients of gradients."""

from collections.abc import Callable

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import weft

W = torch.linspace(-1, 1, 36).view(6, 6)
X = torch.linspace(0, 1, 24).view(4, 6)


def vector(x):
    return (x @ W).sin() * 2


def scalar(x):
    return vector(x).tanh().sum()


TRANSFORMS = {
    "grad": lambda c: grad(c(scalar))(X),
    "vmap": lambda c: vmap(c(vector))(X),
    "vmap_grad": lambda c: vmap(grad(c(scalar)))(X),
    "jacrev": lambda c: jacrev(c(vector))(X[0]),
    "jacfwd": lambda c: jacfwd(c(vector))(X[0]),
    "hessian": lambda c: hessian(c(scalar))(X[0]),
    "vjp": lambda c: vjp(c(vector), X)[1](X),
    "jvp": lambda c: jvp(c(vector), (X,), (X,)),
    "autograd_hessian": lambda c: torch.autograd.functional.hessian(c(scalar), X),
    "jacobian": lambda c: torch.autograd.functional.jacobian(c(vector), X),
    "jacobian_batched": lambda c: torch.autograd.functional.jacobian(c(vector), X, vectorize=True),
    "compiled_grad": lambda c: c(vmap(grad(scalar)))(X),
    "compiled_hessian": lambda c: c(hessian(scalar))(X[0]),
}


def compiled(function: Callable) -> Callable:
    return weft.compile(function)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name: str) -> None:
    with weft.config.patch(strict=True):
        torch.testing.assert_close(
            TRANSFORMS[name](compiled), TRANSFORMS[name](lambda f: f), rtol=1e-5, atol=1e-5
        )


def test_gradients_of_parameters_per_sample() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.GELU(), torch.nn.LayerNorm(6))
    parameters = dict(module.named_parameters())

    def loss(parameters, x):
        return functional_call(module, parameters, (x,)).square().mean()

    def per_sample(f):
        return vmap(grad(f), (None, 0))(parameters, X[:, None])

    torch.testing.assert_close(per_sample(compiled(loss)), per_sample(loss))


@pytest.mark.parametrize("batched", [False, True])
def test_gradients_of_gradients(batched: bool) -> None:
    def third(f):
        x = X.clone().requires_grad_()
        (first,) = torch.autograd.grad(f(x), x, create_graph=True)
        (second,) = torch.autograd.grad((first * X).sum(), x, create_graph=True)
        if batched:
            return torch.autograd.grad(second, x, torch.eye(24).view(24, 4, 6),
                                       is_grads_batched=True)
        return torch.autograd.grad(second.square().sum(), x)

    torch.testing.assert_close(third(compiled(scalar)), third(scalar), rtol=1e-4, atol=1e-5)


def test_zeros_without_memory_are_not_read_by_kernels() -> None:
    """Forward over reverse: derivatives that are zero are tensors without memory."""

    def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x @ w - y) ** 2).mean()

    def derivatives(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return grad(loss)(w, x, y), hessian(loss)(w, x, y), jacrev(lambda v: (x @ v).tanh())(w)

    inputs = torch.randn(3), torch.randn(4, 3), torch.randn(4)
    graphs: list[torch.fx.GraphModule] = []

    def look(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(gm)
        return weft.compile_fx(gm, example_inputs)

    given = weft.compile(derivatives, backend=look)(*inputs)
    torch.testing.assert_close(given, derivatives(*inputs))
    assert len(graphs) == 1, "in one graph, or the zeros do not reach a kernel"


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_batched_gradients_have_no_gradient_themselves(backend: str) -> None:
    x = X[0].clone().requires_grad_()
    y = weft.compile(vector, backend=backend)(x)
    (rows,) = torch.autograd.grad(y, x, torch.eye(6), is_grads_batched=True)
    torch.testing.assert_close(rows, jacrev(vector)(X[0]))
    assert not rows.requires_grad


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_function_made_by_vjp_leaves_the_graph(backend: str) -> None:
    """It holds tensors of the transform's level; they used to come out as fake tensors."""
    value, pull = weft.compile(lambda x: vjp(vector, x), backend=backend)(X)
    wanted, wanted_pull = vjp(vector, X)
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(pull(X), wanted_pull(X))


def test_a_vjp_of_a_gradient_leaves_the_graph() -> None:
    """The graph was cut into stages at the leaf that the transform makes, which lost the others'
    history."""
    value, pull = weft.compile(lambda x: vjp(grad(torch.sin), x))(torch.tensor(0.5))
    wanted, wanted_pull = vjp(grad(torch.sin), torch.tensor(0.5))
    torch.testing.assert_close(value, wanted)
    torch.testing.assert_close(pull(torch.tensor(1.0)), wanted_pull(torch.tensor(1.0)))
