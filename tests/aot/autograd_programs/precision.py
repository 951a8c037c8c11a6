"""Autocast and gradient scaling."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from autograd_programs.programs import XR, X, err, grads, mlp, program


@program
def scaler(wrap):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu")
    c = wrap(m)
    for _ in range(3):
        opt.zero_grad()
        l = c(X()).sum()
        s.scale(l).backward()
        s.unscale_(opt)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        s.step(opt)
        s.update()
    return [l] + [p.detach() for p in m.parameters()]


@program
def scaler_in(wrap):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu")

    def step(x):
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            l = m(x).float().sum()
        s.scale(l).backward()
        s.step(opt)
        s.update()
        return l.detach()

    c = wrap(step)
    for _ in range(3):
        l = c(X())
    return [l] + [p.detach() for p in m.parameters()]


@program
def autocast_decorator(wrap):
    m = mlp()

    @torch.autocast("cpu", torch.bfloat16)
    def f(x):
        return m(x)

    y = wrap(f)(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def autocast_outside(wrap):
    m = mlp()
    c = wrap(m)
    with torch.autocast("cpu", torch.bfloat16):
        y = c(X())
    y2 = c(X())
    (y.float().sum() + y2.sum()).backward()
    return [y, y2] + grads(m)


@program
def scaler_inf(wrap):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)
    c = wrap(m)
    out = []
    for k in range(4):
        opt.zero_grad()
        l = (c(X()) * (float("inf") if k == 1 else 1)).sum()
        s.scale(l).backward()
        s.step(opt)
        s.update()
        out.append(s.get_scale())
    return out + [p.detach() for p in m.parameters()]


@program
def scaler_inf_in(wrap):
    m = mlp()
    opt = torch.optim.Adam(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2)

    def st(x, k):
        opt.zero_grad()
        l = (m(x) * k).sum()
        s.scale(l).backward()
        s.unscale_(opt)
        n = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        s.step(opt)
        s.update()
        return l.detach()

    c = wrap(st)
    out = []
    for k in range(5):
        c(X(), torch.tensor(float("inf") if k in (1, 2) else 1.0))
        out.append(s.get_scale())
    return out + [p.detach() for p in m.parameters()]


@program
def scaler_errors(wrap):
    m = mlp()
    opt = torch.optim.SGD(m.parameters(), 0.1)
    s = torch.amp.GradScaler("cpu")
    c = wrap(m)
    s.scale(c(X()).sum()).backward()
    s.unscale_(opt)
    return [err(s.unscale_, opt)]


@program
def ac_custom_fwd_nested(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu")
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.t(), x.t() @ g

    w = torch.ones(4, 4, requires_grad=True)
    x = XR()

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            a = E.apply(x, w)
            with torch.autocast("cpu", enabled=False):
                b = E.apply(a.float(), w)
        return a, b

    a, b = wrap(f)(x)
    (a.float().sum() + b.sum()).backward()
    return [a, b, x.grad, w.grad]


@program
def ac_cache(wrap):
    m = nn.Linear(4, 4)
    torch.manual_seed(0)
    nn.init.normal_(m.weight)
    nn.init.zeros_(m.bias)
    c = wrap(m)
    with torch.autocast("cpu", torch.bfloat16):
        a = c(X())
        b = c(X())
    (a + b).float().sum().backward()
    return [a, b] + grads(m)


@program
def ac_is_enabled(wrap):
    def f(x):
        o = [torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")]
        with torch.autocast("cpu", torch.float16, cache_enabled=False):
            o += [
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
                torch.is_autocast_cache_enabled(),
                x @ x.t(),
            ]
        return o

    c = wrap(f)
    a = c(X())
    with torch.autocast("cpu", torch.bfloat16):
        b = c(X())
    return a + b


@program
def ac_backward_in(wrap):
    m = mlp()

    def st(x):
        with torch.autocast("cpu", torch.bfloat16):
            l = m(x).float().square().mean()
        l.backward()
        return l.detach()

    c = wrap(st)
    return [c(X())] + grads(m)


@program
def ac_loss_types(wrap):
    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            h = x @ x.t()
            return (
                h,
                F.mse_loss(h, h * 2),
                h.softmax(-1),
                h.sum(),
                F.layer_norm(h, (3,)),
                h.exp(),
                torch.cat([h, x[:, :3]]),
                h + x[:, :3],
            )

    x = XR()
    o = wrap(f)(x)
    sum(v.float().sum() for v in o).backward()
    return [v.dtype for v in o] + list(o) + [x.grad]
