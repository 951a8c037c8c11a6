"""Compiled forward and backward against eager: what is saved, gradients, higher orders, modes."""

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from comparing import make_graph
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import weft
from weft.aot.training.forward_inputs import DoubleBackwardError
from weft.backends import resolve

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _strict():
    with weft.config.patch(strict=True):
        yield


def compiled(function: Callable, inputs: list, backend: str = "aot_eager") -> Callable:
    gm, tensors = make_graph(function, tuple(inputs), {})
    assert len(tensors) == len(inputs)
    call = resolve(backend)(gm, inputs)
    assert getattr(call, "boxed", False), "runs without aot"
    return lambda *given: call(list(given))


def mlp_inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(16, 8), (32, 8), (32,), (8, 32), (8,)]
    return [torch.randn(s, requires_grad=True) for s in shapes]


def mlp(x, w, b, v, c):
    h = F.layer_norm(x, (8,))
    return x + F.linear(F.gelu(F.linear(h, w, b)), v, c)


def saved_bytes(call: Callable) -> int:
    """Bytes that autograd keeps, leaves excepted."""
    kept = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        if not (t.is_leaf and t.requires_grad):
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with saved_tensors_hooks(pack, lambda t: t):
        result = call()
    return sum(kept.values())


def conv_norm_relu(x, w, g, b):
    return F.relu(F.batch_norm(F.conv2d(x, w), None, None, g, b, training=True))


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).softmax(-1)


def cross_entropy(x, w):
    return F.cross_entropy(x @ w, torch.arange(16), label_smoothing=0.1)


def group_norm_silu(x, g, b):
    return F.silu(F.group_norm(x, 2, g, b)).mean((2, 3))


def rms_norm_gate(x, w, g):
    return F.rms_norm(x, (8,), g) * F.silu(x @ w)


def pointwise_chain(x, y):
    return ((x.sin() * y).exp() + x.tanh()).sigmoid() * y


MEMORY_CASES = {
    "mlp": (mlp, mlp_inputs),
    "conv": (conv_norm_relu, lambda: [torch.randn(s, requires_grad=True)
                                      for s in [(2, 3, 16, 16), (4, 3, 3, 3), (4,), (4,)]]),
    "attention": (attention, lambda: [torch.randn(2, 4, 16, 8, requires_grad=True)
                                      for _ in range(3)]),
    "cross_entropy": (cross_entropy, lambda: [torch.randn(s, requires_grad=True)
                                              for s in [(16, 8), (8, 64)]]),
    "group_norm": (group_norm_silu, lambda: [torch.randn(s, requires_grad=True)
                                             for s in [(2, 4, 8, 8), (4,), (4,)]]),
    "rms_norm": (rms_norm_gate, lambda: [torch.randn(s, requires_grad=True)
                                         for s in [(32, 8), (8, 8), (8,)]]),
    "pointwise": (pointwise_chain, lambda: [torch.randn(64, 64, requires_grad=True)
                                            for _ in range(2)]),
}


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomposed"])
@pytest.mark.parametrize("case", MEMORY_CASES)
def test_saves_no_more_than_eager(case: str, backend: str) -> None:
    function, make = MEMORY_CASES[case]
    inputs = make()
    call = compiled(function, inputs, backend)
    assert saved_bytes(lambda: call(*inputs)) <= saved_bytes(lambda: function(*inputs))


def test_gelu_is_recomputed() -> None:
    inputs = mlp_inputs()
    call = compiled(mlp, inputs)
    assert saved_bytes(lambda: call(*inputs)) < 0.7 * saved_bytes(lambda: mlp(*inputs))


def test_a_returned_result_is_saved_as_in_eager_instead_of_the_parameter() -> None:
    """tanh of a parameter was computed again, though the program had just got it."""
    x = torch.ones(5, requires_grad=True)
    y = compiled(torch.tanh, [x])(x)[0]
    assert [t.data_ptr() for t in y.grad_fn.saved_tensors] == [y.data_ptr()]


