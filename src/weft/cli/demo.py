"""``weft demo``: compiles real models and shows what happened.

Place in the pipeline: command line. Each entry of `MODELS` builds a model with random weights and
its inputs; a new one is one function and one line.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn

import weft
from weft.diagnostics import events
from weft.diagnostics.comparison import Comparison, Measurement, seconds_text
from weft.diagnostics.events import Event
from weft.diagnostics.explanation import Explanation
from weft.diagnostics.rendering import render

TOLERANCE: Final = 1e-3
"""Largest error, relative to the largest value of the float64 result, that counts as right."""


@final
@dataclass(frozen=True, slots=True)
class Example:
    """A model in eval mode and the keyword arguments of one call."""

    model: nn.Module
    inputs: dict[str, torch.Tensor]


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        result: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return result

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


def transformer() -> Example:
    """Six blocks of width 256 on 8 sequences of 128."""
    model = nn.Sequential(*(Block(256, 8) for _ in range(6)), nn.LayerNorm(256))
    return Example(model, {"input": torch.randn(8, 128, 256)})


def bert() -> Example:
    """BERT-base on 2 sequences of 128 tokens."""
    import transformers

    config = transformers.BertConfig()
    tokens = torch.randint(0, config.vocab_size, (2, 128))
    mask = torch.ones_like(tokens)
    model = transformers.BertModel(config)
    return Example(model, {"input_ids": tokens, "attention_mask": mask})


def resnet() -> Example:
    """ResNet-50 on 4 images of 224 x 224."""
    import transformers

    model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
    return Example(model, {"pixel_values": torch.randn(4, 3, 224, 224)})


MODELS: Final[dict[str, Callable[[], Example]]] = {
    "transformer": transformer,
    "bert-base": bert,
    "resnet-50": resnet,
}
_NEEDS_TRANSFORMERS: Final = frozenset({"bert-base", "resnet-50"})


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found for one model."""

    name: str
    explanation: Explanation
    comparison: Comparison

    @property
    def weft(self) -> Measurement:
        return self.comparison["weft"]

    @property
    def good(self) -> bool:
        error = self.weft.error
        return error is not None and error <= TOLERANCE and not self.explanation.fallbacks


@contextmanager
def progress(console: Console, title: str) -> Iterator[None]:
    """A line that names the stage at work, while the block compiles. It is drawn at events only:
    a spinner's thread would disturb what is measured."""
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as display:
        task = display.add_task(f"{title}: capture")
        done: dict[str, int] = {}

        def show(event: Event) -> None:
            if event.kind == "stage_start":
                kernels = f", {done['kernel']} kernels" if "kernel" in done else ""
                display.update(task, description=f"{title}: {event.fields['name']}{kernels}",
                               refresh=True)
            else:
                done[event.kind] = done.get(event.kind, 0) + 1

        end = events.subscribe(show)
        try:
            yield
        finally:
            end()


def try_model(console: Console, name: str, *, quick: bool) -> Outcome:
    """Compile one model, compare it with eager and measure both."""
    torch.manual_seed(0)
    example = MODELS[name]()
    with torch.no_grad(), events.collect() as seen, progress(console, name):
        comparison = weft.benchmark(
            example.model.eval(), (), example.inputs, rounds=5 if quick else 15,
            seconds=5 if quick else 20)
    return Outcome(name, Explanation.from_events(seen, name=name), comparison)


def show(console: Console, outcome: Outcome) -> None:
    """One model's explanation, long tables cut, and its figures."""
    render(outcome.explanation, console, most_rows=8)
    console.print(outcome.comparison)


def summary(outcomes: list[Outcome]) -> Table:
    """One row a model."""
    table = Table(title="weft demo", title_justify="left")
    for column in ("model", "graphs", "breaks", "guards", "kernels", "ATen", "first call",
                   "eager", "weft", "speed-up", "error"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for o in outcomes:
        e, eager = o.explanation, o.comparison["eager"]
        speedup, error = o.comparison.speedup("weft"), o.weft.error
        table.add_row(
            o.name, str(len(e.graphs)), str(len(e.graph_breaks)), str(len(e.guards)),
            str(len(e.kernels)), str(len(e.extern_calls)), seconds_text(o.weft.first_call or 0.0),
            seconds_text(eager.median), seconds_text(o.weft.median),
            "-" if speedup is None else f"{speedup:.2f} x",
            "-" if error is None else f"{error:.0e}")
    return table


def run(console: Console, names: list[str], *, quick: bool) -> bool:
    """Show each model in turn; whether all were compiled and right."""
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        console.print(f"no model named {', '.join(unknown)}; there are {', '.join(MODELS)}")
        return False
    if importlib.util.find_spec("transformers") is None:
        skipped = [n for n in names if n in _NEEDS_TRANSFORMERS]
        names = [n for n in names if n not in _NEEDS_TRANSFORMERS]
        console.print(f"without transformers: {', '.join(skipped)} left out "
                      "(pip install transformers)")
    outcomes = []
    for name in names:
        outcomes.append(try_model(console, name, quick=quick))
        show(console, outcomes[-1])
    console.print(summary(outcomes))
    wrong = [o.name for o in outcomes if not o.good]
    if wrong:
        console.print(f"wrong or not compiled: {', '.join(wrong)}", style="bold red")
    return not wrong
