"""The frame hook: which frames it takes, which it leaves alone, and that nothing else changes."""

import asyncio
import sys
import threading
from typing import Any

from tests.frame.extension import frame


class Asked:
    """An on_miss that notes the names of the code it is asked about and compiles some of it."""

    def __init__(self, **answers: Any) -> None:
        self.names: list[str] = []
        self.answers = answers

    def __call__(self, compiled: Any, fn: Any, code: Any, values: Any, cells: Any, space: Any,
                 ) -> Any:
        assert compiled is None and fn.__code__ is code and not frame.is_hooked()
        if "site-packages" in code.co_filename:
            return None  # an audit hook of a library that other tests import: `exec` calls it
        self.names.append(code.co_name)
        answer = self.answers.get(code.co_name)
        if answer is None:
            return None
        nodes = tuple((("local", i), (), i, ()) for i in range(len(values)))
        return frame.Entry(frame.GuardTree(nodes, (), len(values)), answer, space, True)


def fresh(function: Any) -> Any:
    """The function with a code object that has no entries."""
    code = function.__code__.replace()
    return type(function)(code, function.__globals__, function.__name__, function.__defaults__,
                          function.__closure__)


def double(x: int) -> int:
    return 2 * x


def test_nested_frames_are_replaced() -> None:
    inner = fresh(double)

    def outer(x: int) -> int:
        return inner(x) + inner(x + 1)

    asked = Asked(double=lambda v: v[0] + 1000)
    with frame.hook(asked):
        assert frame.is_hooked() and frame.is_installed()
        assert outer(1) == 2003
        assert outer(2) == 2005
    assert asked.names == ["outer", "double", "outer"]
    assert not frame.is_hooked() and not frame.is_installed()
    assert outer(1) == 6


def test_parameters_cells_and_globals_are_those_of_the_frame() -> None:
    seen: list[Any] = []
    free = "free"

    def f(a: int, b: int = 2, *rest: int, c: int, **more: int) -> Any:
        keep = lambda: (a, free)  # makes `a` a cell variable
        return keep()

    def on_miss(compiled: Any, fn: Any, code: Any, values: Any, cells: Any, space: Any) -> None:
        if code is f.__code__:
            seen.append((values, [c.cell_contents for c in cells], space is globals()))

    with frame.hook(on_miss):
        f(1, c=3)
        f(1, 4, 5, c=6, d=7)
    assert seen == [([1, 2, 3, (), {}], ["free"], True),
                    ([1, 4, 6, (5,), {"d": 7}], ["free"], True)]


def test_generators_coroutines_and_bodies_are_left_alone() -> None:
    def generate() -> Any:
        got = yield 1
        yield got

    async def wait() -> int:
        return 5

    def run() -> Any:
        generator = generate()
        values = [next(generator), generator.send(7)]
        generator.close()
        exec(compile("class Body:\n    x = [i for i in (1, 2)]", "body", "exec"), {})
        coroutine = wait()
        try:
            coroutine.send(None)
        except StopIteration as stop:
            values.append(stop.value)
        return values

    asked = Asked()
    with frame.hook(asked):
        assert run() == [1, 7, 5]
    assert set(asked.names) <= {"run", "<listcomp>"}
    with frame.hook(Asked()):
        assert asyncio.run(wait()) == 5


def test_hook_is_off_while_a_module_body_runs() -> None:
    source = "def f():\n    return seen.append(is_hooked())\nf()\nturn_on()\nf()"
    seen: list[bool] = []
    asked = Asked()
    space = {"seen": seen, "is_hooked": frame.is_hooked, "turn_on": frame.hook(asked).__enter__}

    def run() -> None:
        exec(source, space)
        seen.append(frame.is_hooked())

    with frame.hook(asked):
        run()
    assert seen == [False, True, True]
    assert asked.names == ["run", "f"]


def test_generator_thrown_into() -> None:
    def generate() -> Any:
        try:
            yield 1
        except ValueError:
            yield "caught"

    with frame.hook(Asked()):
        generator = generate()
        next(generator)
        assert generator.throw(ValueError()) == "caught"


def test_what_guards_call_is_left_alone() -> None:
    asked: list[str] = []
    inner = fresh(double)

    def read(x: int) -> int:
        return x + 1

    def on_miss(compiled: Any, fn: Any, code: Any, values: Any, cells: Any, space: Any) -> Any:
        asked.append(code.co_name)
        below = (("call", read), (), 1, ())
        guards = frame.GuardTree(((("local", 0), (), 0, (below,)),), (), 2)
        return frame.Entry(guards, lambda v: v[1] * 10, space)

    with frame.hook(on_miss):
        assert inner(2) == 30
        assert read(2) == 30  # its own guards call it
    assert asked == ["double", "read"]


def test_unhooked_and_nesting() -> None:
    inner = fresh(double)
    outer_asked, inner_asked = Asked(), Asked()
    with frame.hook(outer_asked):
        with frame.unhooked():
            assert not frame.is_hooked()
            assert inner(1) == 2
            with frame.hook(inner_asked):
                inner(1)
            assert not frame.is_hooked()
        assert frame.is_hooked()
        assert outer_asked.names == []
    assert inner_asked.names == ["double"]
    context = frame.unhooked()
    with context, context:
        pass
    try:
        context.__exit__(None, None, None)
    except RuntimeError:
        pass
    else:
        raise AssertionError("exit without enter")


def test_hook_ends_with_an_exception() -> None:
    def fails() -> None:
        raise LookupError

    for _ in range(2):
        try:
            with frame.hook(Asked()):
                fails()
        except LookupError:
            pass
    assert not frame.is_hooked() and not frame.is_installed()