def test_a_returned_result_that_eager_does_not_save_may_be_written_to() -> None:
    x = torch.ones(5, requires_grad=True)
    y, z = compiled(lambda x: [y := x + 1, (y + 1).sin()], [x])(x)
    y.detach().mul_(2)
    (gradient,) = torch.autograd.grad(z.sum(), x)
    torch.testing.assert_close(gradient, (x + 2).cos())


def test_dropout_uses_one_mask() -> None:
    x = torch.ones(1000, requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5, True), [x])(x)[0]
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)


def test_random_numbers_are_eagers() -> None:
    x = torch.ones(50, requires_grad=True)

    def program(x):
        return (F.dropout(x, 0.3, True) + torch.rand(50)) * torch.randn_like(x)

    call = compiled(program, [x])
    torch.manual_seed(3)
    wanted = program(x)
    torch.manual_seed(3)
    assert torch.equal(call(x)[0], wanted)


SECOND_ORDER = {
    "mlp": (mlp, lambda: [t.double().detach().requires_grad_() for t in mlp_inputs()]),
    "tanh": (lambda x: (x.tanh() ** 3).sum(), lambda: [torch.randn(4, dtype=torch.float64,
                                                                  requires_grad=True)]),
    "dropout": (lambda x: F.dropout(x**3, 0.5, True), lambda: [
        torch.randn(20, dtype=torch.float64, requires_grad=True)]),
    "conv": (lambda x, w: F.conv2d(x, w).sigmoid(), lambda: [
        torch.randn(s, dtype=torch.float64, requires_grad=True)
        for s in [(1, 2, 5, 5), (3, 2, 3, 3)]]),
}


@pytest.mark.parametrize("case", SECOND_ORDER)
def test_gradient_penalty(case: str) -> None:
    function, make = SECOND_ORDER[case]
    inputs = make()
    call = compiled(function, inputs)

    def penalty(f: Callable) -> list[torch.Tensor]:
        torch.manual_seed(0)
        first = torch.autograd.grad(f(*inputs)[0].sum(), inputs, create_graph=True,
                                    allow_unused=True)
        total = sum(g.square().sum() for g in first if g is not None)
        return list(torch.autograd.grad(total, inputs, allow_unused=True))

    for found, wanted in zip(penalty(call), penalty(lambda *i: [function(*i)]), strict=True):
        assert (found is None) == (wanted is None)
        if found is not None:
            torch.testing.assert_close(found, wanted)


def test_gradgradcheck() -> None:
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    w = torch.randn(2, 2, dtype=torch.float64, requires_grad=True)
    call = compiled(lambda x, w: (x @ w).sin(), [x, w])
    assert torch.autograd.gradcheck(lambda *i: call(*i)[0], (x, w))
    assert torch.autograd.gradgradcheck(lambda *i: call(*i)[0], (x, w))


def test_double_backward_needs_inputs_that_exist() -> None:
    leaf = torch.randn(2048, requires_grad=True)  # more than is kept for this purpose alone
    x = leaf + 0
    call = compiled(lambda x: (x.sum().exp() * 2).sin(), [x])  # what is saved depends on `x`
    y = call(leaf + 0)[0]
    gc.collect()
    with pytest.raises(DoubleBackwardError, match="no longer exists"):
        torch.autograd.grad(y.sum(), leaf, create_graph=True)


def test_inputs_kept_for_double_backward_are_free_after_a_backward() -> None:
    leaf, layer = torch.randn(1, 3, 8, 8, requires_grad=True), torch.nn.Conv2d(3, 4, 3)

    def enlarged(x: torch.Tensor) -> torch.Tensor:
        """Eager saves the large image; the compiled function computes it again."""
        return layer(F.interpolate(x, scale_factor=2)).sigmoid()

    def penalty(call: Callable) -> torch.Tensor:
        (g,) = torch.autograd.grad(call(leaf * 2).sum(), leaf, create_graph=True)
        return torch.autograd.grad(g.square().sum(), layer.weight)[0]

    call = weft.compile(enlarged)
    torch.testing.assert_close(penalty(call), penalty(enlarged))
    x = leaf * 2
    y, alive = call(x), weakref.ref(x)
    del x
    assert alive() is not None
    y.sum().backward()
    assert alive() is None


