"""Hooks of tensors, modules and autograd nodes; distributed data parallel."""

import torch
import torch.nn as nn

from autograd_programs.programs import XR, X, err, grads, mlp, process_group, program


@program
def hook_inter_inside(wrap):
    w = torch.ones(4, requires_grad=True)
    log = []

    def f(x):
        y = w * x
        y.register_hook(lambda g: g * 2)
        return y.sin()

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad]


@program
def hook_inter_inside_log(wrap):
    w = torch.ones(4, requires_grad=True)
    log = []

    def f(x):
        y = w * x
        y.register_hook(lambda g: log.append(g.sum().item()))
        return y.sin()

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad, log]


@program
def hook_leaf_inside(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        h = w.register_hook(lambda g: g * 3)
        return (w * x).sin()

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad]


@program
def hook_leaf_outside(wrap):
    w = torch.ones(4, requires_grad=True)
    w.register_hook(lambda g: g * 3)
    y = wrap(lambda x: (w * x).sin())(X())
    y.sum().backward()
    return [y, w.grad]


@program
def hook_input_nonleaf(wrap):
    w = torch.ones(4, requires_grad=True)
    z = w * 2
    l = []
    z.register_hook(lambda g: l.append(g.clone()))
    y = wrap(lambda x, z: (z * x).sin())(X(), z)
    y.sum().backward()
    return [y, w.grad] + l


@program
def hook_output(wrap):
    w = torch.ones(4, requires_grad=True)
    y = wrap(lambda x: (w * x).sin())(X())
    y.register_hook(lambda g: g * 5)
    y.sum().backward()
    return [y, w.grad]


@program
def hook_removed(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        y = w * x
        h = y.register_hook(lambda g: g * 2)
        h.remove()
        return y.sin()

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad]


@program
def module_full_bw_hook(wrap):
    m = mlp()
    log = []
    m[2].register_full_backward_hook(
        lambda mod, gi, go: log.append((gi[0].sum().detach(), go[0].sum().detach()))
    )
    y = wrap(m)(X())
    y.sum().backward()
    return [y] + grads(m) + [v for p in log for v in p]


@program
def module_full_bw_hook_change(wrap):
    m = mlp()
    m[2].register_full_backward_hook(lambda mod, gi, go: (gi[0] * 2,))
    m[0].register_full_backward_pre_hook(lambda mod, go: (go[0] * 3,))
    y = wrap(m)(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def module_hook_top(wrap):
    m = mlp()
    log = []
    m.register_full_backward_hook(lambda mod, gi, go: log.append(go[0].sum()))
    m.register_forward_hook(lambda mod, i, o: o * 2)
    m.register_forward_pre_hook(lambda mod, i: (i[0] + 1,))
    y = wrap(m)(X())
    y.sum().backward()
    return [y] + grads(m) + log


@program
def post_acc(wrap):
    m = mlp()
    log = []
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum().clone()))
    y = wrap(m)(X())
    y.sum().backward()
    return [y] + grads(m) + [sum(log)]  # their order is autograd's own


@program
def post_acc_opt(wrap):
    m = mlp()
    opts = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}

    def h(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(h)
    c = wrap(m)
    for _ in range(3):
        y = c(X())
        y.sum().backward()
    return [y] + [p.detach().clone() for p in m.parameters()]


@program
def post_acc_inside_backward(wrap):
    m = mlp()
    log = []
    for p in m.parameters():
        p.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.sum().clone()))

    def step(x):
        y = m(x).sum()
        y.backward()
        return y.detach()

    y = wrap(step)(X())
    return [y] + grads(m) + [sum(log)]  # their order is autograd's own


