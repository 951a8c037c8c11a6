"""torch.func transforms and pytrees, captured whole."""

from __future__ import annotations

import operator
from collections import defaultdict, deque

import pytest
import torch
from torch.utils import _pytree

import weft
from tests.capture.harness import check

X = torch.randn(3, 4)


def test_vmap():
    check(lambda x: torch.vmap(lambda row: row.sin().sum())(x), (X,), graphs=1)


def test_vmap_in_dims_and_pairs():
    check(lambda x, y: torch.vmap(torch.dot, in_dims=(1, 1))(x, y), (X, X), graphs=1)


def test_vmap_indexes_with_an_integer_of_each_example():
    table = torch.arange(6.0)

    def f(x):
        return torch.vmap(lambda i, a: a + table[i] + X[i, :].sum() + X[i, 1])(torch.arange(3), x)

    def plain(x):
        return torch.stack([a + table[i] + X[i].sum() + X[i, 1] for i, a in enumerate(x)])

    compiled = weft.compile(f, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), plain(X))


def test_nested_vmap():
    check(lambda x: torch.vmap(torch.vmap(lambda a: a * 2 + 1))(x), (X,), graphs=1)


def test_grad():
    check(lambda x: torch.func.grad(lambda a: a.sin().sum())(x), (X,), graphs=1)


def test_grad_of_vmap():
    def f(x):
        return torch.func.grad(lambda a: torch.vmap(lambda r: (r * r).sum())(a).sum())(x)

    check(f, (X,), graphs=1)


def test_vmap_of_grad():
    check(lambda x: torch.vmap(torch.func.grad(lambda r: r.exp().sum()))(x), (X,), graphs=1)


@pytest.mark.parametrize("transform", [torch.func.jacrev, torch.func.jacfwd, torch.func.hessian])
def test_jacobians(transform):
    check(lambda x: transform(lambda a: (a ** 3).sum())(x), (X[0],), breaks=None)


def test_vjp_and_jvp():
    def f(x):
        out, back = torch.func.vjp(torch.sin, x)
        primal, tangent = torch.func.jvp(torch.cos, (x,), (x,))
        return out, back(x), primal, tangent

    check(f, (X,), breaks=None)


class Pair:
    def __init__(self, a, b, name):
        self.a, self.b, self.name = a, b, name


_pytree.register_pytree_node(
    Pair, lambda pair: ((pair.a, pair.b), pair.name), lambda leaves, name: Pair(*leaves, name))


def test_pytrees_of_registered_classes():
    """They broke the graph; made of a spec, they held capture's own markers for leaves."""
    def f(pair, x):
        mapped = _pytree.tree_map(lambda a, b: a + b, pair, Pair(x, x * 2, "m"))
        leaves, spec = _pytree.tree_flatten([mapped, deque([x], maxlen=3), defaultdict(list, c=x)])
        again = _pytree.tree_unflatten([leaf * 2 for leaf in leaves], spec)
        again[2]["d"].append(again[1].maxlen)
        sizes = _pytree.tree_map(len, {"a": [x, x], "b": (x,)},
                                 is_leaf=lambda node: isinstance(node, list | tuple))
        return again, sizes

    x = torch.ones(2)
    check(f, (Pair(x, x + 1, "m"), x), (Pair(x, x * 3, "m"), x), graphs=1)


def test_pytree():
    def f(x):
        tree = {"a": [x, x + 1], "b": (x, None, 3)}
        leaves, spec = _pytree.tree_flatten(tree)
        doubled = _pytree.tree_map(lambda leaf: (leaf, 2), tree)
        part = spec.child(0), spec.child(1).num_leaves, str(spec)
        return len(leaves), doubled, _pytree.tree_unflatten(leaves, spec), part

    check(f, (X,), graphs=1)


def test_break_within_vmap_leaves_no_level():
    def f(x):
        def row(r):
            print("row")
            return r * 2

        return torch.vmap(row)(x)

    check(f, (X,), breaks=None)
    assert torch._C._functorch.maybe_current_level() is None


def test_single_integers_within_vmap_are_no_numbers():
    masked = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])

    def f(batch, keys):
        def mask(b, q, k):
            return (q >= k) & masked[b, k]

        within = torch.vmap(mask, in_dims=(None, None, 0))
        return torch.vmap(torch.vmap(within, in_dims=(None, 0, None)), in_dims=(0, None, None))(
            batch, torch.arange(6), keys)

    check(f, (torch.arange(2), torch.arange(6)), graphs=1)
    check(lambda x: torch.vmap(lambda row, i: row[i])(x, torch.arange(3)), (X,), graphs=1)


