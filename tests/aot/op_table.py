"""Every operator, and every module, of PyTorch's testing databases, forward and gradients.

    python tests/aot/op_table.py                                  # op_db, float32, inductor
    python tests/aot/op_table.py --modules --dtypes float32,float64
    python tests/aot/op_table.py --backends aot_eager,inductor --dtypes float32,float64
    python tests/aot/op_table.py --variants all --every 5         # layouts of the inputs
    python tests/aot/op_table.py --through compile                # weft.compile, with capture
    python tests/aot/op_table.py --through dynamic                # ... with symbolic sizes
    python tests/aot/op_table.py --errors                         # calls that eager refuses
    python tests/aot/op_table.py --peer --every 6                 # torch.compile's table beside

One line per entry that is not equal to eager, then a table: a row per backend and dtype, a column
per outcome. Each sample is one function of the sample's tensors.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from comparing import RUNNERS, Outcome, Runner, compare, copies, kind_of
from error_inputs import error_outcomes
from module_table import module_outcomes
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from variants import VARIANTS, changed

import weft

UNINITIALISED = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
                 "empty_permuted"}  # fmt: skip
"""Operators whose values mean nothing."""


def outcomes(
    op: Any, dtype: torch.dtype, runner: Runner, samples: int, variants: Iterable[str] = ()
) -> Iterator[Outcome]:
    """The outcomes of an operator's first samples, as they are or in the given layouts."""
    if dtype not in op.dtypes:
        return
    changes = {v: changed(v) for v in variants} or {"": copies}
    for sample in islice(_samples(op, dtype), samples):
        arguments = (sample.input, *sample.args)
        for name, change in changes.items():
            found = compare(op.op, arguments, sample.kwargs, runner,
                            random=op.name in UNINITIALISED, change=change)  # fmt: skip
            if name and found.startswith("eager fails"):
                continue  # the layout does not suit the operator
            yield f"{found} [{name}]" if name and found != "equal" else found


def _samples(op: Any, dtype: torch.dtype) -> Iterable[Any]:
    floating = dtype.is_floating_point or dtype.is_complex
    gradient = floating and op.supports_autograd and dtype in op.backward_dtypes
    return op.sample_inputs("cpu", dtype, requires_grad=gradient)  # type: ignore[no-any-return]


def entries(options: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Names and entries of the chosen database."""
    only = set(options.only.split(",")) - {""}
    for entry in (module_db if options.modules else op_db)[options.start :: options.every]:
        variant = getattr(entry, "variant_test_name", "")
        name = entry.name + (f".{variant}" if variant else "")
        if not only or entry.name in only or name in only:
            yield name, entry


def table(options: argparse.Namespace, backend: str, dtype: str, through: str) -> Counter[str]:
    """Prints what is not equal; counts entries by their worst outcome."""
    counts: Counter[str] = Counter()
    runner = RUNNERS[through](backend)
    variants = VARIANTS if options.variants == "all" else options.variants.split(",")
    variants = [v for v in variants if v]
    for name, entry in entries(options):
        kind = getattr(torch, dtype)
        if options.errors:
            found = list(error_outcomes(entry, runner))
        elif options.modules:
            found = list(module_outcomes(entry, kind, runner, options.samples))
        else:
            found = list(outcomes(entry, kind, runner, options.samples, variants))
        bad = [o for o in found if o != "equal"]
        worst = min((kind_of(o) for o in bad), default="equal", key=_RANK.get)  # type: ignore[arg-type]
        counts[worst if found else "no samples"] += 1
        if bad:
            shown = next(o for o in bad if kind_of(o) == worst)
            print(f"  {name}: {shown} ({len(bad)}/{len(found)})", flush=True)
    return counts


_RANK = {k: i for i, k in enumerate(
    ("output", "gradient", "input", "random", "raises", "fallback", "eager", "equal")
)}  # fmt: skip
"""From wrong to right."""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backends", default="inductor")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--modules", action="store_true", help="module_db instead of op_db")
    parser.add_argument("--through", default="graph", choices=["graph", "compile", "dynamic"])
    parser.add_argument("--variants", default="", help="layouts of the inputs, or 'all'")
    parser.add_argument("--errors", action="store_true", help="calls that eager refuses")
    parser.add_argument("--only", default="", help="comma-separated names")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--every", type=int, default=1, help="take each N-th entry")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--peer", action="store_true", help="torch.compile's table beside ours")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[tuple[str, Counter[str]]] = []
    with weft.config.patch(strict=True):
        for backend in options.backends.split(","):
            for dtype in options.dtypes.split(","):
                for through in [options.through, "peer"] if options.peer else [options.through]:
                    row = f"{'torch' if through == 'peer' else 'weft'} {backend} {dtype}"
                    print(row, flush=True)
                    rows.append((row, table(options, backend, dtype, through)))
    print(markdown(rows))


def markdown(rows: list[tuple[str, Counter[str]]]) -> str:
    """A row per backend and dtype, a column per outcome."""
    kinds = sorted({k for _, counts in rows for k in counts}, key=lambda k: -_RANK.get(k, 9))
    lines = [f"| | {' | '.join(kinds)} |", "|---" * (len(kinds) + 1) + "|"]
    lines += [
        f"| {row} | {' | '.join(str(counts[k]) for k in kinds)} |" for row, counts in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
