"""A failed guess, or an error that eager raises, leaves no trace: as if eager alone had run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from tests.capture.failing_programs import difference, difference_of
from tests.capture.harness import same
from weft.diagnostics import events

_SEEDS = int(os.environ.get("WEFT_FUZZ_FAILURES", "16"))


@pytest.fixture(autouse=True)
def _eager_random_numbers():
    with weft.config.patch(fallback_random=True):
        yield


@pytest.mark.parametrize("seed", range(5000, 5000 + _SEEDS))
@pytest.mark.filterwarnings("ignore")
def test_seed(seed: int) -> None:
    """Many: `python -m tools.fuzz_failures --seeds 0:2000`."""
    assert difference(seed) == ""


def _compare(body: str, backend: Any, n_calls: int = 6) -> None:
    lines = "".join(f"    {line}\n" for line in body.strip("\n").splitlines())
    source = f"def program(x, k, z, s):\n{lines}    return x\n"
    assert difference_of(source, "body", backend, n_calls) == ""


def _restoring(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
    """A backend of a user: it runs the graph as it is."""
    return gm.forward


_BACKENDS = ("eager", "aot_eager", _restoring)

_WRITES = (
    "s.w.add_(1)", "s.p.data.add_(1)", "s.p.data[1] = 5.0", "s.p.data.lerp_(torch.ones(3), 0.5)",
    "torch._foreach_add_([s.p.data, s.w], 1.0)", "s.both.mul_(2)", "s.w.detach().add_(2)",
    "s.a[1] += 1", "s.of_a.numpy()[2] += 2", "s.m.t()[1].add_(1)", "torch.add(s.w, 1, out=s.w)",
    "s.norm(torch.stack([x, x + 1]))", "s.o.unsqueeze_(0)", "s.w.uniform_()", "s.h.mul_(2)",
    "s.p.grad = torch.ones(3)", "s.p.data = s.w * 2", "(x * s.p).sum().backward()",
    "s.opt.zero_grad(); (x.detach() * s.p).sum().backward(); s.opt.step()",
    "s.layer.requires_grad_(False)", "s.m.t_()", "s.w.masked_fill_(s.w > 1, 0.5)",
)


@pytest.mark.parametrize("write", _WRITES)
def test_a_write_before_an_operator_that_raises_happens_once(write: str) -> None:
    """Writes that no version counts happened twice, and the program's `except` was passed by."""
    _compare(f"""
try:
    {write}
    x = x + x[k]
    s.w.add_(10)
except IndexError:
    log("caught")
    x = x * 2
s.items.append(1)
""", "eager")


@pytest.mark.parametrize("backend", _BACKENDS, ids=["eager", "aot_eager", "of a user"])
def test_all_writes_at_once_in_all_backends(backend: Any) -> None:
    writes = "\n    ".join(_WRITES[:16])
    _compare(f"""
try:
    {writes}
    x = x + s.n // z
except RuntimeError as error:
    log(str(error))
    s.w.mul_(2)
""", backend, n_calls=3)


_REFUSING = (
    "x[k]", "F.embedding(k, s.e)", "x.gather(0, k)", "s.n // z", "s.n % z", "x.index_select(0, k)",
    "F.cross_entropy(s.m, k.expand(3))", "torch.linalg.inv(torch.eye(3) * (k < 3))",
    "torch.multinomial((k < 3).float().expand(3), 1)", "torch.bernoulli(k * 0.3)",
    "torch.ones(3 - k.item())", "random.randrange(3 - k.item())",
    "s.w.index_copy_(0, k, torch.ones(1))", "s.w.scatter_(0, k, 2.0)",
    "s.w.index_add_(0, k, s.o[:1])",
)


@pytest.mark.parametrize("operator", _REFUSING)
def test_an_unused_result_of_an_operator_that_raises(operator: str) -> None:
    """Capture dropped the operator, and with it the error."""
    _compare(f"""
s.w.data.add_(torch.rand(3))
s.items.append(1)
def inner():
    try:
        {operator}
        s.count += 1
    except (IndexError, RuntimeError, ValueError) as error:
        log(type(error).__name__)
inner()
s.count += 1
{operator}
s.d["k"] = random.random()
""", "eager")


