"""Random programs that draw, write, guess and fail, as source text.

    python -m tools.fuzz_failures --seeds 0:500            # try these seeds, print what differs

Every statement is chosen by a seeded generator, so that a seed names a program. A program changes
tensors (through views, `.data`, NumPy, modules), containers, attributes, variables and generators;
branches on data and on drawn numbers; and runs operators that refuse some data, inside `try` or
not. Eager and compiled start from equal states, and after each of some calls all that a program can
see is compared: result or exception, handlers that ran, the whole state, all generators.
"""

from __future__ import annotations

import copy
import random
import textwrap
from collections import deque
from typing import Any

import numpy as np
import torch

import weft
from tests.capture.harness import same

WRITES = (
    "s.w.add_(1)", "s.w.mul_(s.w + {r})", "s.w[{i}] = x.sum().detach()", "s.w[1:].add_(1)",
    "s.w.data.add_(1)", "s.w.data[{i}] = 5.0", "s.w.detach().add_(2)", "s.w.data.copy_(s.w + 1)",
    "s.p.data.mul_(1.5)", "s.p.data[{i}] += 1", "s.p.data.lerp_(torch.ones(3), 0.5)",
    "torch._foreach_add_([s.p.data, s.w], 1.0)", "torch._foreach_mul_([s.w, s.n], 2)",
    "with torch.no_grad(): s.p.add_(1)", "with torch.no_grad(): s.p[{i}] = 3.0",
    "with torch.no_grad(): s.p.copy_(s.w)", "s.tail.mul_(2)", "s.flat.add_(1)", "s.n.add_(1)",
    "s.n[{i}] = {r}", "s.m.t()[{i}].add_(1)", "s.m.data.view(-1)[2:].mul_(2)",
    "s.m.copy_(s.m.t().clone())", "torch.add(s.w, 1, out=s.w)", "torch.mul(x.detach(), 2, out=s.o)",
    "s.a += 1", "s.a[{i}] = 7", "s.of_a.add_(1)", "s.of_a.numpy()[{i}] += 2",
    "torch.from_numpy(s.a).mul_(2)", "s.w.numpy()[{i}] = 4",
    "s.w.index_copy_(0, k, x[:1].detach())", "s.w.index_put_((k,), s.w[:1], accumulate=True)",
    "s.w[k] = x[:1].detach()", "s.w.scatter_(0, k, 9.0)", "s.w[s.w > 1] = 0.5",
    "s.n.clamp_(max={r})", "s.w.masked_fill_(x.detach() > 0, 1.5)", "s.w.fill_({r})", "s.w.zero_()",
    "s.w.exponential_()", "s.w.uniform_(0, 1)", "s.w.data.normal_()", "torch.nn.init.uniform_(s.p)",
    "s.p.data = s.w * 2", "s.w.set_(torch.ones(3))", "s.o.resize_(2)", "s.m.t_()",
    "s.o.unsqueeze_(0)", "s.h.mul_(2)", "s.h.add_(x)", "s.h[{i}] = x[0]",
    "s.w.add_(x.detach()).relu_()", "F.relu(s.w, inplace=True)", "s.w.clone().add_(1).data.zero_()",
    "s.layer.weight.data.add_(1)", "s.layer.requires_grad_({b})", "s.w = s.w + 1",
    "s.p.grad = None", "s.p.grad = torch.ones(3)", "s.norm.running_mean.mul_(2)",
    "s.w.view_as(s.w).add_(1)", "s.w.narrow(0, 1, 2).copy_(torch.rand(2))", "del s.o",
    "s.w.unsqueeze(0).squeeze(0).sub_(0.5)", "s.both.data.add_(1)", "s.m.diagonal().add_(1)",
)
"""Statements that write tensors of the state; `{i}` is a position, `{r}` a number."""

