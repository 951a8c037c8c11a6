"""Binary operators and equality between symbolic values of any families.

Place in the pipeline: called by the interpreter's opcodes and by `operator.*` calls. Constants are
evaluated by Python; otherwise each side's family is asked. If neither has a rule, the graph breaks.
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any, Final

from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import ConstantValue, boolean, evaluate, plain_value, python_object
from weft.capture.core.operator_names import plain_operator
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.unknown import UnknownValue
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.texts.symbolic_texts import TextValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def binary_operation(
    tx: Interpreter, op: str, left: SymbolicValue, right: SymbolicValue
) -> SymbolicValue:
    """`operator.<op>(left, right)`; `op` is a name of the operator module, without underscores."""
    if left.is_constant and right.is_constant and not (
            op in ("add", "iadd") and TextValue in (left.__class__, right.__class__)):
        return _of_constants(tx, op, left, right)
    polyfill = OPERATOR_POLYFILLS.get((left.python_type(), plain_operator(op)))
    if polyfill is not None and left.is_constant and not _right_first(op, left, right):
        return tx.wrap_fixed(polyfill, op).call(tx, [left, right], {})
    result = _by_families(tx, op, left, right)
    if result is None and plain_operator(op) != op:
        return binary_operation(tx, plain_operator(op), left, right)
    if result is None and op in ("eq", "ne"):
        result = _equality(tx, op, left, right)
    if result is None and any(isinstance(v, SymbolicNumberValue) for v in (left, right)):
        return binary_operation(tx, op, _fix(left), _fix(right))
    if result is None:
        result = _by_plain_values(tx, op, left, right)
    return _by_python(tx, op, left, right) if result is None else result


def _by_plain_values(tx: Interpreter, op: str, left: SymbolicValue, right: SymbolicValue
                     ) -> SymbolicValue | None:
    """The result of an operator in C, which sees numbers, texts and tuples in instances of
    subclasses."""
    plain = [plain_value(value) or value for value in (left, right)]
    if plain[0] is left and plain[1] is right:
        return None
    name = plain_operator(op).strip("_")
    asked = [(left, f"__{name}__"), (right, f"__r{name}__")]
    if left.python_type() is right.python_type():
        asked.pop()
    if all(isinstance(type_lookup(value.python_type(), method), types.FunctionType)
           for value, method in asked):
        return None  # no operator in C is asked
    try:
        return binary_operation(tx, op, *plain)
    except ObservedException as error:  # the message names the classes
        raise graph_break("unknown-operation", f"{op} of {left!r} and {right!r}") from error


def _of_constants(tx: Interpreter, op: str, left: SymbolicValue, right: SymbolicValue
                  ) -> SymbolicValue:
    """The result that Python computes from two constants."""
    if op == "or_" and any(value.constant() in tx.classes.made for value in (left, right)
                           if issubclass(value.python_type(), type)):
        raise graph_break("unknown-operation", "a union with a class made inside")
    function = _function(op)
    return tx.wrap_new(evaluate(tx, lambda: function(left.constant(), right.constant())))


def _function(op: str) -> Any:
    return divmod if op == "divmod" else getattr(operator, op)


def _by_families(tx: Interpreter, op: str, left: SymbolicValue, right: SymbolicValue
                 ) -> SymbolicValue | None:
    """The result of the first side whose family has a rule, in Python's order, or None."""
    sides = [(left, right, False), (right, left, True)]
    if _right_first(op, left, right):
        sides.reverse()
    for value, other, reflected in sides:
        result: SymbolicValue | None = value.binary(tx, op, other, reflected)
        if result is not None:
            return result
    return None


def _equality(tx: Interpreter, op: str, left: SymbolicValue, right: SymbolicValue
              ) -> SymbolicValue | None:
    """`left == right` (or `!=`) if no family has a rule: by contents, else by identity."""
    result: SymbolicValue | None = _compare_contents(tx, op, left, right)
    if result is None and not _has_own_equality(left, right) and not _are_numbers(left, right):
        return boolean(same_object(tx, left, right) is (op == "eq"))
    return result


OPERATOR_POLYFILLS: Final[dict[tuple[type, str], Any]] = {}
"""Polyfills of operators on constants whose right side is not constant: `"%s" % obj`."""


def _fix(value: SymbolicValue) -> SymbolicValue:
    """A symbolic number as its value in this call, guarded: `[0] * n` needs that."""
    return ConstantValue(value.constant()) if isinstance(value, SymbolicNumberValue) else value


