"""`torch.func` and forward-mode gradients inside and around compiled functions."""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

from autograd_programs.programs import XR, X, err, grads, mlp, program


def sc(x):
    return (x.sin() * x).sum()


def ve(x):
    return x.sin() * x.cos().sum()


@program
def fu_linearize_in(wrap):
    def f(x):
        o, j = linearize(ve, x)
        return o, j(x)

    return list(wrap(f)(X()))


@program
def fu_linearize_out(wrap):
    o, j = linearize(wrap(ve), X())
    return [o, j(X())]


@program
def fu_functionalize(wrap):
    def g(x):
        y = x.clone()
        y.add_(1)
        y[0].mul_(2)
        return y

    return [
        wrap(functionalize(g))(X()),
        wrap(lambda x: functionalize(g)(x) * 2)(X()),
        functionalize(wrap(g))(X()),
    ]


@program
def fu_grad_and_value(wrap):
    a = wrap(lambda x: grad_and_value(sc)(x))(X())
    return list(a)


@program
def fu_has_aux(wrap):
    def g(x):
        return sc(x), {"a": x * 2}

    a = wrap(lambda x: grad(g, has_aux=True)(x))(X())
    b = grad(wrap(g), has_aux=True)(X())
    return [a[0], a[1]["a"], b[0], b[1]["a"]]


@program
def fu_argnums(wrap):
    def g(x, y):
        return (x * y.sin()).sum()

    a = wrap(lambda x, y: grad(g, argnums=(0, 1))(x, y))(X(), X())
    b = grad(wrap(g), argnums=1)(X(), X())
    return [*a, b]


@program
def fu_ensemble(wrap):
    ms = [mlp() for _ in range(3)]
    p, b = stack_module_state(ms)
    base = copy.deepcopy(ms[0]).to("meta")

    def call(p, b, x):
        return functional_call(base, (p, b), (x,))

    r = wrap(lambda p, b, x: vmap(call, (0, 0, None))(p, b, x))(p, b, X())
    r2 = vmap(wrap(call), (0, 0, None))(p, b, X())
    return [r, r2]


@program
def fu_per_sample(wrap):
    m = mlp()
    p = dict(m.named_parameters())

    def loss(p, x, y):
        return ((functional_call(m, p, (x,)) - y) ** 2).mean()

    r = wrap(vmap(grad(loss), (None, 0, 0)))(p, X(), X())
    return list(r.values())


@program
def fu_vjp_in(wrap):
    def f(x):
        o, v = vjp(ve, x)
        return o, v(x)[0]

    return list(wrap(f)(X()))


@program
def fu_vjp_out_return(wrap):
    def f(x):
        o, v = vjp(ve, x)
        return o, v

    o, v = wrap(f)(X())
    return [o, v(X())[0]]


@program
def fu_jvp_in(wrap):
    return list(wrap(lambda x: jvp(ve, (x,), (x * 2,)))(X()))


@program
def fu_jac(wrap):
    x = X()[0]
    return [
        wrap(lambda x: jacrev(ve)(x))(x),
        wrap(lambda x: jacfwd(ve)(x))(x),
        wrap(lambda x: hessian(sc)(x))(x),
        jacrev(wrap(ve))(x),
        jacfwd(wrap(ve))(x),
        hessian(wrap(sc))(x),
    ]


@program
def fu_jac_chunk(wrap):
    x = X()[0]
    return [
        wrap(lambda x: jacrev(ve, chunk_size=2)(x))(x),
        wrap(lambda x: vmap(ve, chunk_size=2)(x))(X()),
    ]


@program
def fu_vmap_opts(wrap):
    return [
        wrap(lambda x: vmap(lambda a, b: a * b, in_dims=(0, 1), out_dims=1)(x, x.t()))(X()),
        wrap(lambda x: vmap(vmap(sc))(x[None]))(X()),
        vmap(wrap(lambda a, b: a * b), in_dims=(0, None))(X(), X()[0]),
    ]


@program
def fu_vmap_random(wrap):
    torch.manual_seed(0)
    r = wrap(lambda x: vmap(lambda r: F.dropout(r, 0.5), randomness="different")(x))(
        torch.ones(4, 100)
    )
    return [((r == 0) | (r == 2)).all()]


