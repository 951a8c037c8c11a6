"""Programs as users write them: loops with logging, early exit, retries, callbacks, metrics.

Each is a function of a tensor and of nothing else; `PROGRAMS` says how many graphs and breaks its
first two calls need, and whether every operator is in a graph from then on (see
`test_user_programs`).
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import traceback
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import weft

torch.manual_seed(0)
LAYERS = nn.ModuleList([nn.Linear(4, 4) for _ in range(5)])
HISTORY: list[Any] = []
LOGGER = logging.getLogger("weft.tests.user_programs")
PROGRAMS: list[tuple[Callable[..., Any], int, int, bool]] = []


def program(graphs: int, breaks: int, inside: bool = True) -> Callable[[Any], Any]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS.append((function, graphs, breaks, inside))
        return function

    return register


@weft.disable
def opaque(value: Any) -> Any:
    return value


# -- loops ----------------------------------------------------------------------------------------


@program(4, 3)
def layers_with_progress(x):
    for index, layer in enumerate(LAYERS):
        x = layer(x).relu()
        print("layer", index)
    return x.sum()


@program(5, 5)
def training_log(x):
    losses = []
    w = torch.ones(4)
    for step in range(6):
        loss = ((x * w).sum() - 1) ** 2
        w = w - 0.01 * x * (x * w).sum()
        losses.append(opaque(loss))
        if step % 2 == 0:
            print("step", step, "loss", round(float(loss), 3))
    return w, losses


@program(4, 3)
def while_on_data(x):
    steps = 0
    while (x.abs().sum() > 0.5).item():
        x = x * 0.5
        steps += 1
    return x.cos(), steps


@program(2, 2, False)
def newton(x):
    y = x.abs() + 1
    for _ in range(20):
        new = y - (y * y - 2) / (2 * y)
        if torch.allclose(new, y):
            print("converged")
            break
        y = new
    else:
        print("gave up")
    return y


@program(4, 3)
def early_exit(x):
    for i in range(10):
        x = x * 1.5 + i
        if x.max() > 20:
            return x - 1
    return x + 1


@program(3, 2)
def skipping(x):
    total = torch.zeros(())
    for row in x.view(2, 2):
        if row.sum() < 0:
            continue
        total = total + row.norm()
    return total


@program(6, 5)
def nested_loops(x):
    for i in range(3):
        for j in range(2):
            x = x + i * j
            print(i, j)
        x = x.relu()
    return x


@program(3, 2)
def chunks(x):
    out = []
    for chunk in x.chunk(2):
        print(tuple(chunk.shape))
        out.append(chunk.exp())
    return torch.cat(out)


@program(4, 3)
def dictionary_of_losses(x):
    losses = {"a": x.sum(), "b": x.mean(), "c": x.max()}
    total = 0
    for name, value in losses.items():
        print(name, float(value) > 0)
        total = total + value
    return total


@program(3, 3)
def zipped(x):
    out = x
    for a, (name, scale) in zip([x, x + 1, x + 2], {"p": 1, "q": 2, "r": 3}.items(), strict=True):
        out = out + a * scale
        print(name)
    return out


@program(4, 3)
def sorted_and_reversed(x):
    for k in reversed(sorted([3, 1, 2])):
        x = x / k
        print(k)
    return x.sin()


@program(4, 3)
def beam(x):
    beams = [(0.0, [0])]
    for _ in range(3):
        scores = x.softmax(0)
        best = opaque(int(scores.argmax()))
        beams = sorted(((s + 1, [*ids, best]) for s, ids in beams), key=lambda b: -b[0])[:2]
        x = x.roll(1)
    return beams, x


@program(3, 3)
def window(x):
    recent = deque(maxlen=3)
    for i in range(5):
        x = x.sin() + i
        recent.append(opaque(x.sum()))
    return list(recent)


@program(4, 5)
def counted_forever(x):
    for n in itertools.count():
        x = x * 0.5
        print(n)
        if n == 3:
            break
    return x + n


@program(5, 3)
def comprehension(x):
    return torch.stack([opaque(x * i).sin() for i in range(4)])


@program(2, 3, False)
def generator_expression(x):
    total = x * 0
    for t in (x * i for i in range(3)):
        print("t")
        total = total + t.cos()
    return total


@program(2, 3, False)
def sampler(x):
    def batches(data, size):
        for i in range(0, data.shape[0], size):
            yield i, data[i: i + size]

    out = []
    for i, batch in batches(x, 2):
        print("batch", i)
        out.append(batch.sum())
    return out


# -- exceptions -----------------------------------------------------------------------------------


@program(2, 2)
def retry(x):
    for attempt in range(4):
        try:
            y = x.sin() * attempt
            if attempt < 2:
                raise RuntimeError(f"attempt {attempt}")
            return y.cos()
        except RuntimeError as error:
            print("failed:", error)
            x = x + 1
    return None


@program(3, 2)
def cleanup(x):
    HISTORY.clear()
    try:
        y = x.exp()
        print("in")
        y = y.log()
    finally:
        HISTORY.append("closed")
        print("out")
    return y + 1, list(HISTORY)


@program(2, 2)
def handler_that_logs(x):
    y = x.sin()
    try:
        {}["key"]
    except KeyError as error:
        y = y.cos()
        print("caught", repr(error), traceback.format_exc().splitlines()[-1])
        y = y.exp()
    return y * 2


@program(3, 2)
def nested_handlers(x):
    try:
        try:
            x = x.sin()
            raise ValueError("inner")
        except ValueError as error:
            print("first", error)
            x = x.cos()
            raise KeyError("outer") from error
    except KeyError as error:
        print("second", error, error.__cause__)
        x = x.exp()
    return x


@program(0, 0)
def validation(x):
    if x.dim() != 2:
        raise ValueError(f"expected 2 dimensions, got {x.dim()}")
    return x.sum(0)


@program(1, 1, False)
def wrong_shapes(x):
    y = x.sin()
    return y @ torch.ones(7, 2)


@program(2, 2, False)
def fallback_on_shapes(x):
    try:
        y = x @ torch.ones(7, 2)
    except RuntimeError as error:
        print(type(error).__name__)
        y = x @ torch.ones(4, 2)
    return y.relu()


@program(1, 0, False)
def index_out_of_range(x):
    HISTORY.append("before")
    table = x.view(2, 2).sin()
    try:
        rows = nn.functional.embedding((x * 0).long() + 5, table)
    except IndexError as error:
        HISTORY.append(str(error))
        rows = table
    return rows.sum(), HISTORY.pop(), HISTORY.pop()


@program(1, 0)
def lookups(x):
    config = {"scale": 2.0}
    scale = config.get("scale", 1.0)
    try:
        bias = config["bias"]
    except KeyError:
        bias = 0.5
    return x * scale + bias


# -- contexts -------------------------------------------------------------------------------------


class Timer:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        print("start", self.name)
        return self

    def __exit__(self, *error):
        print("stop", self.name, error[0] is not None)
        return self.name == "swallow"


@program(1, 2)
def timed(x):
    with Timer("forward") as timer:
        y = x.sin()
        y = y.cos()
    return y, timer.name


@program(2, 2)
def swallowed(x):
    y = x
    with Timer("swallow"):
        y = x.sin()
        raise ValueError("gone")
    return y.cos()


@program(2, 1)
def evaluation(x):
    with torch.no_grad():
        y = LAYERS[0](x)
        print("eval", y.requires_grad)
        z = LAYERS[1](y)
    return z, LAYERS[2](x).requires_grad


@program(2, 1)
def mixed_precision(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = LAYERS[0](x)
        print(y.dtype)
        y = LAYERS[1](y)
    return y.float().sum(), torch.is_autocast_enabled("cpu")


@program(2, 3, False)
def managed_by_generator(x):
    @contextlib.contextmanager
    def scaled(t):
        print("enter")
        yield t * 2
        print("leave")

    with scaled(x) as y:
        z = y.sin()
        print("body")
        z = z + y
    return z


# -- callbacks, hooks, metrics --------------------------------------------------------------------


@program(3, 2)
def callbacks(x):
    seen = []
    actions = [lambda name, t: seen.append((name, float(t.sum()) > 0)), lambda n, t: print(n)]
    for name in ("a", "b"):
        x = x.sin()
        for action in actions:
            action(name, x)
        x = x + 1
    return x, seen


HOOKED = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
HOOKED[0].register_forward_hook(lambda module, args, out: print("hook", tuple(out.shape)))
HOOKED[1].register_forward_pre_hook(lambda module, args: (args[0] * 2,))


@program(4, 2)
def module_with_printing_hook(x):
    return HOOKED(x.sin()).sum()


@dataclass
class Meter:
    total: float = 0.0
    count: int = 0

    def update(self, value):
        self.total += value
        self.count += 1


@program(3, 3)
def metrics(x):
    meter = Meter()
    for i in range(4):
        x = x.cos() + i
        meter.update(opaque(x.sum().item()))
    return round(meter.total, 4), meter.count, x


@program(2, 1)
def logged(x):
    y = x.sin()
    LOGGER.warning("mean %.2f", float(y.mean()))
    return y.cos()


@program(5, 4)
def grouped(x):
    groups = defaultdict(list)
    for i, value in enumerate(x):
        groups[bool(value > 0)].append(i)
    return dict(groups), x.sum()


@program(5, 5)
def recursive(x):
    def halve(t, depth):
        if depth == 0 or t.abs().max() < 0.3:
            return t
        print("depth", depth)
        return halve(t * 0.5, depth - 1) + 1

    return halve(x, 4)


@program(6, 3)
def deep_break(x):
    def a(t):
        t = t.sin()
        for _ in range(2):
            print("a")
            t = t.cos()
        return t

    def b(t):
        return a(t.exp()).exp()

    return b(x.tanh()).tanh() + b(x)


@program(4, 3)
def accumulates_outside(x):
    HISTORY.clear()
    for i in range(5):
        x = x * 0.9
        HISTORY.append(opaque(i))
        HISTORY.append(x.sum())
    return len(HISTORY), HISTORY[-1]


@program(3, 4)
def early_return_in_finally(x):
    for i in range(3):
        try:
            x = x + i
            print(i)
            if i == 1:
                return x.sin()
        finally:
            print("finally", i)
    return x
