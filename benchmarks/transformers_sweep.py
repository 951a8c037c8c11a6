"""Every transformers architecture (small, random weights) through weft, compared with eager.

    python -m benchmarks.transformers_sweep                 # all types, backend "eager": capture
    python -m benchmarks.transformers_sweep --backend inductor --only bert,gpt2
    python -m benchmarks.transformers_sweep --peer          # torch.compile's graph counts
    python -m benchmarks.transformers_sweep --dynamic       # dynamic=True, two other sizes afterwards
    python -m benchmarks.transformers_sweep --train --backend inductor      # two training steps
    python -m benchmarks.transformers_sweep --backend inductor --device cuda --jobs 15

Each type runs in a worker process with a limit of processor time; a crash or time-out is a row like any other.
The table lists: right (equal to eager at two calls), graphs, breaks, and the first reason of a
break. With --dynamic also the two other sizes (batch x length, + pixels of an image's side) with
the recompiles that each took; a size that the model refuses in eager is left out.
"""

from __future__ import annotations

import argparse
import copy
import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.model_inputs import Sizes
from benchmarks.small_models import Case, NotBuildable, build, model_types, on_device
from benchmarks.verdicts import WRONG, raises_itself, seeded, verdict

SECONDS_PER_TYPE: Final = 120
TYPES_PER_WORKER: Final = 12
RESULT: Final = "RESULT "
OTHER_SIZES: Final = (
    (Sizes(3, 24, 1), Sizes(3, 24), Sizes(3), Sizes(2, 24)),
    (Sizes(5, 11, 2), Sizes(5, 11), Sizes(5), Sizes(2, 11)),
)
"""What --dynamic calls with after the first size; of each row the first that eager takes."""


