"""Every operator, and every module, of PyTorch's testing databases, forward and gradients.

    python tests/aot/op_table.py                                  # op_db, float32, inductor
    python tests/aot/op_table.py --modules --dtypes float32,float64
    python tests/aot/op_table.py --backends aot_eager,inductor --dtypes float32,float64
    python tests/aot/op_table.py --variants all --every 5         # layouts of the inputs
    python tests/aot/op_table.py --through compile                # weft.compile, with capture
    python tests/aot/op_table.py --through dynamic                # ... with symbolic sizes
    python tests/aot/op_table.py --errors                         # calls that eager refuses
    python tests/aot/op_table.py --forms --through compile        # methods, in place, out=
    python tests/aot/op_table.py --device cuda --dtypes float32,bfloat16 --jobs 15
    python tests/aot/op_table.py --peer --every 6                 # torch.compile's table beside
    python tests/aot/op_table.py --jobs 15 --out rows.jsonl       # goes on where it was stopped

One line per entry that is not equal to eager, then a table: a row per backend, dtype and way
through, a column per outcome. Each sample is one function of the sample's tensors. Entries run in
processes of their own: one that crashes costs one entry.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from comparing import RUNNERS, Outcome, Runner, compare, copies, flat_call, kind_of
from error_inputs import compare_errors, error_outcomes
from module_table import module_outcomes
from torch.utils._pytree import tree_map_only
from variants import VARIANTS, changed
from worker_processes import Died, in_processes

import weft

UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
                 "empty_permuted"}
"""Operators whose values mean nothing."""


def outcomes(
    op: Any, dtype: torch.dtype, runner: Runner, samples: int, variants: Iterable[str] = (),
    device: str = "cpu",
) -> Iterator[Outcome]:
    """The outcomes of an operator's first samples, as they are or in the given layouts."""
    if dtype not in op.supported_dtypes(device):
        return
    changes = {v: changed(v) for v in variants} or {"": copies}
    for sample in islice(_samples(op, dtype, device), samples):
        arguments = (sample.input, *sample.args)
        for name, change in changes.items():
            if device != "cpu" and _refused_by_cpu(op.op, arguments, sample.kwargs, change):
                continue
            found = compare(op.op, arguments, sample.kwargs, runner,
                            random=op.name in UNINITIALISED, change=change)
            if name and found.startswith("eager fails"):
                continue  # the layout does not suit the operator
            yield f"{found} [{name}]" if name and found != "equal" else found


def form_outcomes(
    op: Any, dtype: torch.dtype, runner: Runner, samples: int, device: str = "cpu"
) -> Iterator[Outcome]:
    """The outcomes of an operator's other forms; what eager refuses must be refused."""
    if dtype not in op.supported_dtypes(device):
        return
    for sample in islice(_samples(op, dtype, device), samples):
        for name, form in forms(op).items():
            found = compare(form, (sample.input, *sample.args), sample.kwargs, runner,
                            random=op.name in UNINITIALISED)
            if found.startswith("eager fails"):
                found = compare_errors(form, (sample.input, *sample.args), sample.kwargs, runner)
            yield f"{found} [{name}]" if found != "equal" else found


def forms(op: Any) -> dict[str, Callable[..., Any]]:
    """An operator as a method, in place and with `out=`."""
    made: dict[str, Callable[..., Any]] = {}
    if op.method_variant is not None:
        made["method"] = op.method_variant
    if op.inplace_variant is not None:
        made["in place"] = lambda x, *args, **kwargs: op.inplace_variant(x.clone(), *args, **kwargs)
    if op.supports_out:
        made["out"] = lambda *args, **kwargs: _with_out(op.op, args, kwargs)
    return made


def _with_out(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with torch.no_grad():
        out = tree_map_only(torch.Tensor, torch.empty_like, function(*args, **kwargs))
        return function(*args, **kwargs, out=out)


def _refused_by_cpu(
    function: Any, args: Sequence[Any], kwargs: dict[str, Any],
    change: Callable[[list[Any]], list[Any]],
) -> bool:
    """Whether a CPU raises where a GPU ends the process: at indices that are out of range."""
    args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.cpu, (args, kwargs))
    call, inputs = flat_call(function, args, kwargs)
    try:
        call(*change(inputs))
    except (IndexError, RuntimeError):
        return True
    return False


def _samples(op: Any, dtype: torch.dtype, device: str) -> Iterable[Any]:
    floating = dtype.is_floating_point or dtype.is_complex
    backward = floating and op.supports_autograd
    gradient = backward and dtype in op.supported_backward_dtypes(device)
    return op.sample_inputs(device, dtype, requires_grad=gradient)  # type: ignore[no-any-return]


class Task(NamedTuple):
    """One entry in one configuration."""

    through: str
    backend: str
    dtype: str
    name: str

    def row(self) -> str:
        """The table's row that it counts in."""
        if self.through == "peer":
            return f"torch {self.backend} {self.dtype}"
        return f"weft {self.backend} {self.dtype}" + " dynamic" * (self.through == "dynamic")


class Found(NamedTuple):
    """What became of a task: the worst of its samples' outcomes."""

    worst: str
    text: str
    bad: int
    samples: int


