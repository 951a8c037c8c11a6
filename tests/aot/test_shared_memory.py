"""Operators of programs whose written arguments share memory, with each other and with others.

The second of two writes that overlap was made on what was there before the first.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Optional

import pytest
import torch

import weft
from weft.aot.tracing.shared_memory import are_apart
from weft.diagnostics import events

Tensors = list[torch.Tensor]


@torch.library.custom_op("weft_shared::bump", mutates_args={"p", "q"})
def bump(p: torch.Tensor, q: torch.Tensor) -> None:
    p.add_(1)
    q.mul_(2)


@torch.library.custom_op("weft_shared::mix", mutates_args={"out"})
def mix(p: torch.Tensor, out: torch.Tensor, k: float = 2.0) -> torch.Tensor:
    out.mul_(k)
    out.add_(p.clone())  # which the line before may have written
    return p + out


mix.register_fake(lambda p, out, k=2.0: torch.empty_like(p))


@torch.library.custom_op("weft_shared::bump_list", mutates_args={"ts"})
def bump_list(ts: list[torch.Tensor], us: list[torch.Tensor]) -> None:
    for i, t in enumerate(ts):
        t.mul_(2).add_(i)
        t.add_(us[i].clone())


@torch.library.custom_op("weft_shared::bump_optional", mutates_args={"t"})
def bump_optional(x: torch.Tensor, t: Optional[torch.Tensor]) -> torch.Tensor:  # noqa: UP045
    if t is not None:
        t.mul_(2)
    return x * 3


bump_optional.register_fake(lambda x, t: torch.empty_like(x))


@torch.library.triton_op("weft_shared::bump_triton", mutates_args={"p", "q"})
def bump_triton(p: torch.Tensor, q: torch.Tensor) -> None:
    p.add_(1)
    q.mul_(2)


LIBRARY = torch.library.Library("weft_shared", "FRAGMENT")
LIBRARY.define("swap_(Tensor(a!) p, Tensor(b!) q, int[2] ks=[1, 2]) -> (Tensor(a!), Tensor)")


def _swap(p: torch.Tensor, q: torch.Tensor, ks: tuple[int, int] = (1, 2)
          ) -> tuple[torch.Tensor, torch.Tensor]:
    p.add_(q * ks[0])
    q.add_(p * ks[1])
    return p, p - q


LIBRARY.impl("swap_", _swap, "CompositeExplicitAutograd")

VIEWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda b: b, lambda b: b.t(), lambda b: b[0], lambda b: b[1], lambda b: b[:, 0],
    lambda b: b[:, 2], lambda b: b.diagonal(), lambda b: b.view_as(b).flip(0), lambda b: b[0, 1:3],
    lambda b: b[1:, 1:][0, :2], lambda b: b[:2, :2], lambda b: b[1:3, 1:3], lambda b: b[::2, ::2],
    lambda b: b[:, 1:3].reshape(-1)[:4], lambda b: b.detach()[2], lambda b: b[0] * 1,
]
BASES: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.arange(16.0).view(4, 4),
    "transposed": lambda: torch.arange(16.0).view(4, 4).t(),
    "part of another": lambda: torch.arange(30.0)[7:23].view(4, 4),
    "with gaps": lambda: torch.arange(32.0).view(4, 8)[:, 2:6],
}
OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "written twice": bump,
    "read and written": lambda p, q: mix(p, q, k=3.0),
    "list": lambda p, q: bump_list([p, q, p], [q, p * 1, q]),
    "optional": lambda p, q: (bump_optional(p, q), bump_optional(q, None)),
    "triton": bump_triton,
    "library": lambda p, q: torch.ops.weft_shared.swap_(p, q)[1],
}


def pairs() -> list[tuple[int, int]]:
    """The views of a base that have the same sizes."""
    sizes = [view(torch.zeros(4, 4)).shape for view in VIEWS]
    all_pairs = itertools.product(range(len(VIEWS)), repeat=2)
    return [(i, j) for i, j in all_pairs if sizes[i] == sizes[j]]


PAIRS = pairs()
EVERY = 1 if os.environ.get("WEFT_ALL_PAIRS") else 4


def check_pairs(
    operator: str, kinds: list[str], made_inside: bool, first: int
) -> list[events.Event]:
    """Calls an operator on pairs of views, each of a base of its own, and compares with eager."""
    chosen = PAIRS[first % EVERY :: EVERY]

    def run(bases: Tensors) -> list[object]:
        results: list[object] = []
        for base, (i, j) in zip(bases, chosen, strict=True):
            b = base * 1 if made_inside else base
            before = b.sum(1)
            results += [OPERATORS[operator](VIEWS[i](b), VIEWS[j](b)), before, b.sum(1), b * 1]
        return results

    given, wanted = ([BASES[kinds[i % len(kinds)]]() for i in range(len(chosen))] for _ in range(2))
    with events.collect() as seen:
        result = weft.compile(run, backend="aot_eager")(given)
    torch.testing.assert_close(result, run(wanted), rtol=0, atol=0)
    torch.testing.assert_close(given, wanted, rtol=0, atol=0)
    return seen


@pytest.mark.parametrize("made_inside", [False, True], ids=["inputs", "temporaries"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_writes_to_views_of_one_memory(operator: str, made_inside: bool) -> None:
    first = [*OPERATORS].index(operator) + made_inside
    seen = check_pairs(operator, ["plain", "transposed", "part of another"], made_inside, first)
    assert not any(e.kind == "uncompiled" for e in seen), seen


@pytest.mark.parametrize("made_inside", [False, True], ids=["inputs", "temporaries"])
def test_writes_to_views_of_memory_with_gaps(made_inside: bool) -> None:
    check_pairs("written twice", ["with gaps"], made_inside, 0)


def test_views_that_are_apart_are_known_to_be() -> None:
    """Against all positions, for every pair of 120 views: never apart if they overlap."""

    def views() -> Iterator[torch.Tensor]:
        whole = torch.arange(80)
        generator = torch.Generator().manual_seed(1)
        for _ in range(120):
            draw = torch.randint(0, 5, (8,), generator=generator).tolist()
            rows, columns = draw[0] + 1, draw[1] + 1
            stride = (draw[2] * 2, draw[3])
            start = draw[4] * 2
            yield whole.as_strided((rows, columns), stride, start)

    n_apart = n_known = 0
    for a, b in itertools.combinations(views(), 2):
        apart = not set(a.flatten().tolist()) & set(b.flatten().tolist())
        known = are_apart(a, b)
        assert apart or not known, (a, b)
        n_apart, n_known = n_apart + apart, n_known + known
    assert n_known > n_apart / 3
    grid = torch.zeros(4, 6, 8)
    for a, b in ((grid[0], grid[1]), (grid[:, 0], grid[:, 1]), (grid[..., :3], grid[..., 3:]),
                 (grid[:, ::2], grid[:, 1::2]), (grid[1:, 2], grid[:, 3])):
        assert are_apart(a, b) and not are_apart(a, grid)


def test_arguments_that_are_apart_stay_values() -> None:
    """They are cheaper than the memory of both."""

    def f(cache, x):
        mix(x, cache[0])
        bump(cache[:, 0], cache[:, 1])
        return cache * 2

    with events.collect() as seen:
        weft.compile(f, backend="aot_eager")(torch.zeros(2, 2, 4), torch.ones(2, 4))
    graphs = [str(e.gm.graph) for e in seen if e.kind == "aot"]
    assert graphs and "on_memory" not in "".join(graphs)


def test_lists_of_torchs_own_operators() -> None:
    """`[a, a]` is written twice."""

    def f(a, b):
        torch._foreach_add_([a, a], 1.0)
        torch._foreach_mul_([b[:2], b[1:]], 2.0)
        torch._foreach_copy_([a, b], [b * 1, a])
        return a + b

    given, wanted = ([torch.arange(3.0), torch.arange(3.0)] for _ in range(2))
    torch.testing.assert_close(weft.compile(f)(*given), f(*wanted))
    torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("write", [
    lambda x: x[1:].add_(x[:-1]), lambda x: x.add_(x.t()), lambda x: x[1:].copy_(x[:-1]),
    lambda x: torch.mul(x[1:], 2, out=x[:-1]), lambda x: x.scatter_(0, x.long() * 0, x),
    lambda x: x[0].index_add_(0, torch.tensor([0, 1]), x[0, :2]),
])
def test_writes_that_torch_refuses_are_refused(write: Callable[[torch.Tensor], object]) -> None:
    """They had a result."""
    with pytest.raises(RuntimeError) as wanted:
        write(torch.ones(4, 4))
    with pytest.raises(RuntimeError) as error:
        weft.compile(lambda x: write(x.sin()))(torch.ones(4, 4))
    assert str(error.value).splitlines()[0] == str(wanted.value).splitlines()[0]


@pytest.mark.parametrize("write", [
    lambda x: x[:, 0].add_(x[:, 1]), lambda x: x.add_(x), lambda x: x[0].mul_(x[1]),
    lambda x: x.addcmul_(x, x), lambda x: x[::2].copy_(x[1::2]), lambda x: x.copy_(x),
])
def test_writes_beside_what_is_read_are_compiled(write: Callable[[torch.Tensor], object]) -> None:
    def f(x):
        y = x.sin()
        write(y)
        return y

    x = torch.arange(16.0).view(4, 4)
    with events.collect() as seen:
        torch.testing.assert_close(weft.compile(f)(x), f(x))
    assert not any(e.kind in ("uncompiled", "break") for e in seen)