def test_gradient_penalty_with_graph_breaks() -> None:
    """What comes in behind a break is not alive when gradients of gradients are taken."""
    pause = weft.disable(lambda: None)
    layers = torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1)

    def forward(x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(layers[0](x))
        pause()
        h = layers[1](h)
        pause()
        h = h * 2 + 1
        pause()
        return layers[2](F.gelu(h)).sum()

    def penalty(call: Callable) -> tuple[torch.Tensor, ...]:
        x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
        (g,) = torch.autograd.grad(call(x), x, create_graph=True)
        loss = (g.norm(dim=1) - 1).square().mean()
        return torch.autograd.grad(loss, [x, *layers[0].parameters()])

    torch.testing.assert_close(penalty(weft.compile(forward)), penalty(forward))


SHARING = {
    "chunks": lambda x: x.sin().chunk(2),
    "base_and_view": lambda x: (lambda y: (y, y.t()))(x.sin()),
    "with_a_detached_one": lambda x: (lambda y: (y[0], y[1].detach(), y.view(-1)))(x**3),
    "transposed_chunks": lambda x: x.sin().t().chunk(2),
}


@pytest.mark.parametrize("case", SHARING)
def test_gradients_of_gradients_through_results_that_share_memory(case: str) -> None:
    def second(call: Callable) -> torch.Tensor:
        x = torch.linspace(0.1, 1, 16).view(4, 4).requires_grad_()
        loss = sum(r.square().sum() for r in call(x) if r.requires_grad)
        (g,) = torch.autograd.grad(loss, x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), x)[0]

    function = SHARING[case]
    torch.testing.assert_close(second(weft.compile(function)), second(function))


@pytest.mark.parametrize("size", [4, 4096])
def test_double_backward_through_an_overwritten_input(size: int) -> None:
    def f(x, b):
        y = x.square() * b.exp()
        b.add_(1)
        return y

    x = torch.randn(size, requires_grad=True)
    found = []
    for call in (f, lambda x, b: compiled(f, [x, b])(x, b)[0]):
        (g,) = torch.autograd.grad(call(x, torch.ones(size)).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(g.square().sum(), x)[0])
    torch.testing.assert_close(*found)


def test_saved_input_written_by_the_caller_is_an_error_as_in_eager() -> None:
    x = torch.randn(4, requires_grad=True)
    z = x * 1
    y = compiled(lambda z: z.exp() * z, [z])(z)[0]
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_unused_outputs_give_no_gradient() -> None:
    x = torch.randn(4, requires_grad=True)
    w = torch.randn(4, requires_grad=True)
    outputs = compiled(lambda x, w: (x * 2, w * 3), [x, w])(x, w)
    found = torch.autograd.grad(outputs[0].sum(), [x, w], allow_unused=True)
    assert torch.equal(found[0], torch.full((4,), 2.0)) and found[1] is None


