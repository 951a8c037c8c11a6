"""Breaks in inlined functions, from the store: continuations, frames and tracebacks as eager's."""

import traceback

import pytest
import torch

import weft
from weft.diagnostics import events


def _shown(x):
    y = x.sin()
    print(end="")
    return y.cos()


def _raising(x):
    y = x.sin()
    {}["missing"]
    return y


def _catching(x):
    try:
        return _raising(x)
    except KeyError as error:
        return x * len(traceback.extract_tb(error.__traceback__))


def _deeply(x):
    return _shown(_shown(x) + 1) * 2


def _nested(x):
    factor = [2]

    def times(y):
        z = y * factor[0]
        print(end="")
        return z + factor[0]
    return times(_shown(x)) - 1


class _Method:
    def run(self, x):
        for _ in range(2):
            x = _shown(x)
        return x


def _in_method(x):
    return _Method().run(x) + 1


def _order_of_a_set(x):
    for name in set(["sin", "cos", "exp"]):
        x = getattr(torch, name)(x)
    return x


@pytest.fixture
def stored(tmp_path):
    with weft.config.patch(cache_dir=str(tmp_path / "cache"), store_entries=True):
        yield
    weft.reset()


@pytest.mark.parametrize("program", [_deeply, _nested, _in_method, _catching, _order_of_a_set])
def test_a_second_process_captures_nothing(stored, program):
    x = torch.linspace(-1, 1, 4)
    for captures in (True, False):
        weft.reset()
        with events.collect() as seen:
            assert torch.equal(weft.compile(program, backend="aot_eager")(x), program(x))
        reasons = [event.reason for event in seen if event.kind == "not_stored"]
        assert any(e.kind == "stage_start" and e.name == "capture" for e in seen) is captures, (
            reasons)


def test_errors_show_the_lines_of_inlined_functions(stored):
    def outer(x):
        return _raising(x + 1)

    def lines(call):
        with pytest.raises(KeyError) as caught:
            call(torch.ones(2))
        return [(f.name, f.lineno) for f in traceback.extract_tb(caught.value.__traceback__)
                if f.name in ("outer", "_raising")]

    for _ in range(2):
        weft.reset()
        assert lines(weft.compile(outer, backend="aot_eager")) == lines(outer)
