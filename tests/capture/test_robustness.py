"""Threads, signals, forks, the garbage collector, copies: compiled code in the middle of a program.
"""

from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import random
import signal
import sys
import threading
import time
import traceback
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft import _frame
from weft.capture import compiler
from weft.compiling import compiling
from weft.diagnostics import events

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def small_model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def branching(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x.sin() * n
    if y.sum() > 0:
        y = y + 1
    return y.cos()


def numbered(i: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function with code of its own."""
    names: dict[str, Any] = {}
    exec(f"def numbered(x):\n    return (x + {i}).relu() * {i}", names)
    return names["numbered"]  # type: ignore[no-any-return]


# -- threads --------------------------------------------------------------------------------------


@contextmanager
def switching_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def run_threads(work: Callable[[int], None], n: int) -> None:
    """Runs `work(i)` in n threads at once; raises what one of them raised."""
    failures: list[str] = []

    def guarded(i: int) -> None:
        try:
            work(i)
        except BaseException:
            failures.append(traceback.format_exc())

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    with switching_often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_threads_compile_and_call_at_once(backend: str) -> None:
    model, functions = small_model(), [numbered(i) for i in range(1, 4)]
    compiled_model = weft.compile(model, backend=backend)
    compiled = [weft.compile(f, backend=backend) for f in functions]
    shared = weft.compile(branching, backend=backend)

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(12):
            n, x = choose.choice([1, 2, 3]), torch.randn(choose.choice([3, 4, 5]), 8)
            torch.testing.assert_close(shared(x, n), branching(x, n))
            torch.testing.assert_close(compiled_model(x), model(x))
            i = choose.randrange(3)
            torch.testing.assert_close(compiled[i](x), functions[i](x))

    limit = sys.getrecursionlimit()
    run_threads(work, 6)
    assert sys.getrecursionlimit() == limit and gc.isenabled()
    assert not _frame.is_installed()


def tries_twice(x: torch.Tensor, calls: list[int]) -> None:
    calls.append(1)
    try:
        tries_twice(x, calls)
    except RecursionError:
        tries_twice(x, calls)


def calls_until_the_limit(function: Callable[..., None]) -> int:
    """How often it is called with room for ten frames more; no garbage of other tests is freed
    there, whose finalizers would not find the room (pytest counts what they raise as a failure)."""
    calls: list[int] = []
    gc.collect()
    gc.disable()
    limit = sys.getrecursionlimit()
    depth = 1
    while sys.getrecursionlimit() == limit:
        try:
            sys.setrecursionlimit(depth)
        except RecursionError:
            depth += 1
    sys.setrecursionlimit(depth + 10)
    try:
        with pytest.raises(RecursionError):
            function(X, calls)
    finally:
        sys.setrecursionlimit(limit)
        gc.enable()
    return len(calls)


def test_a_recursion_through_handlers_is_no_deeper_than_eager() -> None:
    """Deeper by a few frames already meant calls without end: twice as many with each."""
    compiled = weft.compile(tries_twice, backend="eager")
    eager = calls_until_the_limit(tries_twice)
    assert 0 < calls_until_the_limit(compiled) <= 4 * eager


def depth_below(n: int, seen: list[int]) -> int:
    seen.append(n)
    return 0 if n == 0 else 1 + depth_below(n - 1, seen)


def test_a_deep_recursion_behind_a_graph_break_has_the_room_that_eager_has() -> None:
    """From Python 3.12 on calls nested in C have a limit of their own, and hooked frames are."""
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x + 1
        print(end="")
        return y + depth_below(n, [])

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        found = weft.compile(program, backend="eager")(X, 12_000)
    finally:
        sys.setrecursionlimit(limit)
    assert torch.equal(found, X + 1 + 12_000)


def test_variants_that_end_at_the_recursion_limit_are_forgotten() -> None:
    """There no key of a dictionary is compared (`reset` crashed) and no callback of a weak
    reference runs (code at the same address got another function's variant)."""
    before = _frame.entry_count()
    held = [weft.compile(numbered(n), backend="eager") for n in range(20)]
    for n in range(20):
        held[n](X)
    assert _frame.entry_count() >= before + 20
    gc.collect()

    def drop(depth: int) -> None:
        try:
            drop(depth + 1)
        except RecursionError:
            while held:
                del held[-1]  # without a call, for which there is no room
            raise

    with pytest.raises(RecursionError):
        drop(0)
    gc.collect()
    assert _frame.entry_count() <= before
    weft.reset()
    for n in range(20, 40):
        assert torch.equal(weft.compile(numbered(n), backend="eager")(X), numbered(n)(X))


def test_threads_that_wait_for_the_same_frame_share_its_variant() -> None:
    compiled = weft.compile(numbered(7), backend="eager")
    start = threading.Barrier(6)

    def work(_: int) -> None:
        start.wait()
        torch.testing.assert_close(compiled(X), (X + 7).relu() * 7)

    run_threads(work, 6)
    assert weft.stats()["graphs"] == 1


def test_a_variant_is_there_when_the_next_thread_may_compile(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """C kept it after the lock was released: a thread that came between compiled it again."""

    @contextmanager
    def slow_to_return() -> Iterator[None]:
        with compiling():
            yield
        time.sleep(0.05)

    monkeypatch.setattr(compiler, "compiling", slow_to_return)
    test_threads_that_wait_for_the_same_frame_share_its_variant()


# -- signals --------------------------------------------------------------------------------------


class Stop(KeyboardInterrupt):
    """What our handler raises."""


@pytest.fixture
def alarm() -> Iterator[Callable[[float], Any]]:
    """Sets a timer after which `Stop` is raised."""

    def handler(*_: Any) -> None:
        raise Stop

    previous = signal.signal(signal.SIGALRM, handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, previous)


def process_state() -> tuple[Any, ...]:
    """What a compilation changes for a while."""
    return (_frame.is_hooked(), _frame.is_installed(), gc.isenabled(), sys.getrecursionlimit(),
            torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
            len(events._running.stack), signal.getsignal(signal.SIGALRM),
            signal.getsignal(signal.SIGINT))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_signal_while_compiling_raises_and_leaves_the_state_sound(
    backend: str, alarm: Callable[[float], Any]
) -> None:
    model, choose, raised = small_model(), random.Random(0), 0

    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return branching(model(x), n)

    weft.compile(program, backend=backend)(X, 2)
    began = time.perf_counter()
    weft.compile(program, backend=backend)(X, 2)
    usual = time.perf_counter() - began
    before = process_state()
    for _ in range(25):
        weft.reset()
        compiled = weft.compile(program, backend=backend)
        try:
            alarm(max(1e-5, choose.random() * usual))
            compiled(X, 2)
            alarm(0)
        except Stop:
            raised += 1
        assert process_state() == before
        assert weft.stats()["fallbacks"] == 0
        torch.testing.assert_close(compiled(X, 2), program(X, 2))
    assert raised


def test_a_signal_is_handled_at_the_next_stage_at_the_latest(alarm: Callable[[float], Any]) -> None:
    """Not only when the compilation is over."""
    reached = []

    def backend(gm: Any, inputs: Any) -> Any:
        os.kill(os.getpid(), signal.SIGALRM)
        time.sleep(0.01)
        reached.append("kept")
        with events.stage("test"):
            reached.append("too late")
        return gm.forward

    with pytest.raises(Stop):
        weft.compile(numbered(3), backend=backend)(X)
    assert reached == ["kept"]
    assert signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL


def test_a_handler_that_the_program_sets_while_compiling_stays(
    alarm: Callable[[float], Any]
) -> None:
    def other(*_: Any) -> None: ...

    def backend(gm: Any, inputs: Any) -> Any:
        signal.signal(signal.SIGALRM, other)
        return gm.forward

    weft.compile(numbered(4), backend=backend)(X)
    assert signal.getsignal(signal.SIGALRM) is other


# -- modes when a graph raises --------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_graph_that_raises_leaves_the_modes_as_they_were(backend: str) -> None:
    def no_grad(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.index_select(0, i)
        return y * 2

    def autocast(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu"):
            y = (x.t() @ x).index_select(0, i)
        return y * 2

    before = process_state()
    for function in (no_grad, autocast):
        compiled = weft.compile(function, backend=backend)
        compiled(X, torch.tensor([1]))
        with pytest.raises(IndexError):
            compiled(X, torch.tensor([70]))
        assert process_state() == before


# -- objects that are collected -------------------------------------------------------------------


def _as_argument(model: nn.Module, backend: str) -> Any:
    compiled = weft.compile(lambda m, x: m(x), backend=backend)
    compiled(model, X)
    return compiled


def _as_global(model: nn.Module, backend: str) -> Any:
    names: dict[str, Any] = {"model": model}
    exec("def call(x):\n    return model(x)", names)
    compiled = weft.compile(names["call"], backend=backend)
    compiled(X)
    del names["model"]
    return compiled


def _in_closure(model: nn.Module, backend: str) -> Any:
    held: nn.Module | None = model

    def call(x: torch.Tensor) -> Any:
        return held(x)  # type: ignore[misc]

    compiled = weft.compile(call, backend=backend)
    compiled(X)
    held = None
    return compiled


def _in_container(model: nn.Module, backend: str) -> Any:
    compiled = weft.compile(lambda ms, x: ms["a"][0](x), backend=backend)
    compiled({"a": [model]}, X)
    return compiled


def _around_a_break(model: nn.Module, backend: str) -> Any:
    def call(m: Any, x: torch.Tensor) -> Any:
        y = m(x)
        print(end="")
        return m[0](y)

    compiled = weft.compile(call, backend=backend)
    compiled(model, X)
    return compiled


def _as_bound_method(model: nn.Module, backend: str) -> Any:
    compiled = weft.compile(lambda f, x: f(x), backend=backend)
    compiled(model.forward, X)
    return compiled


def _parameters(model: nn.Module, backend: str) -> Any:
    compiled = weft.compile(lambda ps, x: x @ ps[0], backend=backend)
    compiled(list(model.parameters()), X)
    return compiled


def _by_identity(model: nn.Module, backend: str) -> Any:
    compiled = weft.compile(lambda a, b, x: x + 1 if a is b else x + 2, backend=backend)
    compiled(model, model, X)
    return compiled


def _compiled_itself(model: nn.Module, backend: str) -> Any:
    weft.compile(model, backend=backend)(X)


def _in_place(model: nn.Module, backend: str) -> Any:
    weft.compile_inplace(model, backend=backend)(X)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("use", [
    _as_argument, _as_global, _in_closure, _in_container, _around_a_break, _as_bound_method,
    _parameters, _by_identity, _compiled_itself, _in_place])
def test_compiled_code_keeps_no_model_alive(
    use: Callable[[nn.Module, str], Any], backend: str, grad: bool
) -> None:
    model = small_model()
    with torch.set_grad_enabled(grad):
        compiled = use(model, backend)
    seen = [weakref.ref(o) for o in (model, *model.children(), *model.parameters())]
    del model
    gc.collect()
    assert not any(ref() is not None for ref in seen)
    del compiled


def test_a_new_model_in_the_memory_of_a_collected_one_is_told_apart() -> None:
    compiled = weft.compile(lambda m, x: m(x), backend="eager")
    for k in range(20):
        model = nn.Linear(8, 3 + k % 3)
        torch.testing.assert_close(compiled(model, X), model(X))
        del model


def test_reset_frees_graphs_and_what_they_hold() -> None:
    graphs: list[Any] = []

    def backend(gm: Any, inputs: Any) -> Any:
        graphs.append(weakref.ref(gm))
        return gm.forward

    compiled = weft.compile(branching, backend=backend)
    compiled(X, 1)
    compiled(X, 2)
    assert weft.stats()["cache_entries"]
    weft.reset()
    gc.collect()
    assert graphs and not any(ref() is not None for ref in graphs)
    assert weft.stats()["cache_entries"] == 0


# -- memory ---------------------------------------------------------------------------------------


def growth(work: Callable[[], None], times: int) -> int:
    """Bytes left over after `times` calls; the least of two, since other threads allocate too."""
    grown = []
    for _ in range(2):
        gc.collect()
        tracemalloc.start()
        for _ in range(times):
            work()
        gc.collect()
        grown.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return min(grown)


def blocks_left(work: Callable[[], None], times: int) -> int:
    """Memory blocks of Python left over, the least of two. (Bytes counted by tracemalloc include
    what Python 3.12 frees late.)
    """
    left = []
    for _ in range(2):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(times):
            work()
        gc.collect()
        left.append(sys.getallocatedblocks() - before)
    return min(left)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_calls_leave_nothing_behind(backend: str) -> None:
    model = small_model()
    compiled = weft.compile(model, backend=backend)

    def broken(x: torch.Tensor, n: int = 2, *, k: int = 3, **more: int) -> torch.Tensor:
        y = model(x)
        print(end="")
        return y * n + k

    compiled_broken = weft.compile(broken, backend=backend)

    def work() -> None:
        compiled(X).sum().backward()
        compiled_broken(X, 2, k=4, z=5)
        with torch.no_grad():
            compiled(X)

    for _ in range(50):
        work()
    assert blocks_left(work, 600) < 300  # less than one small object a round


def test_variants_that_are_forgotten_leave_little_behind() -> None:
    """torch.fx keeps about one KB of each graph module."""
    def program(x: torch.Tensor, n: float) -> torch.Tensor:
        return (x * n).relu() + n

    def work() -> None:
        compiled = weft.compile(program, backend="eager", dynamic=False)
        for n in range(5):
            compiled(X, float(n))
        weft.reset()  # until then another function with this code would find them

    for _ in range(3):
        work()
    assert growth(work, 6) < 30 * 3000


# -- forks ----------------------------------------------------------------------------------------


def exit_status(work: Callable[[], None], seconds: float = 60) -> int | str:
    """How a forked child that runs `work` ends."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def test_a_forked_child_calls_and_compiles() -> None:
    model = small_model()
    compiled = weft.compile(model)
    compiled(X)

    def child() -> None:
        torch.testing.assert_close(compiled(X), model(X))
        torch.testing.assert_close(weft.compile(branching)(X, 2), branching(X, 2))

    assert exit_status(child) == 0


def test_a_fork_while_another_thread_compiles() -> None:
    done = threading.Event()

    def busy() -> None:
        for i in range(1, 500):
            if done.is_set():
                return
            weft.compile(numbered(i), backend="aot_eager")(X)

    def child() -> None:
        fresh = weft.compile(numbered(1000), backend="aot_eager")
        torch.testing.assert_close(fresh(X), (X + 1000).relu() * 1000)

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        assert [exit_status(child) for _ in range(4)] == [0] * 4
    finally:
        done.set()
        thread.join()


# -- copies ---------------------------------------------------------------------------------------


@weft.compile
def compiled_at_top_level(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def test_compiled_functions_are_copied_and_pickled_as_functions_are() -> None:
    assert copy.deepcopy(compiled_at_top_level) is compiled_at_top_level
    assert copy.copy(compiled_at_top_level) is compiled_at_top_level
    assert pickle.loads(pickle.dumps(compiled_at_top_level)) is compiled_at_top_level


def test_a_model_that_holds_a_compiled_function_can_be_copied() -> None:
    model = small_model()
    model.activation = weft.compile(torch.relu, backend="eager")
    assert copy.deepcopy(model).activation is model.activation


@pytest.mark.parametrize("copied", [
    copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)),
    lambda m: torch.load(_saved(m), weights_only=False)])
@pytest.mark.parametrize("compiled", [weft.compile, weft.compile_inplace])
def test_copies_of_compiled_modules_have_parameters_of_their_own(
    compiled: Callable[..., Any], copied: Callable[[Any], Any]
) -> None:
    model = compiled(small_model(), backend="eager")
    expected = model(X)
    other = copied(model)
    torch.testing.assert_close(other(X), expected)
    with torch.no_grad():
        other[0].weight.add_(1)
    assert not torch.allclose(other(X), expected)
    torch.testing.assert_close(model(X), expected)


def _saved(model: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return file