_OF_NUMBERS = (
    "s.v[k.item()]", "s.w.unfold(0, k.item(), 1)", "s.w[: k.item()].view(2)",
    "torch.topk(s.w, k.item())", "torch.randint(0, 2 - k.item(), (2,))",
    "s.o.random_(0, 2 - k.item())", "s.o.uniform_(k.item(), 2)", "s.n ** (2 - k.item())",
    "s.w + s.v[: k.item()]", "torch.where(s.w[: k.item()] > 0, s.w, s.o)",
    "torch.arange(0, 3, 2 - k.item())", "s.w.add_(s.v[: k.item()])",
)


@pytest.mark.parametrize("operator", _OF_NUMBERS)
def test_an_operator_that_refuses_a_number_of_data(operator: str) -> None:
    """Views, draws and operands of sizes that depend on data were thought not to raise: generators
    and memory kept what the graph had done before."""
    _compare(f"""
s.w.data.add_(torch.rand(3))
r = np.random.rand()
{operator}
x = x + r
""", "eager", n_calls=3)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_an_unused_result_raises_in_compiled_graphs(backend: str) -> None:
    _compare("x[k]\ns.w.add_(1)\ns.n // z\nF.embedding(k, s.e).sum()", backend, n_calls=4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("exact", [True, False])
def test_a_wrong_guess_about_a_number_of_torch_draws_once(backend: str, exact: bool) -> None:
    """The captured graph ran again behind the compiled one, and drew other numbers: 73 of 100
    calls differed."""
    def f(x: torch.Tensor) -> torch.Tensor:
        n = torch.randint(0, 4, ()).item()
        if n > 0:
            x = x * 2
        return x + n * 10

    with weft.config.patch(fallback_random=exact):
        weft.reset()
        compiled = weft.compile(f, backend=backend)
        torch.manual_seed(1)
        expected = [f(torch.ones(2)).tolist() for _ in range(60)]
        torch.manual_seed(1)
        actual = [compiled(torch.ones(2)).tolist() for _ in range(60)]
    if exact:
        assert actual == expected
    assert {r[0] for r in actual} == {r[0] for r in expected}  # 1, 12, 22, 32


def test_draws_before_an_operator_that_raises_happen_once() -> None:
    _compare("""
r = random.random() + np.random.rand() + s.rng.random() + s.nrng.random()
x = F.dropout(x, 0.5) + torch.rand(3, generator=s.g) + r
x = x + x[k]
""", "inductor", n_calls=4)


def test_a_draw_that_raises_leaves_the_earlier_ones() -> None:
    """It raised in the middle of the replacement: effects before it were lost, handlers passed
    by."""
    _compare("""
s.items.append(1)
try:
    random.random()
    x = x * random.randrange(2 - s.count)
except ValueError:
    log("empty")
s.count += 1
""", "eager")


def test_the_number_of_writes_is_restored_too() -> None:
    """A tensor that a backward needs counted as changed, though the program did not write it."""
    def f(w: torch.Tensor, x: torch.Tensor, k: torch.Tensor) -> Any:
        if (x < 0).any():
            raise ValueError("before the write")
        w.add_(1)
        return x[k]

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    w, x = torch.ones(2), torch.ones(2, requires_grad=True)
    compiled(w, x.detach(), torch.tensor([0]))
    y = (x * w).sum()
    with pytest.raises(ValueError, match="before the write"):
        compiled(w, -x.detach(), torch.tensor([0]))
    y.backward()
    assert same(x.grad, w)


def test_writes_that_autograd_sees_end_uncompiled_graphs_only() -> None:
    def f(h: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        h.mul_(2)
        try:
            return F.relu(h)[k]
        except IndexError:
            return h - 1

    for backend, graphs in (("eager", 2), ("inductor", 1)):
        weft.reset()
        compiled = weft.compile(f, backend=backend)
        for k in (0, 7, 1):
            results = []
            for function in (f, compiled):
                leaf = torch.ones(3, requires_grad=True)
                h = leaf * 1
                y = function(h, torch.tensor([k]))
                y.sum().backward()
                results.append((y, h, leaf.grad))
            assert same(*results)
        assert weft.stats()["graphs"] == graphs


def test_caches_are_written_in_place_behind_the_test_of_their_indices() -> None:
    """No input may be overwritten before the last operator that may raise."""
    def f(caches: list[torch.Tensor], x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        for cache in caches:
            cache.index_copy_(0, at, x)
            x = x + cache.sum(0)
        return x

    weft.reset()
    compiled = weft.compile(f)
    with events.collect() as happened:
        for k in (1, 9, 2):
            outcomes = []
            for function in (f, compiled):
                caches = [torch.arange(24.0).view(8, 3) for _ in range(3)]
                try:
                    result: Any = function(caches, torch.ones(1, 3), torch.tensor([k]))
                except IndexError as error:
                    result = str(error)
                outcomes.append((result, caches))
            assert same(*outcomes)
    [source] = [e.fields["source"] for e in happened if e.kind == "output_code"
                and e.fields["name"] == "call sequence"]
    assert (source.count("check_places"), source.count(".data, ()")) == (1, 3)


def test_counters_before_an_index_out_of_range_count_once_in_compiled_graphs() -> None:
    """A kernel may run before the one that raises, though the program has them in this order."""
    def f(count: torch.Tensor, table: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        rows = F.embedding(k, table)
        count.add_(1)
        table.mul_(2)
        return rows @ table

    weft.reset()
    compiled = weft.compile(f)
    count, table = torch.zeros(3), torch.eye(3)
    for k, error in ((1, None), (5, IndexError), (2, None), (3, IndexError)):
        if error is None:
            compiled(count, table, torch.tensor([k]))
        else:
            with pytest.raises(error):
                compiled(count, table, torch.tensor([k]))
    assert count.tolist() == [2.0] * 3 and table.tolist() == (torch.eye(3) * 4).tolist()


def test_numbers_of_numpy_drawn_once_if_a_guess_fails() -> None:
    _compare("""
r = np.random.randint(4)
if s.w.sum() > 4:
    x = x * 2
if torch.isfinite(x / (x * 0 + r)).all():
    x = x + np.random.rand()
""", "eager")


def test_a_root_of_a_negative_number_behind_writes() -> None:
    """The function of a number was not known to raise: a write before it happened twice."""
    _compare("""
s.w.data.add_(1)
(x * s.p).sum().backward()
x = x + math.sqrt(2 - k.item())
""", "eager", n_calls=3)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("classes", ["0", "-2", "k.item()", "2 - k.item()"])
def test_one_hot_without_classes(classes: str, backend: str) -> None:
    """Only the kernels for real data refuse it: fakes, and what was traced with them, did not."""
    _compare(f"""
s.w.data.add_(1)
s.seen.add(k.item())
x = x + F.one_hot(s.n[: 0 if k > 4 else 3] % 3, {classes}).sum()
""", backend, n_calls=4)


@pytest.mark.parametrize("read", ["s.c.real.add_(1)", "s.m.T.mul_(2)", "s.w.data.add_(1)"])
def test_attributes_behind_writes_that_autograd_sees(read: str) -> None:
    """They were thought to be able to raise: no graph would do, and capture never ended."""
    _compare(f"s.h[1] = x[0]\n{read}\nx = x + s.v[k.item()]", "eager", n_calls=4)


@pytest.mark.parametrize("end", ["s.m.t_()", "x[k]"])
def test_a_step_in_a_capture_that_is_given_up_leaves_no_state(end: str) -> None:
    """The state was made by an interpretation whose graph could not be kept."""
    _compare(f"""
x = x + F.one_hot(s.n % 3, k.item()).sum(1)
s.net(x.detach()).square().sum().backward()
s.adam.step()
{end}
""", "aot_eager", n_calls=2)
