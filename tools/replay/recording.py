"""Records what weft makes of programs: a folder for each, with a text for each intermediate form.

Place in the pipeline: between `programs.py` and the folders that `comparison.py` reads::

    record(Path("/tmp/before"), all_programs(), jobs=2)
    # /tmp/before/models/bert-call/{graphs,guards,aot,schedule,kernels,cpp,calls,triton,…}.txt

Programs run in forked processes, so that none depends on the others. Kernels are written, but not
compiled: the ATen graph runs instead. Each program runs a second time with the schedule of a GPU,
for the Triton texts. What depends on the machine's speed, on addresses and on temporary folders
does not enter the texts.
"""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import signal
import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest import mock

import numpy as np
import torch

import weft
from tools.replay.programs import Program
from weft.aot.python_code import compile_calls
from weft.aot.tracing import record_special
from weft.backends import inductor
from weft.capture.guards import guard_set
from weft.codegen import Artifact, compile_graph, cpp, targets
from weft.codegen.ir.loop_ir import Kernel
from weft.codegen.lowering import variance
from weft.codegen.scheduling import rematerialization, schedule
from weft.codegen.triton.specializations import Specializations
from weft.codegen.triton.target import spell
from weft.config import config
from weft.diagnostics import events
from weft.diagnostics.artifacts import ARTIFACTS
from weft.diagnostics.events import Event
from weft.quoting import printable
from weft.runtime import gemm_speed

LONGEST: Final = 900
"""Seconds after which a program is ended."""
_FILES: Final[Mapping[str, str]] = {
    "graph": "graphs", "guards": "guards", "bytecode": "replacements", "graph_break": "breaks",
    "recompile": "breaks", "limit": "breaks", "uncompiled": "breaks", "fallback": "breaks",
    "aot": "aot", "schedule": "schedule", "kernel": "kernels", "output_code": "calls",
}
"""Kind of event -> the text that it goes into."""
_ON_GPU: Final = {"schedule": "gpu-schedule", "output_code": "gpu-calls"}
_FORMATS: Final = {kind: form for forms in ARTIFACTS.values() for kind, form in forms.items()}

Spelling = Callable[[Kernel, Mapping[str, int]], str]
"""A kernel as a target's text, for likely values of its sizes."""
Texts = dict[str, str]
"""The texts of a program, by name."""


def record(folder: Path, programs: Mapping[str, Program], jobs: int) -> list[str]:
    """Write the texts of all programs, in so many processes; returns the programs that failed."""
    shutil.rmtree(folder, ignore_errors=True)
    weft.reset()  # imports all of weft: once
    waiting, running, failed = [*programs], {}, []
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[_fork(partial(_write, folder / name, programs[name]))] = name
        process, status = os.wait()
        if status:
            failed.append(running[process])
        del running[process]
    return failed


def _fork(work: Callable[[], None]) -> int:
    sys.stdout.flush()
    with warnings.catch_warnings():
        # Python 3.12: PyTorch's threads are there, but have nothing to do now.
        warnings.filterwarnings("ignore", ".*use of fork.*", DeprecationWarning)
        process = os.fork()
    if process:
        return process
    how = 1
    try:
        signal.alarm(LONGEST)
        work()
        how = 0
    except BaseException:  # noqa: BLE001  whatever it is, the program has failed
        traceback.print_exc()
    finally:
        os._exit(how)


def _write(folder: Path, program: Program) -> None:
    torch.set_num_threads(1)  # PyTorch's pool is made anew after a fork: by one thread
    for name, text in texts_of(program).items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_text(text)


def texts_of(program: Program) -> Texts:
    """What weft makes of a program; it must be the first that this process compiles."""
    texts = _texts_of_run(program, _FILES, _cpp_text, "cpp")
    with on_gpu_schedule():
        return texts | _texts_of_run(program, _ON_GPU, _triton_text, "triton")


def _texts_of_run(
    program: Program, files: Mapping[str, str], spelled: Spelling, target: str
) -> Texts:
    parts: defaultdict[str, list[str]] = defaultdict(list)

    def note(event: Event) -> None:
        if event.kind in files:
            parts[files[event.kind]].append(_FORMATS[event.kind](event.fields))

    weft.reset()
    end = events.subscribe(note)
    try:
        with written_kernels(lambda k, hints: parts[target].append(spelled(k, hints))), quiet():
            outcome = _outcome(program)
    finally:
        end()
    if target == "cpp":
        parts["outcome"].append(outcome)
    return {name: neutral("\n\n".join(some)) + "\n" for name, some in parts.items()}


