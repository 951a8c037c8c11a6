"""`torch.autograd.Function` classes."""

import torch
from torch.func import (
    grad,
    jacfwd,
    jacrev,
    jvp,
    vmap,
)

from autograd_programs.programs import XR, X, err, program


class AF(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w, g.t() @ x


@program
def autocast_custom_fn(wrap):
    w = torch.ones(5, 4, requires_grad=True)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return AF.apply(x @ torch.eye(4), w)

    x = X().requires_grad_()
    y = wrap(f)(x)
    y.sum().backward()
    return [y, x.grad, w.grad]


class ND(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        v, i = x.sort()
        ctx.mark_non_differentiable(i)
        ctx.save_for_backward(i)
        return v, i

    @staticmethod
    def backward(ctx, g, _):
        (i,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, i, g)


@program
def fn_nondiff(wrap):
    x = X().requires_grad_()
    v, i = wrap(lambda x: ND.apply(x * 2))(x)
    v.sin().sum().backward()
    return [v, i, i.requires_grad, x.grad]


class MD(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


@program
def fn_dirty(wrap):
    x = X().requires_grad_()

    def f(x):
        y = x * 1
        z = MD.apply(y)
        return z.sin(), z is y

    v, i = wrap(f)(x)
    v.sum().backward()
    return [v, i, x.grad]


@program
def fn_dirty_input(wrap):
    x = X().requires_grad_()
    y = x * 1

    def f(y):
        z = MD.apply(y)
        return z.sin()

    v = wrap(f)(y)
    v.sum().backward()
    return [v, y, x.grad]


class MG(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        r = torch.zeros(3, 4)
        if a is not None:
            r = r + a * 2
        if b is not None:
            r = r + b * 3
        return r


@program
def fn_matgrads(wrap):
    x = X().requires_grad_()
    a, b = wrap(lambda x: MG.apply(x))(x)
    a.sum().backward()
    return [a, b, x.grad]


@program
def fn_matgrads_in(wrap):
    x = X().requires_grad_()
    a = wrap(lambda x: MG.apply(x)[0].sin())(x)
    a.sum().backward()
    return [a, x.grad]


class SC(torch.autograd.Function):
    @staticmethod
    def forward(x, k):
        return x * k, x.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, k = inputs
        ctx.k = k
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g, h):
        return g * ctx.k + h, None

    @staticmethod
    def vmap(info, in_dims, x, k):
        return SC.apply(x, k) if False else ((x * k), x.sum(tuple(range(1, x.dim())))), (0, 0)


@program
def fn_setup(wrap):
    x = X().requires_grad_()
    a, b = wrap(lambda x: SC.apply(x, 3))(x)
    (a.sum() + b).backward()
    return [a, b, x.grad]


@program
def fn_vmap_in(wrap):
    x = X()
    return list(wrap(lambda x: torch.vmap(lambda r: SC.apply(r, 3))(x))(x))


@program
def fn_vmap_out(wrap):
    x = X()
    return list(torch.vmap(wrap(lambda r: SC.apply(r, 3)))(x))


class GV(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (o,) = ctx.saved_tensors
        return g * o

    @staticmethod
    def jvp(ctx, t):
        (o,) = ctx.saved_tensors
        return t * o


@program
def fn_genvmap(wrap):
    x = X()
    return [wrap(lambda x: torch.vmap(torch.func.grad(lambda r: GV.apply(r).sum()))(x))(x)]


@program
def fn_once_diff(wrap):
    class OD(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.exp()

    x = X().requires_grad_()
    y = wrap(lambda x: OD.apply(x) * 2)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def fn_doubleback(wrap):
    class DB(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * 3 * x**2

    x = X().requires_grad_()
    y = wrap(lambda x: DB.apply(x))(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    g.sum().backward()
    return [y, g, x.grad]


@program
def fn_none_grad(wrap):
    class NG(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y, s):
            ctx.save_for_backward(y)
            ctx.s = s
            return x * y * s

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y * ctx.s, None, None

    x = X().requires_grad_()
    w = X().requires_grad_()
    y = wrap(lambda x, w: NG.apply(x, w, 2.0))(x, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


@program
def fn_needs_input_grad(wrap):
    class NI(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return (
                g * y if ctx.needs_input_grad[0] else None,
                g * x if ctx.needs_input_grad[1] else None,
            )

    x = X().requires_grad_()
    w = X()
    y = wrap(lambda x, w: NI.apply(x, w))(x, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


@program
def fn_return_input(wrap):
    class RI(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -g

    x = X().requires_grad_()
    y = wrap(lambda x: RI.apply(x) * 2)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def fn_save_output(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x.exp()
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

    x = XR()
    y = wrap(lambda x: E.apply(x * 2).sin())(x)
    y.sum().backward()
    x2 = XR()
    (g,) = torch.autograd.grad(wrap(lambda x: E.apply(x))(x2).sum(), x2, create_graph=True)
    g.sum().backward()
    return [y, x.grad, g, x2.grad]


@program
def fn_setup_context_vmap(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.exp()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y

        @staticmethod
        def vmap(info, in_dims, x):
            return E.apply(x), in_dims[0]

    x = XR()
    y = wrap(lambda x: vmap(E.apply)(x))(x)
    y.sum().backward()
    z = vmap(wrap(lambda x: E.apply(x) * 2))(X())
    return [y, x.grad, z]


@program
def fn_generate_vmap(wrap):
    class E(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, k):
            return x.exp() * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            (y,) = ctx.saved_tensors
            return g * y, None

    x = X()
    return [
        wrap(lambda x: vmap(grad(lambda r: E.apply(r, 2).sum()))(x))(x),
        wrap(lambda x: jacrev(lambda r: E.apply(r, 3))(x[0]))(x),
    ]


@program
def fn_jvp(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x.exp()

        @staticmethod
        def jvp(ctx, t):
            return ctx.x.exp() * t

        @staticmethod
        def backward(ctx, g):
            return g * ctx.x.exp()

    import torch.autograd.forward_ad as fa

    def f(x, v):
        with fa.dual_level():
            return fa.unpack_dual(E.apply(fa.make_dual(x, v))).tangent

    return [wrap(f)(X(), X())]


@program
def fn_jvp_func(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.exp()

        @staticmethod
        def setup_context(ctx, i, o):
            ctx.save_for_backward(o)
            ctx.save_for_forward(o)

        @staticmethod
        def jvp(ctx, t):
            return ctx.saved_tensors[0] * t

        @staticmethod
        def backward(ctx, g):
            return g * ctx.saved_tensors[0]

    return [
        wrap(lambda x, v: jvp(E.apply, (x,), (v,))[1])(X(), X()),
        wrap(lambda x: jacfwd(E.apply)(x))(X()[0]),
    ]


@program
def fn_needs_grad(wrap):
    log = []

    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            log.append(tuple(ctx.needs_input_grad))
            ctx.save_for_backward(x, w)
            return x * w

        @staticmethod
        def backward(ctx, g):
            log.append(tuple(ctx.needs_input_grad))
            x, w = ctx.saved_tensors
            return (g * w if ctx.needs_input_grad[0] else None), (
                g * x if ctx.needs_input_grad[1] else None
            )

    x = X()
    w = XR()
    y = wrap(lambda x, w: E.apply(x, w))(x, w)
    y.sum().backward()
    return [y, w.grad, log[0], log[-1]]


@program
def fn_nontensor_args(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, k, s, d):
            ctx.k = k
            ctx.d = d
            return x * k + d["a"]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k * ctx.d["a"], None, None, None

    x = XR()
    y = wrap(lambda x: E.apply(x, 3, "s", {"a": 2}))(x)
    y.sum().backward()
    return [y, x.grad]


@program
def fn_wrong_number(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x * w

        @staticmethod
        def backward(ctx, g):
            return g

    x = XR()
    w = XR()

    def go():
        wrap(lambda x, w: E.apply(x, w))(x, w).sum().backward()

    return [(err(go) or [None])[0]]


@program
def fn_wrong_shape(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g[:1, :2]

    x = XR()

    def go():
        wrap(lambda x: E.apply(x))(x).sum().backward()

    return [(err(go) or [None])[0]]


@program
def fn_backward_raises(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise ValueError("no")

    x = XR()
    y = wrap(lambda x: E.apply(x))(x).sum()
    return [err(y.backward)]


@program
def fn_backward_none(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, z):
            return x * 2 + z

        @staticmethod
        def backward(ctx, g):
            return None, g

    x = XR()
    z = XR()
    wrap(lambda x, z: E.apply(x, z))(x, z).sum().backward()
    return [x.grad, z.grad]


@program
def fn_no_grad_inside(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                y = x.detach().requires_grad_()
                z = y.sin().sum()
                (ctx.g,) = torch.autograd.grad(z, y)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return g * ctx.g

    x = XR()
    y = wrap(lambda x: E.apply(x))(x)
    y.sum().backward()
    return [y, x.grad]


@program
def fn_ctx_attr_tensors(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mask = x > 0
            ctx.n = x.shape[0]
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, g):
            return g * ctx.mask * ctx.n

    x = XR()
    y = wrap(lambda x: E.apply(x) * 2)(x)
    y.sum().backward()
    return [y, x.grad]


@program
def fn_nested(wrap):
    class A(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 3

    class B(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return A.apply(x) + 1

        @staticmethod
        def backward(ctx, g):
            return A.apply(g)

    x = XR()
    y = wrap(lambda x: B.apply(x).sin())(x)
    y.sum().backward()
    return [y, x.grad]


@program
def fn_multi_out_one_used(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3, x.sum()

        @staticmethod
        def backward(ctx, a, b, c):
            return a * 2 + b * 3 + c

    x = XR()
    y = wrap(lambda x: E.apply(x)[1])(x)
    y.sum().backward()
    return [y, x.grad]


@program
def fn_dirty_two(wrap):
    class E(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, z):
            x.add_(z)
            ctx.mark_dirty(x)
            return x, z * 2

        @staticmethod
        def backward(ctx, a, b):
            return a, a + b * 2

    x = XR()
    z = XR()

    def f(x, z):
        y = x * 1
        v = y[0]
        a, b = E.apply(y, z)
        return a * b, y

    o = wrap(f)(x, z)
    o[0].sum().backward()
    return [*o, x.grad, z.grad]


def _each_of_two(wrap, function):
    """The gradient of the input for both results, the first, the second, both and the second."""
    compiled, gradients = wrap(function), []
    for factors in ((1, 1), (1, None), (None, 1), (1, 1), (None, 1)):
        x = (X() + 2).requires_grad_()
        sums = [(y * f).sum() for y, f in zip(compiled(x), factors, strict=True) if f is not None]
        sum(sums).backward()
        gradients.append(x.grad)
    return gradients


class Infinite(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sqrt(), x.log()

    @staticmethod
    def backward(ctx, a, b):
        return a * 2 + b * float("inf")


@program
def fn_gets_zeros_for_an_absent_gradient(wrap):
    """Infinity times these zeros is NaN."""

    def two(x):
        a, b = Infinite.apply(x * 1)
        return a.sin(), b.cos()

    return _each_of_two(wrap, two)


class Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, a, b):
        if a is None:
            return b * 100
        return a * 10 if b is None else a * 2 + b * 3


@program
def fn_gets_none_for_an_absent_gradient(wrap):
    return _each_of_two(wrap, lambda x: Branches.apply(x))


@program
def fn_gets_none_when_the_input_is_gone(wrap):
    x = torch.ones(2000).requires_grad_()
    a, _ = wrap(lambda x: Branches.apply(x.sin()))(x * 2)
    a.sum().backward()
    return [x.grad]


@program
def fn_gets_none_behind_operators(wrap):
    def two(x):
        a, b = Branches.apply(x * 1)
        return a.sin(), b.cos()

    return _each_of_two(wrap, two)


class Plus(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, constant):
        ctx.constant = constant
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return (torch.ones(3, 4) if ctx.constant else g + 5), None


@program
def fn_is_not_called_without_a_gradient(wrap):
    constant = _each_of_two(wrap, lambda x: (Plus.apply(x, True), x * 3))
    return constant + _each_of_two(wrap, lambda x: (Plus.apply(x.sin(), False).cos(), x.exp()))


@program
def hook_is_not_called_without_a_gradient(wrap):
    def two(x):
        h = x * 2
        h.register_hook(lambda g: torch.ones(3, 4))
        return h * 2, x * 3

    return _each_of_two(wrap, two)


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


@program
def fn_returns_its_input(wrap):
    """The result has a gradient of its own, though it is a view."""
    x, z = XR(), XR()

    def f(x):
        y = x * 2
        return Same.apply(y), y

    same, y = wrap(f)(x)
    (same.sum() + y.sum()).backward()
    wrap(lambda z: Same.apply(z))(z).sum().backward()
    return [same, y, x.grad, z.grad]