class Doubling(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return out * 2 if func is torch.sin else out


def test_torch_function_mode_within():
    def f(x):
        with Doubling():
            y = torch.sin(x) + torch.cos(x)
        return y, torch.sin(x)

    check(f, (X,), graphs=1)


def test_break_within_torch_function_mode():
    def f(x):
        with Doubling():
            y = torch.sin(x)
            print("within")
            z = torch.sin(y)
        return z

    check(f, (X,), breaks=None)


def test_device_context():
    def f():
        with torch.device("meta"):
            a = torch.ones(3)
        return a.device.type, torch.ones(2)

    check(f, (), graphs=1)


def test_forward_mode():
    check(lambda x: torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),)), (X,), graphs=1)
    check(lambda x: torch.func.jacfwd(torch.sin)(x[0]), (X,), graphs=1)
    check(lambda x: torch.func.hessian(lambda y: y.sin().sum())(x[0]), (X,), graphs=1)


def test_dual_levels():
    import torch.autograd.forward_ad as forward_ad

    def f(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(dual.sin()).tangent

    check(f, (X,), graphs=1)


def test_a_backend_that_fails_within_a_level_leaves_it():
    import torch.autograd.forward_ad as forward_ad

    def f(x):
        with forward_ad.dual_level():  # products with numbers have no fakes there
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            return forward_ad.unpack_dual(dual * 2).tangent

    compiled = weft.compile(f, backend="aot_eager")
    assert torch.equal(compiled(X), f(X))


def test_break_within_a_dual_level_leaves_no_level():
    import torch.autograd.forward_ad as forward_ad

    def f(x):
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            print("within")
            return forward_ad.unpack_dual(dual.sin()).tangent

    check(f, (X,), breaks=None)


def test_vmap_of_grad_of_a_convolution_of_changing_sizes():
    """vmap's rule for its backward asks for plain sizes, once the graph is partly freed."""
    weight = torch.randn(4, 1, 3, 3)

    def loss(w, image):
        return torch.nn.functional.conv2d(image[None], w).relu().sum()

    def f(images):
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weight, images)

    images = torch.randn(5, 1, 8, 8)
    check(f, (images[:3],), (images,), graphs=2)


def test_values_that_are_read_inside_a_transform() -> None:
    """Wrappers of transforms have no memory of their own, which capture asked for."""
    x = torch.tensor([1.0, 2.0, 3.0])

    def text(z: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
        seen = []

        def inner(y: torch.Tensor) -> torch.Tensor:
            seen.append(repr(x))
            return y.sin().sum()

        return torch.func.grad(inner)(z), seen

    found, seen = weft.compile(text)(x)
    torch.testing.assert_close(found, x.cos())
    assert seen == [repr(x)]


def test_a_branch_on_a_batched_value_raises_as_in_eager() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.sum() > 0 else x

    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        weft.compile(torch.vmap(branch))(torch.ones(3, 4))


IDENTITIES = {
    "in place": lambda x: torch.vmap(torch.Tensor.mul_, in_dims=(0, None))(x, 2) is x,
    "in place, of two": lambda x: torch.vmap(lambda t, u: t.copy_(u))(x, x + 1) is x,
    "in place twice": lambda x: torch.vmap(torch.vmap(lambda t: t.add_(1)))(x) is x,
    "operator": lambda x: torch.vmap(lambda t: operator.iadd(t, 1))(x) is x,
    "as it came": lambda x: torch.vmap(lambda t: t.contiguous(), in_dims=1, out_dims=1)(x) is x,
    "other dimension": lambda x: torch.vmap(lambda t: t, in_dims=1)(x) is x,
    "several": lambda x: [r is x for r in torch.vmap(lambda t: (t.add_(1), t, t * 2))(x)],
    "not batched": lambda x: torch.vmap(lambda t: x, out_dims=None)(x.clone()) is x,
    "auxiliary": lambda x: torch.func.grad(
        lambda t: ((t * t).sum(), t), has_aux=True)(x)[1] is x,
    "primal": lambda x: [r is x for r in torch.func.jvp(lambda t: t, (x,), (x,))],
    "vjp": lambda x: torch.func.vjp(lambda t: t, x)[0] is x,
    "functional call": lambda x: torch.func.functional_call(
        torch.nn.ReLU(inplace=True), {}, (x,)) is x,
}


@pytest.mark.parametrize("case", IDENTITIES)
def test_results_of_transforms_were_other_objects(case: str) -> None:
    function = IDENTITIES[case]
    tensors = [torch.arange(9.0).view(3, 3) for _ in range(2)]
    assert weft.compile(function, backend="aot_eager")(tensors[0]) == function(tensors[1])
    assert torch.equal(*tensors)
