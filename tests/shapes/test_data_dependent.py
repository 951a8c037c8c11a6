"""Sizes and numbers that depend on data stay in the graph: values and gradients as in eager.

Every program is called with data of other sizes each time (all rows, no row, one row, some), and
must be one graph; those that branch on data break there and nowhere else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weft
from weft.diagnostics import events

BACKENDS = ("eager", "aot_eager", "inductor")
Tensor = torch.Tensor


def data() -> Iterator[Tensor]:
    """Rows whose first number is positive: some, none, all, one, all but one."""
    torch.manual_seed(0)
    x = torch.randn(6, 8)
    yield x
    yield x - 10
    yield x + 10
    yield torch.cat([x[:1].abs(), -x[1:].abs()])
    yield torch.cat([-x[:1].abs(), x[1:].abs()])


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    """What a call returns, or the type of what it raises."""
    try:
        return function(*args)
    except Exception as error:
        return type(error)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Tensor):
        return (
            left.shape == right.shape
            and left.dtype == right.dtype
            and torch.allclose(left, right, rtol=1e-4, atol=1e-4, equal_nan=True)
        )
    return left == right or (isinstance(left, float) and abs(left - right) < 1e-4)


def check(function: Callable[..., Any], backend: str, breaks: int = 0) -> None:
    """Equal to eager on all data, in one graph (if there is no break)."""
    weft.reset()
    compiled = weft.compile(function, backend=backend)
    for x in data():
        expected, found = outcome(function, x.clone()), outcome(compiled, x.clone())
        assert same(expected, found), (expected, found)
    stats = weft.stats()
    assert stats["graph_breaks"] == breaks
    if not breaks:
        assert (stats["graphs"], stats["recompiles"]) == (1, 0)


# -- operators -------------------------------------------------------------------------------------


def masked_sum(x: Tensor) -> Any:
    return x[x > 0].sum() * 2


def selected_rows(x: Tensor) -> Any:
    m = x[:, 0] > 0
    return x[m] * 2 + x[m].sum(0), m, x[m, 1:3]


def positions(x: Tensor) -> Any:
    return x.nonzero(), torch.where(x > 0), (x[:, 0] > 0).nonzero().squeeze(1)


def numbers(x: Tensor) -> Any:
    n = (x > 0).sum().item()
    return n, n + 1, x * n, n > 3, x.abs().max().item(), (x > 0).any().item(), int(n)


def sizes(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    return torch.arange(n) * 2, torch.zeros(n, 3), x[:n], x[n:], x.new_ones(2, n)


def splits(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    a, b = torch.split(x, [n, 6 - n])
    return a * 2, b + 1


def lists(x: Tensor) -> Any:
    a, b = (x[:, :2] > 0).sum(0).tolist()
    return x[:a].sum() + x[:b].sum(), a, [a, b], (x[:2, :2] > 0).tolist()


def packed(x: Tensor) -> Any:
    lengths = (x[:3] > 0).sum(1)
    cumulated, longest = lengths.cumsum(0), lengths.max().item()
    mask = torch.arange(longest)[None] < lengths[:, None]
    parts = torch.split(torch.arange(lengths.sum().item()), lengths.tolist())
    return mask, cumulated, x[:3, None].expand(-1, longest, -1)[mask], [p * 2 for p in parts]


def unique(x: Tensor) -> Any:
    v, i, c = torch.unique((x * 2).long(), return_inverse=True, return_counts=True)
    return v * 2, i + 1, c.float().mean()


def repeated(x: Tensor) -> Any:
    return torch.repeat_interleave(x, (x[:, 0] > 0).long() + 1, dim=0) * 2


def scaled(x: Tensor) -> Any:
    s = x.abs().max().item()
    return x / s, s * 2


def tensor_bounds(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum()
    return x[:n] * 2, x[n:, 1], F.pad(x, (0, n)) * 2, float(x[0, 0].abs())


def indexed(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item() // 2
    y = x.clone()
    y[n] = 1.0
    y[n + 1, 2:4] = y[n + 1, 2:4] * 2
    y[:n] = 0
    return x[n], x[:, n], x[n, 1:], y


def last_columns(x: Tensor) -> Any:
    k = int((x[:, 0] > 0).sum()) + 1
    return x.sort(1).values[:, -k:]


def padded(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    return F.pad(x[:n], (0, 0, 0, 6 - n))


def checked(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    torch._check(n <= x.shape[0])
    torch._check(n >= 0)
    return x[:n].relu()


def extremes(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    return max(n, 1), min(n, 3), x / max(n, 1), max([n, 2, 4])


def laid_out(x: Tensor) -> Any:
    y = x[torch.where(x[:, 0] > 0)[0]]
    turned = y.view(-1, 2, 4).permute(1, 0, 2).reshape(2, -1)
    return y.t().contiguous(), y.reshape(-1), turned, torch.stack([y, y], 1).flatten(0, 1)


def products(x: Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return y @ x.t(), torch.softmax(y @ y.t(), -1) @ y, y.norm(dim=-1), torch.cat([y, x])


def largest_of_none(x: Tensor) -> Any:
    return x[x[:, 0] > 0].amax(0)


def mean_of_none(x: Tensor) -> Any:
    y = x[x[:, 0] > 0]
    return y.mean(), y.mean(0), y.sum(1), F.layer_norm(y, (8,))


def broadcast(x: Tensor) -> Any:
    """One selected row broadcasts against several, as in eager; other numbers do not fit."""
    return x[x[:, 0] > 0] + x


def two_masks(x: Tensor) -> Any:
    return x[x[:, 0] > 0].sum(0) + x[x[:, 1] > 0].sum(0), x[x[:, 0] > 0] * x[x[:, 0] > 0]


def assigned(x: Tensor) -> Any:
    m = x[:, 0] > 0
    y = x.clone()
    y[m] = x[m] * 3
    return y, x.masked_scatter(m[:, None], x[m])


def experts(x: Tensor) -> Any:
    out = torch.zeros_like(x)
    routes = x.argmax(-1) % 3
    for e in range(3):
        rows = torch.where(routes == e)[0]
        out.index_add_(0, rows, torch.sin(x[rows]) * e)
    return out


def expanded(x: Tensor) -> Any:
    y, n = x[x[:, 0] > 0], (x[:, 0] > 0).sum().item()
    rows = y[:, None].expand(-1, 2, -1).reshape(-1, 8)
    return y.mean(0, keepdim=True).expand(n, -1) * 2, y.sum(1)[None].expand(3, -1) + 1, rows


def attention(x: Tensor) -> Any:
    """A mask whose length is computed from a tensor of sizes."""
    height, width = (x[:2, 0] * 0 + 2).long().tolist()
    mask = (torch.arange(height * width) > 1)[None, None, None].expand(1, 1, 4, -1)
    q = x[:4].view(1, 1, 4, 8)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def matched(x: Tensor) -> Any:
    """DETR-style: costs of the pairs of two selections."""
    boxes, targets = x[x[:, 0] > 0], x[x[:, 1] > 0]
    cost = (boxes[:, None] - targets[None]).abs().sum(-1)
    return cost, cost.sum(), F.one_hot(targets.argmax(-1), 8)


def size_only(x: Tensor) -> Any:
    """The size of a result of which nothing else is read."""
    return x.sum() + x.nonzero().shape[0], x.unique(return_counts=True)[1].shape[0]


def bounded(x: Tensor) -> Any:
    """Updates are clipped by a number (Adafactor); NaN is neither greater nor less."""
    norm, unknown = x.norm().item(), (x.sum() * float("nan")).item()
    limits = max(1.0, norm / 3), min(norm, 2.0, 0.5 * norm), max(1.0, unknown), max(unknown, 1.0)
    return x * limits[0] + limits[1], x[0] * limits[2], x[1] * limits[3]


PROGRAMS = (
    bounded, size_only, masked_sum, selected_rows, positions, numbers, sizes, splits, lists,
    packed, unique, repeated, scaled, tensor_bounds, indexed, last_columns, padded, checked,
    extremes, laid_out, products, largest_of_none, mean_of_none, broadcast, two_masks, assigned,
    experts, matched, expanded, attention,
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_graph(program: Callable[..., Any], backend: str) -> None:
    check(program, backend)


@pytest.mark.parametrize("backend", ("eager", "inductor"))
def test_texts_with_numbers_are_written_behind_the_graph(backend: str) -> None:
    check(lambda x: (f"{x.sum().item():.3f}", x * 2), backend)


# -- what breaks -----------------------------------------------------------------------------------


def branches(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    y = x * 2
    return y + n if n > 2 else y - n


def loops(x: Tensor) -> Any:
    n = (x[:, 0] > 0).sum().item()
    y = x * 2
    for i in range(n):
        y = y + i
    return y


@pytest.mark.parametrize("backend", ("eager", "inductor"))
@pytest.mark.parametrize("program", (branches, loops), ids=lambda p: p.__name__)
def test_breaks_where_python_needs_the_number(program: Callable[..., Any], backend: str) -> None:
    check(program, backend, breaks=1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_suppression_loop(backend: str) -> None:
    """A loop over what is left, as in non-maximum suppression: breaks, and is right."""

    def suppress(boxes: Tensor) -> Tensor:
        order = boxes[:, 0].argsort(descending=True)
        kept = []
        while order.numel() > 0:
            kept.append(order[0])
            rest = order[1:]
            order = rest[(boxes[rest] - boxes[order[0]]).abs().sum(-1) > 8]
        return torch.stack(kept)

    weft.reset()
    compiled = weft.compile(suppress, backend=backend)
    for x in data():
        assert torch.equal(compiled(x), suppress(x))


def test_without_the_setting_the_graph_breaks() -> None:
    weft.reset()
    with weft.config.patch(data_dependent=False):
        assert weft.compile(masked_sum, backend="eager")(torch.ones(2)) == 4
    assert weft.stats()["graph_breaks"] == 1


def test_a_failing_backend_gets_a_graph_without() -> None:
    """What a backend cannot compile with such sizes is captured again, with breaks."""

    def picky(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        for node in gm.graph.nodes:
            if node.target is torch.unique:
                raise NotImplementedError("unique")
        return gm.forward

    weft.reset()
    compiled = weft.compile(lambda x: torch.unique(x.long()) * 2 + 1, backend=picky)
    x = torch.tensor([3.0, 1.0, 3.0])
    assert torch.equal(compiled(x), torch.tensor([3, 7]))
    assert weft.stats()["graph_breaks"] == 1


# -- checks and questions --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_check_raises_the_users_message(backend: str) -> None:
    def few(x: Tensor) -> Tensor:
        n = x.sum().long().item()
        torch._check(n < 3, lambda: "too many")
        return torch.zeros(n) + 1

    weft.reset()
    compiled = weft.compile(few, backend=backend, fullgraph=True)
    assert compiled(torch.ones(2)).shape == (2,)
    with pytest.raises(RuntimeError, match="too many"):
        compiled(torch.ones(5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_check_decides_a_branch(backend: str) -> None:
    def sized(x: Tensor) -> Tensor:
        n = x.sum().long().item()
        torch._check(n >= 2)
        return x * 2 if n > 1 else x

    compiled = weft.compile(sized, backend=backend, fullgraph=True)
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_backends_see_symbolic_ints() -> None:
    seen: list[torch.fx.Graph] = []

    def spy(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(gm.graph)
        return gm.forward

    compiled = weft.compile(lambda x: torch.zeros(x.sum().item()) + 1, backend=spy)
    assert compiled(torch.tensor([1, 2])).shape == (3,)
    (item,) = (n for n in seen[0].nodes if n.target == "item")
    assert isinstance(item.meta["example_value"], torch.SymInt)


def test_guards_do_not_mention_data() -> None:
    weft.reset()
    with events.collect() as seen:
        weft.compile(selected_rows, backend="eager")(next(data()))
    texts = [str(g) for e in seen if e.kind == "guards" for g in e.guards]
    assert texts and not any("u0" in text for text in texts)


def test_explanation_tells_where_symbols_come_from() -> None:
    explained = str(weft.explain(masked_sum)(torch.randn(4)))
    assert "u0" in explained and "mask" in explained and "test_data_dependent.py" in explained


@pytest.mark.parametrize("backend", BACKENDS)
def test_marked_unbacked(backend: str) -> None:
    """No size is special: 0 and 1 are served by the graph made for 5."""
    weft.reset()
    compiled = weft.compile(lambda x: x * 2 + x.shape[0], backend=backend)
    for n in (5, 1, 0, 7):
        x = torch.randn(n, 3)
        weft.mark_unbacked(x, 0)
        assert torch.equal(compiled(x), x * 2 + n)
    assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (1, 0)


# -- gradients -------------------------------------------------------------------------------------


class Experts(nn.Module):
    """Routing as in transformers: rows of each expert, weighted, added up."""

    def __init__(self, assign: bool) -> None:
        super().__init__()
        self.assign = assign
        self.gate = nn.Linear(8, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        mask = F.one_hot(chosen, len(self.experts)).permute(2, 1, 0)
        for e, expert in enumerate(self.experts):
            if self.assign:
                rows = chosen[:, 0] == e
                out[rows] = expert(x[rows]) * weights[rows, :1]
                continue
            slot, row = torch.where(mask[e])
            found = expert(x[None, row].reshape(-1, 8)) * weights[row, slot, None]
            out.index_add_(0, row, found)
        return out


class Losses(nn.Module):
    """A masked loss, parts of data-dependent length, a scale taken out of a tensor."""

    def __init__(self, which: str) -> None:
        super().__init__()
        self.which = which
        self.linear = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y, rows = self.linear(x), x[:, 0] > 0
        n = rows.sum()
        if self.which == "masked":
            return F.cross_entropy(y[rows], (x.argmax(-1) % 5)[rows])
        if self.which == "sliced":
            k = n.item()
            return y[:k].sum() * 2 + y[k:].pow(2).sum() + k
        if self.which == "split":
            parts = torch.split(y, torch.stack([n, 6 - n]).tolist())
            return torch.cat([p.softmax(-1) * i for i, p in enumerate(parts)])
        if self.which == "repeated":
            return torch.repeat_interleave(y, rows.long() + 1, dim=0).relu()
        return torch.masked_select(y, y > 0) * y.detach().abs().max().item()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "experts": lambda: Experts(False),
    "assigned": lambda: Experts(True),
    **{w: lambda w=w: Losses(w) for w in ("masked", "sliced", "split", "repeated", "selected")},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_gradients(name: str, backend: str) -> None:
    torch.manual_seed(1)
    weft.reset()
    model = MODELS[name]()
    compiled = weft.compile(model, backend=backend)
    for x in data():
        assert same(gradients(model, model, x), gradients(compiled, model, x))
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"], stats["recompiles"]) == (1, 0, 0)


def gradients(run: Callable[..., Tensor], model: nn.Module, x: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    out = run(x)
    (out * torch.linspace(0, 1, out.numel()).view(out.shape)).sum().backward()
    return [out, x.grad, *(p.grad for p in model.parameters())]


# -- random programs -------------------------------------------------------------------------------


def steps(rng: random.Random) -> list[Callable[[Tensor], Tensor]]:
    """Steps from (rows, 6) to (rows, 6), most of them with data-dependent numbers of rows."""
    k = rng.randint(0, 5)
    catalogue: list[Callable[[Tensor], Tensor]] = [
        lambda x: x[x[:, k] > 0],
        lambda x: x[torch.where(x[:, k] < x[:, 0])[0]],
        lambda x: x[: (x[:, k] > 0).sum().item()],
        lambda x: x[(x[:, k] > 0).sum().item() :],
        lambda x: torch.cat([x[x[:, k] > 0.5], x[x[:, k] <= 0.5]]),
        lambda x: torch.repeat_interleave(x, (x[:, k] > 0).long(), dim=0),
        lambda x: x.masked_fill(x > k, 0.0),
        lambda x: torch.cat([x, x * k]),
        lambda x: x.relu() - x.sum(0),
        lambda x: x.flip(0) + x.shape[0],
        lambda x: x * (x > 0).sum().item(),
        lambda x: x.softmax(-1) @ x.new_ones(6, 6),
        lambda x: x.reshape(-1, 3).t().reshape(-1, 6),
        lambda x: x[x.argsort(0)[:, k]],
        lambda x: x.cumsum(0) / (x.numel() + 1),
        lambda x: F.pad(x, (0, 0, 1, 0)),
        lambda x: torch.where(x > 0, x, x.new_zeros(())) + torch.arange(x.shape[0])[:, None],
    ]
    return rng.choices(catalogue, k=rng.randint(2, 5))


@pytest.mark.parametrize("seed", range(24))
def test_random_programs(seed: int) -> None:
    rng = random.Random(seed)
    chain = steps(rng)

    def program(x: Tensor) -> Tensor:
        for step in chain:
            x = step(x)
        return x * 2

    weft.reset()
    backend = BACKENDS[seed % 3]
    compiled = weft.compile(program, backend=backend)
    generator = torch.Generator().manual_seed(seed)
    for shift in (0.0, -3.0, 3.0, 0.5, -0.5):
        x = torch.randn(5, 6, generator=generator) + shift
        assert same(outcome(program, x), outcome(compiled, x)), shift
    assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (1, 0)


def test_checks_with_an_error_type_of_their_own() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        torch._check_with(AssertionError, x.shape[0] == n, lambda: f"{x.shape[0]} rows, not {n}")
        return x * 2

    compiled = weft.compile(program, fullgraph=True)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x, 3), x * 2)
    with pytest.raises(AssertionError, match="3 rows, not 4"):
        weft.compile(program)(x, 4)


def test_encoder_with_a_padding_mask_is_one_graph() -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x, mask = torch.randn(2, 5, 8), torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    compiled = weft.compile(layer, fullgraph=True)
    result = compiled(x, src_key_padding_mask=mask)
    torch.testing.assert_close(result, layer(x, src_key_padding_mask=mask))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_positions_resized_to_sizes_in_a_tensor(backend: str, fresh: None) -> None:
    """A guard named a number that depends on data (the sizes of the call decided what was asked),
    and tensors were no sizes for resizing."""

    def listed(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return sized(x, grid.tolist())

    def sized(x: torch.Tensor, grid: Any) -> torch.Tensor:
        made = [F.interpolate(x.permute(0, 3, 1, 2), size=(h, w), mode="bilinear") for h, w in grid]
        return torch.cat([m.permute(0, 2, 3, 1).reshape(1, -1, 4) for m in made], 1)

    for f in (listed, sized):
        weft.reset()
        compiled = weft.compile(f, backend=backend, dynamic=True)
        for grid in ([[3, 4], [5, 6]], [[7, 7], [4, 4]], [[8, 3], [3, 5]], [[1, 4], [2, 1]]):
            x = torch.randn(1, 4, 4, 4)
            torch.testing.assert_close(compiled(x, torch.tensor(grid)), f(x, torch.tensor(grid)))
        assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (1, 0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_library_call_took_a_truth_from_data_as_a_symbol(backend: str) -> None:
    for f in (
        lambda x: torch.tensor([x[0].item()]),
        lambda x: torch.full((2,), x[0].item()),
        lambda x: torch.full((2,), x.sum().item() > 1),
    ):
        compiled = weft.compile(f, backend=backend)
        for x in (torch.tensor([True, True]), torch.tensor([False, True])):
            assert torch.equal(compiled(x), f(x))