def _outcome(program: Program) -> str:
    """How the program ends: its values are the tests' business."""
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    try:
        program(weft.compile)
    except Exception as error:  # noqa: BLE001  programs may raise
        return f"raises {type(error).__name__}: {error}"
    return "returns"


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def written_kernels(note: Callable[[Kernel, Mapping[str, int]], object]) -> Iterator[None]:
    """Within: kernels are noted and not compiled; ATen graphs run operator by operator. What is
    measured elsewhere is assumed."""

    def compiled(
        kernels: Sequence[Kernel], _: object, hints: Mapping[str, int]
    ) -> list[Callable[..., None]]:
        for kernel in kernels:
            note(kernel, hints)
        return [_not_run] * len(kernels)

    def compile_and_run_otherwise(graph: Any) -> Any:
        calls = compile_calls(graph)
        compile_graph(graph)
        return Artifact(calls.call, calls.source)

    with (
        config.patch(disk_cache=False, simd="avx2" if cpp_has_avx2() else ""),
        mock.patch.object(targets, "compile_kernels", compiled),
        mock.patch.object(inductor, "compile_graph", compile_and_run_otherwise),
        mock.patch.object(gemm_speed, "_advantage", lambda *_: 2.0),
        mock.patch.object(guard_set, "short", partial(guard_set.short, most=1 << 20)),
    ):
        yield


def cpp_has_avx2() -> bool:
    return "avx2" in gemm_speed.machine_features()


def _not_run(*_: object) -> None:
    raise AssertionError("kernels of a replay are not run")


@contextmanager
def on_gpu_schedule() -> Iterator[None]:
    """Within: kernels on the CPU are scheduled as on a GPU (as `tools.triton_interpreter` does)."""
    with (
        mock.patch.object(schedule, "is_on_gpu", lambda group: True),
        mock.patch.object(variance, "CUT_ON", {"cpu"}),
        mock.patch.object(record_special, "BIAS_APART_ON", {"cpu"}),
        mock.patch.dict(
            rematerialization.MOST_OPERATORS, cpu=rematerialization.MOST_OPERATORS["cuda"]),
    ):
        yield


def _cpp_text(kernel: Kernel, _: Mapping[str, int]) -> str:
    return f"// {kernel.name}\n{cpp.source_of(kernel)}"


def _triton_text(kernel: Kernel, hints: Mapping[str, int]) -> str:
    """The specialization of the kernel for the sizes of the call."""
    known = Specializations(kernel) if kernel.sizes else None
    choice = known and known.best(tuple(hints.get(name, _UNKNOWN_SIZE) for name in known.names))
    try:
        parts, _ = spell(kernel, choice)
    except NotImplementedError as error:
        return f"# {kernel.name}: {type(error).__name__}: {error}"
    return "\n\n".join(
        f"{part.listing}\n# programs: {part.source.programs}, warps: {part.source.num_warps}, "
        f"types: {part.source.signature}, divisors: {part.source.divisors}, "
        f"multiples: {part.source.multiples}" for part in parts)


_UNKNOWN_SIZE: Final = 64
"""As in `codegen/triton/target.py`: a size that depends on data."""


# -- neutral texts --------------------------------------------------------------------------------

_WEFT: Final = Path(weft.__file__).parent
_OWN_FILES: Final = frozenset(file.name for file in _WEFT.rglob("*.py"))
_ROOT: Final = Path(__file__).parents[2]


def neutral(text: str) -> str:
    """The text without what differs between runs and places: addresses, temporary files, folders;
    and without line numbers in weft's own files."""
    text = printable(text)
    for place, name in ((f"{_WEFT}/", "weft/"), (f"{_ROOT}/", ""), (f"{sys.prefix}/", "")):
        text = text.replace(place, name)
    text = re.sub(r"/\S*/(weft-process-|tmp)\w+", "<temporary>", text)
    text = re.sub(r"\b0x[0-9a-f]{6,}", "<address>", text)
    text = re.sub(r"\b\d{12,}\b", "<address>", text)
    return re.sub(r"\b(\w+\.py)(, line |:)\d+", _without_line, text)


def _without_line(found: re.Match[str]) -> str:
    return found[1] if found[1] in _OWN_FILES else found[0]