@functools.cache
def database(modules: bool) -> list[Any]:
    """PyTorch's entries. Importing them starts CUDA, after which no process can be forked."""
    if modules:
        from torch.testing._internal.common_modules import module_db

        return list(module_db)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def named_entries(options: argparse.Namespace) -> dict[str, Any]:
    """The chosen entries of the chosen database."""
    only = set(options.only.split(",")) - {""}
    chosen = {}
    for entry in database(options.modules)[options.start :: options.every]:
        variant = getattr(entry, "variant_test_name", "")
        name = entry.name + (f".{variant}" if variant else "")
        if not only or entry.name in only or name in only:
            chosen[name] = entry
    return chosen


def chosen_names(options: argparse.Namespace) -> list[str]:
    """Names of the chosen entries; on a GPU another process looks them up."""
    if options.device == "cpu":
        return list(named_entries(options))
    asked = in_processes(lambda _: list(named_entries(options)), [0], jobs=1, limit_s=300)
    return next(names for _, names in asked)


def run(task: Task, options: argparse.Namespace) -> Found:
    """A task's outcomes, counted by the worst."""
    entry = named_entries(options)[task.name]
    warnings.simplefilter("ignore")
    runner, dtype = RUNNERS[task.through](task.backend), getattr(torch, task.dtype)
    with weft.config.patch(strict=True):
        if options.errors:
            found = list(error_outcomes(entry, runner))
        elif options.forms:
            found = list(form_outcomes(entry, dtype, runner, options.samples, options.device))
        elif options.modules:
            found = list(module_outcomes(entry, dtype, runner, options.samples, options.device))
        else:
            found = list(outcomes(entry, dtype, runner, options.samples, _variants(options),
                                  options.device))
    weft.reset()
    if not found:
        return Found("no samples", "", 0, 0)
    worst = min(found, key=lambda outcome: _RANK[kind_of(outcome)])
    return Found(kind_of(worst), worst, sum(o != "equal" for o in found), len(found))


def _variants(options: argparse.Namespace) -> list[str]:
    if options.variants == "all":
        return list(VARIANTS)
    return [v for v in options.variants.split(",") if v]


_RANK = {k: i for i, k in enumerate(
    ("died", "output", "gradient", "input", "random", "raises", "fallback", "eager", "equal")
)}
"""From wrong to right."""


def all_found(options: argparse.Namespace) -> dict[Task, Found]:
    """What is found of all tasks, those of earlier runs (`--out`) included; prints what differs."""
    through = [*options.through.split(","), *["peer"] * options.peer]
    tasks = [Task(*t) for t in product(
        through, options.backends.split(","), options.dtypes.split(","),
        chosen_names(options),
    )]
    out = Path(options.out) if options.out else None
    found = {task: f for task, f in _read(out) if task in set(tasks)}
    until = time.monotonic() + options.budget_s

    def left() -> Iterator[Task]:
        for task in tasks:
            if task not in found and time.monotonic() < until:
                yield task

    def work(task: Task) -> Found:
        return run(task, options)

    done = in_processes(work, left(), jobs=options.jobs, limit_s=options.limit_s)
    for task, answer in done:
        row = Found("died", f"died: {answer.reason}", 1, 1) if isinstance(answer, Died) else answer
        found[task] = row
        if row.bad:
            print(f"{task.row()}  {task.name}: {row.text} ({row.bad}/{row.samples})", flush=True)
        if out is not None:
            with out.open("a") as file:
                print(json.dumps([task, row]), file=file)
    return found


def _read(out: Path | None) -> list[tuple[Task, Found]]:
    lines = out.read_text().splitlines() if out is not None and out.exists() else []
    return [(Task(*task), Found(*found)) for task, found in map(json.loads, lines)]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", default="inductor")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--modules", action="store_true", help="module_db instead of op_db")
    parser.add_argument("--through", default="graph", help="graph, compile, dynamic; or several")
    parser.add_argument("--device", default="cpu", help="where the inputs lie")
    parser.add_argument("--variants", default="", help="layouts of the inputs, or 'all'")
    parser.add_argument("--errors", action="store_true", help="calls that eager refuses")
    parser.add_argument("--forms", action="store_true", help="methods, in place, with out=")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="take each N-th entry")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--peer", action="store_true", help="torch.compile's table beside ours")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", help="file of rows (JSON): what it holds is not run again")
    parser.add_argument("--budget-s", type=float, default=float("inf"), help="of the run")
    parser.add_argument("--limit-s", type=float, default=300, help="of one entry")
    options = parser.parse_args()
    if options.jobs > 1:
        torch.set_num_threads(1)
    print(markdown(all_found(options)))


def markdown(found: dict[Task, Found]) -> str:
    """A row per configuration, a column per outcome."""
    counts: dict[str, Counter[str]] = {}
    for task, row in found.items():
        counts.setdefault(task.row(), Counter())[row.worst] += 1
    kinds = sorted({k for c in counts.values() for k in c}, key=lambda k: -_RANK.get(k, 9))
    lines = [f"| | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    lines += [
        f"| {row} | {' | '.join(str(c[k]) for k in kinds)} |" for row, c in sorted(counts.items())
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