def test_gradients_asked_for_vary_from_call_to_call() -> None:
    """What `torch.autograd.grad` asks for is looked up once and believed for a while."""
    inputs = [torch.randn(5, requires_grad=True) for _ in range(3)]
    x, y, z = inputs

    def f(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        return (x * y.sin() * z).sum()

    compiled = weft.compile(f, backend="aot_eager")
    for wanted in [inputs, [x], inputs, [z, x], [y], [y], *[inputs] * 34, [x], inputs]:
        found = torch.autograd.grad(compiled(x, y, z), wanted)
        torch.testing.assert_close(found, torch.autograd.grad(f(x, y, z), wanted))
    compiled(x, y, z).backward(inputs=[y])
    assert x.grad is None and z.grad is None
    torch.testing.assert_close(y.grad, torch.autograd.grad(f(x, y, z), y)[0])


@pytest.mark.parametrize("make", [
    lambda y: torch.ones(()).expand(y.shape), lambda y: torch.randn(y.shape[::-1]).t(),
    lambda y: torch.randn(*y.shape, 2)[..., 0],
], ids=["broadcast", "transposed", "strided"])
def test_tangents_of_any_layout(make: Callable) -> None:
    inputs = mlp_inputs()
    y, wanted = compiled(mlp, inputs)(*inputs)[0], mlp(*inputs)
    tangent = make(wanted)
    found = torch.autograd.grad(y, inputs, tangent)
    for f, w in zip(found, torch.autograd.grad(wanted, inputs, tangent), strict=True):
        torch.testing.assert_close(f, w)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("make", [
    lambda x: torch.view_as_real(torch.complex(x, x * 2))[..., 0], lambda x: (x * 2)[:, ::2],
    lambda x: (x * 2)[0].expand(3, 6), lambda x: (x * x).t()[:2],
], ids=["real_part", "strided", "expanded", "transposed"])
def test_results_with_gaps_take_tangents_without(make: Callable, backend: str) -> None:
    """The backward's kernels read tangents by the strides that their placeholder promises."""
    x = torch.randn(4, 6, requires_grad=True)
    y, wanted = compiled(make, [x], backend)(x)[0], make(x)
    tangent = torch.randn_like(wanted)
    (found,) = torch.autograd.grad(y, x, tangent)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, x, tangent)[0])


def test_retain_graph_and_accumulation() -> None:
    inputs = mlp_inputs()
    y = compiled(mlp, inputs)(*inputs)[0].sum()
    y.backward(retain_graph=True)
    once = [i.grad.clone() for i in inputs]
    y.backward()
    for i, first in zip(inputs, once, strict=True):
        torch.testing.assert_close(i.grad, first * 2)
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def losses(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    first = (a @ w).exp()
    return first.sum(), (first.detach() * (b @ w).sin()).sum()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_losses_over_inputs_with_graphs_of_their_own(backend: str) -> None:
    """The backward of one loss ran what is behind the other's inputs: hooks got None, and the
    second loss found that graph freed."""

    def seen(call: Callable, *, twice: bool) -> list[torch.Tensor]:
        leaves = [torch.linspace(0, 1, 4).view(2, 2).requires_grad_() for _ in range(3)]
        a, b = leaves[0].exp(), leaves[1].exp()
        b.register_hook(lambda g: g * 2)
        first, second = call(a, b, leaves[2])
        if twice:
            (first,) = torch.autograd.grad(first, leaves[0], create_graph=True)
        first.sum().backward()
        second.backward()
        return [leaf.grad for leaf in leaves]

    call = weft.compile(losses, backend=backend, fullgraph=True)
    for twice in (False, True):
        torch.testing.assert_close(seen(call, twice=twice), seen(losses, twice=twice))


def test_complex_copies_are_no_obstacle_to_the_cut() -> None:
    """A copy's mark on the views that complex numbers as pairs are made of: `x.conj()` raised."""
    x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    weft.compile(lambda x: (x * x.conj()).real.sum(), fullgraph=True)(x).backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_memory_is_freed() -> None:
    inputs = mlp_inputs()
    call = compiled(mlp, inputs)

    def live() -> int:
        gc.collect()
        return sum(type(o) is torch.Tensor for o in gc.get_objects())

    call(*inputs)[0].sum().backward()
    before = live()
    for _ in range(5):
        call(*inputs)[0].sum().backward()
    assert live() <= before


def test_autocast_at_capture() -> None:
    inputs = mlp_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call = compiled(mlp, inputs)
        found, wanted = call(*inputs)[0], mlp(*inputs)
    assert found.dtype == wanted.dtype
    torch.testing.assert_close(found, wanted)
    gradients = zip(torch.autograd.grad(found.sum(), inputs),
                    torch.autograd.grad(wanted.sum(), inputs), strict=True)
    for f, w in gradients:
        torch.testing.assert_close(f, w)


def test_custom_function() -> None:
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(-1, 1)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x.abs() < 0.5)

    x = torch.linspace(-2, 2, 9, requires_grad=True)
    y = compiled(lambda x: Clip.apply(x) * 3, [x])(x)[0]
    (found,) = torch.autograd.grad(y.sum(), x)
    (wanted,) = torch.autograd.grad((Clip.apply(x) * 3).sum(), x)
    assert torch.equal(found, wanted)


