"""What scientific libraries do besides computing, which broke graphs: gpytorch, pyro, PennyLane."""

from __future__ import annotations

import functools
import inspect
import math
import pickle
import sys
import warnings
from collections import OrderedDict

import pytest
import torch
from torch import nn

import weft
from tests.capture.harness import check

X = torch.tensor([1.0, -2.0, 3.0])


class Shapes:
    batch, event = torch.Size([2]), torch.Size([])


def test_sizes_are_added():
    def f(x):
        total = Shapes.batch + Shapes.event + x.shape
        return x.sum(), total, type(total), type(total + (1,)), x.shape[:0] + x.shape

    check(f, (X,), graphs=1, breaks=0)


# -- partials of subclasses -----------------------------------------------------------------------


class Bound(functools.partial):
    """As pyro's: an attribute has the name of one of the partial's own."""

    __slots__ = "func"

    def __init__(self, func):
        self.func = func

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self.func, instance)


class Twice(functools.partial):
    def twice(self, x):
        return self(self(x))


class Shifted(functools.partial):
    def __call__(self, x):
        return super().__call__(x) + 1


class Named(functools.partial):
    def __new__(cls, function, factor):
        self = super().__new__(cls, function, factor)
        self.name = f"times {factor}"
        return self


def scaled(factor, x, *, shift=1):
    return x * factor + shift


OUTSIDE = Twice(scaled, 3, shift=2), Shifted(scaled, 2), Bound(
    functools.partial(scaled, 5)), Named(scaled, 7)


class Owner:
    method = Bound(scaled)

    def __rmul__(self, other):
        return other


@pytest.mark.parametrize("outside", [False, True])
def test_partials_of_subclasses_are_called_and_read(outside):
    def f(x):
        twice, shifted, bound, named = OUTSIDE if outside else (
            Twice(scaled, 3, shift=2), Shifted(scaled, 2), Bound(functools.partial(scaled, 5)),
            Named(scaled, 7))
        return (twice(x), twice.twice(x), twice.keywords, twice.args, shifted(x), bound(x),
                bound.func(x), bound.args, named(x), named.name, type(named), Owner().method(x),
                isinstance(bound, functools.partial))

    check(f, (X,), graphs=1, breaks=0)


def test_partials_of_subclasses_made_inside_are_returned():
    def f(x):
        return x + 1, Twice(scaled, 3, shift=2), Named(scaled, 7), Bound(scaled)

    _, twice, named, bound = weft.compile(f, backend="eager")(X)
    assert torch.equal(twice.twice(X), (X * 3 + 2) * 3 + 2)
    assert (type(named), named.name, named.args) == (Named, "times 7", (7,))
    assert (type(bound), bound.func, functools.partial.func.__get__(bound)) == (
        Bound, scaled, scaled)


def test_arguments_of_an_outside_partial_of_a_subclass_are_guarded():
    def f(x, part):
        return part(x)

    check(f, (X, Twice(scaled, 3)), (X, Twice(scaled, 4)), (X, Bound(Twice(scaled, 2))), breaks=0)


# -- frames of callers ----------------------------------------------------------------------------


def warn_if_nan(x):
    frame = sys._getframe(1)
    place = frame.f_code.co_filename, frame.f_lineno
    if torch.isnan(x).any():
        warnings.warn_explicit("NaN", UserWarning, *place)
    return place


def where():
    frame = inspect.currentframe().f_back
    return (frame.f_code.co_name, frame.f_lineno, frame.f_globals["__name__"],
            frame.f_back is frame, frame.f_back.f_code.co_qualname)


def chain(depth):
    frame, seen = sys._getframe(0), []
    for _ in range(depth):
        seen.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return seen


def asks(x):
    first = warn_if_nan(x)
    return x + 1, first, where(), chain(2)


def test_functions_that_ask_who_called_them_are_captured():
    def f(x):
        y, *seen = asks(x)
        return y * 2, seen, [
            chain(1)  # (since 3.12 a comprehension is no frame of its own)
            for _ in range(2)]

    check(f, (X,), graphs=1, breaks=0)


def test_frames_of_callers_outside_are_pythons():
    def f(x):
        y, *seen = asks(x)
        return y * 2, seen, chain(4)

    check(f, (X,), breaks=1)


def test_variables_of_callers_are_pythons():
    def caller(x):
        hidden = x + 1
        return hidden, sorted(sys._getframe(0).f_locals), looks()

    def looks():
        return sorted(sys._getframe(1).f_locals)

    check(lambda x: caller(x * 2), (X,), breaks=1)


def test_frames_between_modules_are_pythons():
    class Asks(nn.Module):
        def forward(self, x):
            return x + 1, chain(3)

    asking = Asks()
    check(lambda x: asking(x * 2), (X,), breaks=1)


def test_functions_that_ask_for_frames_are_not_split():
    def splits(x):
        print("splits")
        return x + 1, sys._getframe(1).f_code.co_name, sys._getframe(0).f_code.co_name

    check(lambda x: splits(x * 2), (X,), breaks=1)


# -- comparisons, keys, views ---------------------------------------------------------------------


