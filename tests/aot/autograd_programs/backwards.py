"""Backwards: repeated, partial, of higher order, with errors."""

import torch
import torch.nn as nn
from torch.func import (
    functional_call,
)

from autograd_programs.programs import XR, X, err, grads, mlp, program


@program
def ag_unused_in(wrap):
    w = torch.ones(4, requires_grad=True)
    v = torch.ones(4, requires_grad=True)

    def f(x):
        y = (w * x).sum()
        return torch.autograd.grad(y, [w, v], allow_unused=True)

    return list(wrap(f)(X()))


@program
def ag_materialize(wrap):
    w = torch.ones(4, requires_grad=True)
    v = torch.ones(4, requires_grad=True)

    def f(x):
        y = (w * x).sum()
        return torch.autograd.grad(y, [w, v], allow_unused=True, materialize_grads=True)

    return list(wrap(f)(X()))


@program
def ag_unused_err(wrap):
    w = torch.ones(4, requires_grad=True)
    v = torch.ones(4, requires_grad=True)

    def f(x):
        y = (w * x).sum()
        return torch.autograd.grad(y, [w, v])

    return list(wrap(f)(X()))


@program
def ag_out_unused(wrap):
    w = torch.ones(4, requires_grad=True)
    v = torch.ones(4, requires_grad=True)
    y = wrap(lambda x: ((w * x).sum(), v * 2))(X())
    return list(torch.autograd.grad(y[0], [w, v], allow_unused=True))


