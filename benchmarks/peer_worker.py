"""One model in one runtime, in a process of its own, which measures blocks of calls when told to.

    python -m benchmarks.peer_worker mobilenet-v2 4 openvino 2 wall

It prints a JSON object: `{"first": seconds, "error": of the result}`, or `{"failed": why}`. For
each number that it then reads, it makes so many calls and prints their seconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings

import torch

from benchmarks.peer_models import build
from benchmarks.peers import PEERS, Call
from benchmarks.worker import CLOCKS
from weft.diagnostics.accuracy import relative_error
from weft.diagnostics.timing import Clock

WARM: int = 3
"""Calls before the first block: some runtimes choose and pack during the first ones."""


def prepared(name: str, batch: int, peer: str, threads: int) -> tuple[Call, dict[str, object]]:
    """The call; and the seconds until its first result, and that result's error against eager."""
    model, inputs = build(name, batch)
    expected = model(*inputs)
    start = time.perf_counter()
    call = PEERS[peer](model, inputs, threads)
    call()
    first = time.perf_counter() - start
    for _ in range(WARM):
        result = call()
    error = relative_error([result], [expected])
    if result.shape != expected.shape or result.dtype != expected.dtype:
        error = float("inf")
    return call, {"first": round(first, 2), "error": error}


def block(call: Call, calls: int, clock: Clock) -> list[float]:
    """The seconds of each call, after one that is not counted: other processes ran before."""
    call()
    times = []
    for _ in range(calls):
        start = clock()
        call()
        times.append(clock() - start)
    return times


def main(arguments: list[str]) -> None:
    name, batch, peer, threads, clock = arguments
    results = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what runtimes print is not a result
    warnings.simplefilter("ignore")
    torch.set_num_threads(int(threads))
    with torch.no_grad():
        try:
            call, about = prepared(name, int(batch), peer, int(threads))
        except ImportError as error:
            print(json.dumps({"failed": f"not installed: {error.name}"}), file=results)
            return
        except Exception as error:  # a model that a runtime cannot take is a result
            text = " ".join(str(error).split())[:200]
            print(json.dumps({"failed": f"{type(error).__name__}: {text}"}), file=results)
            return
        print(json.dumps(about), file=results)
        for line in sys.stdin:
            print(json.dumps(block(call, int(line), CLOCKS[clock])), file=results)


if __name__ == "__main__":
    main(sys.argv[1:])
