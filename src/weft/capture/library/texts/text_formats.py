"""Rules for `str.format` and `%`: fields are formatted one by one, so numbers stay symbolic.

Place in the pipeline: see `weft.capture.library`; `polyfills.py` has the code that is
interpreted::

    "{} rows".format(x.shape[0])    # like f"{x.shape[0]} rows": no guard on the size
    "loss %.3f" % loss.item()       # a text that the graph's output is written into
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import METHOD_POLYFILLS, constant, evaluate, python_object
from weft.capture.library.functions.functions import rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.operators.operations import OPERATOR_POLYFILLS
from weft.capture.library.tensors.tensor import TensorValue
from weft.capture.library.texts import polyfills
from weft.capture.library.texts.symbolic_texts import TextValue, WrittenPart, join_texts

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

METHOD_POLYFILLS[str, "format"] = polyfills.format_text
METHOD_POLYFILLS[str, "join"] = polyfills.join
OPERATOR_POLYFILLS[str, "mod"] = polyfills.percent_format


def _parsed_by(function: Callable[[str], object]) -> None:
    @rule(function)
    def parse(tx: Interpreter, template: SymbolicValue, /) -> SymbolicValue:
        text = template.constant()
        try:
            return tx.wrap_new(function(text))
        except ValueError as error:
            raise graph_break("unknown-operation", f"the format {text!r}") from error


_parsed_by(polyfills.fields_of)
_parsed_by(polyfills.directives_of)


@rule(polyfills.join)
def _join(tx: Interpreter, separator: SymbolicValue, iterable: SymbolicValue, /) -> SymbolicValue:
    between, items = separator.constant(), [tx.force(item) for item in tx.to_list(iterable)]
    if any(isinstance(item, TextValue) for item in items) and (
            {item.python_type() for item in items} == {str}):
        return join_texts(tx, [part for item in items for part in (constant(between), item)][1:])
    objects = [python_object(tx, item) for item in items]
    if MISSING in objects:
        raise graph_break("unknown-operation", f"{between!r}.join on {items!r}")
    return constant(evaluate(tx, lambda: between.join(objects)))


@rule(polyfills.written_by)
def _written_by(tx: Interpreter, value: SymbolicValue, conversion: SymbolicValue, /
                ) -> SymbolicValue:
    directive = conversion.constant()
    if directive[-1] in "diouxXeEfFgG":
        value = value.plain_number(tx)
    if isinstance(value, SymbolicNumberValue) and _fits(value.python_type(), directive):
        return TextValue(tx, (WrittenPart(polyfills.written_by, value, (directive,)),))
    if isinstance(value, TextValue) and directive == "%s":
        return value
    if isinstance(value, TensorValue) and directive in ("%s", "%r"):
        return value.text(tx, str if directive == "%s" else repr)
    if not value.is_constant:
        raise graph_break("unknown-operation", f"{directive} of {value!r}")
    return constant(evaluate(tx, lambda: directive % (value.constant(),)))


def _fits(kind: type, directive: str) -> bool:
    try:
        directive % (kind(1),)
    except TypeError:
        return False
    return True