def test_checkpointing_is_kept() -> None:
    from torch.utils.checkpoint import checkpoint

    inputs = mlp_inputs()

    def plain(*i):
        return mlp(*i).tanh().sin()

    def checkpointed(*i):
        return checkpoint(plain, *i, use_reentrant=False)

    call = compiled(checkpointed, inputs)
    assert saved_bytes(lambda: call(*inputs)) == 0  # inputs are leaves
    for f, w in zip(torch.autograd.grad(call(*inputs)[0].sum(), inputs),
                    torch.autograd.grad(plain(*inputs).sum(), inputs), strict=True):
        torch.testing.assert_close(f, w)


def test_gradients_inside_the_graph() -> None:
    def f(x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            (g,) = torch.autograd.grad((y**3).sum(), y)
        return g * x

    x = torch.randn(5, requires_grad=True)
    assert torch.allclose(compiled(f, [x])(x)[0], f(x))


def test_foreach_optimizer_step() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(3, 4) for _ in range(8)]

    def adamw(*t):
        params, grads, first, second = t[:2], t[2:4], t[4:6], t[6:]
        torch._foreach_mul_(list(params), 0.99)
        torch._foreach_lerp_(list(first), list(grads), 0.1)
        torch._foreach_mul_(list(second), 0.999)
        torch._foreach_addcmul_(list(second), list(grads), list(grads), 0.001)
        root = torch._foreach_sqrt([s.abs() for s in second])
        torch._foreach_add_(root, 1e-8)
        torch._foreach_addcdiv_(list(params), list(first), root, -0.01)
        return params[0].sum()

    for backend in ("aot_eager", "aot_eager_decomposed"):
        wanted, given = [t.clone() for t in tensors], [t.clone() for t in tensors]
        with torch.no_grad():
            call = compiled(adamw, given, backend)
            adamw(*wanted)
            call(*given)
        for g, w in zip(given, wanted, strict=True):
            torch.testing.assert_close(g, w)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_enabled_inside(backend: str) -> None:
    """Called under `no_grad`; what the graph computes with gradients has them."""

    def f(x, w):
        with torch.enable_grad():
            y = (x @ w).sin()
            z = y.t()
        return y, z, y * 2, w + 1

    def run(call):
        x, w = torch.linspace(0, 1, 16).view(4, 4), torch.linspace(1, 2, 16).view(4, 4)
        w.requires_grad_()
        with torch.no_grad():
            results = call(x, w)
        (results[0].sum() + results[1].square().sum()).backward()
        return [r.detach() for r in results], [r.requires_grad for r in results], w.grad

    found, wanted = run(weft.compile(f, backend=backend)), run(f)
    torch.testing.assert_close(found[::2], wanted[::2])
    assert found[1] == wanted[1]


@pytest.mark.parametrize("name", ["RAdam", "ASGD", "Adamax"])
def test_foreach_optimizers_with_numbers_for_tensors(name: str) -> None:
    def trained(wrap: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, foreach=True)
        x = torch.randn(6, 4)

        def step() -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run = wrap(step)
        for _ in range(7):  # RAdam's rectification begins at the sixth step
            run()
        return [p.detach() for p in model.parameters()]

    given, expected = trained(weft.compile), trained(lambda step: step)
    # Told that it is compiled, torch.optim computes its factors in float32 tensors, not in numbers.
    torch.testing.assert_close(given, expected, rtol=1e-2, atol=1e-4)


