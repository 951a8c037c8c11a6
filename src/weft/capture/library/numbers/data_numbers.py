"""Numbers and sizes that depend on tensors' data, kept in the graph.

Place in the pipeline: beside tensors and symbolic numbers. The result of an operation may have
*unbacked* symbols (`shapes/unbacked.py`). `note_symbols` records which graph node holds their
values, so that later arithmetic, arguments and results can be computed from it::

    n = mask.sum().item()       # node item; SymbolicNumberValue u0
    y = x[:n] * n               # getitem(x, slice(None, item)); mul(getitem, item)
    return y, n                 # the graph returns both

What operators require of such numbers (`x[mask] + y` needs equal sizes) becomes a check in the
graph. Conditions on inputs alone (numbers that the program draws) are checked before the graph
runs, so that nothing has happened yet if they fail.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from weft.capture.core.breaks import graph_break
from weft.capture.core.data_checks import EarlyCheck
from weft.capture.core.operator_names import COMPARISONS
from weft.runtime.data_checks import ERRORS, hold, hold_expected
from weft.shapes.algebra.floats import FloatRelation
from weft.shapes.algebra.relation import Junction, Relation
from weft.shapes.guard import AnyCondition, python_text, sides
from weft.shapes.unbacked import Binding, bindings

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

Number = Callable[[Any], Any]
"""Gives the graph node of an integer or float expression."""

Check = Callable[[bool | torch.SymBool, str], None]
"""`hold` or `hold_expected`."""


def note_symbols(tx: Interpreter, node: fx.Node, result: object) -> None:
    """Record where an operation's result holds the symbols that it introduced."""
    for binding in bindings(tx.shapes.unbacked_symbols.take_fresh(), result):
        tx.data.places[binding.name] = (node, binding)


def read_symbol(tx: Interpreter, name: str) -> fx.Node:
    """The graph node that computes the value of an unbacked symbol."""
    place = tx.data.places.get(name)
    if place is None:
        raise graph_break("data-dependent-value", f"a number inside of an operator ({name})")
    node, binding = place
    return _read(tx, tx.builder.local(node), binding)


def _read(tx: Interpreter, node: fx.Node, binding: Binding) -> fx.Node:
    example = node.meta["example_value"]
    for item in binding.path:
        example = example[item]
        node = _add(tx, operator.getitem, (node, item), example)
    if binding.dim is None:
        return node
    return _add(tx, "size", (node, binding.dim), example.size(binding.dim))


def _add(tx: Interpreter, target: object, args: tuple[object, ...], example: object) -> fx.Node:
    node: fx.Node = tx.builder.call(target, args, {}, example, tx.stack())
    tx.builder.n_calls -= 1  # numbers alone are not worth a graph
    return node


# -- conditions -----------------------------------------------------------------------------------

_COMPARE: Final[Mapping[str, Callable[..., Any]]] = {
    "==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le,
}
_JOIN: Final[Mapping[str, Callable[..., Any]]] = {"and": operator.and_, "or": operator.or_}
_FLOAT_COMPARE: Final[Mapping[str, Callable[..., Any]]] = {
    name: getattr(operator, name) for name in COMPARISONS
}


def condition_node(tx: Interpreter, condition: AnyCondition, number: Number) -> Any:
    """The graph node of a condition, or a bool if it is known."""
    if isinstance(condition, bool):
        return condition
    if isinstance(condition, Relation):
        left, kind, right = sides(condition)
        return _compare(tx, kind, number(left), number(right))
    if isinstance(condition, Junction):
        first, *others = (condition_node(tx, p, number) for p in sorted(condition.parts, key=repr))
        for other in others:
            first = _apply(tx, _JOIN[condition.kind], first, other)
        return first
    return _float_condition(tx, condition, number)


def _compare(tx: Interpreter, kind: str, *numbers: object) -> object:
    """A comparison of two integers or bools; symbolic bools have no `!=`."""
    of_bools = any(isinstance(n, fx.Node) and isinstance(n.meta["example_value"], torch.SymBool)
                   for n in numbers)
    if of_bools and kind == "!=":
        return _apply(tx, torch.sym_not, _apply(tx, operator.eq, *numbers))
    return _apply(tx, _COMPARE[kind], *numbers)


def _float_condition(tx: Interpreter, condition: FloatRelation, number: Number) -> object:
    function = _FLOAT_COMPARE.get(condition.op)
    if function is None:
        raise graph_break("data-dependent-value", f"the condition {condition!r}")
    outcome = _apply(tx, function, number(condition.left), number(condition.right))
    return _apply(tx, torch.sym_not, outcome) if condition.negated else outcome


def _apply(tx: Interpreter, function: Callable[..., object], *args: object) -> Any:
    examples = [a.meta["example_value"] if isinstance(a, fx.Node) else a for a in args]
    return _add(tx, function, args, function(*examples))


# -- checks ---------------------------------------------------------------------------------------


def note_checks(tx: Interpreter, number: Number) -> None:
    """Add checks to the graph for what operators required of data since the last call."""
    asserts = tx.shapes.asserts
    while tx.data.n_checked < len(asserts):
        guard = asserts[tx.data.n_checked]
        tx.data.n_checked += 1
        text = python_text(guard.condition)
        if guard.assumed:
            add_check(tx, guard.condition, f"expected of data: {text}", number, hold_expected)
        else:
            add_check(tx, guard.condition, f"an operator needs {text}", number)


def add_check(
    tx: Interpreter, condition: AnyCondition, message: str, number: Number,
    check: Check = hold,
) -> None:
    """Add a call to the graph that raises unless the condition holds, or an early check."""
    if not tx.shapes.is_of_results(condition):
        tx.data.early_checks.append(EarlyCheck(condition, message, ERRORS[check]))
        return
    test = condition_node(tx, condition, number)
    tx.builder.effect(check, (test, message), tx.stack())
    tx.builder.n_checks += 1
