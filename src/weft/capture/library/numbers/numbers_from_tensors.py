"""Rules for methods that read numbers from tensors: the numbers stay in the graph.

Place in the pipeline: see `weft.capture.library`. The numbers are unbacked symbols
(`data_numbers.py`); a context without data-dependent symbols breaks the graph
instead::

    n = lengths.max().item()          # node `item`, the number u0
    a, b = lengths.tolist()           # node `tolist` and its items
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F

from weft._torch import (
    check,
    check_index,
    check_is_size,
    check_type,
    check_value,
    check_with,
)
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import StartOver, graph_break
from weft.capture.core.constant import NONE, ZERO, constant
from weft.capture.core.rules import passed
from weft.capture.library.functions.functions import rule
from weft.capture.library.numbers.data_numbers import Check, add_check
from weft.capture.library.numbers.symbolic_numbers import (
    SymbolicNumberValue,
    check_divisor_of_data,
    condition_of,
    expected_truth,
    int_of_data,
    number_node,
)
from weft.capture.library.tensors.finite_tests import if_finite
from weft.capture.library.tensors.size_tensors import has_one_element
from weft.capture.library.tensors.tensor import (
    TensorValue,
    likely_truth,
    record,
    tensor_method,
)
from weft.runtime.data_checks import hold, hold_expected
from weft.shapes.algebra.expr import subs, symbol_of
from weft.shapes.algebra.relation import Junction, Relation, condition_symbols, rewrite
from weft.shapes.guard import opposite
from weft.shapes.symnode import UndecidedValue, certainly_equal

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_LONGEST_LIST: Final = 256
"""Longest list of numbers that becomes part of the graph; longer loops are better run by Python."""

_MOST_TURNS: Final = 4
_MOST_TIMES: Final = 128
"""How often a branch may be expected to go one way, within a turn of a `for` loop and in total: a
`while` loop may wait for the other way."""


def _require(tx: Interpreter, tensor: TensorValue, name: str, possible: bool) -> None:
    if not possible or not tx.shapes.data_dependent or tensor.example.dtype.is_complex:
        raise graph_break("data-dependent-value", f"{name}() of {tensor!r}", tensor.proxy(tx))


@tensor_method("item")
def _item(tx: Interpreter, tensor: TensorValue) -> SymbolicValue:
    """The number in a tensor that is known to have one element."""
    known = tensor.known_data(tx)
    if known is not None and known.numel() == 1:
        return tx.wrap_new(known.item())
    number = tensor.known_number(tx)
    if number is not None:
        return number
    _require(tx, tensor, "item", has_one_element(tensor.example))
    value = record(tx, "item", [tensor])
    tx.builder.n_calls -= 1  # a number alone is not worth a graph
    return value


def _converted(name: str, dtypes: frozenset[torch.dtype]) -> None:
    """The rule of `int(x)` or `float(x)` for tensors of these types."""

    @tensor_method(name)
    def method(tx: Interpreter, tensor: TensorValue) -> SymbolicValue:
        if tensor.known_data(tx) is None and tensor.known_number(tx) is None:
            _require(tx, tensor, name, tensor.example.dtype in dtypes)
        return _item(tx, tensor).method(tx, name, [], {})


@int_of_data.define
def _truncated(tx: Interpreter, number: SymbolicNumberValue) -> SymbolicValue:
    """`int(v)` of a float that depends on data; a tensor truncates it to 64 bits in the same
    way."""
    for op, limit in (("ge", -(2.0**63)), ("lt", 2.0**63)):
        fits = tx.binary(op, number, constant(limit))
        if _depends_on_data(tx, fits):
            text = "cannot convert float NaN to integer, nor what has more than 64 bits"
            _hold(tx, condition_of(fits), text)
    double = record(tx, torch.scalar_tensor, [number], {"dtype": constant(torch.float64)})
    whole = record(tx, "to", [double, constant(torch.int64)])
    tx.builder.n_calls -= 2
    return whole.method(tx, "item", [], {})


def _likely_size(tx: Interpreter, size: Any) -> int | None:
    """The size if it is known or has a likely value."""
    try:
        return size if type(size) is int else tx.shapes.specialize(size.node.value)
    except UndecidedValue:
        return None


@tensor_method("tolist")
def _tolist(tx: Interpreter, tensor: TensorValue) -> SymbolicValue:
    """The nested list of the tensor's numbers."""
    known = tensor.known_data(tx)
    if known is not None:
        return tx.wrap_new(known.tolist())
    sizes = [_likely_size(tx, n) for n in tensor.example.shape]
    short = math.prod(_LONGEST_LIST + 1 if n is None else n for n in sizes) <= _LONGEST_LIST
    _require(tx, tensor, "tolist", short)
    if not sizes:
        return _item(tx, tensor)
    value = record(tx, "tolist", [tensor])
    tx.builder.n_calls -= 1
    return value


