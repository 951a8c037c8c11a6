"""Graph breaks: right results, printed output in order, the stated number of graphs and breaks."""

from __future__ import annotations

import contextlib

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
    from weft.capture.skips import may_hold_tensors

    code, names = _plain_python.__code__, globals()
    assert not may_hold_tensors(code, [3], (), names)
    assert may_hold_tensors(code, [X], (), names)
    assert may_hold_tensors(code, [[1, X]], (), names)
    assert may_hold_tensors(toy.__code__, [torch.nn.ReLU()], (), names)
    assert may_hold_tensors(test_nonzero_breaks.__code__, [], (), {"check": torch.relu})
