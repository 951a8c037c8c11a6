"""Operators of PyTorch's op_db under symbolic sizes: wrong results, errors, and what fixes sizes.

    python -m tools.symbolic_operators [--backend aot_eager] [--samples 4] [--only NAME]
        [--torch] [--training]

Every sample is compiled with ``dynamic=True`` (all sizes of all tensors symbolic) and compared with
eager. A symbol that ends with one value only was *fixed*: such an operator is compiled again for
each size. With ``--torch`` torch.compile's count of fixed symbols stands beside it; with
``--training`` tensors need gradients, so what the backward fixes counts too.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import weft
from weft.diagnostics import events

_RANDOM = re.compile(r"rand|dropout|bernoulli|multinomial|normal|cauchy|exponential|empty|uniform"
                     r"|geometric|rrelu|log_normal|fractional")


@dataclass
class Row:
    """What became of one operator's samples."""

    name: str
    right: int = 0
    symbols: int = 0
    fixed: int = 0
    peer: int = 0
    breaks: int = 0
    problems: list[str] = field(default_factory=list)


def programs(
    op: Any, count: int, training: bool
) -> Iterator[tuple[Callable[..., Any], list[torch.Tensor]]]:
    """Each sample as a function of its tensors."""
    training = training and op.supports_autograd
    samples = list(op.sample_inputs("cpu", torch.float32, requires_grad=training))
    for sample in samples[:: max(1, len(samples) // count)][:count]:
        leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

        def run(
            *tensors: torch.Tensor, leaves: Any = leaves, where: Any = where, spec: Any = spec
        ) -> Any:
            given = list(leaves)
            for i, tensor in zip(where, tensors, strict=True):
                given[i] = tensor
            first, args, kwargs = pytree.tree_unflatten(given, spec)
            return op(first, *args, **kwargs)

        yield run, [leaves[i] for i in where]


def symbols_of(seen: list[Any]) -> tuple[int, int]:
    """How many symbols there were, and how many the program fixed to one value."""
    rows = [row for event in seen if event.kind == "symbols" for row in event.fields["symbols"]]
    fixed = sum(bool(re.search(rf"(^|; ){name} == \d+($| |;)", asked)) for name, *_, asked in rows)
    return len(rows), fixed


def measure(row: Row, run: Callable[..., Any], tensors: list[torch.Tensor], backend: str) -> None:
    """Compile, run, compare."""
    expected = run(*[t.clone() for t in tensors])
    weft.reset()
    before = weft.stats()["graph_breaks"]
    with events.collect() as seen:
        actual = weft.compile(run, backend=backend, dynamic=True)(*[t.clone() for t in tensors])
    torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-4, atol=1e-4)
    symbols, fixed = symbols_of(seen)
    row.right += 1
    row.symbols += symbols
    row.fixed += fixed
    row.breaks += weft.stats()["graph_breaks"] - before
    row.problems += [f"eager: {e.fields.get('error')}" for e in seen if e.kind == "fallback"]


def fixed_by_torch(run: Callable[..., Any], tensors: list[torch.Tensor]) -> int:
    """Symbols that torch.compile's engine fixed for the same program."""
    torch._dynamo.reset()
    fixed = 0

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nonlocal fixed
        for value in (n.meta.get("example_value") for n in gm.graph.nodes):
            context = getattr(getattr(value, "fake_mode", None), "shape_env", None)
            if context is not None:
                fixed = sum(v.is_number for v in context.replacements.values())
        return gm.forward

    torch.compile(run, backend=backend, dynamic=True)(*[t.clone() for t in tensors])
    return fixed


def examine(op: Any, arguments: argparse.Namespace) -> Row:
    """All chosen samples of one operator."""
    row = Row(op.name if not op.variant_test_name else f"{op.name}.{op.variant_test_name}")
    try:
        for run, tensors in programs(op, arguments.samples, arguments.training):
            measure(row, run, tensors, arguments.backend)
            if arguments.torch:
                row.peer += fixed_by_torch(run, tensors)
    except Exception as error:  # noqa: BLE001  the table tells it
        row.problems.append(f"{type(error).__name__}: {str(error).splitlines()[0][:110]}")
    return row


def report(rows: list[Row]) -> None:
    """The operators that differ or fix sizes, then the sums."""
    for row in rows:
        if row.problems or row.fixed:
            print(f"{row.name:45} right {row.right} symbols {row.symbols:3} fixed {row.fixed:3} "
                  f"torch {row.peer:3} breaks {row.breaks} {'; '.join(row.problems[:2])}")
    total: Counter[str] = Counter()
    for row in rows:
        total.update(operators=1, samples=row.right, symbols=row.symbols, fixed=row.fixed,
                     torch=row.peer, fixing=bool(row.fixed), problems=bool(row.problems))
    print(dict(total))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--samples", type=int, default=3, help="of each operator, spread evenly")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    parser.add_argument("--every", type=int, default=1, help="every n-th operator")
    parser.add_argument("--torch", action="store_true", help="torch.compile's fixed symbols too")
    parser.add_argument("--training", action="store_true", help="tensors need gradients")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [op for op in op_db[:: arguments.every] if arguments.only in op.name
              and torch.float32 in op.dtypes and not _RANDOM.search(op.name)]
    with torch.set_grad_enabled(arguments.training):
        report([examine(op, arguments) for op in chosen])


if __name__ == "__main__":
    main()
