"""Stored entries over transformers: does a second process take whole models from the store?

    python -m benchmarks.stored_sweep                        # every ninth type, inference, training
    python -m benchmarks.stored_sweep --only bert,gpt2 --ways training --backend aot_eager
    python -m benchmarks.stored_sweep --every 3 --out rows.jsonl

Each model (small, random weights) is compiled and called twice in one process, and again in a
second one with the same store; both are compared with eager. A type is *wholly from the store* if
the second process loads entries and captures, traces and lowers nothing. For the others the table
has the first reason, and the totals count the reasons by kind.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.small_models import NotBuildable, build, model_types
from benchmarks.transformers_sweep import TYPES_PER_WORKER
from benchmarks.verdicts import WRONG, seeded, verdict

RESULT: Final = "RESULT "
WORK: Final = frozenset({"capture", "aot", "partition", "lower", "schedule"})
"""The stages that a second process must not run."""
WAYS: Final = ("inference", "training")
COUNTERS: Final = ("entries_loaded", "entries_stored", "entries_not_stored", "backwards_loaded",
                   "backwards_stored")

Row = dict[str, Any]


def main() -> int:
    """Parse the command line; run as the coordinator or, with --worker, as one of its processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--only", default="", help="comma-separated model types")
    parser.add_argument("--every", type=int, default=9, help="take each N-th type")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--dynamic", action="store_true", help="dynamic=True")
    parser.add_argument("--out", type=Path, help="write the rows here as JSON lines")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options)
        return 0
    rows = list(sweep(options))
    if options.out:
        options.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(table(rows))
    return sum(row["first"].get("status") == "wrong" or row["second"].get("status") == "wrong"
               for row in rows)


# --- the coordinator -----------------------------------------------------------------------------


def sweep(options: argparse.Namespace) -> Iterator[Row]:
    """For each type and way, the rows of both processes."""
    names = options.only.split(",") if options.only else model_types()[:: options.every]
    for way in options.ways.split(","):
        for at in range(0, len(names), TYPES_PER_WORKER):
            chunk = names[at:at + TYPES_PER_WORKER]
            with tempfile.TemporaryDirectory() as folder:
                first, second = (_rows(chunk, way, Path(folder), options) for _ in range(2))
            for name in chunk:
                row = {"name": name, "way": way, "first": first[name], "second": second[name]}
                print(json.dumps(row), file=sys.stderr, flush=True)
                yield row


def _rows(names: list[str], way: str, folder: Path, options: argparse.Namespace) -> dict[str, Row]:
    """The rows of one process; if it dies, another one goes on behind the type that it died of."""
    rows: dict[str, Row] = {}
    while len(rows) < len(names):
        left = [name for name in names if name not in rows]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.stored_sweep", "--worker", way,
             "--backend", options.backend, "--only", ",".join(left), *["--dynamic"][
                 :options.dynamic]],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1",
                 "WEFT_CACHE_DIR": str(folder), "WEFT_STORE_ENTRIES": "1"})
        for line in done.stdout.splitlines():
            if line.startswith(RESULT):
                name, rows_of_name = json.loads(line.removeprefix(RESULT))
                rows[name] = rows_of_name
        lost = next((name for name in left if name not in rows), None)
        if lost is not None:
            rows[lost] = {"status": "crash", "detail": f"exit {done.returncode}"}
    return rows


def is_whole(row: Row) -> bool:
    """Whether the second process took the model from the store alone."""
    second = row["second"]
    return bool(second.get("entries_loaded")) and not second["work"]


def reasons(row: Row) -> list[str]:
    """Why a model is not wholly from the store: what was not kept, else what did not fit."""
    first, second = row["first"], row["second"]
    texts = first.get("not_stored", []) or second.get("not_loaded", [])
    return texts or [f"no reason; {second.get('work') or second.get('detail', '')}"]


def kind_of(reason: str) -> str:
    """A reason without the names and numbers of one model."""
    return re.sub(r"\d+", "N", reason)[:70]