# -- checks ---------------------------------------------------------------------------------------

_CHECK: Final = "a check of the program"


def _check(tx: Interpreter, condition: SymbolicValue) -> SymbolicValue:
    """`torch._check`: a condition that follows from facts needs nothing, one on sizes becomes a
    guard, and one on data becomes a check in the graph (which leaves messages to eager)."""
    if isinstance(condition, TensorValue) or not _depends_on_data(tx, condition):
        if not condition.truth(tx):
            raise graph_break("operator-failed", "a torch._check that does not hold")
        return NONE
    _hold(tx, condition_of(condition), _CHECK)
    return NONE


def _hold(tx: Interpreter, asked: Any, text: str, check: Check = hold) -> None:
    add_check(tx, asked, text, lambda value: number_node(tx, value), check)
    tx.shapes.require(asked)
    tx.data.n_checked = len(tx.shapes.asserts)


def _depends_on_data(tx: Interpreter, condition: SymbolicValue) -> bool:
    if not isinstance(condition, SymbolicNumberValue) or not tx.shapes.unbacked_symbols.exist:
        return False
    example = condition.example
    if not isinstance(example, torch.SymBool):
        return False
    asked = example.node.value
    return tx.shapes.decide(asked) is None and tx.shapes.hints.condition(asked) is None


@rule(check, check_value, check_index, check_type)
def _check_condition(tx: Interpreter, cond: SymbolicValue, message: SymbolicValue = NONE
                     ) -> SymbolicValue:
    condition = tx.force(cond)
    if condition.python_type() is not bool:
        raise graph_break("operator-failed", f"a torch._check of {condition!r}")
    return _check(tx, condition)


@rule(check_with)
def _check_with(tx: Interpreter, error_type: SymbolicValue, cond: SymbolicValue,
                message: SymbolicValue) -> SymbolicValue:
    return _check_condition(tx, cond)


def check_truth(tx: Interpreter, value: SymbolicValue, wanted: bool) -> bool:
    """Whether the graph checks from now on that a value, whose truth depends on data, is true (or
    false)."""
    if isinstance(value, SymbolicNumberValue):
        return _check_number(tx, value, wanted)
    if not isinstance(value, TensorValue) or not tx.shapes.data_dependent:
        return False
    if value.known_data(tx) is not None or value.known_number(tx) is not None:
        return False
    if not has_one_element(value.example):
        return False
    _check(tx, _is_truth(tx, value, wanted))
    tx.note_check()
    return True


def _is_truth(tx: Interpreter, value: TensorValue, wanted: bool) -> SymbolicValue:
    """The condition that the truth of a tensor of one element is the wanted one."""
    flag: SymbolicValue = value
    if value.example.dtype is not torch.bool:
        flag = record(tx, torch.ne, [value, constant(0)])
    number = record(tx, "to", [flag, constant(torch.int64)])
    return tx.binary("eq", number.method(tx, "item", [], {}), constant(int(wanted)))


def _check_number(tx: Interpreter, value: SymbolicNumberValue, wanted: bool) -> bool:
    condition = value if isinstance(value.example, torch.SymBool) else tx.binary(
        "ne", value, constant(0))
    if not _depends_on_data(tx, condition):
        return False
    asked = condition_of(condition)
    _hold(tx, asked if wanted else opposite(asked), _CHECK)
    tx.note_check()
    return True


@expected_truth.define
def _expected_truth(tx: Interpreter, value: SymbolicNumberValue) -> bool | None:
    """Assume that `if rows.numel() == 0` is false, unless the branch ends a loop."""
    if value.python_type() is float or not _may_expect(tx):
        return None
    condition = value if isinstance(value.example, torch.SymBool) else tx.binary(
        "ne", value, constant(0))
    if not _depends_on_data(tx, condition):
        return None
    asked = condition_of(condition)
    expected: bool | None = tx.shapes.expect(asked)
    if expected is None:
        expected = _if_finite(tx, asked)
        if expected is not None:
            _expect_finite(tx, asked if expected else opposite(asked))
    if expected is not None:
        _count_expectation(tx)
    return expected


@likely_truth.define
def _likely_truth(tx: Interpreter, value: TensorValue) -> bool | None:
    """Assume that what the program tests for NaN and infinity is finite."""
    if not _may_expect(tx) or not has_one_element(value.example):
        return None
    expected = if_finite(value.proxy(tx))
    if expected is not None:
        likely = _is_truth(tx, value, expected)
        _expect_finite(tx, condition_of(likely))
        _count_expectation(tx)
    return expected


def _if_finite(tx: Interpreter, asked: object) -> bool | None:
    """The truth of a condition on numbers that tell whether others are finite, if they are."""
    if not isinstance(asked, (Relation, Junction)):
        return None
    values: dict[Any, Any] = {}
    for symbol in condition_symbols(asked):
        place = tx.data.places.get(symbol_of(symbol).name)
        answer = None if place is None else if_finite(place[0])
        if answer is None:
            return None
        values[symbol] = int(answer)
    outcome = rewrite(asked, lambda value: subs(value, values))
    return outcome if isinstance(outcome, bool) else None


