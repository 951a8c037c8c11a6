"""Modules and leaves whose gradients take unusual ways."""

import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

from autograd_programs.programs import XR, X, err, grads, mlp, program


@program
def anomaly(wrap):
    w = torch.ones(4, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True):
        y = wrap(lambda x: (w * x).sin())(X())
        y.sum().backward()
    return [w.grad]


@program
def set_multithread(wrap):
    w = torch.ones(4, requires_grad=True)

    def f(x):
        with torch.set_grad_enabled(False):
            a = w * x
        with torch.set_grad_enabled(True):
            b = w * x
        return a, b, a.requires_grad, b.requires_grad

    a = wrap(f)(X())
    a[1].sum().backward()
    return list(a) + [w.grad]


@program
def clip_in(wrap):
    m = mlp()

    def f(x):
        l = m(x).square().sum()
        l.backward()
        n = nn.utils.clip_grad_norm_(m.parameters(), 0.5)
        return l.detach(), n

    return list(wrap(f)(X())) + grads(m)


@program
def no_grad_callers(wrap):
    m = mlp()
    c = wrap(m)
    a = c(X())
    with torch.no_grad():
        b = c(X())
    with torch.inference_mode():
        d = c(X())
    e = c(X())
    e.sum().backward()
    return [a.requires_grad, b.requires_grad, d.is_inference(), a, b, e] + grads(m)


@program
def set_detect_anomaly_nan(wrap):
    x = torch.zeros(3, requires_grad=True)
    f = wrap(lambda x: (x * 0 / x * 0).sqrt())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            return [(err(lambda: f(x).sum().backward()) or [None])[0]]


@program
def detach_inplace(wrap):
    x = XR()

    def f(x):
        y = x * 2
        y.detach_()
        z = y + x
        return y, z

    y, z = wrap(f)(x)
    z.sum().backward()
    return [y, y.requires_grad, z, x.grad]


@program
def requires_grad_inside(wrap):
    def f(x):
        x = x.clone().requires_grad_()
        y = x.sin().sum()
        return torch.autograd.grad(y, x)[0]

    return [wrap(f)(X())]


@program
def new_leaf_out(wrap):
    def f(x):
        z = x.detach().clone().requires_grad_()
        return z, (z * 2).sum()

    z, l = wrap(f)(XR())
    l.backward()
    return [z.is_leaf, z.grad]


@program
def batchnorm_eval_train(wrap):
    m = nn.BatchNorm1d(4)
    c = wrap(m)
    x = XR()
    a = c(x)
    m.eval()
    b = c(x)
    (a.sin().sum() + b.sin().sum()).backward()
    return [a, b, x.grad, *m.buffers()] + grads(m)


@program
def freeze_changes(wrap):
    m = mlp()
    c = wrap(m)
    c(X()).sum().backward()
    m.zero_grad()
    m[0].weight.requires_grad_(False)
    m[2].requires_grad_(False)
    c(X()).sum().backward()
    return grads(m)


@program
def sparse_embedding(wrap):
    e = nn.Embedding(10, 4, sparse=True)
    torch.manual_seed(0)
    nn.init.normal_(e.weight)
    y = wrap(e)(torch.tensor([1, 3, 1]))
    y.sin().sum().backward()
    return [y, e.weight.grad.is_sparse, e.weight.grad.to_dense()]


@program
def embedding_bag_pad(wrap):
    e = nn.EmbeddingBag(10, 4, padding_idx=1, mode="mean")
    torch.manual_seed(0)
    nn.init.normal_(e.weight)
    y = wrap(e)(torch.tensor([[1, 3, 1], [2, 2, 4]]))
    y.sin().sum().backward()
    return [y, e.weight.grad]


@program
def max_norm_embedding(wrap):
    torch.manual_seed(0)
    w = torch.randn(10, 4)
    e = nn.Embedding.from_pretrained(w.clone(), freeze=False, max_norm=1.0, scale_grad_by_freq=True)
    y = wrap(e)(torch.tensor([1, 3, 1]))
    y.sin().sum().backward()
    return [y, e.weight.grad, e.weight.detach()]


@program
def lstm(wrap):
    m = nn.LSTM(4, 5, 2, batch_first=True, bidirectional=True)
    torch.manual_seed(0)
    [nn.init.normal_(p) for p in m.parameters()]
    x = torch.randn(2, 3, 4, requires_grad=True)
    o, (h, c) = wrap(m)(x)
    (o.sum() + h.sum() + c.sin().sum()).backward()
    return [o, h, c, x.grad] + grads(m)


@program
def weight_norm(wrap):
    m = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    torch.manual_seed(0)
    [nn.init.normal_(p) for p in m.parameters()]
    y = wrap(m)(X())
    y.sin().sum().backward()
    return [y] + grads(m)


@program
def spectral_norm(wrap):
    torch.manual_seed(0)
    m = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    y = wrap(m)(X())
    y.sin().sum().backward()
    return [y] + grads(m) + list(m.buffers())


@program
def old_weight_norm(wrap):
    torch.manual_seed(0)
    m = nn.utils.weight_norm(nn.Linear(4, 4))
    c = wrap(m)
    for _ in range(2):
        y = c(X())
        y.sin().sum().backward()
    return [y] + grads(m)


@program
def tied(wrap):
    torch.manual_seed(0)
    e = nn.Embedding(6, 4)
    l = nn.Linear(4, 6, bias=False)
    l.weight = e.weight
    c = wrap(lambda i: F.cross_entropy(l(e(i)), i))
    y = c(torch.tensor([1, 2, 3]))
    y.backward()
    return [y, e.weight.grad, l.weight.grad is e.weight.grad]


@program
def param_view_inputs(wrap):
    w = torch.randn(8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    a, b = w[:4], w[4:]
    y = wrap(lambda x, a, b: (x * a + b).sin())(X(), a, b)
    y.sum().backward()
    return [y, w.grad]


@program
def mutate_view_input_grad(wrap):
    w = torch.ones(8, requires_grad=True)
    b = w * 1
    v = b[:4]

    def f(x, v):
        v.mul_(x[0])
        return v.sin()

    y = wrap(f)(X(), v)
    (y.sum() + b.sum()).backward()
    return [y, b, w.grad]


@program
def output_alias_grad(wrap):
    x = XR()
    y, z = wrap(lambda x: ((a := x * 2), a.view(-1)))(x)
    z.mul_(3)
    (y.sum()).backward()
    return [y, z, x.grad]


@program
def output_input_alias(wrap):
    x = XR()
    z = x * 1
    o = wrap(lambda z: z.view(-1))(z)
    o.mul_(2)
    z.sum().backward()
    return [z, o, x.grad, o._is_view()]