def test_parameters_that_the_backward_does_not_need_may_be_written_before_it() -> None:
    """What only double backward would need was checked too: an error that eager does not raise."""

    def gradients(wrap: Callable[..., Any]) -> list[torch.Tensor | None]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
        loss = wrap(model)(torch.ones(3, 4)).square().sum()
        with torch.no_grad():
            for p in (model[0].weight, model[0].bias, model[2].bias):
                p.add_(1.0)
        loss.backward()
        return [p.grad for p in model.parameters()]

    compiled = partial(weft.compile, backend="aot_eager")
    torch.testing.assert_close(gradients(compiled), gradients(lambda m: m))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_backward_reads_the_clone_of_an_input_that_the_caller_writes(backend: str) -> None:
    """MoCo's queue: the input itself was saved, and its backward refused as modified."""

    def loss(a: torch.Tensor, queue: torch.Tensor) -> torch.Tensor:
        return (a @ queue.clone().detach()).sum() + (a * queue.t().clone().sin()).sum()

    def gradient(f: Callable[..., Any]) -> torch.Tensor:
        a, queue = torch.ones(3, 3, requires_grad=True), torch.eye(3)
        y = f(a, queue)
        queue.add_(1)
        y.backward()
        assert a.grad is not None
        return a.grad

    torch.testing.assert_close(gradient(weft.compile(loss, backend=backend)), gradient(loss))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_running_statistics_of_a_pending_eager_call_may_be_updated(backend: str) -> None:
    """Eager's update is not counted; a counted one let the first call's backward raise."""
    norm = nn.BatchNorm1d(3)
    compiled = weft.compile(norm, backend=backend)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    pending = norm(x).square().sum()
    before, version = norm.running_mean.clone(), norm.running_mean._version
    compiled(x).sum()
    with torch.no_grad():
        compiled(x)
    torch.testing.assert_close(norm.running_mean, 0.81 * before + 0.19 * x.mean(0))
    assert norm.running_mean._version == version
    pending.backward()


def _leaf_on_an_output(p: torch.Tensor) -> Any:
    z = p * 2
    leaf = z.detach().requires_grad_()
    return z, leaf, leaf.square().sum() + z.sum()


def _leaf_on_an_input(p: torch.Tensor) -> Any:
    leaf = p.detach().requires_grad_()
    return p, leaf, leaf.square().sum() + p.sum()