def _expect_finite(tx: Interpreter, asked: object) -> None:
    """Assume a condition; if the graph finds it false, the frame runs eagerly."""
    _hold(tx, asked, "expected of data: finite numbers", hold_expected)
    tx.note_check()


def _may_expect(tx: Interpreter) -> bool:
    """Whether the current branch may be expected to go one way."""
    if not tx.shapes.data.may_expect or tx.frame is None:
        return False
    return (tx.frame.code, tx.frame.current.offset) not in tx.policy.unexpected


def _count_expectation(tx: Interpreter) -> None:
    """Count an assumption at the current branch; it was the last if that ends a loop."""
    assert tx.frame is not None
    place = (tx.frame.code, tx.frame.current.offset)
    times, turn = tx.data.expected_at, (place, tx.data.turns)
    times[place] += 1
    times[turn] += 1
    if times[turn] > _MOST_TURNS or times[place] > _MOST_TIMES:
        tx.policy.unexpected.add(place)
        raise StartOver


@check_divisor_of_data.define
def _check_divisor(tx: Interpreter, divisor: Any) -> None:
    _hold(tx, (divisor != 0).node.value, "division by zero")
    tx.note_check()


@rule(check_is_size)
def _check_is_size(tx: Interpreter, i: SymbolicValue, message: SymbolicValue = NONE, *,
                   max: SymbolicValue | None = None) -> SymbolicValue:
    _check(tx, tx.binary("ge", i, ZERO))
    if max is not None:
        _check(tx, tx.binary("le", i, max))
    return NONE


# -- attention ------------------------------------------------------------------------------------


@rule(F.scaled_dot_product_attention)
def _attention(
    tx: Interpreter, query: SymbolicValue, key: SymbolicValue, value: SymbolicValue,
    attn_mask: SymbolicValue | None = None, dropout_p: SymbolicValue | None = None,
    is_causal: SymbolicValue | None = None, scale: SymbolicValue | None = None,
    enable_gqa: SymbolicValue | None = None,
) -> SymbolicValue:
    """Attention whose mask or scale depends on data or sizes.

    PyTorch compares the mask's sizes; if these depend on data, the mask is expanded first. Its
    kernels take plain scales; the query is multiplied by a symbolic one instead.
    """
    options = passed(attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, scale=scale,
                     enable_gqa=enable_gqa)
    inputs = [tx.force(query), tx.force(key), value]
    factor, mask = (tx.force(options.get(name, NONE)) for name in ("scale", "attn_mask"))
    if isinstance(factor, SymbolicNumberValue) and _is_precise(inputs[0]):
        inputs[0], options["scale"] = _scaled(tx, inputs[0], factor), NONE
    exist = tx.shapes.unbacked_symbols.exist
    if exist and isinstance(mask, TensorValue) and mask.example.dim() > 1:
        options["attn_mask"] = _fitted_mask(tx, inputs[0], inputs[1], mask)
    return record(tx, F.scaled_dot_product_attention, inputs, options)


def _is_precise(query: SymbolicValue) -> bool:
    """Whether a product with the query rounds no more than the kernels do inside."""
    return isinstance(query, TensorValue) and query.example.dtype in (torch.float32, torch.float64)


def _scaled(tx: Interpreter, query: SymbolicValue, scale: SymbolicValue) -> SymbolicValue:
    """The query divided by attention's default scale and multiplied by this one."""
    head = query.method(tx, "size", [constant(-1)], {})
    return tx.binary("mul", query, tx.binary("mul", scale, tx.binary("pow", head, constant(0.5))))


def _fitted_mask(tx: Interpreter, query: SymbolicValue, key: SymbolicValue, mask: TensorValue
                 ) -> SymbolicValue:
    if not isinstance(query, TensorValue) or not isinstance(key, TensorValue):
        return mask
    wanted = (query.example.shape[-2], key.example.shape[-2])
    if all(map(_is_plain_fit, mask.example.shape[-2:], wanted)):
        return mask
    sizes = [constant(-1)] * (mask.example.dim() - 2) + [tx.wrap_new(n) for n in wanted]
    return record(tx, "expand", [mask, *sizes])


def _is_plain_fit(size: object, wanted: object) -> bool:
    return type(size) is int or certainly_equal(size, wanted)


# -- methods --------------------------------------------------------------------------------------

_INTEGERS: Final = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
_FLOATS: Final = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})

_converted("__int__", _INTEGERS | _FLOATS)
_converted("__index__", _INTEGERS)
_converted("__trunc__", _INTEGERS | _FLOATS)
_converted("__float__", _INTEGERS | _FLOATS)
