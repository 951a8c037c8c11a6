"""What comes from outside while weft works: what signal handlers raise, exceptions set by threads.

An exception that a handler raised was taken for a failure of weft if it was an `Exception`: the
program ran eagerly, and its time limit was gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import weft
from tests.capture.test_robustness import numbered, process_state
from weft.config import config
from weft.interrupts import is_from_outside
from weft.runtime import compile_pool

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.linspace(-1, 1, 32).reshape(4, 8)


class Limit(Exception):
    """The program's own."""


RAISED = [Limit, KeyboardInterrupt, SystemExit, TimeoutError, MemoryError, RecursionError,
          AttributeError, NotImplementedError, weft.errors.GraphBreakError]


@pytest.fixture
def on_alarm() -> Iterator[Callable[[Callable[..., Any]], None]]:
    """Sets the program's handler of SIGALRM."""
    previous = signal.getsignal(signal.SIGALRM)
    yield lambda handler: void(signal.signal(signal.SIGALRM, handler))
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def void(_: object) -> None: ...


def raiser(error: BaseException) -> Callable[..., None]:
    def handler(*_: Any) -> None:
        raise error

    return handler


def arrive() -> None:
    signal.raise_signal(signal.SIGALRM)


# -- where weft compiles --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("strict", [True, False])
def test_what_a_handler_raises_surfaces_from_a_backend(
    kind: type[BaseException], strict: bool, on_alarm: Callable[..., None]
) -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        arrive()
        return gm.forward

    error, before = kind("time is up"), process_state()
    compiled = weft.compile(numbered(3), backend=backend)
    with config.patch(strict=strict, suppress_errors=not strict):
        on_alarm(raiser(error))
        with pytest.raises(kind) as seen:
            compiled(X)
        assert seen.value is error and error.__suppress_context__
        assert weft.stats()["fallbacks"] == 0
        on_alarm(lambda *_: None)
        assert process_state()[:-2] == before[:-2]
        torch.testing.assert_close(compiled(X), numbered(3)(X))
    assert weft.stats()["graphs"] == 2


def program(x: torch.Tensor, n: int) -> torch.Tensor:
    y = (x * n).relu() + x.sigmoid()
    if y.sum() > 0:
        y = y.cos() + 1
    return y.softmax(-1).sum()


