"""Calls that Python refuses are refused; arguments by name mean the same as by position."""

from __future__ import annotations

import collections
import copy
import functools
import inspect
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import weft.capture.library.registration  # noqa: F401  (registers the rules)
from tests.capture.harness import check
from weft.arity import Arity, arity
from weft.capture.core.rules import Rule
from weft.capture.library.classes.classes import CONSTRUCTORS
from weft.capture.library.functions.builtins import EXTERNAL_METHODS, OBJECT_METHODS
from weft.capture.library.functions.functions import RULES


def _calls(*arities: Arity) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Numbers of positional arguments, and names, around what the functions accept."""
    names = sorted({"no_such_name", *itertools.chain.from_iterable(a.names for a in arities)})
    named = [(), *((name,) for name in names), *itertools.combinations(names[:8], 2)]
    most = max(int(a.most) if a.most < math.inf else 6 for a in arities)
    return itertools.product(range(most + 2), named)


def _rules() -> Iterator[tuple[Any, Rule]]:
    yield from RULES.values()
    yield from CONSTRUCTORS.items()
    yield from ((getattr(kind, name), rule) for (kind, name), rule in EXTERNAL_METHODS.items())
    yield from ((getattr(object, name), rule) for name, rule in OBJECT_METHODS.items())


def test_no_rule_takes_a_call_that_its_function_refuses() -> None:
    """Rules of a fixed number of parameters; those of more pass on what they are given."""
    compared, wrong = 0, []
    for function, rule in _rules():
        own = arity(rule.function, rule.first)
        fixed = own.most < math.inf and not own.any_name
        try:
            real = arity(function)
        except (TypeError, ValueError):  # not readable
            continue
        if fixed and function is not weakref.KeyedRef:  # which breaks the graph in any case
            compared += 1
            wrong += [(rule, call) for call in _calls(own, real)
                      if rule.fits(*call) and not real.accepts(*call)]
    assert compared > 150
    assert not wrong


REFUSED: dict[str, Callable[[Any], Any]] = {
    "len of nothing": lambda x: len(),  # type: ignore[call-arg]
    "len of two": lambda x: len([x], [x]),  # type: ignore[call-arg]
    "len by name": lambda x: len(obj=[x]),  # type: ignore[call-arg]
    "sum by a wrong name": lambda x: sum([1], begin=1),  # type: ignore[call-overload]
    "sorted by position": lambda x: sorted([2, 1], None),  # type: ignore[call-overload]
    "max of nothing": lambda x: max(key=abs),  # type: ignore[call-overload]
    "append of two": lambda x: [].append(1, 2),  # type: ignore[call-arg]
    "get by name": lambda x: {}.get("a", default=x),  # type: ignore[call-overload]
    "pop by name": lambda x: {"a": 1}.pop("b", default=x),  # type: ignore[call-overload]
    "popitem of a plain dictionary": lambda x: {"a": 1}.popitem(last=False),  # type: ignore[call-arg]
    "move_to_end of a plain dictionary": lambda x: {"a": 1}.move_to_end("a"),  # type: ignore[attr-defined]
    "sort by position": lambda x: [2, 1].sort(None),  # type: ignore[misc]
    "index of many": lambda x: (1, 2).index(1, 0, 2, 3),  # type: ignore[call-arg]
    "isdisjoint of two": lambda x: {1}.isdisjoint({2}, {3}),  # type: ignore[call-arg]
    "rotate by name": lambda x: collections.deque([1]).rotate(n=1),  # type: ignore[call-arg]
    "deque by a wrong name": lambda x: collections.deque([1], length=1),  # type: ignore[call-overload]
    "enumerate of three": lambda x: enumerate([1], 0, 0),  # type: ignore[call-arg]
    "zip by a wrong name": lambda x: zip([1], [2], fill=0),  # type: ignore[call-overload]
    "pairwise of two": lambda x: itertools.pairwise([1], [2]),  # type: ignore[call-arg]
    "accumulate of three": lambda x: itertools.accumulate([1], operator.add, 0),  # type: ignore[misc]
    "itemgetter of nothing": lambda x: operator.itemgetter(),  # type: ignore[call-overload]
    "reduce by name": lambda x: functools.reduce(operator.add, [1], initial=1),  # type: ignore[call-arg]
    "copy of two": lambda x: copy.copy([1], [2]),  # type: ignore[call-arg]
    "is_grad_enabled of something": lambda x: torch.is_grad_enabled(x),  # type: ignore[call-arg]
    "is_tensor of two": lambda x: torch.is_tensor(x, x),  # type: ignore[call-arg]
    "item of something": lambda x: x.sum().item(1),
    "requires_grad_ by a wrong name": lambda x: x.requires_grad_(grad=True),
    "numpy by position": lambda x: x.numpy(True),
}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_do_not_fit_raise_pythons_errors(name: str) -> None:
    call = REFUSED[name]

    def program(x: Any) -> Any:
        y = x + 1
        try:
            call(x)
        except (TypeError, AttributeError) as error:
            return y * 2, type(error), str(error)
        return y

    check(program, (torch.ones(2),), breaks=None)


BY_NAME: dict[str, Callable[[Any, int], Any]] = {
    "round": lambda x, n: round(2.567 + n, ndigits=1),
    "pow": lambda x, n: pow(base=3, exp=n, mod=5),
    "sum": lambda x, n: sum([n, 1], start=2),
    "as_tensor": lambda x, n: torch.as_tensor(data=[n, x.shape[0]], dtype=torch.float32),
    "tensor": lambda x, n: torch.tensor(data=[n, 2], dtype=torch.int8),
    "text": lambda x, n: str(object=n),
    "deque": lambda x, n: [*collections.deque(iterable=[n, 1, 2], maxlen=2)],
    "move_to_end": lambda x, n: _moved(n),
    "permutations": lambda x, n: [*itertools.permutations(iterable=[n, 1], r=1)],
    "accumulate": lambda x, n: [*itertools.accumulate([n, 1], func=operator.mul, initial=2)],
    "accumulate from None": lambda x, n: [*itertools.accumulate([n, 1], initial=None)],
    "zip_longest": lambda x, n: [*itertools.zip_longest([n], [1, 2], fillvalue=x.shape[0])],
    "takewhile": lambda x, n: [*itertools.takewhile(lambda i: i < n, itertools.count(step=2))],
    "compress": lambda x, n: [*itertools.compress(data=[n, 1], selectors=[1, 0])],
    "attention": lambda x, n: torch.nn.functional.scaled_dot_product_attention(
        key=x[None], query=x[None], value=x[None], is_causal=True),
    "batch norm": lambda x, n: torch.nn.BatchNorm1d(3)(input=x),
}


def _moved(n: int) -> Any:
    ordered = collections.OrderedDict(a=n, b=1)
    ordered.move_to_end(key="b", last=False)
    return ordered, ordered.setdefault("c", default=n), ordered.popitem(last=False)


@pytest.mark.parametrize("name", BY_NAME)
def test_arguments_by_name(name: str) -> None:
    call = BY_NAME[name]
    check(lambda x: (x + 1, call(x, 3)), (torch.randn(2, 3),), breaks=0)


def test_an_arity_accepts_what_python_binds() -> None:
    def several(a: int, /, b: int, c: int = 0, *, d: int, e: int = 0) -> None: ...

    def gathers(a: int, *rest: int, d: int = 0, **named: int) -> None: ...

    for function in (several, gathers, lambda a=0, b=0, /: None, lambda: None, lambda *, x: None):
        accepted = arity(function)
        for count, names in _calls(accepted):
            try:
                inspect.signature(function).bind(*range(count), **dict.fromkeys(names))
                binds = True
            except TypeError:
                binds = False
            assert accepted.accepts(count, names) is binds, (count, names)