EFFECTS = (
    "s.items.append({r})", "s.items.append(x.detach().clone())", "s.d['k'] = {r}",
    "s.d.pop('a', None)", "s.seen.add({r})", "s.queue.append({r})", "s.queue.popleft()",
    "s.count += 1", "s.items.clear()", "s.d.setdefault('l', []).append({r})",
    "s.d['t'] = s.w.clone()", "bump()", "s.layer.tag = {r}", "TOTAL['n'] += 1", "s.items[0] = {r}",
    "log({r})", "s.inner.value = x.sum().item()", "del s.d['a']", "s.items += [1, {r}]",
    "s.layer.register_buffer('extra', torch.ones(1) * {r})", "log(s.w.sum().item())",
    "setattr(s.inner, 'value', s.w * 1)",
)
"""Statements that change other objects of the state."""

NUMBERS = (
    "random.randrange(0, 4)", "random.randint(0, 3)", "random.getrandbits(2)",
    "np.random.randint(4)", "s.rng.randrange(4)", "s.rng.choice([0, 1, 2, 3])",
    "int(s.nrng.integers(0, 4))", "int(s.state.randint(0, 4))", "torch.randint(0, 4, ()).item()",
    "int(torch.randint(0, 4, (1,)))", "torch.randint(0, 4, (), generator=s.g).item()",
    "torch.randperm(4)[0].item()", "int(random.random() * 4)", "s.n[0].item() % 4",
    "int(x.sum().item()) % 4", "int((x > 0).sum())", "len(s.items) % 4", "x[x > 0].shape[0]",
    "int(np.random.rand() * 4)", "random.sample(range(4), 1)[0]",
    "torch.bernoulli(torch.full((3,), 0.5)).sum().int().item()", "int(torch.rand(()) * 4)",
    "random.choice((0, 1, 2, 3))", "torch.multinomial(torch.ones(4), 1).item()", "k.item() % 4",
    "torch.empty(()).uniform_(0, 4).int().item()", "np.random.default_rng(3).integers(0, 4)",
    "random.Random(s.count).randrange(4)", "s.n.tolist()[0] % 4",
    "int(torch.argmax(torch.rand(4)))",
)
"""Numbers from 0 to 3 that are drawn, or depend on data."""

TENSORS = (
    "torch.rand(3)", "torch.randn_like(x)", "F.dropout(x, 0.5)", "x * random.random()", "x + s.w",
    "x * s.p", "s.layer(x)", "s.norm(torch.stack([x, x + 1])).sum(0)",
    "x + torch.from_numpy(np.random.rand(3)).float()", "torch.rand(3, generator=s.g) + x",
    "x * {r}", "torch.normal(0.0, 1.0, (3,))", "F.dropout(s.w + x, 0.2)", "x * s.rng.gauss(0, 1)",
    "(x + s.h)", "x.bernoulli(0.5)", "x + s.n", "F.rrelu(x, training=True)",
    "torch.randint(0, 5, (3,)) + x", "x - s.m.sum(0)", "x * torch.tensor(random.uniform(0, 1))",
    "x.view(3, 1)[:, 0]",
)
"""New values of `x`."""