def test_exceptions_of_replacement_and_compiler_come_through() -> None:
    inner = fresh(double)

    def fails(v: Any) -> Any:
        raise LookupError("replacement")

    def run(x: int) -> str:
        try:
            return str(inner(x))
        except LookupError as error:
            return f"caught {error}"

    with frame.hook(Asked(double=fails)):
        assert run(1) == run(1) == "caught replacement"

    def bad_compiler(*args: Any) -> Any:
        raise OSError("compiler")

    other = fresh(double)
    try:
        with frame.hook(bad_compiler):
            other(1)
    except OSError:
        pass
    else:
        raise AssertionError("exception lost")
    assert not frame.is_hooked()


def test_needs_hook_reaches_frames_called_by_the_replacement() -> None:
    inner = fresh(double)

    def f(x: int) -> int:
        return x

    names: list[str] = []

    def on_miss(compiled: Any, fn: Any, code: Any, values: Any, cells: Any, space: Any) -> Any:
        names.append(code.co_name)
        if code is not f.__code__:
            return None
        tree = frame.GuardTree(((("local", 0), (("eq", values[0], 0),), 0, ()),), (), 1)
        return frame.Entry(tree, lambda v: inner(v[0]), space, needs_hook=values[0] == 1)

    compiled = frame.CompiledFunction(f, on_miss)
    assert compiled(1) == 2 and names == ["f", "double"]
    assert compiled(2) == 4 and names == ["f", "double", "f"]
    assert not frame.is_installed()


def test_skipped_code_is_not_asked_about() -> None:
    inner = fresh(double)
    frame.skip(inner.__code__)
    asked = Asked(double=lambda v: 0)
    with frame.hook(asked):
        assert inner(4) == 8
    assert asked.names == []


def test_other_threads_are_not_hooked() -> None:
    inner = fresh(double)
    asked = Asked(double=lambda v: "compiled")
    results: list[Any] = []
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait()
        results.extend(inner(i) for i in range(100))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with frame.hook(asked):
        assert inner(1) == "compiled"
        inside.set()
        done.wait()
        assert inner(1) == "compiled"
    thread.join()
    assert results == [2 * i for i in range(100)]


def test_threads_that_hook_and_unhook_at_once() -> None:
    inner = fresh(double)
    wrong: list[Any] = []

    def hooked() -> None:
        for i in range(400):
            with frame.hook(Asked(double=lambda v: ("compiled", v[0]))):
                if inner(i) != ("compiled", i):
                    wrong.append(i)

    def plain() -> None:
        for i in range(4000):
            if inner(i) != 2 * i:
                wrong.append(i)

    threads = [threading.Thread(target=work) for work in (hooked, plain, hooked, plain)]
    previous = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(previous)
    assert not wrong
    assert not frame.is_installed()


def test_settrace_and_setprofile_still_see_every_frame() -> None:
    inner = fresh(double)

    def run(x: int) -> int:
        return inner(x)

    for setter in (sys.settrace, sys.setprofile):
        events: list[str] = []

        def trace(where: Any, event: str, arg: Any) -> Any:
            events.append(f"{where.f_code.co_name} {event}")
            return trace

        previous = sys.gettrace() if setter is sys.settrace else sys.getprofile()
        with frame.hook(Asked(double=lambda v: -1)):
            setter(trace)
            result = run(3)
            setter(previous)
        assert result == 6
        assert {"run call", "double call", "double return", "run return"} <= set(events)


def test_monitoring_still_sees_every_frame() -> None:
    if sys.version_info < (3, 12):
        return
    inner = fresh(double)
    names: list[str] = []
    monitoring = sys.monitoring
    monitoring.use_tool_id(3, "weft test")
    monitoring.register_callback(3, monitoring.events.PY_START,
                                 lambda code, offset: names.append(code.co_name))
    monitoring.set_events(3, monitoring.events.PY_START)
    with frame.hook(Asked(double=lambda v: -1)):
        assert inner(3) == 6
    monitoring.set_events(3, 0)
    monitoring.free_tool_id(3)
    assert "double" in names
    with frame.hook(Asked(double=lambda v: -1)):
        assert inner(3) == -1


def test_recursion_error_as_without_the_hook() -> None:
    def down(n: int) -> int:
        return down(n + 1)

    def depth(hooked: bool) -> str:
        try:
            if not hooked:
                down(0)
            with frame.hook(Asked()):
                down(0)
        except RecursionError as error:
            return str(error)
        raise AssertionError("no RecursionError")

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # the default: others raise it, and hooked calls use the C stack
    try:
        assert "maximum recursion depth exceeded" in depth(hooked=False)
        assert "maximum recursion depth exceeded" in depth(hooked=True)
    finally:
        sys.setrecursionlimit(limit)
    assert not frame.is_installed()


def test_replacements_that_recurse_raise_recursion_error() -> None:
    def f(x: int) -> int:
        return x

    def on_miss(compiled: Any, fn: Any, code: Any, values: Any, *rest: Any) -> Any:
        tree = frame.GuardTree(((("local", 0), (("type_is", int, 0),), 0, ()),), (), 1)
        return frame.Entry(tree, lambda v: compiled(v[0] + 1))

    try:
        frame.CompiledFunction(f, on_miss)(0)
    except RecursionError:
        return
    raise AssertionError("no RecursionError")


def test_frames_on_a_fresh_data_stack_chunk() -> None:
    """Frames that start new chunks of the thread's data stack; a hit has to give them back."""
    names = ", ".join(f"a{i}=0" for i in range(200))
    space: dict[str, Any] = {}
    exec(f"def wide({names}):\n    return -1", space)
    wide = space["wide"]

    def nest(n: int) -> int:
        return wide() if n == 0 else nest(n - 1)

    with frame.hook(Asked(wide=lambda v: 7)):
        for depth in range(60):
            assert nest(depth) == 7
            assert wide() == 7