def _compare_contents(tx: Interpreter, op: str, left: SymbolicValue, right: SymbolicValue) -> Any:
    """Compare a container with an instance of a subclass whose own method deferred to the
    container's."""
    pair = [value.underlying() for value in (left, right)]
    if pair[0] is left and pair[1] is right:
        return None
    if all(isinstance(value.python_type().__eq__, types.FunctionType) for value in (left, right)):
        return None
    return pair[0].binary(tx, op, pair[1], False)


def _by_python(tx: Interpreter, op: str, left: SymbolicValue, right: SymbolicValue
               ) -> SymbolicValue:
    """The result on objects that are entirely known: text formatting, or a TypeError."""
    objects = python_object(tx, left), python_object(tx, right)
    if MISSING in objects:
        raise graph_break("unknown-operation", f"{op} of {left!r} and {right!r}")
    result = evaluate(tx, lambda: _function(op)(*objects))
    if isinstance(result, _FRESH):
        return tx.wrap_new(result)
    raise graph_break("unknown-operation", f"{op} of {left!r} and {right!r}")


_FRESH = (str, bytes, int, float, complex)
"""Types of results that hold no part of the operands."""


def _has_own_equality(*values: SymbolicValue) -> bool:
    """Whether C code without a rule decides what one of the values equals."""
    kinds = [value.python_type() for value in values
             if isinstance(value, UnknownValue) or _is_library_constant(value)]
    inherited: Any = object.__eq__
    return any(kind.__eq__ is not inherited for kind in kinds)


def _are_numbers(*values: SymbolicValue) -> bool:
    """Whether both are numbers: a symbolic one and one of another class."""
    return all(issubclass(value.python_type(), (int, float, complex)) for value in values)


def _is_library_constant(value: SymbolicValue) -> bool:
    """Whether the value is a constant of a C type of some library, such as Decimal."""
    return isinstance(value, ConstantValue) and type(value.value).__module__ in _LIBRARIES


_LIBRARIES = ("decimal", "datetime", "numpy")


def _right_first(op: str, left: SymbolicValue, right: SymbolicValue) -> bool:
    """Whether Python asks the right side first: its type is a proper subclass of the left's with
    its own reflected method (for comparisons, any)."""
    a, b = left.python_type(), right.python_type()
    if a is b or a not in b.__mro__:
        return False
    name = f"__r{plain_operator(op).strip('_')}__"
    return not hasattr(a, name) or getattr(a, name) is not getattr(b, name)


def _is_one_constant(value: SymbolicValue) -> bool:
    return (value.is_constant and not value.has_parts) or isinstance(value, SymbolicNumberValue)


def _is_empty_tuple(value: SymbolicValue) -> bool:
    return isinstance(value, TupleValue) and value.python_type() is tuple and not value.items


def same_object(tx: Interpreter, left: SymbolicValue, right: SymbolicValue) -> bool:
    """`left is right`."""
    if left is right:
        return True
    if _is_one_constant(left) and _is_one_constant(right):
        a, b = left.constant(), right.constant()
        if _is_nan(left) and _is_nan(right):
            return _same_nan(tx, left, right)
        from_outside = left.source is not None or right.source is not None
        if from_outside and isinstance(a, (str, int, float)) and type(a) is type(b):
            return bool(a == b)  # their values are guarded
        return a is b
    if _is_empty_tuple(left) and _is_empty_tuple(right):
        return True
    real = left.real()
    same = real is not MISSING and real is right.real()
    if not same:
        tx.identities.different(left, right)
    return same


def _is_nan(value: SymbolicValue) -> bool:
    return isinstance(value, ConstantValue) and value.is_nan


def _same_nan(tx: Interpreter, left: SymbolicValue, right: SymbolicValue) -> bool:
    """Whether two NaNs are one object."""
    same = left.constant() is right.constant()
    if not same and left.source is not None and right.source is not None:
        tx.guards.distinct([left.source, right.source])
    return same


def equal_values(tx: Interpreter, left: SymbolicValue, right: SymbolicValue) -> bool:
    """`left is right or left == right`, as containers compare their items."""
    left, right = tx.force(left), tx.force(right)
    if left is right:
        return True
    if isinstance(left.python_type().__eq__, types.FunctionType):
        tx.identities.different(left, right)
    elif _is_nan(left) and _is_nan(right):
        return _same_nan(tx, left, right)
    return binary_operation(tx, "eq", left, right).truth(tx)