def test_what_a_handler_raises_surfaces_from_every_step(on_alarm: Callable[..., None]) -> None:
    """A signal arrives at each of weft's Python calls in turn, drawn evenly over all of them."""
    places, calls, at = [], 0, -1

    def count(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        if event == "call" and "weft" in frame.f_code.co_filename:
            calls += 1
            if calls == at:
                places.append(frame.f_code.co_qualname)
                arrive()

    def run() -> Any:
        weft.reset()
        x = X.clone().requires_grad_()
        compiled = weft.compile(program)
        sys.setprofile(count)
        try:
            compiled(x, 2).backward()
        finally:
            sys.setprofile(None)
        return x.grad

    wanted = run()
    total, calls = calls, 0
    on_alarm(raiser(Limit()))
    rounds, seen = int(os.environ.get("WEFT_TEST_ROUNDS", "10")), 0
    for n in range(rounds):
        at, calls = 1 + (2 * n + 1) * total // (2 * rounds), 0
        try:
            run()
        except Limit:
            seen += 1
        at = -1
        assert weft.stats()["fallbacks"] == 0
    assert seen == len(places) > rounds // 2  # the number of calls varies a little
    assert len(set(places)) > len(places) // 3
    torch.testing.assert_close(run(), wanted)


def test_a_handler_that_only_notes_disturbs_nothing(on_alarm: Callable[..., None]) -> None:
    noted: list[int] = []
    on_alarm(lambda number, _frame: noted.append(number))

    def backend(gm: Any, inputs: Any) -> Any:
        arrive()
        arrive()
        return gm.forward

    torch.testing.assert_close(weft.compile(numbered(2), backend=backend)(X), numbered(2)(X))
    assert noted == [signal.SIGALRM] * 2


def test_every_signal_that_has_arrived_is_handled_though_the_first_raises(
    on_alarm: Callable[..., None]
) -> None:
    seen: list[int] = []

    def handler(number: int, _frame: object) -> None:
        seen.append(number)
        raise Limit(len(seen))

    def backend(gm: Any, inputs: Any) -> Any:
        arrive()
        arrive()
        return gm.forward

    on_alarm(handler)
    with pytest.raises(Limit):
        weft.compile(numbered(2), backend=backend)(X)
    assert len(seen) == 2
    weft.compile(numbered(5), backend="eager")(X)  # nothing is left over
    assert len(seen) == 2


def test_a_bare_except_of_a_backend_only_delays_it(on_alarm: Callable[..., None]) -> None:
    def backend(gm: Any, inputs: Any) -> Any:
        try:
            arrive()
            weft.compile(numbered(6), backend="eager")(X)
        except:  # noqa: E722
            pass
        return gm.forward

    on_alarm(raiser(Limit()))
    with pytest.raises(Limit):
        weft.compile(numbered(2), backend=backend)(X)


# -- where compiled code runs ---------------------------------------------------------------------


class Settings:
    """A guard reads `scale` by the program's own code."""

    interrupted = False

    @property
    def scale(self) -> float:
        if self.interrupted:
            arrive()
        return 2.0


@pytest.mark.parametrize("kind", RAISED)
def test_what_a_handler_raises_in_a_guard_surfaces(
    kind: type[BaseException], on_alarm: Callable[..., None]
) -> None:
    """Of nested calls, too; a guard that raises only does not fit otherwise."""
    settings = Settings()

    def scaled(x: torch.Tensor, s: Settings) -> torch.Tensor:
        return x * s.scale

    compiled = weft.compile(scaled, backend="eager")
    compiled(X, settings)
    on_alarm(raiser(kind("time is up")))
    settings.interrupted = True
    with pytest.raises(kind):
        compiled(X, settings)
    settings.interrupted = False
    torch.testing.assert_close(compiled(X, settings), X * 2)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_what_a_handler_raises_in_a_graph_surfaces(
    backend: str, on_alarm: Callable[..., None]
) -> None:
    """The frame was run again from its start instead."""
    ring = threading.Event()

    @torch.library.custom_op("weft_interruptions::wait", mutates_args=())
    def wait(x: torch.Tensor) -> torch.Tensor:
        if ring.is_set():
            arrive()
        return x.clone()

    @wait.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def waiting(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return wait(x[i]) + 1

    compiled, i = weft.compile(waiting, backend=backend), torch.tensor([1])
    compiled(X, i)
    for kind in (Limit, IndexError, KeyboardInterrupt):
        on_alarm(raiser(kind("time is up")))
        ring.set()
        with pytest.raises(kind):
            compiled(X, i)
        ring.clear()
        torch.testing.assert_close(compiled(X, i), X[i] + 1)


# -- waiting --------------------------------------------------------------------------------------


def slow_compiler(folder: Path) -> str:
    """A compiler that starts a child and never ends; its process ids are in the folder."""
    script = folder / "slow-g++"
    script.write_text(f"""#!/bin/sh
if [ "$1" = --version ]; then echo slow 1.0; exit 0; fi
sleep 1000 &
echo $! $$ > {folder}/pids.new; mv {folder}/pids.new {folder}/pids
wait
""")
    script.chmod(0o755)
    return str(script)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Limit])
def test_a_compiler_that_takes_long_is_ended_with_its_children(
    kind: type[BaseException], tmp_path: Path, on_alarm: Callable[..., None]
) -> None:
    main = threading.main_thread().ident

    def ring() -> None:
        while not (tmp_path / "pids").exists():
            time.sleep(0.01)
        signal.pthread_kill(main or 0, signal.SIGALRM)

    on_alarm(raiser(kind("time is up")))
    function = numbered(11)
    with config.patch(cpp_compiler=slow_compiler(tmp_path), cache_dir=str(tmp_path / "cache")):
        threading.Thread(target=ring).start()
        with pytest.raises(kind):
            weft.compile(function)(X)
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        for _ in range(500):
            if not any(map(is_running, pids)):
                break
            time.sleep(0.02)
        assert not any(map(is_running, pids))
    weft.reset()
    torch.testing.assert_close(weft.compile(function)(X), function(X))
    assert weft.stats()["fallbacks"] == 0