REFUSING = (
    "x = x + x[k]", "x = x + F.embedding(k, s.e)[0]", "x = x + x.index_select(0, k)",
    "s.n.copy_(s.n // z)", "x = x + (s.n // z)", "x = x + (s.n % z)",
    "x = x * torch.linalg.cholesky(torch.eye(3) * (3 - k)).sum()",
    "x = x + F.cross_entropy(s.m, k.expand(3))", "x = x + F.nll_loss(s.m, k.expand(3))",
    "x = x + x.gather(0, k)", "x = x + s.items[{r}]", "x = x + [1, 2, 3][{r}]",
    "x = x / (1 // {r})", "assert (x < 40).all(), 'large'", "if k > 2: raise ValueError('k')",
    "x = x * random.randrange({r})", "x = x + random.choice([1, 2][:{r}])",
    "x = x + math.sqrt(2 - k.item())", "x = x + s.d['a']", "x = x + torch.ones(3 - k.item()).sum()",
    "x = x + torch.bernoulli(k * 0.3)", "torch._assert((k < 3).all(), 'k')",
    "x = x + torch.multinomial((k < 3).float().expand(3), 1)", "x = x + F.one_hot(k, 3)[0]",
    "x = x.view(-1, k.item()).sum() + x", "x = x + torch.linalg.inv(torch.eye(3) * (k < 3)).sum(0)",
    "s.w.index_copy_(0, k, torch.ones(1))", "s.w[k] = 2.0", "s.w.scatter_add_(0, k, torch.ones(1))",
    "x = x + s.w[k.item()]", "x = x + list(s.w)[k.item()]",
    "x = x + torch.repeat_interleave(torch.ones(1), 2 - k).sum()", "x = x + 1 / (3 - k.item())",
    "x = x + s.queue.popleft()", "torch._check(k.item() < 3)", "x = x + s.o",
    "x = x + F.embedding(torch.tensor([{r}]), s.e[:3])[0]", "x = x + s.m[k, k]",
    "x = x + (2 ** (s.n - k)).sum()",
    "if x.sum() > 30: raise RuntimeError(f'{x.sum().item():.2f}')", "x = x + Refuses.apply(x, k)",
    "x = x + refuses(x, k)", "x = x + s.w.numpy()[k.item()]", "x = x + torch.take(x, k)",
    "F.embedding(k, s.e)", "x = x + torch.searchsorted(x.detach(), x.detach(), sorter=k.expand(3))",
    "x[k]", "s.n // z",
)
"""Statements that raise for some data; `k` is [0] to [5], `z` has a 0 sometimes."""

BACKWARD = (
    "(x * s.p).sum().backward()", "(s.layer(x) * s.p).sum().backward()", "s.opt.step()",
    "s.opt.zero_grad()", "s.opt.zero_grad(); (x.detach() * s.p).sum().backward(); s.opt.step()",
    "x = x + torch.autograd.grad((s.p * s.p).sum(), s.p)[0]",
)
"""Statements of training."""

CAUGHT = (
    "IndexError", "RuntimeError", "(ValueError, KeyError)", "Exception",
    "(IndexError, RuntimeError, ZeroDivisionError)",
)
"""What handlers catch."""

COUNTED = ("p", "m", "n", "o", "both", "flat")
"""Tensors whose writes are compared in number; NumPy writes others, which eager does not count."""

_SUPPORT = """
counter = 0
TOTAL = {"n": 0}

def bump():
    global counter
    counter += 1

def log(value):
    LOG.append(value)

def refuses(x, k):
    try:
        return x[k]
    except IndexError:
        log("inner")
        return x * 2

class Refuses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        return x + x.detach()[k]

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None

class Inner:
    value = 0

class State:
    def __init__(self):
        self.w, self.o, self.n = torch.arange(3.0), torch.zeros(3), torch.tensor([1, 2, 3])
        self.p = torch.nn.Parameter(torch.ones(3))
        self.m = torch.arange(9.0).view(3, 3) / 9
        self.e = torch.arange(12.0).view(4, 3)
        self.tail, self.flat, self.both = self.w[1:], self.m.view(-1), self.p.detach()
        self.a = np.arange(3.0)
        self.of_a = torch.from_numpy(self.a)
        self.h = torch.ones(3)
        self.layer = torch.nn.Linear(3, 3)
        torch.nn.init.constant_(self.layer.weight, 0.1)
        torch.nn.init.zeros_(self.layer.bias)
        self.norm = torch.nn.BatchNorm1d(3)
        self.opt = torch.optim.SGD([self.p, self.layer.weight], lr=0.1, momentum=0.9)
        self.items, self.d, self.seen, self.queue = [1, 2], {"a": 1}, {0}, deque([1, 2, 3], 6)
        self.count, self.inner = 0, Inner()
        self.rng, self.nrng = random.Random(5), np.random.default_rng(5)
        self.state, self.g = np.random.RandomState(5), torch.Generator().manual_seed(5)
        self.leaf = torch.ones(3, requires_grad=True)
"""


