"""No path leaks: 100,000 calls of each leave reference counts and memory as they were."""

import gc
import sys
import tracemalloc
from typing import Any

from tests.frame.extension import frame

CALLS = 100_000
SLOW_CALLS = 10_000  # paths that make Python objects by the dozen
BYTES = 20_000  # what the interpreter itself may keep: specialised code, free lists


def _growth(call: Any, calls: int) -> int:
    """Bytes that are left over from `calls` calls."""
    tracemalloc.start()
    for _ in range(100):
        call()
    gc.collect()
    start = tracemalloc.get_traced_memory()[0]
    for _ in range(calls):
        call()
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    return grown


def assert_no_leak(call: Any, *watched: Any, calls: int | None = None) -> None:
    """`call()` many times: no references to `watched`, no memory, no objects left over."""
    calls = CALLS if calls is None else calls
    for _ in range(200):
        call()
    gc.collect()
    before = [sys.getrefcount(w) for w in watched]
    objects = len(gc.get_objects())
    for _ in range(calls):
        call()
    # Another thread of the test process may allocate meanwhile: a leak shows every time.
    grown = min(_growth(call, calls // 20) for _ in range(3))
    assert grown < BYTES, f"{grown} bytes"
    assert len(gc.get_objects()) - objects < 50
    assert [sys.getrefcount(w) for w in watched] == before


class Argument:
    pass


def tree(*checks: Any) -> Any:
    return frame.GuardTree(((("local", 0), checks, 0, ()), (("local", 1), (), 1, ())), (), 2)


def function(a: Any, b: Any = 1000, *rest: Any, **more: Any) -> Any:
    return a


def fresh() -> Any:
    return type(function)(function.__code__.replace(), globals(), "f", function.__defaults__)


def compiled(guards: Any, fn: Any) -> Any:
    return frame.CompiledFunction(fresh(), lambda *args: frame.Entry(guards, fn))


def test_hit() -> None:
    argument = Argument()
    call = compiled(tree(("type_is", Argument, 0)), lambda v: v[0])
    assert_no_leak(lambda: call(argument, 1, 2, key=argument), argument, Argument, 1000)
    assert_no_leak(lambda: call(argument, argument), argument, Argument)


def test_eager() -> None:
    argument = Argument()
    call = frame.CompiledFunction(fresh(), lambda *args: None)
    assert_no_leak(lambda: call(argument), argument, call, calls=CALLS // 4)


def test_failing_guards() -> None:
    argument = Argument()
    call = frame.CompiledFunction(fresh(), lambda *args: None)
    code = call.__code__
    deep = (("attr", "missing"), (), -1, ())
    nodes = ((("local", 0), (), 0, ()), (("local", 1), (), 1, (deep,)))
    frame.add_entry(code, frame.Entry(frame.GuardTree(nodes, (), 2), print))
    frame.add_entry(code, frame.Entry(tree(("eq", (1, 2), 0)), print))
    frame.freeze(code)
    assert_no_leak(lambda: call(argument), argument, calls=CALLS // 4)


def test_exception() -> None:
    argument = Argument()

    def fails(v: Any) -> Any:
        raise LookupError(v[0])

    raising = compiled(tree(), fails)

    def call() -> None:
        try:
            raising(argument)
        except LookupError:
            pass

    assert_no_leak(call, argument)


def test_arguments_that_do_not_fit() -> None:
    argument = Argument()
    target = compiled(tree(), lambda v: v[0])

    def call() -> None:
        try:
            target(argument, a=argument)
        except TypeError:
            pass

    assert_no_leak(call, argument, calls=SLOW_CALLS)


def test_miss_that_compiles() -> None:
    argument = Argument()

    def call() -> None:
        compiled(tree(("is", argument, 0)), lambda v: v[0])(argument)

    assert_no_leak(call, argument, calls=SLOW_CALLS)


def test_frame_hook_hit_and_exception() -> None:
    argument = Argument()
    hit, raised = fresh(), fresh()

    def fails(v: Any) -> Any:
        raise LookupError(v[0])

    frame.add_entry(hit.__code__, frame.Entry(tree(), lambda v: v[0]))
    frame.add_entry(raised.__code__, frame.Entry(tree(), fails))

    def call() -> None:
        hit(argument, 1, 2, key=argument)
        try:
            raised(argument)
        except LookupError:
            pass

    frame.skip(call.__code__)
    frame.skip(assert_no_leak.__code__)
    with frame.hook(lambda *args: None):
        assert_no_leak(call, argument, hit, raised, hit.__code__)


def test_frame_hook_miss() -> None:
    argument = Argument()
    missed = fresh()

    def call() -> None:
        missed(argument, 1, 2, key=argument)

    with frame.hook(lambda *args: None):
        assert_no_leak(call, argument, missed, missed.__code__, calls=SLOW_CALLS)


def test_hook_enter_and_exit() -> None:
    def on_miss(*args: Any) -> None: ...

    def call() -> None:
        with frame.hook(on_miss), frame.unhooked(), frame.hook(on_miss):
            pass

    assert_no_leak(call, on_miss, calls=SLOW_CALLS)