def main() -> None:
    """Parse the command line; run as the coordinator or, with --worker, as one of its processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--only", default="", help="comma-separated model types")
    parser.add_argument(
        "--peer", action="store_true", help="count torch.compile's graphs, not ours"
    )
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--device", default="cpu", help="where the models are")
    parser.add_argument(
        "--train", action="store_true", help="training steps: gradients of all parameters too"
    )
    parser.add_argument("--mode", help="weft.compile's mode; more calls, so that graphs replay")
    parser.add_argument("--every", type=int, default=1, help="take each N-th type")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the rows here as JSON lines")
    parser.add_argument("--rows", type=Path, nargs="*", default=[], help="rows of earlier runs "
                        "(the last one of a type counts), in place of a run")
    parser.add_argument("--peer-rows", type=Path, nargs="*", default=[], help="rows of --peer runs")
    parser.add_argument("--note", default="", help="where the rows come from, for --page")
    parser.add_argument("--page", type=Path, help="write the table as a page (docs)")
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
    else:
        rows = list(stored(arguments.rows) or sweep(arguments))
        if arguments.page:
            arguments.page.write_text(page(rows, list(stored(arguments.peer_rows)), arguments.note))
        if arguments.out:
            arguments.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(table(rows))


# --- the coordinator -----------------------------------------------------------------------------


def sweep(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows of all chosen types, in order, from worker processes."""
    names = arguments.only.split(",") if arguments.only else model_types()[:: arguments.every]
    chunks = [names[i : i + TYPES_PER_WORKER] for i in range(0, len(names), TYPES_PER_WORKER)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for rows in pool.map(lambda chunk: list(run_chunk(chunk, arguments)), chunks):
            yield from rows


def run_chunk(names: list[str], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the types in one worker; after a crash or time-out go on with the rest in a new one."""
    left = list(names)
    while left:
        command = [sys.executable, "-m", "benchmarks.transformers_sweep", "--worker",
                   "--backend", arguments.backend, "--device", arguments.device,
                   "--only", ",".join(left)]
        command += ["--peer"] * arguments.peer + ["--dynamic"] * arguments.dynamic
        command += ["--train"] * arguments.train
        command += ["--mode", arguments.mode] if arguments.mode else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith(RESULT):
                    row = json.loads(line.removeprefix(RESULT))
                    left.remove(row["name"])
                    print(json.dumps(row), file=sys.stderr, flush=True)
                    yield row
        if left and process.returncode != 0:
            row = {"name": left.pop(0), "status": "crash", "detail": f"exit {process.returncode}"}
            print(json.dumps(row), file=sys.stderr, flush=True)
            yield row
        elif left:
            raise RuntimeError(f"the worker ended without rows for {left}")


def stored(files: Iterable[Path]) -> list[dict[str, Any]]:
    """The rows in files of JSON lines (other lines are passed over), one for each type."""
    rows: dict[str, dict[str, Any]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                rows[row["name"]] = row
    return [rows[name] for name in sorted(rows)]


def is_whole(row: dict[str, Any]) -> bool:
    """Whether a type was captured in one graph."""
    return row["status"] in ("right", "wrong") and row.get("breaks") == 0


def page(rows: list[dict[str, Any]], peer: list[dict[str, Any]], note: str) -> str:
    """The page of docs/: totals, and every type that is not one right graph, beside the peer."""
    built = [r for r in rows if r["status"] != "not buildable"]
    theirs = {r["name"]: r for r in peer if r["status"] != "not buildable"}
    both = [r for r in built if r["name"] in theirs]
    lines = [
        "# Transformers sweep",
        "",
        "Every model type of transformers that builds from a small random config, captured at "
        "default settings (backend `eager`), twice, compared with eager. Written by "
        "`python -m benchmarks.transformers_sweep --page docs/transformers-sweep.md [--rows ...] "
        "[--peer-rows ...]`; rows come from that command's `--out`, with `--peer` for torch.compile.",
        "",
        f"- {len(rows)} types, {len(built)} built; captured whole: {_share(built)}",
    ]
    lines += [f"- {note}"] if note else []
    if both:
        lines.append(f"- the {len(both)} types that torch.compile was run on too: weft whole "
                     f"{_share(both)}, torch.compile whole {_share([theirs[r['name']] for r in both])}")
    lines += ["", "| model type | result | graphs | breaks | torch.compile: result, graphs, breaks "
              "| first break or error |", "|---|---|---|---|---|---|"]
    lines += [_page_row(r, theirs.get(r["name"])) for r in built
              if r["status"] != "right" or not is_whole(r) or r.get("detail")]
    return "\n".join(lines + _only_whole_here(both, theirs)) + "\n"


def _only_whole_here(rows: list[dict[str, Any]], theirs: dict[str, dict[str, Any]]) -> list[str]:
    """A table of the types that torch.compile does not capture whole."""
    lines = ["", "Whole here, and not with torch.compile:", "",
             "| model type | torch.compile: result, graphs, breaks | its first break or error |",
             "|---|---|---|"]
    for name in (r["name"] for r in rows if is_whole(r) and not is_whole(theirs[r["name"]])):
        row = theirs[name]
        counts = ", ".join(str(row.get(key, "")) for key in ("status", "graphs", "breaks"))
        detail = " ".join(str(row.get("detail", "")).split()).replace("|", "/")[:100]
        lines.append(f"| {name} | {counts} | {detail} |")
    return lines


def _share(rows: list[dict[str, Any]]) -> str:
    whole = sum(map(is_whole, rows))
    right = sum(r["status"] == "right" for r in rows)
    return f"{whole} ({100 * whole / max(len(rows), 1):.1f} %), equal to eager: {right}"


def _page_row(row: dict[str, Any], peer: dict[str, Any] | None) -> str:
    theirs = "" if peer is None else ", ".join(
        str(peer.get(key, "")) for key in ("status", "graphs", "breaks"))
    detail = str(row.get("detail", "")).replace("\n", " ").replace("|", "/")
    detail = detail.split("site-packages/")[-1][:140] if "/" in detail[:60] else detail[:140]
    cells = (row["name"], row["status"], row.get("graphs", ""), row.get("breaks", ""), theirs, detail)
    return "| " + " | ".join(map(str, cells)) + " |"


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Markdown: a line per type that is not one right graph, then the totals."""
    lines = [
        "| model type | status | graphs | breaks | recompiles | first break or error |",
        "|---|---|---|---|---|---|",
    ]
    totals: Counter[str] = Counter()
    for row in rows:
        totals[row["status"]] += 1
        again = _recompiles(row)
        whole = row["status"] == "right" and not row.get("breaks") and not row.get("uncompiled")
        totals["whole"] += whole
        totals["without recompiles"] += row["status"] == "right" and not again
        totals["at three sizes"] += len(row.get("recompiles", ())) == 3
        if (again or not whole) and row["status"] != "not buildable":
            detail = str(row.get("detail", "")).replace("\n", " ").replace("|", "/")[:160]
            cells = (row["name"], row["status"], row.get("graphs", ""), row.get("breaks", ""),
                     again, detail)
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines.append("")
    lines.append(", ".join(f"{name}: {count}" for name, count in totals.most_common()))
    return "\n".join(lines)


def _recompiles(row: dict[str, Any]) -> str:
    """The sizes that were compiled again, with how often."""
    counts = row.get("recompiles") or {}
    return ", ".join(f"{size}: {count}" for size, count in counts.items() if count)


# --- a worker ------------------------------------------------------------------------------------


def worker(arguments: argparse.Namespace) -> None:
    """Run each type of --only and print a row for each."""
    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)

    def out_of_time(*_: object) -> None:
        os._exit(124)

    signal.signal(signal.SIGPROF, out_of_time)
    for name in arguments.only.split(","):
        _limit(SECONDS_PER_TYPE)
        row = {"name": name, **examine(name, arguments)}
        _limit(0)
        print(RESULT + json.dumps(row), flush=True)


def _limit(seconds: int) -> None:
    """End the worker after so much processor time (other programs' load does not count)."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def examine(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build, run in eager, compile, run twice, compare."""
    import torch

    try:
        case = on_device(build(name), arguments.device)
    except NotBuildable as error:
        return {"status": "not buildable", "detail": str(error)[:300]}
    if arguments.train:
        return examine_training(case, arguments)
    with torch.no_grad():
        calls = {"first": case.kwargs}
        expected = {"first": seeded(case.model, case.kwargs)}
        if arguments.dynamic:
            _other_calls(case, calls, expected)
        _limit(SECONDS_PER_TYPE)  # for the compiler: eager may take minutes of large images
        try:
            count = _count_peer if arguments.peer else _count_weft
            results, row = count(case, calls, arguments)
        except Exception as error:  # a failure of the compiler under test is a row
            own = any(raises_itself(case.model, kwargs, error) for kwargs in calls.values())
            return {"status": "right" if own else "error",
                    "detail": f"{type(error).__name__}: {error}"[:500]}
        verdicts = [(size, verdict(case.model, calls[size], result, expected[size]))
                    for size, result in results]
    wrong = [size for size, one in verdicts if one == WRONG]
    notes = [one for _, one in verdicts if one]
    detail = f"wrong at {wrong}" if wrong else row["detail"] or (notes[0] if notes else "")
    return {"status": "wrong" if wrong else "right", **row, "detail": detail}


Calls = dict[str, dict[str, Any]]
"""Keyword arguments by the name of their size."""


def _other_calls(case: Case, calls: Calls, expected: dict[str, Any]) -> None:
    """Adds the arguments of the other sizes that the model takes in eager, and eager's results."""
    for sizes in OTHER_SIZES:
        for one in sizes:
            try:
                kwargs = case.at(one)
                expected[str(one)] = seeded(case.model, kwargs)
            except Exception:  # the model refuses this size: the next
                continue
            calls[str(one)] = kwargs
            break


def examine_training(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Two training steps, compared with eager's."""
    import weft
    from benchmarks.training_sweep import differences
    from weft.diagnostics import events

    dynamic = True if arguments.dynamic else None
    start = time.perf_counter()
    weft.reset()
    as_eager_draws = weft.config.patch(strict=True, fallback_random=True)
    with as_eager_draws, events.collect() as seen:
        try:
            text, note = differences(
                case.model, case.kwargs, 1 + _first_calls(arguments),
                lambda m: weft.compile(
                    m, backend=arguments.backend, dynamic=dynamic, mode=arguments.mode),
            )
        except Exception as error:  # a failure of the compiler under test is a row
            return {"status": "error", "detail": f"{type(error).__name__}: {error}"[:500]}
    stats = weft.stats()
    notes = [note] if note else []
    notes += [str(e.reason) for e in seen if e.kind == "graph_break"]
    notes += [f"not compiled: {e.reason}" for e in seen if e.kind == "uncompiled"]
    return {
        "status": "wrong" if text else "right", "graphs": stats["graphs"],
        "breaks": stats["graph_breaks"], "detail": text or (notes[0] if notes else ""),
        "uncompiled": stats["uncompiled_graphs"],
        "seconds": round(time.perf_counter() - start, 2),
    }


def _count_weft(
    case: Case, calls: Calls, arguments: argparse.Namespace
) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    import weft
    from weft.diagnostics import events

    weft.reset()
    weft.config.strict = True
    start = time.perf_counter()
    recompiles: dict[str, int] = {}
    with events.collect() as seen:
        compiled = weft.compile(
            case.model, backend=arguments.backend, dynamic=True if arguments.dynamic else None,
            mode=arguments.mode,
        )
        results = []
        for size in (*["first"] * _first_calls(arguments), *calls):
            before = weft.stats()["recompiles"]
            result = seeded(compiled, calls[size])
            # a result that is held keeps its CUDA graph from being replayed
            results.append((size, copy.deepcopy(result) if arguments.mode else result))
            recompiles[size] = weft.stats()["recompiles"] - before
    stats = weft.stats()
    reasons = [str(event.reason) for event in seen if event.kind == "graph_break"]
    reasons += [f"not compiled: {event.reason}" for event in seen if event.kind == "uncompiled"]
    return results, {
        "graphs": stats["graphs"], "breaks": stats["graph_breaks"], "recompiles": recompiles,
        "uncompiled": stats["uncompiled_graphs"],
        "detail": reasons[0] if reasons else "", "seconds": round(time.perf_counter() - start, 2),
    }


def _first_calls(arguments: argparse.Namespace) -> int:
    return 4 if arguments.mode else 1


def _count_peer(
    case: Case, calls: Calls, arguments: argparse.Namespace
) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    import torch
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.utils.counters.clear()
    start = time.perf_counter()
    compiled = torch.compile(
        case.model, backend=arguments.backend, dynamic=True if arguments.dynamic else None
    )
    results = [(size, seeded(compiled, calls[size])) for size in ("first", *calls)]
    breaks = dynamo.utils.counters["graph_break"]
    return results, {
        "graphs": dynamo.utils.counters["stats"]["unique_graphs"], "breaks": sum(breaks.values()),
        "detail": next(iter(breaks), ""), "seconds": round(time.perf_counter() - start, 2),
    }


if __name__ == "__main__":
    main()