def table(rows: list[Row]) -> str:
    """Markdown: a line for each model that is not wholly from the store, then totals, reasons."""
    lines = ["| type | way | first, second | entries stored, not, loaded | reason |",
             "|---|---|---|---|---|"]
    built = [row for row in rows if row["first"]["status"] != "not buildable"]
    for row in built:
        first, second = row["first"], row["second"]
        if not is_whole(row) or first["status"] != "right" or second["status"] != "right":
            counts = (first.get("entries_stored"), first.get("entries_not_stored"),
                      second.get("entries_loaded"))
            detail = first.get("detail") or second.get("detail") or reasons(row)[0]
            lines.append(f"| {row['name']} | {row['way']} | {first['status']}, {second['status']} |"
                         f" {', '.join(map(str, counts))} | {detail[:140]} |")
    lines += ["", *(_total(built, way) for way in dict.fromkeys(row["way"] for row in built)), ""]
    kinds = Counter(kind_of(text) for row in built if not is_whole(row)
                    for text in dict.fromkeys(reasons(row)))
    return "\n".join([*lines, *(f"{count:4} {kind}" for kind, count in kinds.most_common())])


def _total(rows: list[Row], way: str) -> str:
    own = [row for row in rows if row["way"] == way]
    whole, right = sum(map(is_whole, own)), sum(row["second"]["status"] == "right" for row in own)
    seconds = [sum(row[process].get("seconds", 0.0) for row in own)
               for process in ("first", "second")]
    return (f"{way}: {whole} of {len(own)} wholly from the store ({whole / max(len(own), 1):.0%}), "
            f"{right} right in the second process; calls took {seconds[0]:.0f} s, then "
            f"{seconds[1]:.0f} s")


# --- a worker ------------------------------------------------------------------------------------


def worker(options: argparse.Namespace) -> None:
    """Run each type of --only and print a row for each."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    for name in options.only.split(","):
        print(RESULT + json.dumps((name, examine(name, options))), flush=True)


def examine(name: str, options: argparse.Namespace) -> Row:
    """Build a model, compile it, compare it with eager, and say where its entries came from."""
    import weft
    from weft.diagnostics import events

    try:
        case = build(name)
    except NotBuildable as error:
        return {"status": "not buildable", "detail": str(error)[:200]}
    weft.reset()
    before = dict(events.counters())
    run = _train if options.worker == "training" else _infer
    with weft.config.patch(strict=True, fallback_random=True), events.collect() as seen:
        start = time.perf_counter()
        try:
            status, detail = run(case, options)
        except Exception as error:  # noqa: BLE001  a failure of the compiler under test is a row
            status, detail = "error", f"{type(error).__name__}: {error}"[:300]
        seconds = time.perf_counter() - start
    after = events.counters()
    return {
        "status": status, "detail": detail, "seconds": round(seconds, 2),
        **{name: after.get(name, 0) - before.get(name, 0) for name in COUNTERS},
        "work": Counter(e.name for e in seen if e.kind == "stage_start" and e.name in WORK),
        **{kind: [str(e.reason)[:200] for e in seen if e.kind == kind]
           for kind in ("not_stored", "not_loaded")},
    }


def _infer(case: Any, options: argparse.Namespace) -> tuple[str, str]:
    import torch

    import weft

    with torch.no_grad():
        expected = seeded(case.model, case.kwargs)
        compiled = weft.compile(case.model, backend=options.backend,
                                dynamic=True if options.dynamic else None)
        verdicts = [verdict(case.model, case.kwargs, seeded(compiled, case.kwargs), expected)
                    for _ in range(2)]
    return ("wrong" if WRONG in verdicts else "right"), ""


def _train(case: Any, options: argparse.Namespace) -> tuple[str, str]:
    import weft
    from benchmarks.training_sweep import differences

    text, _ = differences(case.model, case.kwargs, 2, lambda model: weft.compile(
        model, backend=options.backend, dynamic=True if options.dynamic else None))
    return ("wrong" if text else "right"), text


if __name__ == "__main__":
    sys.exit(main())
