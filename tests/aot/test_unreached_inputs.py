"""Inputs that require gradients and that no gradient flows to: eager's graph does not lead there.

An edge too many is seen when a backward fails or frees: a parameter waits for a node that never
runs, and its gradient is lost; a graph behind an activation is freed though nothing went through.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

import weft
from weft.aot.autograd_graph import nodes_behind

Use = Callable[[torch.Tensor], object]


class Reads(torch.autograd.Function):
    """Gives its second argument no gradient: there is an edge to it all the same."""

    @staticmethod
    def forward(ctx, x, p):
        return x * p

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None


class Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p):
        result = p * 2
        ctx.mark_non_differentiable(result)
        return result

    @staticmethod
    def backward(ctx, grad):
        return None


@torch.no_grad()
def doubled(p: torch.Tensor) -> torch.Tensor:
    return p * 2


def written_unseen(p: torch.Tensor) -> None:
    with torch.no_grad():
        p.mul_(1.5)


def written_copy(p: torch.Tensor) -> torch.Tensor:
    q = p.detach().clone()
    q[0] = 3
    return q


READS: dict[str, Use] = {
    "detach": lambda p: p.detach() * 2,
    "data": lambda p: p.data * 2,
    "no_grad": doubled,
    "shape": lambda p: torch.full((3,), float(p.shape[0])),
    "like": lambda p: torch.ones_like(p),
    "new": lambda p: p.new_full((3,), 2.0),
    "compared": lambda p: (p > 0).float(),
    "argmax": lambda p: p.argmax().float(),
    "indices": lambda p: p.sort().indices.float(),
    "integers": lambda p: p.long().float(),
    "boolean": lambda p: p.bool().float(),
    "logical": lambda p: p.isfinite().float(),
    "mask": lambda p: torch.where(p > 0, 2.0, 3.0),
    "copy": written_copy,
    "blocked": lambda p: Blocks.apply(p),
    "unused": lambda p: (p * 2, 1.0)[1],
    "item": lambda p: p.detach().sum().item(),
}
WRITES: dict[str, Use] = {
    "data.mul_": lambda p: p.data.mul_(1.5),
    "data.zero_": lambda p: p.data.zero_(),
    "data[0]": lambda p: p.data.__setitem__(0, 4.0),
    "detach.add_": lambda p: p.detach().add_(1),
    "no_grad": written_unseen,
    "data.copy_": lambda p: p.data.copy_(torch.ones(3)),
    "foreach": lambda p: torch._foreach_mul_([p.data], 2.0),
}


def leaves(result: torch.Tensor) -> set[int]:
    """The leaves that gradients of a result reach, by their memory."""
    behind = (getattr(node, "variable", None) for node in nodes_behind([result.grad_fn]))
    return {leaf.data_ptr() for leaf in behind if leaf is not None}


def programs() -> Iterator[tuple[str, Callable[..., torch.Tensor]]]:
    for name, read in READS.items():
        yield f"{name}", lambda x, p, read=read: x * x * read(p)
    for name, write in WRITES.items():
        yield f"write {name}", lambda x, p, write=write: (write(p), x * x)[1]
    for (a, read), (b, write) in itertools.product(list(READS.items())[:3], [*WRITES.items()][:2]):
        yield f"{a} and write {b}", lambda x, p, r=read, w=write: (x * r(p), w(p))[0].exp()
        yield f"write {b} and {a}", lambda x, p, r=read, w=write: (w(p), (x * r(p)).exp())[1]
    yield "no gradient", lambda x, p: Reads.apply(x, p)


def outcome(f: Callable[..., torch.Tensor], is_leaf: bool, create_graph: bool) -> list[object]:
    """What gradients reach, and what they and the inputs are after backwards, one of which fails:
    `p` gets a gradient before that comes to a node that is freed."""
    x = torch.arange(1.0, 4.0).requires_grad_()
    w = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
    p = w if is_leaf else w * 1
    f(x, p)
    y = f(x, p)
    names = {x.data_ptr(): "x", w.data_ptr(): "w"}
    reached = sorted(names.get(leaf, "w") for leaf in leaves(y))
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=create_graph)
    if gradient.requires_grad:
        gradient.sum().backward(retain_graph=True)
    results = [reached, y.tolist(), gradient.tolist(), x.grad, p.tolist()]
    for again in ((y * p).sum(), p.sum()):
        try:
            again.backward()
        except RuntimeError as error:
            results.append(str(error)[:40])
        results.append(None if w.grad is None else w.grad.tolist())
    return [r.tolist() if isinstance(r, torch.Tensor) else r for r in results]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("is_leaf", [False, True])
def test_graphs_lead_where_eagers_do(is_leaf, create_graph):
    for name, program in programs():
        weft.reset()
        compiled = weft.compile(program, backend="aot_eager")
        expected = outcome(program, is_leaf, create_graph)
        assert outcome(compiled, is_leaf, create_graph) == expected, name