@program
def ag_create_graph_in(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        y = (w * x).sin().sum()
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        return (g**2).sum() + y

    l = wrap(f)(X())
    l.backward()
    return [l, w.grad]


@program
def ag_create_graph_out(wrap):
    w = torch.ones(4, requires_grad=True)
    y = wrap(lambda x: (w * x).sin().sum())(X())
    (g,) = torch.autograd.grad(y, w, create_graph=True)
    (g**2).sum().backward()
    return [y, w.grad, g]


@program
def ag_third(wrap):
    x = X().double().requires_grad_()
    y = wrap(lambda x: (x**4).sum())(x)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    (k,) = torch.autograd.grad(h.sum(), x)
    return [g, h, k]


@program
def ag_is_batched(wrap):
    x = X()[0].requires_grad_()
    y = wrap(lambda x: x.sin() * 2)(x)
    return list(torch.autograd.grad(y, x, torch.eye(4), is_grads_batched=True))


@program
def grad_outputs_in(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        y = w * x
        return torch.autograd.grad([y, y.sum()], [w], [x, torch.ones(())])

    return list(wrap(f)(X()))


@program
def backward_inputs(wrap):
    m = mlp()

    def f(x):
        l = m(x).sum()
        l.backward(inputs=[m[0].weight])
        return l.detach()

    return [wrap(f)(X())] + grads(m)


@program
def backward_twice_in(wrap):
    m = mlp()

    def f(x):
        l = m(x).sum()
        l.backward(retain_graph=True)
        l.backward()
        return l.detach()

    return [wrap(f)(X())] + grads(m)


@program
def grad_fn_name(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        y = w * x
        return y * 2, y.grad_fn is not None, y.is_leaf

    return list(wrap(f)(X()))


@program
def accumulate(wrap):
    m = mlp()
    c = wrap(m)
    for k in range(3):
        (c(X() * k).sum()).backward()
    return grads(m)


@program
def second_backward(wrap):
    x = XR()
    y = wrap(lambda x: x.sin().exp())(x).sum()
    y.backward()
    return [err(y.backward), x.grad]


@program
def second_backward_linear(wrap):
    x = XR()
    y = wrap(lambda x: x * 2 + 1)(x).sum()
    y.backward()
    return [err(y.backward), x.grad]


@program
def second_backward_nosum(wrap):
    x = XR()
    y = wrap(lambda x: x * 2 + 1)(x)
    g = torch.ones(3, 4)
    y.backward(g)
    return [err(y.backward, g), x.grad]


@program
def second_backward_exp(wrap):
    x = XR()
    y = wrap(lambda x: (x * 2).exp())(x)
    g = torch.ones(3, 4)
    y.backward(g)
    return [err(y.backward, g), x.grad]


@program
def second_backward_retain(wrap):
    x = XR()
    y = wrap(lambda x: x.sin().exp())(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return [err(y.backward), x.grad]


@program
def second_backward_two_outputs(wrap):
    x = XR()
    a, b = wrap(lambda x: (x.sin(), x.cos()))(x)
    a.sum().backward()
    b.sum().backward()
    return [x.grad]


@program
def second_backward_two_outputs_shared(wrap):
    def f(x):
        h = x.exp()
        return h.sin(), h.cos()

    x = XR()
    a, b = wrap(f)(x)
    a.sum().backward()
    return [err(b.sum().backward), x.grad]


@program
def two_outputs_shared_linear(wrap):
    def f(x):
        h = x * 2
        return h + 1, h - 1

    x = XR()
    a, b = wrap(f)(x)
    a.sum().backward()
    return [err(b.sum().backward), x.grad]


@program
def two_outputs_retain(wrap):
    def f(x):
        h = x.exp()
        return h.sin(), h.cos()

    x = XR()
    a, b = wrap(f)(x)
    a.sum().backward(retain_graph=True)
    g1 = x.grad.clone()
    b.sum().backward()
    return [g1, x.grad, err(a.sum().backward)]


@program
def double_after_freed(wrap):
    x = XR()
    y = wrap(lambda x: x.sin().exp())(x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    g.sum().backward()
    return [x.grad, err(lambda: g.sum().backward())]


@program
def double_keep(wrap):
    x = XR()
    y = wrap(lambda x: x.sin().exp())(x).sum()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, retain_graph=True)
    (h2,) = torch.autograd.grad(g.square().sum(), x, retain_graph=True)
    y.backward()
    return [g, h, h2, x.grad]


@program
def double_first_normal(wrap):
    x = XR()
    y = wrap(lambda x: x.sin().exp())(x).sum()
    y.backward(retain_graph=True)
    g0 = x.grad.clone()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    g.square().sum().backward()
    return [g0, g, x.grad]


@program
def inplace_on_saved_input(wrap):
    x = XR()
    z = x * 1
    f = wrap(lambda z: z.sin())
    y = f(z)
    z.mul_(2)
    return [err(y.sum().backward)]


@program
def inplace_on_unsaved_input(wrap):
    x = XR()
    z = x * 1
    f = wrap(lambda z: z * 2)
    y = f(z)
    z.mul_(2)
    y.sum().backward()
    return [x.grad]


@program
def inplace_param_between(wrap):
    m = mlp()
    c = wrap(m)
    y = c(X()).sum()
    with torch.no_grad():
        m[0].weight.add_(1)
    return [err(y.backward)]


@program
def inplace_param_between2(wrap):
    m = mlp()
    c = wrap(m)
    y = c(X()).sum()
    with torch.no_grad():
        m[2].weight.add_(1)
    return [err(y.backward)]


@program
def inplace_bias_between(wrap):
    m = mlp()
    c = wrap(m)
    y = c(X()).sum()
    with torch.no_grad():
        m[2].bias.add_(1)
    return [err(y.backward)] + grads(m)


@program
def backward_nonscalar(wrap):
    x = XR()
    y = wrap(lambda x: x.sin())(x)
    return [err(y.backward)]


@program
def backward_norequires(wrap):
    y = wrap(lambda x: x.sin().sum())(X())
    return [err(y.backward)]


@program
def backward_bad_shape(wrap):
    x = XR()
    y = wrap(lambda x: x.sin())(x)
    return [err(y.backward, torch.ones(4, 3)), err(y.backward, torch.ones(4))]


@program
def backward_bad_dtype(wrap):
    x = XR()
    y = wrap(lambda x: x.sin())(x)
    y.backward(torch.ones(3, 4, dtype=torch.float64))
    return [x.grad]


@program
def grad_not_used(wrap):
    x = XR()
    z = XR()
    y = wrap(lambda x, z: x.sin() + z.detach())(x, z).sum()
    return [err(torch.autograd.grad, y, z)]


@program
def grad_used_zero(wrap):
    x = XR()
    z = XR()
    y = wrap(lambda x, z: (x.sin() + z * 0, z.sign()))(x, z)
    y[0].sum().backward()
    return [x.grad, z.grad]


@program
def inplace_leaf_err(wrap):
    x = XR()
    return [err(lambda: wrap(lambda x: x.mul_(2))(x))]


@program
def inplace_leaf_view_err(wrap):
    x = XR()
    return [err(lambda: wrap(lambda x: x[0].mul_(2))(x))]


@program
def inplace_leaf_nograd(wrap):
    x = XR()

    def f(x):
        with torch.no_grad():
            x.mul_(2)
        return x.sin()

    y = wrap(f)(x)
    y.sum().backward()
    return [y, x, x.grad, x.is_leaf]


@program
def noncontig_tangent(wrap):
    x = XR()
    y = wrap(lambda x: x.sin())(x)
    y.backward(torch.arange(12.0).view(4, 3).t())
    return [x.grad, x.grad.stride()]


@program
def expanded_tangent(wrap):
    x = XR()
    y = wrap(lambda x: x.sin())(x)
    y.backward(torch.ones(1, 1).expand(3, 4))
    return [x.grad, x.grad.stride()]


@program
def grad_strides(wrap):
    x = torch.linspace(-1, 1, 12).view(4, 3).t().requires_grad_()
    w = torch.ones(4, 5).t().contiguous().t().requires_grad_()
    y = wrap(lambda x, w: (x @ w).sin())(x, w)
    y.sum().backward()
    return [y.stride(), x.grad.stride(), w.grad.stride(), x.grad, w.grad]


@program
def grad_strides_conv(wrap):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).to(
        memory_format=torch.channels_last
    )
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    y = wrap(m)(x)
    y.sum().backward()
    return (
        [y, y.stride(), x.grad, x.grad.stride()]
        + [p.grad.stride() for p in m.parameters()]
        + grads(m)
    )


@program
def partial_outputs_backward(wrap):
    x = XR()
    z = XR()
    a, b = wrap(lambda x, z: (x.sin() * z, z.cos()))(x, z)
    a.sum().backward()
    return [x.grad, z.grad]


@program
def unused_output(wrap):
    x = XR()
    z = XR()
    a, b = wrap(lambda x, z: (x.sin(), z.cos()))(x, z)
    a.sum().backward()
    return [x.grad, z.grad]


@program
def undefined_outside(wrap):
    x = XR()
    z = XR()
    a, b = wrap(lambda x, z: (x.sin(), z.cos()))(x, z)
    return list(torch.autograd.grad(a.sum(), [x, z], allow_unused=True))


@program
def accumulate_same_buffer(wrap):
    m = mlp()
    c = wrap(m)
    c(X()).sum().backward()
    p = [q.grad.data_ptr() for q in m.parameters()]
    c(X()).sum().backward()
    return grads(m) + [[q.grad.data_ptr() for q in m.parameters()] == p]


@program
def accumulate_in_step(wrap):
    m = mlp()

    def st(x):
        m(x).sum().backward()

    c = wrap(st)
    c(X())
    p = [q.grad.data_ptr() for q in m.parameters()]
    c(X())
    return grads(m) + [[q.grad.data_ptr() for q in m.parameters()] == p]


@program
def accumulate_alias_kept(wrap):
    m = mlp()

    def st(x):
        m(x).sum().backward()

    c = wrap(st)
    c(X())
    g = m[0].weight.grad
    c(X())
    return [g, g is m[0].weight.grad]


@program
def same_param_twice(wrap):
    m = nn.Linear(4, 4)
    torch.manual_seed(0)
    nn.init.normal_(m.weight)
    nn.init.zeros_(m.bias)
    y = wrap(lambda x: m(m(x).sin()))(X())
    y.sum().backward()
    return grads(m)


@program
def same_input_twice(wrap):
    x = XR()
    y = wrap(lambda a, b: (a * b).sum() + a.sum())(x, x)
    y.backward()
    return [x.grad]


@program
def grads_not_shared(wrap):
    x = XR()
    z = XR()
    y = wrap(lambda a, b: (a + b).sum())(x, z)
    y.backward()
    x.grad.mul_(2)
    return [x.grad, z.grad]


@program
def grad_dtype_mixed(wrap):
    x = X().double().requires_grad_()
    z = XR()
    y = wrap(lambda a, b: (a * b).sum())(x, z)
    y.backward()
    return [x.grad, z.grad]


@program
def integer_input(wrap):
    x = XR()
    i = torch.tensor([0, 2, 1])
    y = wrap(lambda x, i: x[:, i].sin())(x, i)
    y.sum().backward()
    return [x.grad]


@program
def complex_grad(wrap):
    x = torch.complex(X(), X() * 2).requires_grad_()
    y = wrap(lambda x: (x * x.conj()).real.sum() + x.abs().sum())(x)
    y.backward()
    return [x.grad]


@program
def gp(wrap):
    m = mlp()
    c = wrap(m)
    x = XR()
    y = c(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    p = ((g.norm(2, 1) - 1) ** 2).mean()
    p.backward()
    return [y, g, p] + grads(m)


@program
def gp_in(wrap):
    m = mlp()

    def st(x):
        x = x.detach().requires_grad_()
        y = m(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        p = ((g.norm(2, 1) - 1) ** 2).mean()
        p.backward()
        return p.detach()

    return [wrap(st)(X())] + grads(m)


@program
def hvp_out(wrap):
    m = mlp()
    c = wrap(lambda x: (m(x) ** 2).sum())
    x = XR()
    (g,) = torch.autograd.grad(c(x), x, create_graph=True)
    (h,) = torch.autograd.grad((g * X()).sum(), x)
    return [
        g,
        h,
        *[v for v in torch.autograd.functional.hvp(c, X(), X())],
        torch.autograd.functional.hessian(c, X()),
    ]


@program
def maml2(wrap):
    m = mlp()
    ps = dict(m.named_parameters())

    def inner(ps, x):
        l = functional_call(m, ps, (x,)).square().mean()
        g = torch.autograd.grad(l, list(ps.values()), create_graph=True)
        return {k: p - 0.1 * q for (k, p), q in zip(ps.items(), g)}

    def outer(x):
        p = inner(inner(ps, x), x)
        return functional_call(m, p, (x * 2,)).square().mean()

    l = wrap(outer)(X())
    l.backward()
    return [l] + grads(m)


@program
def grad_none_vs_zero(wrap):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)
    c = wrap(m)
    c(X()).sum().backward()
    opt.zero_grad(set_to_none=False)
    a = [g.clone() for g in grads(m)]
    c(X()).sum().backward()
    return a + grads(m)


@program
def inplace_version(wrap):
    x = X()
    v = x._version
    wrap(lambda x: x.add_(1).mul_(2))(x)
    return [x, x._version > v]


@program
def grad_assign(wrap):
    m = mlp()

    def st(x):
        l = m(x).sum()
        g = torch.autograd.grad(l, list(m.parameters()))
        for p, q in zip(m.parameters(), g):
            p.grad = q * 2

    wrap(st)(X())
    return grads(m)


@program
def grad_in_nograd_update(wrap):
    m = mlp()

    def st(x):
        l = m(x).square().sum()
        l.backward()
        with torch.no_grad():
            for p in m.parameters():
                p -= 0.1 * p.grad
                p.grad.zero_()
        return l.detach()

    c = wrap(st)
    a = [c(X()) for _ in range(3)]
    return a + grads(m) + [p.detach() for p in m.parameters()]


@program
def grad_mode_decorator(wrap):
    m = mlp()

    @torch.no_grad()
    def ev(x):
        return m(x)

    @torch.enable_grad()
    def tr(x):
        return m(x)

    with torch.no_grad():
        b = wrap(tr)(X())
    a = wrap(ev)(X())
    return [a, a.requires_grad, b, b.requires_grad]


@program
def independent_outputs_in_turn(wrap):
    x = XR()
    a, b, c = wrap(lambda x: (x.sin(), (h := x.exp()) * h, h.cos()))(x)
    b.sum().backward()
    error = err(c.sum().backward)
    a.sum().backward()
    return [x.grad, error, err(a.sum().backward)]


@program
def independent_outputs_first_differentiably(wrap):
    x = XR()
    a, b = wrap(lambda x: (x.sin(), x.exp()))(x)
    (g,) = torch.autograd.grad(a.sum(), x, create_graph=True)
    g.square().sum().backward()
    b.sum().backward()
    return [g, x.grad]


@program
def infinite_derivative_of_an_output_without_tangent(wrap):
    x = torch.zeros(3, requires_grad=True)
    a, b = wrap(lambda x: (x * 2, x.sqrt()))(x)
    a.sum().backward()
    return [x.grad, b]


@program
def some_of_several_results_of_a_written_input(wrap):
    """Its own gradient was lost where the captured graph is differentiated instead."""

    def f(x, w):
        a, b = w.sin(), torch.cat([w, w], -1)
        x.zero_()
        c = x * 1
        x.lerp_(w, 0.3)
        return a, b, c

    leaf, w = XR(), XR()
    sum(t.sum() for t in wrap(f)(leaf * 1, w)).backward()
    return [leaf.grad, w.grad]


@program
def view_made_without_gradients_and_a_view_of_that(wrap):
    """The second has a gradient that arrives nowhere; it arrived at the input."""

    def f(x):
        y = x * 2
        with torch.no_grad():
            flat, turned = y.view(-1), x.t()
        return y, flat.expand(2, -1), turned[0]

    x = XR()
    y, wide, part = wrap(f)(x)
    (y.sum() + wide.sum() + part.sum()).backward()
    return [x.grad, wide, part]


@program
def view_behind_a_break_without_gradients(wrap):
    """What follows `no_grad` in the continuation was a view made without gradients."""

    def f(x):
        with torch.no_grad():
            torch.randn(3).tolist().sort()  # breaks the graph
        return x.unbind(0)[0], x[1:]

    x = XR()
    first, rest = wrap(f)(x)
    (first.sum() + rest.sum()).backward()
    return [x.grad, first, rest]


@program
def leaf_written_between_backwards_of_independent_results(wrap):
    """The second backward computed with the new values; eager raises, but only where it reads."""
    x, w = XR(), XR()
    a, b, c = wrap(lambda x, w: (w.exp(), x.sin(), w.cos()))(x, w)
    a.sum().backward(retain_graph=True)
    with torch.no_grad():
        x.add_(1)
    seen = [err(b.sum().backward), x.grad]
    x, w = XR(), XR()
    a, b, c = wrap(lambda x, w: (x.exp(), x.sin(), w.cos()))(x, w)
    a.sum().backward()
    with torch.no_grad():
        x.add_(1)
    c.sum().backward()
    return [*seen, err(b.sum().backward), x.grad, w.grad]


@program
def create_graph_through_a_result_written_without_gradients(wrap):
    """The graph that runs again was cut where gradients were disabled: a part was lost."""

    def f(x):
        h = x * 2
        with torch.no_grad():
            h.mul_(3)
        return h, h * x

    x = XR()
    h, product = wrap(f)(x)
    (g,) = torch.autograd.grad(product.sum(), x, create_graph=True)
    return [g, h, *torch.autograd.grad(g.square().sum(), x)]


@program
def create_graph_through_a_filled_result(wrap):
    """A buffer made in the graph and filled with results was taken for a leaf."""

    def f(x):
        filled = torch.zeros(3, 4)
        filled[0] = x[0].sin()
        filled[torch.tensor([1, 1]), torch.tensor([2, 2])] = x[0, :2]
        return filled, filled * x

    x = XR()
    _, product = wrap(f)(x)
    (g,) = torch.autograd.grad(product.sum(), x, create_graph=True)
    return [g, *torch.autograd.grad(g.square().sum(), x)]
