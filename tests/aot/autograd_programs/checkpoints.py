"""Activation checkpointing inside and around compiled functions."""

import functools

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from autograd_programs.programs import XR, X, err, grads, mlp, program


@program
def ckpt_seq_inside(wrap):
    m = mlp()
    f = wrap(lambda x: checkpoint_sequential(m, 2, x, use_reentrant=False))
    y = f(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def ckpt_seq_reentrant(wrap):
    m = mlp()
    f = wrap(lambda x: checkpoint_sequential(m, 2, x, use_reentrant=True))
    x = X().requires_grad_()
    y = f(x)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def ckpt_reentrant_inside(wrap):
    m = mlp()
    f = wrap(lambda x: checkpoint(m, x, use_reentrant=True) * 2)
    x = X().requires_grad_()
    y = f(x)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def ckpt_nonre_inside_dropout(wrap):
    m = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.0), nn.Linear(8, 4))
    torch.manual_seed(0)
    for p in m.parameters():
        nn.init.normal_(p)
    f = wrap(lambda x: checkpoint(m, x, use_reentrant=False) * 2)
    x = X().requires_grad_()
    y = f(x)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def ckpt_outside_nonre(wrap):
    m = mlp()
    c = wrap(m)
    x = X().requires_grad_()
    y = checkpoint(c, x, use_reentrant=False)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def ckpt_outside_re(wrap):
    m = mlp()
    c = wrap(m)
    x = X().requires_grad_()
    y = checkpoint(c, x, use_reentrant=True)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def ckpt_outside_seq(wrap):
    m = mlp()
    c = nn.Sequential(*[wrap(l) for l in m])
    x = X().requires_grad_()
    y = checkpoint_sequential(c, 2, x, use_reentrant=False)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def ckpt_nested(wrap):
    m = mlp()
    n = mlp()

    def g(x):
        return checkpoint(n, x.sin(), use_reentrant=False) + x

    f = wrap(lambda x: checkpoint(g, m(x), use_reentrant=False))
    x = X().requires_grad_()
    y = f(x)
    y.sum().backward()
    return [y, x.grad] + grads(m) + grads(n)


@program
def ckpt_kwargs(wrap):
    def g(x, *, s=1.0, flag=False):
        return (x * s).exp() if flag else x

    f = wrap(
        lambda x: checkpoint(g, x, use_reentrant=False, s=2.0, flag=True, preserve_rng_state=False)
    )
    x = X().requires_grad_()
    y = f(x)
    y.sum().backward()
    return [y, x.grad]


def pol(ctx, op, *a, **k):
    return (
        CheckpointPolicy.MUST_SAVE
        if op == torch.ops.aten.mm.default or op == torch.ops.aten.addmm.default
        else CheckpointPolicy.PREFER_RECOMPUTE
    )


def pol2(ctx, op, *a, **k):
    return CheckpointPolicy.MUST_RECOMPUTE


@program
def sac_inside(wrap):
    m = mlp()
    f = wrap(
        lambda x: checkpoint(
            m,
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, pol),
        )
    )
    x = X().requires_grad_()
    y = f(x)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def sac_recompute_inside(wrap):
    m = mlp()
    f = wrap(
        lambda x: checkpoint(
            m,
            x,
            use_reentrant=False,
            context_fn=functools.partial(create_selective_checkpoint_contexts, pol2),
        )
    )
    x = X().requires_grad_()
    y = f(x)
    y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def sac_outside(wrap):
    m = mlp()
    c = wrap(m)
    x = X().requires_grad_()
    y = checkpoint(
        c, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(pol)
    )
    y.sum().backward()
    return [y, x.grad] + grads(m)


def M():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 4))


@program
def ck_dropout_consistent(wrap):
    m = M()
    torch.manual_seed(3)
    x = torch.ones(64, 4, requires_grad=True)

    def f(x):
        return checkpoint(lambda x: F.dropout(x, 0.5) * 1.0, x, use_reentrant=False)

    y = wrap(f)(x)
    y.sum().backward()
    return [bool((y.detach() == x.grad).all()), bool(((y == 0) | (y == 2)).all())]