class Program:
    """Writes one random function `program(x, k, z, s)`."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.numbers = ["2"]
        self.in_loop = False

    def _one(self, texts: tuple[str, ...]) -> str:
        text = self.random.choice(texts)
        number = self.random.choice(self.numbers)
        return text.replace("{i}", str(self.random.randrange(3))).replace(
            "{r}", number).replace("{b}", str(self.random.random() < 0.5))

    def _put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def _block(self, indent: int, most: int, depth: int) -> None:
        kept = list(self.numbers)
        for _ in range(self.random.randint(1, most)):
            self.statement(indent, depth)
        self.numbers = kept

    def statement(self, indent: int, depth: int) -> None:
        """Any statement; compound ones have at most `depth` levels."""
        compound = [self._if, self._try, self._for, self._try] if depth else []
        plain = [WRITES, WRITES, EFFECTS, TENSORS, REFUSING, REFUSING, None, BACKWARD]
        kind = self.random.choice([*plain, *compound])
        if callable(kind):
            kind(indent, depth)
        elif kind is None:
            name = f"r{len(self.lines)}"
            self._put(indent, f"{name} = {self._one(NUMBERS)}")
            self.numbers.append(name)
        elif kind is TENSORS:
            self._put(indent, f"x = {self._one(TENSORS)}")
        else:
            self._put(indent, self._one(kind))

    def _condition(self) -> str:
        number = self.random.choice(self.numbers)
        return self.random.choice((
            number, f"not {number}", f"{number} > 0", f"{number} == 1",
            f"{number} >= 2 and x.sum() > 0", "x.sum() > 3", "(x > 0).all()", "k > 1",
            "torch.isfinite(x).all()", "torch.rand(()) > 0.5", "random.random() < 0.5",
            "not (x < 9).any()", f"max({number}, 1) > 1", "s.w.sum() > 5", f"{number} in (1, 2)",
            "x[x > 0].numel() == 0", "s.n.sum().item() > 9", "np.random.rand() < 0.3",
        ))

    def _if(self, indent: int, depth: int) -> None:
        self._put(indent, f"if {self._condition()}:")
        self._block(indent + 1, 2, depth - 1)
        if self.in_loop and self.random.random() < 0.4:
            self._put(indent + 1, self.random.choice(("break", "continue")))
        if self.random.random() < 0.3:
            self._put(indent, "else:")
            self._block(indent + 1, 2, depth - 1)

    def _for(self, indent: int, depth: int) -> None:
        number = self.random.choice(self.numbers)
        self._put(indent, self.random.choice(("for i in range(2):", f"for i in range({number}):")))
        outer, self.in_loop = self.in_loop, True
        self._block(indent + 1, 3, depth - 1)
        self.in_loop = outer

    def _try(self, indent: int, depth: int) -> None:
        self._put(indent, "try:")
        self._block(indent + 1, 3, depth - 1)
        self._put(indent + 1, self._one(REFUSING))
        outer, self.in_loop = self.in_loop, False
        catches = self.random.random() < 0.85
        if catches:
            self._put(indent, f"except {self.random.choice(CAUGHT)} as error:")
            self._put(indent + 1, "log((type(error).__name__, str(error)))")
            self._block(indent + 1, 2, depth - 1)
        if not catches or self.random.random() < 0.25:
            self._put(indent, "finally:")
            self._block(indent + 1, 1, 0)
        self.in_loop = outer

    def source(self) -> str:
        """The program's text."""
        self._put(0, "def program(x, k, z, s):")
        for _ in range(self.random.randint(3, 8)):
            self.statement(1, 2)
        self._put(1, f"return x, {', '.join(self.numbers)}")
        return "\n".join(self.lines)


