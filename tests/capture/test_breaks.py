"""Graph breaks: right results, printed output in order, the stated number of graphs and breaks."""

from __future__ import annotations

import contextlib
import queue
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import weft
from tests.capture.harness import check

X = torch.tensor([1.0, -2.0, 3.0])


def toy(x):
    x = x.relu()
    if x.sum() > 0:
        x = x * 2
    return x + 1


def test_data_dependent_branch_takes_both_ways():
    check(toy, (X,), (-X.abs(),), graphs=3, breaks=1)


def test_fullgraph_names_line_and_hint():
    with pytest.raises(weft.errors.GraphBreakError, match="data-dependent-branch") as caught:
        weft.compile(toy, fullgraph=True)(X)
    assert caught.value.stack[-1].line == toy.__code__.co_firstlineno + 2
    assert caught.value.hint


def test_print_in_the_middle():
    def f(x):
        y = x + 1
        print("hello", y)
        return y * 2

    check(f, (X,), graphs=2, breaks=1)


def test_item():
    def f(x):
        n = x.sum().item()
        return x + n

    check(f, (X,), graphs=1, breaks=0)


def test_break_in_inlined_call_keeps_both_frames():
    def inner(x, y):
        z = x + y
        print("inner")
        return z * y

    def outer(x):
        a = x.relu()
        b = inner(a, 3)
        return a + b

    check(outer, (X,), graphs=3, breaks=1)


def test_break_three_deep():
    def a(x):
        x = x + 1
        print("a")
        return x * 2

    def b(x):
        y = x.cos()
        return a(x) + y

    def c(x):
        y = x.sin()
        return b(x) * y

    check(c, (X,), graphs=4, breaks=1)


def test_break_in_loop():
    def f(x):
        for i in range(3):
            x = x + i
            print(i)
        return x

    check(f, (X,), breaks=None)


def test_break_in_loop_over_enumerate_and_zip():
    def f(x):
        for i, (a, b) in enumerate(zip([1, 2], [3, 4], strict=True)):
            x = x * a + b
            if x.sum() > i:
                x = x - 1
        return x

    check(f, (X,), (-X,), breaks=None)


def test_break_in_module_call():
    class Inner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            x = x * self.weight
            print("in module")
            return x + self.weight

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Inner()

        def forward(self, x):
            return self.inner(x.relu()).sin()

    module = Outer()
    check(lambda x: module(x), (X,), graphs=3, breaks=1)


def test_break_inside_no_grad():
    def f(x):
        with torch.no_grad():
            y = x * 2
            print("within")
            z = y + 1
        return z, torch.is_grad_enabled()

    check(f, (X,), (X.clone().requires_grad_(),), breaks=None)
    assert torch.is_grad_enabled()


def test_break_inside_user_context_manager():
    class Manager:
        def __enter__(self):
            self.entered = True
            return 5

        def __exit__(self, *exc):
            self.entered = False

    def f(x):
        manager = Manager()
        with manager as n:
            y = x + n
            print(y.sum() > 0)
            y = y * 2
        return y, manager.entered

    check(f, (X,), breaks=None)


def test_break_with_live_closure():
    def f(x):
        n = 1

        def add(y):
            nonlocal n
            n += 1
            return y + n

        x = add(x)
        print("now")
        x = add(x)
        return x, n

    check(f, (X,), breaks=None)


def test_break_keeps_mutations_and_identity():
    def f(items, x):
        items.append(x + 1)
        other = items
        print(len(items))
        other.append(x)
        return items is other, items

    check(f, ([], X), breaks=None)


def test_break_in_call_arguments():
    def f(x):
        return torch.add(x, x.sum().item()) + len([x, x.max().item()])

    check(f, (X,), breaks=None)


def test_break_in_generator_goes_outward():
    def f(x):
        def numbers():
            for i in range(2):
                print(i)
                yield x + i

        return sum(numbers())

    check(f, (X,), breaks=None)


def test_break_in_except_handler():
    def f(x):
        try:
            raise ValueError("no")
        except ValueError as error:
            print(error)
            x = x + 1
        return x * 2

    check(f, (X,), breaks=None)


def test_break_in_property():
    class Thing:
        def __init__(self, x):
            self.x = x

        @property
        def total(self):
            return self.x.sum().item()

    def f(x):
        return x * Thing(x).total

    check(f, (X,), breaks=None)


def test_break_in_init():
    class Thing:
        def __init__(self, x):
            self.y = x + 1
            print("init")
            self.z = self.y * 2

    def f(x):
        thing = Thing(x)
        return thing.y + thing.z

    check(f, (X,), breaks=None)


def test_while_on_tensor():
    def f(x):
        n = 0
        while x.sum() < 50:
            x = x * 2
            n += 1
        return x, n

    check(f, (X,), breaks=None, repeat=1)


def test_boolean_operators_on_tensors():
    def f(x):
        y = x.sum() > 0 and x.max()
        z = x.sum() > 0 or x.min()
        return (not x.any()), y, z

    check(f, (X,), (-X.abs(),), breaks=None)


def test_disabled_function():
    @weft.disable
    def secret(x):
        return x.numpy().sum()

    def f(x):
        return x + float(secret(x * 2))

    check(f, (X,), graphs=2, breaks=1)


def test_nonzero_breaks():
    def f(x):
        return x.nonzero().sum() + x[x > 0].sum()

    check(f, (X,), (-X,), breaks=None)