@program
def retain_grad_in(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        y = w * x
        y.retain_grad()
        return y.sin(), y

    a, y = wrap(f)(X())
    a.sum().backward()
    return [a, y.grad, w.grad]


@program
def retain_grad_out(wrap):
    w = torch.ones(4, requires_grad=True)
    a = wrap(lambda x: (w * x).sin())(X())
    a.retain_grad()
    a.sum().backward()
    return [a, a.grad, w.grad]


@program
def retain_grad_in_nonleaf_input(wrap):
    w = torch.ones(4, requires_grad=True)
    z = w * 2
    z.retain_grad()
    a = wrap(lambda x, z: (z * x).sin())(X(), z)
    a.sum().backward()
    return [a, z.grad, w.grad]


@program
def ddp(wrap):
    process_group()
    m = mlp()
    d = nn.parallel.DistributedDataParallel(m)
    c = wrap(d)
    for _ in range(2):
        y = c(X())
        y.sum().backward()
    return [y] + grads(m)


@program
def ddp_inner(wrap):
    process_group()
    m = mlp()
    d = nn.parallel.DistributedDataParallel(wrap(m))
    opt = torch.optim.SGD(m.parameters(), 0.1)
    for _ in range(2):
        opt.zero_grad()
        y = d(X())
        y.sum().backward()
        opt.step()
    return [y] + [p.detach() for p in m.parameters()]


@program
def ddp_nosync(wrap):
    process_group()
    m = mlp()
    d = nn.parallel.DistributedDataParallel(m)
    c = wrap(d)
    with d.no_sync():
        c(X()).sum().backward()
    y = c(X())
    y.sum().backward()
    return [y] + grads(m)


@program
def collectives_with_gradients(wrap):
    """They refuse to be compiled (torch.compile leaves them to Python)."""
    import torch.distributed.nn.functional as collectives

    process_group()
    x = XR()
    y = wrap(lambda x: collectives.all_reduce(x * 3).sin())(x)
    y.sum().backward()
    return [y, x.grad]


@program
def node_prehook(wrap):
    w = torch.ones(4, requires_grad=True)
    y = wrap(lambda x: (w * x).sin())(X())
    y.grad_fn.register_prehook(lambda g: (g[0] * 2,))
    y.sum().backward()
    return [w.grad]


@program
def multi_grad_hook(wrap):
    w = torch.ones(4, requires_grad=True)
    v = torch.ones(4, requires_grad=True)
    log = []
    torch.autograd.graph.register_multi_grad_hook((w, v), lambda gs: log.append(len(gs)))
    y = wrap(lambda x: (w * x * v).sin())(X())
    y.sum().backward()
    return [w.grad, v.grad, log]


@program
def fwd_pre_kwargs(wrap):
    class Mo(nn.Module):
        def forward(self, x, *, k=1):
            return x * k

    m = Mo()
    m.register_forward_pre_hook(lambda mod, a, kw: (a, {**kw, "k": 5}), with_kwargs=True)
    m.register_forward_hook(lambda mod, a, kw, o: o + kw["k"], with_kwargs=True)
    x = XR()
    y = wrap(m)(x, k=2)
    y.sum().backward()
    z = wrap(lambda x: m(x, k=3) * 2)(x)
    return [y, x.grad, z]


@program
def hook_always_call(wrap):
    m = nn.Linear(4, 4)
    log = []
    m.register_forward_hook(lambda *a: log.append(1), always_call=True)
    torch.manual_seed(0)
    c = wrap(m)
    y = c(X())
    e = err(c, torch.ones(3, 5))
    return [y.shape, (e or [None])[0], log]


@program
def global_hooks(wrap):
    log = []
    m = mlp()
    h = nn.modules.module.register_module_forward_hook(
        lambda mod, i, o: log.append(type(mod).__name__)
    )
    try:
        y = wrap(m)(X())
    finally:
        h.remove()
    return [y, log]


@program
def global_backward_hooks(wrap):
    log = []
    m = mlp()
    h = nn.modules.module.register_module_full_backward_hook(
        lambda mod, i, o: log.append(type(mod).__name__)
    )
    try:
        y = wrap(m)(X())
        y.sum().backward()
    finally:
        h.remove()
    return [y, log] + grads(m)


@program
def hook_raises(wrap):
    w = torch.ones(4, requires_grad=True)

    def h(g):
        raise ValueError("hook")

    def f(x):
        y = w * x
        y.register_hook(h)
        return y.sin()

    y = wrap(f)(X())
    return [err(y.sum().backward)]


@program
def hook_returns_none_and_clamp(wrap):
    w = torch.ones(4, requires_grad=True)
    seen = {}

    def f(x):
        y = w * x

        def keep(g):
            seen["g"] = g

        y.register_hook(keep)
        y.register_hook(lambda g: g.clamp(-0.5, 0.5))
        return y.sin()

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad, seen["g"]]


@program
def hook_closure_state(wrap):
    w = torch.ones(4, requires_grad=True)
    scale = [2.0]

    def f(x):
        y = w * x
        y.register_hook(lambda g: g * scale[0])
        return y.sin()

    c = wrap(f)
    y = c(X())
    scale[0] = 3.0
    y.sum().backward()
    a = w.grad.clone()
    w.grad = None
    y = c(X())
    y.sum().backward()
    return [a, w.grad]


@program
def hook_on_output_in(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        y = (w * x).sin()
        y.register_hook(lambda g: g * 2)
        return y

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad]


@program
def hook_handle_returned(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        y = (w * x).sin()
        h = y.register_hook(lambda g: g * 2)
        return y * 1, h

    y, h = wrap(f)(X())
    h.remove()
    y.sum().backward()
    return [y, w.grad]


@program
def post_acc_inside(wrap):
    w = torch.ones(4, requires_grad=True)
    log = []

    def f(x):
        w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
        return (w * x).sin()

    y = wrap(f)(X())
    y.sum().backward()
    return [y, w.grad] + log


@program
def hook_and_backward_inside(wrap):
    m = mlp()
    log = []

    def st(x):
        h = m[0](x)
        h.register_hook(lambda g: g * 2)
        l = m[1:](h).sum()
        l.backward()
        return l.detach()

    return [wrap(st)(X())] + grads(m)


@program
def retain_grad_views(wrap):
    x = XR()

    def f(x):
        a = x * 2
        a.retain_grad()
        b = a.view(-1)
        b.retain_grad()
        return b.sin().sum(), a, b

    l, a, b = wrap(f)(x)
    l.backward()
    return [a.grad, b.grad, x.grad]


@program
def hook_of_a_result_comes_before_the_callers(wrap):
    """`retain_grad` kept the gradient that the hook gets, not the one that it gives."""

    def f(x):
        h = x.exp()
        h.register_hook(lambda g: g * 2 + 1)
        return h, h * 3

    x, seen = XR(), []
    h, y = wrap(f)(x)
    h.register_hook(seen.append)
    h.retain_grad()
    (y.sum() + h.sum()).backward()
    return [x.grad, h.grad, *seen]