@program
def fu_vmap_inplace(wrap):
    def g(x):
        y = x.clone()
        y[0] = 5
        y.add_(1)
        return y

    return [wrap(lambda x: vmap(g)(x))(X()), vmap(wrap(g))(X())]


@program
def fu_hvp(wrap):
    def f(x, v):
        return jvp(grad(sc), (x,), (v,))[1]

    return [wrap(f)(X(), X())]


@program
def fu_grad_nograd(wrap):
    def g(x):
        with torch.no_grad():
            c = x.sin()
        return (x * c).sum()

    return [wrap(lambda x: grad(g)(x))(X()), grad(wrap(g))(X())]


@program
def fu_buffers(wrap):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    torch.manual_seed(0)
    for p in m.parameters():
        nn.init.ones_(p)
    p = dict(m.named_parameters())
    b = {k: v.clone() for k, v in m.named_buffers()}
    r = wrap(lambda p, b, x: functional_call(m, (p, b), (x,)))(p, b, X())
    return [r, *b.values()]


@program
def fu_parametrize(wrap):
    m = nn.Linear(4, 4)
    torch.manual_seed(0)
    nn.init.normal_(m.weight)
    nn.init.zeros_(m.bias)

    class S(nn.Module):
        def forward(self, w):
            return w + w.t()

    nn.utils.parametrize.register_parametrization(m, "weight", S())
    y = wrap(m)(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def dual_in(wrap):
    import torch.autograd.forward_ad as fa

    def f(x):
        with fa.dual_level():
            d = fa.make_dual(x, x * 2)
            return fa.unpack_dual(ve(d)).tangent

    return [wrap(f)(X())]


@program
def dual_parameters_of_a_module(wrap):
    import torch.autograd.forward_ad as fa

    m = nn.Linear(4, 4)
    tangents = {name: torch.ones_like(p) for name, p in m.named_parameters()}

    def f(x):
        with fa.dual_level():
            for name, p in list(m.named_parameters()):
                delattr(m, name)
                setattr(m, name, fa.make_dual(p, tangents[name]))
            return fa.unpack_dual(m(x)).tangent

    return [wrap(f)(X())]


@program
def dual_out(wrap):
    import torch.autograd.forward_ad as fa

    with fa.dual_level():
        d = fa.make_dual(X(), X() * 2)
        return [fa.unpack_dual(wrap(ve)(d)).tangent]


@program
def func_grad_of_compiled_module(wrap):
    m = mlp()
    c = wrap(m)
    ps = {k: v.detach() for k, v in m.named_parameters()}
    g = grad(
        lambda p, x: functional_call(c._orig_mod if hasattr(c, "_orig_mod") else c, p, (x,)).sum()
    )(ps, X())
    g2 = grad(lambda x: c(x).sum())(X())
    return list(g.values()) + [g2]


@program
def func_inputs_require_grad(wrap):
    x = XR()
    y = wrap(lambda x: grad(lambda a: (a.sin() * a).sum())(x))(x)
    y.sum().backward()
    return [y, x.grad]


@program
def func_vmap_outer_backward(wrap):
    w = torch.ones(4, 4, requires_grad=True)
    y = wrap(lambda x: vmap(lambda r: (r @ w).sin())(x))(X())
    y.sum().backward()
    return [y, w.grad]


@program
def func_jvp_of_compiled_backward(wrap):
    x = XR()
    o, tn = jvp(wrap(lambda x: x.sin() * 2), (X(),), (X(),))
    y = wrap(lambda x: jvp(torch.sin, (x,), (x * 2,))[1])(x)
    y.sum().backward()
    return [o, tn, y, x.grad]


@program
def func_errors(wrap):
    return [
        err(lambda: wrap(lambda x: grad(lambda a: a.sin())(x))(X())),
        err(lambda: wrap(lambda x, y: vmap(lambda a, b: a * b)(x, y))(X(), X()[:2])),
        err(lambda: wrap(lambda x: vmap(lambda a: F.dropout(a))(x))(X())),
    ]


@program
def create_graph_through_a_transform_and_results_around_it(wrap):
    """The graph that runs again was cut within the transform."""

    def f(x):
        y = x.sin()
        g = torch.func.grad(lambda z: (z**3).sum())(y)
        return y, g, (g * y).sum()

    x = XR()
    _, g, loss = wrap(f)(x)
    (h,) = torch.autograd.grad(loss, x, create_graph=True)
    (h * g).sum().backward()
    return [h, x.grad]