class World:
    """One side of a comparison: a program with a state of its own."""

    def __init__(self, source: str, name: str) -> None:
        self.log: list[Any] = []
        self.namespace: dict[str, Any] = {
            "__name__": name, "LOG": self.log, "torch": torch, "np": np, "random": random,
            "F": torch.nn.functional, "deque": deque, "math": __import__("math")}
        exec(compile(_SUPPORT + textwrap.dedent(source), f"<{name}>", "exec"), self.namespace)
        seed_all()
        self.state = self.namespace["State"]()
        self.state.h = self.state.leaf * 1
        self.function = self.namespace["program"]

    def compile(self, backend: Any) -> World:
        self.function = weft.compile(self.function, backend=backend)
        return self

    def call(self, kind: int) -> Any:
        """The result or exception of a call, and all that the program can see after it."""
        self.log.clear()
        random.seed(kind)
        np.random.seed(kind)
        torch.manual_seed(kind)
        x = torch.arange(3.0) - kind % 3
        k = torch.tensor([(0, 4, 1, 5, 2, 3)[kind % 6]])
        z = torch.tensor([1, 1, kind % 2])
        try:
            result = copy.copy(self.function(x.requires_grad_(kind % 4 == 3), k, z, self.state))
        except Exception as error:
            result = (type(error).__name__, str(error))
        tensors = {
            name: (t, t.is_leaf and t.grad, t.requires_grad, t.is_leaf,
                   name in COUNTED and t._version)
            for name, t in vars(self.state).items() if isinstance(t, torch.Tensor)}
        return {"result": result, "log": list(self.log), "x": x, "x.grad": x.grad,
                "tensors": tensors, "counter": self.namespace["counter"],
                "total": self.namespace["TOTAL"]["n"], "state": _shown(self.state),
                "generators": _generators(self.state)}


def _shown(state: Any) -> dict[str, Any]:
    shown = {name: value for name, value in vars(state).items()
             if isinstance(value, (int, list, dict, set, deque, np.ndarray))}
    modules = {f"{m}.{name}": t for m in ("layer", "norm")
               for name, t in vars(state)[m].state_dict().items()}
    grads = [p.grad for p in state.layer.parameters()]
    flags = [p.requires_grad for p in state.layer.parameters()]
    momenta = [state.opt.state[p].get("momentum_buffer") for g in state.opt.param_groups
               for p in g["params"]]
    return {**shown, **modules, "grads": grads, "flags": flags, "momenta": momenta,
            "tag": getattr(state.layer, "tag", None), "inner": state.inner.value}


def _generators(state: Any) -> list[Any]:
    numpys = np.random.get_state()
    own = state.state.get_state()
    return [random.getstate(), numpys[1].tolist(), numpys[2:], torch.get_rng_state().tolist(),
            state.rng.getstate(), state.nrng.bit_generator.state, own[1].tolist(), own[2:],
            state.g.get_state().tolist()]


def seed_all() -> None:
    """Set the global generators to a known state."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def difference(seed: int, backend: Any = "eager", n_calls: int = 6) -> str:
    """Where the compiled program of that seed differs from the eager one; empty if nowhere."""
    return difference_of(Program(seed).source(), f"failing{seed}", backend, n_calls)


def difference_of(source: str, name: str, backend: Any = "eager", n_calls: int = 6) -> str:
    """As `difference`, of a program's text."""
    weft.reset()
    plain, compiled = World(source, name), World(source, name).compile(backend)
    for kind in range(n_calls):
        expected, actual = plain.call(kind), compiled.call(kind)
        for part, value in expected.items():
            if not same(value, actual[part]):
                return f"call {kind}, {part}: {_differing(value, actual[part])}"
    return ""


def _differing(expected: Any, actual: Any) -> str:
    if isinstance(expected, dict) and isinstance(actual, dict):
        keys = [k for k in {**expected, **actual}
                if k not in actual or k not in expected or not same(expected[k], actual[k])]
        return ", ".join(f"{k}: {actual.get(k)} instead of {expected.get(k)}" for k in keys)
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        pairs = enumerate(zip(expected, actual, strict=True))
        return ", ".join(f"[{i}]: {str(b)[:80]} instead of {str(a)[:80]}" for i, (a, b) in pairs
                         if not same(a, b))
    return f"{actual} instead of {expected}"