@program
def ck_dropout_nested(wrap):
    x = torch.ones(64, 4, requires_grad=True)

    def f(x):
        return checkpoint(
            lambda x: (
                checkpoint(lambda x: F.dropout(x, 0.5), x, use_reentrant=False)
                * F.dropout(torch.ones_like(x), 0.3)
            ),
            x,
            use_reentrant=False,
        )

    y = wrap(f)(x)
    y.sum().backward()
    return [torch.allclose(y.detach(), x.grad)]


@program
def ck_mask_inside(wrap):
    def f(x):
        return checkpoint(
            lambda x: x.masked_fill(x > 0, 0.5).sin() * torch.where(x < 0, x, x * 2),
            x,
            use_reentrant=False,
        )

    x = XR()
    y = wrap(f)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def ck_causal_mask(wrap):
    def f(x):
        def g(x):
            s = x @ x.t()
            m = torch.triu(torch.ones(3, 3, dtype=torch.bool), 1)
            return s.masked_fill(m, float("-inf")).softmax(-1) @ x

        return checkpoint(g, x, use_reentrant=False)

    x = XR()
    y = wrap(f)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def ck_boolindex_inside(wrap):
    def f(x):
        return checkpoint(lambda x: x[x > 0].sin().sum() * x.exp(), x, use_reentrant=False)

    x = XR()
    y = wrap(f)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def ck_graphbreak_inside(wrap):
    def g(x):
        y = x.sin()
        print(end="")
        torch._C._get_tracing_state()
        s = float(y.detach().sum())
        return y.exp() * s

    x = XR()
    y = wrap(lambda x: checkpoint(g, x * 2, use_reentrant=False) + 1)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def ck_batchnorm(wrap):
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    torch.manual_seed(0)
    [nn.init.normal_(p) for p in m.parameters()]
    x = XR()
    y = wrap(lambda x: checkpoint(m, x, use_reentrant=False))(x)
    y.sin().sum().backward()
    return [y, x.grad, *m.buffers()] + grads(m)


@program
def ck_autocast(wrap):
    m = mlp()
    x = XR()

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(m, x, use_reentrant=False)

    y = wrap(f)(x)
    y.float().sum().backward()
    return [y, x.grad] + grads(m)


@program
def ck_early_stop(wrap):
    from torch.utils.checkpoint import set_checkpoint_early_stop

    m = mlp()
    x = XR()

    def f(x):
        return checkpoint(m, x, use_reentrant=False)

    with set_checkpoint_early_stop(False):
        y = wrap(f)(x)
        y.sum().backward()
    return [y, x.grad] + grads(m)


@program
def ck_multi_out(wrap):
    x = XR()

    def f(x):
        a, b = checkpoint(lambda x: (x.sin(), x.cos()), x, use_reentrant=False)
        return a * b

    y = wrap(f)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def ck_none_dict(wrap):
    x = XR()

    def f(x):
        d = checkpoint(
            lambda x, n: {"a": x.sin(), "n": n, "l": [x * 2]}, x, None, use_reentrant=False
        )
        return d["a"] * d["l"][0]

    y = wrap(f)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def ck_context_fn(wrap):
    import contextlib

    log = []

    @contextlib.contextmanager
    def a():
        log.append("f")
        yield

    @contextlib.contextmanager
    def b():
        log.append("r")
        yield

    x = XR()

    def f(x):
        return checkpoint(
            lambda x: x.sin().exp(), x, use_reentrant=False, context_fn=lambda: (a(), b())
        )

    y = wrap(f)(x)
    y.sum().backward()
    return [y, x.grad, log]


@program
def ck_double_backward(wrap):
    x = XR()
    y = wrap(lambda x: checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False))(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    g.square().sum().backward()
    return [y, g, x.grad]


@program
def ck_sac_list(wrap):
    x = XR()
    w = torch.ones(4, 4, requires_grad=True)
    cf = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    y = wrap(
        lambda x: checkpoint(lambda x: (x @ w).sin().exp(), x, use_reentrant=False, context_fn=cf)
    )(x)
    y.sum().backward()
    return [y, x.grad, w.grad]


@program
def ck_in_step(wrap):
    m = mlp()
    n = mlp()

    def st(x):
        l = n(checkpoint(m, x, use_reentrant=False)).square().sum()
        l.backward()
        return l.detach()

    return [wrap(st)(X())] + grads(m) + grads(n)


@program
def ck_second_backward(wrap):
    x = XR()
    y = wrap(lambda x: checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False))(x).sum()
    y.backward()
    return [(err(y.backward) or [None])[0], x.grad]
