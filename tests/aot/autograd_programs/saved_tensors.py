"""Hooks on what autograd saves."""

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from autograd_programs.programs import XR, X, err, grads, mlp, program


@program
def sth_outside(wrap):
    m = mlp()
    c = wrap(m)
    n = [0]

    def pk(v):
        n[0] += 1
        return v.clone()

    with saved_tensors_hooks(pk, lambda v: v * 1):
        y = c(X())
    y.sum().backward()
    return [y, n[0] > 0] + grads(m)


@program
def sth_inside(wrap):
    m = mlp()
    log = []

    def f(x):
        with saved_tensors_hooks(lambda v: v * 1, lambda v: v * 1):
            y = m(x)
        return y * 2

    y = wrap(f)(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def sth_numpy(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        with saved_tensors_hooks(lambda v: v.detach().numpy(), lambda v: torch.from_numpy(v)):
            y = (w * x).exp()
        return y

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad]


@program
def save_cpu_out(wrap):
    m = mlp()
    c = wrap(m)
    with save_on_cpu():
        y = c(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def save_cpu_in(wrap):
    m = mlp()

    def f(x):
        with save_on_cpu():
            return m(x)

    y = wrap(f)(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def sth_counts(wrap):
    m = mlp()
    n = [0, 0]

    def pk(v):
        n[0] += 1
        return v

    def un(v):
        n[1] += 1
        return v

    def f(x):
        with saved_tensors_hooks(pk, un):
            return m(x)

    y = wrap(f)(X())
    y.sum().backward()
    return [y, n[0] > 0, n[1] > 0] + grads(m)


@program
def sth_raises(wrap):
    x = XR()

    def pk(v):
        raise ValueError("pack")

    def go():
        with saved_tensors_hooks(pk, lambda v: v):
            return wrap(lambda x: (x * x).sin())(x)

    return [err(go)]


@program
def sth_unpack_raises(wrap):
    x = XR()

    def un(v):
        raise ValueError("unpack")

    with saved_tensors_hooks(lambda v: v, un):
        y = wrap(lambda x: (x * x).sin())(x)
    return [err(y.sum().backward)]


@program
def sth_disabled_outside(wrap):
    x = XR()
    with torch.autograd.graph.disable_saved_tensors_hooks("nope"):
        y = wrap(lambda x: (x * x).sin())(x)
        y.sum().backward()

        def go():
            with saved_tensors_hooks(lambda v: v, lambda v: v):
                pass

        e = err(go)
    return [y, x.grad, e]


@program
def sth_nested_out(wrap):
    x = XR()
    log = []
    with saved_tensors_hooks(lambda v: v * 1, lambda v: v):
        with saved_tensors_hooks(lambda v: (v.shape, v), lambda p: p[1]):
            y = wrap(lambda x: (x * x).sin())(x)
    y.sum().backward()
    return [y, x.grad]


@program
def allow_mutation(wrap):
    from torch.autograd.graph import allow_mutation_on_saved_tensors

    x = XR()
    with allow_mutation_on_saved_tensors():
        z = x * 1
        y = wrap(lambda z: z.sin())(z)
        z.mul_(2)
        y.sum().backward()
    return [x.grad]