# -- exceptions that other threads set ------------------------------------------------------------


def throw(thread: threading.Thread, kind: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(kind))


@pytest.mark.parametrize("kind", [Limit, SystemExit, KeyboardInterrupt])
def test_an_exception_set_in_a_compiling_thread_surfaces_there(kind: type[BaseException]) -> None:
    outcomes: list[BaseException | None] = []

    def compiling(compiled: Any) -> None:
        def backend(gm: Any, inputs: Any) -> Any:
            reached.set()
            while True:
                pass

        try:
            weft.compile(compiled, backend=backend)(X)
            outcomes.append(None)
        except BaseException as error:
            outcomes.append(error)

    for n in range(5):
        reached = threading.Event()
        thread = threading.Thread(target=compiling, args=(numbered(n),))
        thread.start()
        reached.wait()
        throw(thread, kind)
        thread.join()
    assert [type(error) for error in outcomes] == [kind] * 5
    assert weft.stats()["fallbacks"] == 0


# One that is set while a finalizer runs is written to stderr by Python.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_exceptions_set_at_any_time_are_no_failures() -> None:
    """The program's class in code of weft or torch: nothing there raises it."""
    done: list[type | None] = []
    weft.compile(program, backend="aot_eager")(X, 2)  # nothing is imported below

    def compiling(n: int) -> None:
        try:
            weft.compile(program, backend="aot_eager")(X, 2)
            time.sleep(0.05)
            done.append(None)
        except Limit:
            done.append(Limit)

    for n in range(12):
        weft.reset()
        thread = threading.Thread(target=compiling, args=(n,))
        thread.start()
        time.sleep(0.004 * n)
        throw(thread, Limit)
        thread.join()
        assert weft.stats()["fallbacks"] == 0
    assert Limit in done
    torch.testing.assert_close(weft.compile(program)(X, 2), program(X, 2))


def test_failures_are_not_taken_for_interruptions() -> None:
    def fails() -> None:
        raise Limit

    def with_numbers(*_: Any) -> None:
        raise ValueError

    for call in (fails, lambda: with_numbers(3, sys._getframe(1)), lambda: {}["a"],
                 lambda: torch.ones(2) @ torch.ones(3)):
        try:
            call()
        except Exception as error:
            assert not is_from_outside(error)


@pytest.mark.parametrize("call", [
    lambda rng: rng.integers(0),
    lambda rng: rng.choice(3, 5, replace=False),
    lambda rng: rng.normal(scale=-1.0),
    lambda rng: np.random.randint(0),
    lambda rng: np.random.RandomState(-1),
    lambda rng: np.random.SeedSequence(-1),
], ids=["integers", "choice", "normal", "randint", "RandomState", "SeedSequence"])
def test_errors_of_extensions_are_not_taken_for_interruptions(call: Callable[[Any], Any]) -> None:
    # Cython shows its lines in tracebacks, as frames that seem to stand before their first step.
    with pytest.raises(ValueError) as caught:
        call(np.random.default_rng(0))
    assert not is_from_outside(caught.value)

    def f(x: torch.Tensor, rng: Any) -> Any:
        try:
            call(rng)
        except ValueError as error:
            return x + 1, str(error)

    compiled = weft.compile(f, backend="eager")
    x, rng = torch.ones(2), np.random.default_rng(0)
    assert repr(compiled(x, rng)) == repr(compiled(x, rng)) == repr(f(x, rng))


def test_cancelled_units_are_compiled_again(tmp_path: Path) -> None:
    source = 'extern "C" __attribute__((visibility("default"))) int f() { return 4; }\n'
    with config.patch(cache_dir=str(tmp_path)):
        started = compile_pool.submit([source])[0]
        started._unit.cancelled.set()
        assert compile_pool.submit([source])[0].wait().library().f() == 4
