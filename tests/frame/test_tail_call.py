"""Replacements that go on in a continuation, and those that ask for their frame to be run."""

from __future__ import annotations

import weakref

import pytest
import torch

from weft import _frame


def entry(replacement, slots, *, may_rerun=False):
    nodes = tuple((("local", i), (), i, ()) for i in range(slots))
    return _frame.Entry(_frame.GuardTree(nodes, (), slots), replacement, None, True, may_rerun)


def compiled(function, replacement, slots, **flags):
    return _frame.CompiledFunction(function, lambda *_: entry(replacement, slots, **flags))


def test_a_million_tail_calls_need_no_stack():
    def count(n, x):
        raise AssertionError("its replacement runs")

    def replacement(v):
        n, x = v
        return x if n == 0 else _frame.tail_call(function, n - 1, x)

    function = compiled(count, replacement, 2)
    assert function(1_000_000, "end") == "end"


def test_a_tail_call_frees_tensors_before_the_next_piece_begins():
    _frame.tensor_access()  # finds torch
    seen = []

    def first(x):
        raise AssertionError

    def second(x):
        raise AssertionError

    def replace_first(v):
        made = v[0] + 1
        seen.append(weakref.ref(made))
        return _frame.tail_call(after, made)

    def replace_second(v):
        assert seen[0]() is v[0]
        v.clear()
        seen.append(seen[0]())
        return 5

    before, after = compiled(first, replace_first, 1), compiled(second, replace_second, 1)
    assert before(torch.ones(2)) == 5
    assert seen[1] is None


def test_errors_come_out_of_tail_calls():
    def broken(x):
        raise KeyError(x)

    made = entry(lambda v: _frame.tail_call(broken, v[0]), 1)
    function = _frame.CompiledFunction(lambda x: x, lambda c, *_: made if c else None)
    with pytest.raises(KeyError, match="3"):
        function(3)


def test_a_replacement_can_ask_for_its_frame_to_be_run():
    calls = []

    def replacement(v):
        calls.append(v[0])
        raise _frame.RunEagerly

    function = compiled(lambda x: x + 1, replacement, 1, may_rerun=True)
    assert [function(1), function(5)] == [2, 6]
    assert calls == [1, 5]


def test_a_hooked_frame_can_be_run_after_all():
    def inner(x):
        return x + 1

    def outer(x):
        return inner(x) * 2

    def replacement(v):
        raise _frame.RunEagerly

    def on_miss(compiled, function, code, *rest):
        return entry(replacement, 1, may_rerun=True) if code is inner.__code__ else None

    with _frame.hook(on_miss):
        assert outer(4) == 10


def test_a_frame_that_ran_after_all_is_told_of():
    told = []

    def replacement(v):
        try:
            raise KeyError("graph")
        except KeyError as error:
            raise _frame.RunEagerly(error, told.append) from None

    function = compiled(lambda x: 1 // x, replacement, 1, may_rerun=True)
    assert function(1) == 1
    assert [str(error) for error in told] == ["'graph'"]
    with pytest.raises(ZeroDivisionError) as caught:
        function(0)
    assert caught.value.__context__ is None
    assert len(told) == 1