def test_exception_from_operator():
    def f(x):
        return x.relu() @ torch.ones(7, 7)

    check(f, (X,), breaks=None)


def test_contextlib_suppress_around_break():
    def f(x):
        with contextlib.suppress(ValueError):
            print("a")
            raise ValueError
        return x + 1

    check(f, (X,), breaks=None)


def test_the_page_of_graph_breaks_is_current():
    from tools.graph_breaks_page import PAGE, page

    assert PAGE.read_text() == page(), "run python -m tools.graph_breaks_page"


def _plain_python(n):
    return [k * 2 for k in range(n)]


def _with_tensors(x):
    return (x + 1).sum()


@torch.compiler.disable(recursive=False)
def _outside(x):
    return _plain_python(3), _with_tensors(x)


def test_frames_without_tensors_are_not_captured():
    from weft.capture.core.skips import may_hold_tensors
    from weft.capture.core.source import FrameState

    code, names = _plain_python.__code__, globals()
    assert not may_hold_tensors(FrameState(code, [3], (), names))
    assert may_hold_tensors(FrameState(code, [X], (), names))
    assert may_hold_tensors(FrameState(code, [[1, X]], (), names))
    assert may_hold_tensors(FrameState(toy.__code__, [torch.nn.ReLU()], (), names))
    assert may_hold_tensors(FrameState(test_nonzero_breaks.__code__, [], (), {"check": torch.relu}))


def test_a_generator_that_is_left_cleans_up():
    def f(x):
        seen = []

        def numbers():
            try:
                yield 1
                yield 2
            finally:
                seen.append("closed")

        for n in numbers():
            x = x * n
            break
        seen.append("after")
        return x, sorted(seen)

    check(f, (X,), breaks=None)


def test_a_suspended_generator_is_resumed_where_it_waits():
    def f(x):
        def steps(t):
            try:
                while True:
                    sent = yield t
                    t = t + (sent or 1)
            except ValueError as error:
                yield error.args[0]

        g = steps(x)
        a = next(g)
        print("break")
        b = g.send(3)
        print("break")
        return a, b, g.throw(ValueError("v")), list(g)

    check(f, (X,), breaks=None)


def test_a_caller_is_seen_where_the_program_is():
    def where(x):
        frame = sys._getframe(1)
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name

    where = weft.disable(where)

    def f(x):
        y = x + 1
        here = where(y)
        return y, here

    check(f, (X,), breaks=1)


def test_no_exception_is_handled_after_one_was_raised_again():
    def f(x):
        try:
            raise KeyError(1)
        except KeyError:
            y = x.sin()
            print("handling", sys.exc_info()[1])
            if y.shape[0] == 3:
                raise
        return y

    check(f, (X,), breaks=None)
    assert sys.exc_info() == (None, None, None)


def test_a_loop_of_many_breaks_needs_no_stack():
    def f(x):
        for _ in range(3000):
            x = x + 1
            opaque(x)
        return x

    opaque = weft.disable(lambda value: value)
    check(f, (X,), graphs=2, breaks=2, repeat=1)


def test_calls_that_raise_leave_room_for_those_that_do_not():
    def f(x, n):
        y = x.sin()
        if n > 2:
            raise ValueError(n)
        return y + n

    check(f, *[(X, n) for n in (9, 8, 7, 6, 5, 4, 3, 1, 2, 0)], breaks=None)
    assert weft.stats()["graphs"] >= 1


def test_what_an_operator_refuses_at_run_time_is_caught():
    log = []

    def f(x, i):
        log.append("before")
        try:
            y = x.index_select(0, i)
        except IndexError as error:
            log.append(str(error))
            y = x
        return y * 2

    compiled = weft.compile(f, backend="eager")
    good, bad = torch.tensor([1]), torch.tensor([7])
    for index in (good, bad, good):
        expected = f(X, index), list(log)
        log.clear()
        assert torch.equal(compiled(X, index), expected[0])
        assert log == expected[1]
        log.clear()


class Hashed:
    """A key whose hash is the program's own code."""

    def __init__(self, key):
        self.key = key

    def __hash__(self):
        print("hash", self.key)
        return hash(self.key)

    def __eq__(self, other):
        return self.key == other.key


def test_displays_with_keys_that_capture_cannot_hash():
    def f(x, n):
        x = x + 1
        key = Hashed(n)
        table = {key: x, "other": 1}
        x = x * 2
        return x, len({key, 1}), len(table)

    check(f, (X, 2), (X, 3), breaks=None)
    assert weft.stats()["graphs"] > 1


def test_calls_with_starred_arguments_are_broken_at():
    def f(x, args, named):
        y = x * 2
        print(*args)
        print(*args, **named)
        return y + 1

    check(f, (X, (1, 2), {"sep": "-"}), graphs=2, breaks=2)


def test_threads_and_queues_break_at_the_program_s_own_calls():
    """Not at every lock inside of the library."""
    def f(x):
        waiting = queue.Queue()
        y = x.sin()
        waiting.put(y)
        with ThreadPoolExecutor(1) as pool:
            results = list(pool.map(torch.neg, [y, y + 1]))
        return torch.stack(results).cos() + waiting.get()

    check(f, (X,), breaks=5)  # one of the queue; the pool, its two uses and its end


def test_profilers_break_at_the_program_s_own_statements():
    """They are made, entered and left; each of their own C calls was a break."""
    def f(x):
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu, acc_events=True):  # else 2.11 warns
            y = x.sin()
        return y + 1

    check(f, (X,), breaks=3)