class Trained(nn.Module):
    """As gpytorch's models: checks its input, and makes keys of keyword arguments."""

    def __init__(self):
        super().__init__()
        self.inputs, self.scale = torch.arange(3.0), nn.Parameter(torch.ones(1))
        self.options = OrderedDict(a=1, b=2)
        self.names, self.pairs = self.options.keys(), self.options.items()

    def forward(self, x, **options):
        if not torch.equal(self.inputs, x):
            raise RuntimeError("you must train on the training inputs")
        left, right = x / self.scale, self.inputs / self.scale
        return (left, torch.equal(left, right), torch.allclose(left, right + 1e-9),
                torch.equal(left, left[:2]), bool(torch.is_nonzero(self.inputs[1:2])),
                pickle.dumps(options), len(self.names), list(self.names), dict(self.pairs),
                "a" in self.names, type(self.names).__name__, type(self.options.values()).__name__)


def test_comparisons_and_keys_of_constants_are_captured():
    model, x = Trained(), torch.arange(3.0)
    for options in ({}, {"diag": True}, {"a": 1, "b": ("c", None), "l": [1.5, b"x"]}):
        check(model, (x,), kwargs=options, graphs=1, breaks=0)
    check(model, (x,), (x + 1,), (x.clone(),), breaks=0)


def test_a_comparison_that_goes_both_ways_has_two_variants():
    compiled = check(lambda x, y: x + 1 if torch.equal(x, y) else x - y,
                     (X, X.clone()), (X, X + 1), (X * 2, X * 2), (X, X * math.nan), breaks=0)
    assert weft.stats()["graphs"] == 2
    del compiled


def test_a_view_from_outside_sees_what_is_written_inside():
    table = {"a": 1}
    names = table.keys()

    def f(x):
        table["b"] = 2
        return x + 1, list(names), names

    assert weft.compile(f, backend="eager")(X)[1] == ["a", "b"]
    assert weft.compile(f, backend="eager")(X)[2] is names


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, other):
        if (x > other).any():  # a graph cannot hold it: autograd calls `forward`
            x = x * 1
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(kept := other * 1)
        return x * 2, kept

    @staticmethod
    def backward(ctx, gradient, _):
        return gradient * 2 + ctx.saved_tensors[0], None


def test_a_context_that_autograd_made_keeps_what_forward_saves():
    def f(x, other):
        return Doubled.apply(x, other)[0].sum()

    x, other = X.clone().requires_grad_(), X.flip(0)
    expected = torch.autograd.grad(f(x, other), x)
    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(compiled(x, other), x), expected)
    assert weft.stats()["graph_breaks"] <= 3


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_factorizations_are_expected_to_succeed(backend):
    def f(a):
        factor, info = torch.linalg.cholesky_ex(a)
        inverse = torch.linalg.inv_ex(a)
        if not torch.any(info) and (inverse.info == 0).all():
            return factor @ inverse.inverse
        return a * 0

    weft.reset()
    compiled, good = weft.compile(f, backend=backend), torch.eye(3) * 2
    for a in (good, -good, good, torch.zeros(3, 3)):
        torch.testing.assert_close(compiled(a), f(a))
    assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (1, 0)


def test_a_hook_that_branches_on_data_ends_the_graph_alone():
    told = []

    def checked(gradient):
        if torch.isnan(gradient).any():
            told.append("NaN")
        return gradient

    def f(x):
        if (x == math.inf).any():  # is in the graph, which the hook is not
            raise ValueError("infinite")
        y = x * 2
        y.register_hook(checked)
        return y.sum() * x[0]

    weft.reset()
    compiled, x = weft.compile(f), X.clone().requires_grad_()
    for scale in (1.0, math.nan):
        torch.testing.assert_close(
            torch.autograd.grad(compiled(x) * scale, x), torch.autograd.grad(f(x) * scale, x),
            equal_nan=True)
    assert told == ["NaN", "NaN"]
    assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (2, 1)


# -- tests and loops ------------------------------------------------------------------------------


def test_comparisons_with_infinity_are_expected_to_be_false():
    def f(x):
        if (x == math.inf).any() or (-math.inf == x).any() or (x.abs() == float("inf")).sum() > 0:
            return x * 0
        return x + 1

    check(f, (X,), graphs=1, breaks=0)
    check(f, (X,), (torch.tensor([1.0, math.inf, 2.0]),), breaks=None)


@pytest.mark.parametrize("view", ["__iter__", "keys", "values", "items"])
def test_loops_over_ordered_dictionaries_go_on_behind_breaks(view):
    table = OrderedDict(a=1.0, b=2.0, c=3.0)

    def f(x):
        seen = []
        for entry in getattr(table, view)():
            x = x + 1
            print("between", entry)
            seen.append(entry)
        return x, seen

    check(f, (X,), breaks=None)


def test_an_ordered_dictionary_that_changes_in_its_loop():
    def f(x):
        table = OrderedDict(a=1, b=2)
        for _ in table:
            print("between")
            x = x + 1
            table["new"] = 3
        return x

    check(f, (X,), breaks=None)


def test_statistics_are_read_between_the_graphs():
    @weft.compile(backend="eager", dynamic=False)
    def f(x):
        y = x + 1
        return y * 2, weft.stats()["graphs"]

    weft.reset()
    results = [f(X) for _ in range(2)]
    assert [graphs for _, graphs in results] == [1, 1]
    torch.testing.assert_close(results[1][0], (X + 1) * 2)