@pytest.mark.parametrize("function", [_leaf_on_an_output, _leaf_on_an_input])
def test_a_leaf_made_inside_on_memory_that_is_returned_too_gets_its_gradient(
    function: Callable[..., Any]
) -> None:
    """It came out as a view of the other output, with that one's gradient."""

    def gradients(f: Callable[..., Any]) -> tuple[torch.Tensor, ...]:
        p = torch.ones(3, requires_grad=True)
        _, leaf, loss = f(p)
        assert leaf.is_leaf
        return torch.autograd.grad(loss, [leaf, p])

    found = gradients(weft.compile(function, backend="aot_eager"))
    torch.testing.assert_close(found, gradients(function))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_plain_backwards_after_one_that_was_differentiated(backend: str) -> None:
    """What the forward saved is dropped then, and computed again with the same random numbers."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh(), nn.Linear(5, 2))

    def gradients(f: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        x = torch.ones(3, 4, requires_grad=True)
        out = f(x)
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        found = [g.detach()]
        for last in (False, True):
            found += torch.autograd.grad(
                out.square().sum() + g.square().sum(), [x, *model.parameters()][:-1],
                retain_graph=not last,
            )
        return found

    with weft.config.patch(fallback_random=True):
        found = gradients(weft.compile(model, backend=backend))
    torch.testing.assert_close(found, gradients(model))


def test_saved_values_that_a_hook_holds_are_not_dropped() -> None:
    held: list[torch.Tensor] = []

    def pack(t: torch.Tensor) -> torch.Tensor:
        held.append(t)
        return t

    x = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(pack, lambda t: t):
        y = weft.compile(lambda x: (x @ x.exp()).exp().sin(), backend="aot_eager")(x)
    torch.autograd.grad(y, x, create_graph=True)
    assert held
    assert all(t.numel() for t in held)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_detached_input_does_not_lead_into_a_graph_that_was_freed(backend: str) -> None:
    """The steps of a GAN: the critic's loss detaches what the generator's backward went through."""

    @weft.compile(backend=backend)
    def step(fake: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        inner = other * other
        inner.sum().backward()
        print("break")
        return (w * fake.detach() * inner.detach()).sum()

    w, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    fake = other.exp().exp()
    fake.sum().backward()
    step(fake, other).backward()
    torch.testing.assert_close(w.grad, fake.detach())


@pytest.mark.parametrize("keep", [False, True])
def test_second_derivatives_beside_a_detached_input(keep: bool) -> None:
    def found(f: Callable[..., Any]) -> torch.Tensor:
        x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        scale = y.exp()
        (g,) = torch.autograd.grad(f(x, scale).sum(), x, create_graph=True)
        kept = scale if keep else None
        del scale
        (second,) = torch.autograd.grad(g.sum(), x)
        assert kept is None or kept.requires_grad
        return second

    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x * scale.detach()).sin()

    torch.testing.assert_close(found(weft.compile(function, backend="aot_eager")), found(function))


def test_outputs_on_one_memory_that_a_backward_inside_went_through() -> None:
    """All are detached: the value that they are views of needs no gradient."""
    w = torch.ones(3, requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        hidden = (w * x).exp()
        hidden.sum().backward()
        first, second, _ = hidden.detach().unbind(0)
        return first, second, (w * 2).sum()

    expected, w.grad = step(torch.ones(3)), None
    weft.reset()
    found = weft.compile(step, backend="aot_eager")(torch.ones(3))
    assert weft.stats()["uncompiled_graphs"] == 0
    torch.testing.assert_close(found, expected)
    assert [t._is_view() for t in found] == [t._is_view() for t in expected]
    found[2].backward()
    torch.testing.assert_close(w.grad, torch.full((3,), 2 + torch.e))


def test_a_result_requires_gradients_where_autograd_finds_none_for_any_input() -> None:
    """The input was detached as one that the graph detaches: norms of order 0."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.norm(x, 0)

    x = torch.ones(3, requires_grad=True)
    result = weft.compile(f, backend="aot_eager", fullgraph=True)(x)
    assert torch.autograd.grad(result, x, allow_unused=True) == (None,)


@pytest.mark.parametrize("write", [
    lambda variance, y: variance.mul_(0.5),
    lambda variance, y: F.batch_norm(y, y.mean(0), variance, training=True),
], ids=["in place", "statistics"])
def test_backwards_do_not_read_buffers_written_since(write):
    """What eager had saved was computed again, from the buffer that the program changed since:
    an error, or a wrong gradient where the write is not counted (statistics)."""
    def run(x, w, variance):
        return F.linear(x, w * torch.rsqrt(variance + 1e-5)[:, None])

    torch.manual_seed(0)
    x, w, variance = torch.randn(5, 4), torch.randn(3, 4, requires_grad=True), torch.rand(3) + 0.5
    gradients = []
    for call in (run, weft.compile(run, backend="aot_eager")):
        own = variance.clone()
        y = call(x, w, own)
        write(own, y.detach())
        gradients.append(torch.autograd.grad(y.square().sum(), w)[0])
    torch.testing.assert_close(*gradients)


FACTOR = torch.ones(3)


class _Counting(torch.autograd.Function):
    """Its backward writes to an input and to a tensor of the program."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        with torch.no_grad():
            ctx.count.add_(1)
            FACTOR.mul_(2)
        return gradient * FACTOR, None


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_what_a_backward_writes_to_tensors_of_the_caller_was_lost(backend: str) -> None:
    def f(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return _Counting.apply(x, count).sin()

    found = []
    for call in (f, weft.compile(f, backend=backend)):
        FACTOR.fill_(1)
        x, count = torch.ones(3, requires_grad=True), torch.zeros(3)
        call(x, count).sum().backward()
        found.append([x.grad, count, FACTOR.clone()])
    torch.testing.assert_close(*found)
