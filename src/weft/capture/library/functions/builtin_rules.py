"""Rules for Python's builtin functions.

Place in the pipeline: see `weft.capture.library`. A builtin is expressed by the operations of
`SymbolicValue`, so it works for every family.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import itertools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from weft.capture.core.base import MISSING, NullValue, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import (
    FALSE,
    NESTED,
    NONE,
    ONE,
    ZERO,
    ConstantValue,
    boolean,
    constant,
    evaluate,
    evaluate_call,
    is_none,
    plain_value,
    python_object,
)
from weft.capture.core.lifetimes import check_held
from weft.capture.core.operator_names import ARITHMETIC, COMPARISONS, IN_PLACE, method_name
from weft.capture.core.source import is_library
from weft.capture.library.classes.attributes import require_special, type_lookup
from weft.capture.library.classes.classes import (
    ClassValue,
    make_instance,
    no_arguments_for_init,
    no_arguments_for_new,
)
from weft.capture.library.classes.instances import ObjectValue, checked_text
from weft.capture.library.containers.iterators import LazyIterator
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.sequences import ListValue, TupleValue, sort_values
from weft.capture.library.containers.user_keys import has_real_hash
from weft.capture.library.exceptions.exceptions import name_attribute, read_attribute
from weft.capture.library.functions.builtins import (
    EXTERNAL_METHODS,
    BuiltinValue,
    method_rule,
    object_method,
)
from weft.capture.library.functions.functions import BoundMethodValue, FunctionValue, rule
from weft.capture.library.functions.generators import next_or_stop
from weft.capture.library.modules.modules import PythonModuleValue
from weft.capture.library.numbers.identities import RunTimeNumber
from weft.capture.library.numbers.symbolic_numbers import (
    SymbolicNumberValue,
    check_divisor,
    extreme_number,
    numpy_kind,
    operand,
)
from weft.capture.library.tensors.print_state import constant_text
from weft.capture.library.tensors.tensor import GETTERS, TensorValue, record
from weft.capture.library.texts.symbolic_texts import format_symbolic

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@rule(len)
def _len(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    if isinstance(value, TensorValue | ObjectValue):
        return value.rows(tx)
    return constant(value.length(tx))


@rule(iter)
def _iter(tx: Interpreter, source: SymbolicValue, sentinel: SymbolicValue | None = None, /
          ) -> SymbolicValue:
    if sentinel is None:
        check_held(tx, source)
        return source.iter(tx)
    if not _callable(tx, source).constant():
        raise graph_break("unknown-operation", f"iter of {source!r} and a last value")

    def produce() -> Iterator[SymbolicValue]:
        while not tx.equal(item := tx.call(source, []), sentinel):
            yield item

    return LazyIterator(type(iter(int, 1)), produce)


@rule(next)
def _next(tx: Interpreter, iterator: SymbolicValue, default: SymbolicValue | None = None, /
          ) -> SymbolicValue:
    try:
        return next_or_stop(tx, iterator)
    except ObservedException as error:
        if default is not None and issubclass(error.value.python_type(), StopIteration):
            return default
        raise


@rule(callable)
def _callable(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    return boolean(type_lookup(value.python_type(), "__call__") is not MISSING)


@rule(hasattr)
def _hasattr(tx: Interpreter, owner: SymbolicValue, name: SymbolicValue, /) -> SymbolicValue:
    return boolean(attribute_or_none(tx, owner, _attribute_name(name)) is not None)


def attribute_or_none(
    tx: Interpreter, value: SymbolicValue, name: str
) -> SymbolicValue | None:
    """`getattr(value, name)`, or None if there is no such attribute."""
    try:
        return value.getattr(tx, name)
    except ObservedException as error:
        if issubclass(error.value.python_type(), AttributeError):
            return None
        raise


@rule(getattr)
def _getattr(tx: Interpreter, owner: SymbolicValue, attribute: SymbolicValue,
             default: SymbolicValue | None = None, /) -> SymbolicValue:
    name = _attribute_name(attribute)
    if default is None:
        return read_attribute(tx, owner, name)
    value = attribute_or_none(tx, owner, name)
    return default if value is None else value


def _attribute_name(value: SymbolicValue) -> str:
    name = value.constant()
    if not isinstance(name, str):
        raise graph_break("unknown-operation", f"{value!r} as the name of an attribute")
    return name


@rule(setattr)
def _setattr(tx: Interpreter, owner: SymbolicValue, name: SymbolicValue, value: SymbolicValue, /
             ) -> SymbolicValue:
    owner.setattr(tx, _attribute_name(name), value)
    return NONE


@rule(delattr)
def _delattr(tx: Interpreter, owner: SymbolicValue, name: SymbolicValue, /) -> SymbolicValue:
    owner.delattr(tx, _attribute_name(name))
    return NONE


@rule(id)
def _id(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    obj = value.real()
    if obj is MISSING:
        return RunTimeNumber(id, [value])
    if value.source is not None and not value.is_constant:
        tx.guards.add(value.source, "is", obj)
    tx.guards.bind_to_process("it uses the address of an object (`id`)")
    return constant(id(obj))


def _cdata(tx: Interpreter, tensor: TensorValue) -> SymbolicValue:
    """The address of the tensor in C++, by which programs tell tensors apart."""
    obj = tensor.real()
    if obj is MISSING or tensor.source is None:
        raise graph_break("unknown-operation", "the address of a tensor computed here")
    tx.guards.add(tensor.source, "is", obj)
    return constant(obj._cdata)


GETTERS["_cdata"] = _cdata


@rule(hash)
def _hash(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    if isinstance(value, ObjectValue):
        method = value.special(tx, "__hash__")
        if isinstance(method, BoundMethodValue) and isinstance(method.function, FunctionValue):
            return method.call(tx, [], {})
    plain = plain_value(value)
    if plain is not None and value.python_type().__hash__ is plain.python_type().__hash__:
        is_nan = isinstance(plain, ConstantValue) and plain.is_nan
        return _default_hash(tx, value) if is_nan else _hash(tx, plain)
    if value.is_constant or isinstance(value, SymbolicNumberValue):
        _note_hash(tx, value.constant())
        return constant(evaluate(tx, lambda: hash(value.constant())))
    if isinstance(value, TupleValue):
        key = value.dict_key(tx)
        if not has_real_hash(key):
            raise graph_break("unknown-operation", f"hash of {value!r}")
        tx.guards.bind_to_process("it uses a hash")
        return constant(hash(key))
    inherited: Any = object.__hash__
    if value.python_type().__hash__ is not inherited:
        raise graph_break("unknown-operation", f"hash of {value!r}")
    return _default_hash(tx, value)


def _note_hash(tx: Interpreter, obj: Any) -> None:
    """Only numbers have the same hash in every process."""
    if type(obj) not in (int, float, bool, complex):
        tx.guards.bind_to_process("it uses a hash")


def _default_hash(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """`object.__hash__`"""
    if value.real() is MISSING:
        return RunTimeNumber(object.__hash__, [value])
    _id(tx, value)
    return constant(object.__hash__(value.real()))


@rule(vars)
def _vars(tx: Interpreter, owner: SymbolicValue | None = None, /) -> SymbolicValue:
    if owner is None:
        return _locals(tx)
    namespace = attribute_or_none(tx, owner, "__dict__")
    if namespace is None:
        raise tx.error(TypeError, "vars() argument must have __dict__ attribute")
    return namespace


@rule(locals)
def _locals(tx: Interpreter) -> SymbolicValue:
    frame = tx.frame
    assert frame is not None
    variables = DictValue()
    code = frame.code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        raise graph_break("unknown-operation", "locals() of a class body")
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        if name in frame.locals and not isinstance(frame.locals[name], NullValue):
            variables.store(tx, name, constant(name), tx.force(frame.locals[name]))
        elif name in frame.cells and (value := frame.cells[name].read(tx)) is not None:
            variables.store(tx, name, constant(name), value)
    return variables


@rule(dir)
def _dir(tx: Interpreter, owner: SymbolicValue | None = None, /) -> SymbolicValue:
    if owner is not None:
        return _names_of(tx, owner)
    names = _locals(tx)
    assert isinstance(names, DictValue)
    return ListValue([constant(name) for name in sorted(names.complete(tx))])


def _names_of(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """`dir` of a plain class, or of an instance of one."""
    kind = value.python_type()
    if isinstance(value, ClassValue) and type_lookup(kind, "__dir__") is vars(type)["__dir__"]:
        return ListValue([constant(name) for name in sorted(_class_names(tx, value.cls))])
    if not isinstance(value, ObjectValue) or type_lookup(kind, "__dir__") is not vars(object)[
            "__dir__"] or type(kind).__dir__ is not type.__dir__ or isinstance(
            type_lookup(kind, "__dict__"), property):
        raise graph_break("unknown-c-function", f"dir of {value!r}")
    own = (key for key in value.attributes.complete(tx) if isinstance(key, str))
    return ListValue([constant(name) for name in sorted({*_class_names(tx, kind), *own})])


def _class_names(tx: Interpreter, cls: type) -> set[str]:
    """`dir(cls)`, guarded: a class of the program may get more attributes."""
    names = dir(cls)
    if cls not in tx.classes.made and not is_library(cls.__module__):
        tx.guards.add(tx.tree.object(cls, cls.__name__), "py", lambda again: dir(again) == names)
    written = (tx.classes.attributes[base].values for base in cls.__mro__
               if base in tx.classes.attributes)
    return {*names, *itertools.chain.from_iterable(written)}


@rule(globals)
def _globals(tx: Interpreter) -> SymbolicValue:
    assert tx.frame is not None
    return tx.frame.globals


def _test(function: object, answer: Callable[..., bool]) -> None:
    """The rule of a function that tests its arguments."""

    @rule(function)
    @functools.wraps(answer)
    def handler(tx: Interpreter, *args: SymbolicValue) -> SymbolicValue:
        return boolean(answer(tx, *args))


_test(all, lambda tx, items, /: all(item.truth(tx) for item in items.iterate(tx)))
_test(any, lambda tx, items, /: any(item.truth(tx) for item in items.iterate(tx)))
_test(operator.not_, lambda tx, value, /: not value.truth(tx))
_test(operator.truth, lambda tx, value, /: value.truth(tx))
_test(operator.is_, lambda tx, a, b, /: tx.same(a, b))
_test(operator.is_not, lambda tx, a, b, /: not tx.same(a, b))
_test(operator.contains, lambda tx, owner, item, /: owner.contains(tx, item))


@rule(sum)
def _sum(tx: Interpreter, iterable: SymbolicValue, /, start: SymbolicValue = ZERO) -> SymbolicValue:
    if issubclass(start.python_type(), (str, bytes, bytearray)):
        raise graph_break("unknown-operation", f"a sum that starts with {start!r}")
    total = start
    numbers: list[Any] = []  # from 3.12 on, Python sums floats with compensation
    items: Iterator[SymbolicValue] = iter(iterable.iterate(tx))
    if _is_number(total):
        for item in items:
            if not _is_number(item):
                items = itertools.chain([item], items)
                break
            numbers.append(item.constant())
        total = tx.wrap_new(sum(numbers, total.constant()))
    for item in items:
        total = tx.binary("add", total, item)
    return total


def _is_number(value: SymbolicValue) -> bool:
    return value.is_constant and value.python_type() in (int, float, bool, complex)


@rule(math.prod)
def _product(tx: Interpreter, iterable: SymbolicValue, /, *, start: SymbolicValue = ONE
             ) -> SymbolicValue:
    return functools.reduce(functools.partial(tx.binary, "mul"), iterable.iterate(tx), start)


def _extreme(function: Any, op: str) -> None:
    @rule(function)
    def handler(tx: Interpreter, first: SymbolicValue, /, *more: SymbolicValue,
                key: SymbolicValue = NONE, default: SymbolicValue | None = None) -> SymbolicValue:
        items = [first, *more] if more else list(first.iterate(tx))
        if not items:
            if default is not None:
                return default
            evaluate(tx, lambda: function(()))  # raises
        plain = is_none(key)
        symbolic = extreme_number(tx, op, items) if plain else None
        if symbolic is not None:
            return symbolic
        best = items[0]
        best_key = best if plain else tx.call(key, [best])
        for item in items[1:]:
            item_key = item if plain else tx.call(key, [item])
            if tx.binary(op, item_key, best_key).truth(tx):
                best, best_key = item, item_key
        return best


_extreme(max, "gt")
_extreme(min, "lt")


@rule(sorted)
def _sorted(tx: Interpreter, iterable: SymbolicValue, /, *, key: SymbolicValue = NONE,
            reverse: SymbolicValue = FALSE) -> SymbolicValue:
    return ListValue(sort_values(tx, tx.to_list(iterable), key, reverse))


@rule(abs)
def _abs(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    if isinstance(value, TensorValue):
        return record(tx, abs, [value])
    if value.is_constant:
        return constant(evaluate(tx, lambda: abs(value.constant())))
    require_special(tx, value, "__abs__")
    return value.method(tx, "__abs__", [], {})


@rule(round)
def _round(tx: Interpreter, number: SymbolicValue, ndigits: SymbolicValue | None = None
           ) -> SymbolicValue:
    digits = [] if ndigits is None else [ndigits]
    if isinstance(number, SymbolicNumberValue):
        return number.method(tx, "__round__", digits, {})
    rounded = evaluate_call(tx, round, [number, *digits], {})
    if rounded is MISSING:
        if not hasattr(number.python_type(), "__round__"):
            raise graph_break("unknown-operation", f"round of {number!r}")
        return number.method(tx, "__round__", digits, {})
    return constant(rounded)


@rule(divmod)
def _divmod(tx: Interpreter, number: SymbolicValue, divisor: SymbolicValue, /) -> SymbolicValue:
    pair = (number, divisor)
    numbers = [operand(value) for value in pair]
    if any(isinstance(value, ObjectValue) for value in pair):
        return tx.binary("divmod", number, divisor)
    if any(map(numpy_kind, pair)) or all(value.is_constant for value in pair):
        return tx.wrap_new(evaluate(tx, lambda: divmod(number.constant(), divisor.constant())))
    if None in numbers:
        raise graph_break("unknown-operation", f"divmod of {number!r} and {divisor!r}")
    check_divisor(tx, "divmod", *numbers)
    return TupleValue([tx.binary(op, number, divisor) for op in ("floordiv", "mod")])


@rule(pow)
def _pow(tx: Interpreter, base: SymbolicValue, exp: SymbolicValue, mod: SymbolicValue | None = None
         ) -> SymbolicValue:
    if mod is None:
        return tx.binary("pow", base, exp)
    if isinstance(base, ObjectValue):
        return base.method(tx, "__pow__", [exp, mod], {})
    return constant(evaluate(tx, lambda: pow(base.constant(), exp.constant(), mod.constant())))


def _importing(function: Callable[[str], object]) -> None:
    """The rule of a function that imports; it returns a module that is loaded already."""

    @rule(function)
    def handler(tx: Interpreter, module: SymbolicValue, /) -> SymbolicValue:
        name = module.constant() if module.is_constant else None
        if type(name) is not str or name not in sys.modules:
            raise graph_break("unknown-c-function", "an import")
        return tx.wrap_fixed(function(name), name)


_importing(__import__)
_importing(importlib.import_module)


@rule(ascii)
def _ascii(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    text = _repr(tx, value)
    return constant(text.constant().encode("ascii", "backslashreplace").decode("ascii"))


@rule(repr)
def _repr(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    text = format_symbolic(tx, repr, value)
    if text is not None:
        return text
    obj = python_object(tx, value)
    if obj is not MISSING:
        return constant_text(tx, repr, obj)
    if isinstance(value, ObjectValue):
        method = value.special(tx, "__repr__")
        if isinstance(method, BoundMethodValue) and _is_known(method):
            return checked_text(tx, "__repr__", method.call(tx, [], {}))
    if isinstance(value, TensorValue):
        return value.text(tx, repr)
    return _text_of_named(tx, value) or _container_text(tx, value)


def _text_of_named(tx: Interpreter, value: SymbolicValue) -> SymbolicValue | None:
    """`repr` of a function, method or Python module, which are guarded by identity."""
    if isinstance(value, BoundMethodValue) and value.python_type() is types.MethodType:
        name = python_object(tx, value.function.getattr(tx, "__qualname__"))
        return constant(f"<bound method {name} of {_text(tx, value.owner)}>")
    if isinstance(value, FunctionValue):
        if value.original is MISSING or value.source is None or value.described:
            return None
        tx.guards.add(value.source, "is", value.original)
    elif isinstance(value, PythonModuleValue):
        return _text_of_module(tx, value)
    elif not isinstance(value, BuiltinValue):
        return None
    return constant(repr(value.real()))


def _text_of_module(tx: Interpreter, value: PythonModuleValue) -> SymbolicValue:
    """`repr` of a Python module, which reads several of its attributes."""
    if tx.effects.changed(tx.globals_of(vars(value.module))):
        raise graph_break("unknown-operation", f"repr of {value!r}, which was changed")
    text = repr(value.module)
    tx.guards.add(tx.tree.object(value.module, text), "py", lambda again: repr(again) == text)
    return constant(text)


def _is_known(method: BoundMethodValue) -> bool:
    """Whether there is a rule for the method: not for those that C types inherit from `object`."""
    function: Any = method.function.real()
    key = getattr(function, "__objclass__", None), getattr(function, "__name__", "")
    return (isinstance(method.function, FunctionValue) or key in EXTERNAL_METHODS
            or (plain_value(method.owner) is not None and key[0] is not object))


_UNDER_WAY: list[SymbolicValue] = []
"""Containers whose text is being made."""


def _container_text(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """`repr` of a list, tuple or dictionary whose items are not all constant."""
    shape = "{}" if isinstance(value, DictValue) else "[]" if isinstance(value, ListValue) else "()"
    if value.python_type() not in (list, tuple, dict):
        raise graph_break("unknown-operation", f"repr of {value!r}")
    if value in _UNDER_WAY:
        return constant(f"{shape[0]}...{shape[1]}")
    if len(_UNDER_WAY) > NESTED:
        raise graph_break("recursion", "the text of containers nested deeply")
    _UNDER_WAY.append(value)
    try:
        if isinstance(value, DictValue):
            parts = [f"{_text(tx, key)}: {_text(tx, item)}" for key, item in value.pairs(tx)]
        else:
            parts = [_text(tx, item) for item in tx.unpack(value)]
    finally:
        _UNDER_WAY.pop()
    end = "," if shape == "()" and len(parts) == 1 else ""
    return constant(f"{shape[0]}{', '.join(parts)}{end}{shape[1]}")


def _text(tx: Interpreter, value: SymbolicValue) -> str:
    text: str = python_object(tx, _repr(tx, tx.force(value)))
    return text


_NO_SPEC: Final = constant("")


@rule(format)
def _format(tx: Interpreter, value: SymbolicValue, spec: SymbolicValue = _NO_SPEC, /
            ) -> SymbolicValue:
    if not issubclass(spec.python_type(), str):
        kind = "None" if is_none(spec) else spec.python_type().__name__
        raise tx.error(TypeError, f"format() argument 2 must be str, not {kind}")
    return format_value(tx, value, spec)


def format_value(tx: Interpreter, value: SymbolicValue, spec: SymbolicValue) -> SymbolicValue:
    """`format(value, spec)`."""
    value = value.formatted_as(tx, spec)
    text = format_symbolic(tx, format, value, spec.constant()) if spec.is_constant else None
    if text is not None:
        return text
    obj = python_object(tx, value)
    if obj is not MISSING:
        return constant_text(tx, format, obj, spec.constant())
    formatter = type_lookup(value.python_type(), "__format__")
    if isinstance(value, ObjectValue) and isinstance(formatter, types.FunctionType):
        method = value.special(tx, "__format__")
        assert method is not None
        formatted = method.call(tx, [spec], {})
        kind = tx.force(formatted).python_type()
        if not issubclass(kind, str):
            raise tx.error(TypeError, f"__format__ must return a str, not {kind.__name__}")
        return formatted
    plain = plain_value(value) is not None
    if plain and python_object(tx, spec) != "" and not isinstance(formatter, types.FunctionType):
        return value.method(tx, "__format__", [spec], {})
    if (plain or formatter is type_lookup(object, "__format__")) and python_object(tx, spec) == "":
        return tx.call_python(str, [value])
    if isinstance(value, TensorValue):
        return value.text(tx, format, spec.constant())
    raise graph_break("unknown-operation", f"formatting {value!r}")


def _unary(function: Any, method: str) -> None:
    @rule(function)
    def handler(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
        if value.is_constant:
            return tx.wrap_new(evaluate(tx, lambda: function(value.constant())))
        if isinstance(value, TensorValue):
            return record(tx, function, [value])
        require_special(tx, value, method)
        return value.method(tx, method, [], {})


_unary(operator.neg, "__neg__")
_unary(operator.pos, "__pos__")
_unary(operator.invert, "__invert__")


def _binary_rule(op: str) -> None:
    @rule(getattr(operator, op))
    def handler(tx: Interpreter, left: SymbolicValue, right: SymbolicValue, /) -> SymbolicValue:
        return tx.binary(op, left, right)


for _op in (*ARITHMETIC, *COMPARISONS, *IN_PLACE):
    _binary_rule(_op)


@rule(operator.getitem)
def _getitem(tx: Interpreter, owner: SymbolicValue, key: SymbolicValue, /) -> SymbolicValue:
    return owner.getitem(tx, key)


@rule(operator.setitem)
def _setitem(tx: Interpreter, owner: SymbolicValue, key: SymbolicValue, value: SymbolicValue, /
             ) -> SymbolicValue:
    owner.setitem(tx, key, value)
    return NONE


@rule(operator.index)
def _index(tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
    if value.is_constant:
        return constant(evaluate(tx, lambda: operator.index(value.constant())))
    plain = plain_value(value)
    if plain is not None and issubclass(plain.python_type(), int):
        return plain  # whatever its class defines
    require_special(tx, value, "__index__")
    number = tx.force(value.method(tx, "__index__", [], {}))
    kind = number.python_type()
    if not issubclass(kind, int):
        raise tx.error(TypeError, f"__index__ returned non-int (type {kind.__name__})")
    if kind is not int:
        raise graph_break("unknown-operation", f"an index of type {kind.__name__}")
    return number


@rule(functools.reduce)
def _reduce(tx: Interpreter, function: SymbolicValue, iterable: SymbolicValue,
            initial: SymbolicValue | None = None, /) -> SymbolicValue:
    items = tx.unpack(iterable)
    if initial is not None:
        items.insert(0, initial)
    if not items:
        raise tx.error(TypeError, "reduce() of empty iterable with no initial value")
    total = items[0]
    for item in items[1:]:
        total = tx.call(function, [total, item])
    return total


# -- methods of object ----------------------------------------------------------------------------


@object_method("__setattr__")
def _object_setattr(tx: Interpreter, target: SymbolicValue, name: SymbolicValue,
                    value: SymbolicValue, /) -> SymbolicValue:
    setter = target.generic_setattr if isinstance(target, ObjectValue) else target.setattr
    setter(tx, name.constant(), value)
    return NONE


@object_method("__getattribute__")
def _object_getattr(tx: Interpreter, target: SymbolicValue, attribute: SymbolicValue, /
                    ) -> SymbolicValue:
    name = attribute.constant()
    if not isinstance(target, ObjectValue):
        return read_attribute(tx, target, name)
    try:
        return target.generic_getattr(tx, name, fallback=False)
    except ObservedException as error:
        name_attribute(tx, error.value, target, name)
        raise


@object_method("__delattr__")
def _object_delattr(tx: Interpreter, target: SymbolicValue, name: SymbolicValue, /
                    ) -> SymbolicValue:
    if not isinstance(target, ObjectValue):
        raise graph_break("unknown-operation", f"object.__delattr__ of {target!r}")
    target.generic_delattr(tx, name.constant())
    return NONE


@object_method("__init__")
def _object_init(tx: Interpreter, target: SymbolicValue, /, *args: SymbolicValue,
                 **kwargs: SymbolicValue) -> SymbolicValue:
    if args or kwargs:
        no_arguments_for_init(tx, target.python_type())
    return NONE


@object_method("__eq__")
def _object_eq(tx: Interpreter, left: SymbolicValue, right: SymbolicValue, /) -> SymbolicValue:
    return boolean(True) if left is right else ConstantValue(NotImplemented)


@object_method("__ne__")
def _object_ne(tx: Interpreter, left: SymbolicValue, right: SymbolicValue, /) -> SymbolicValue:
    equal = left.method(tx, "__eq__", [right], {})
    if equal.is_constant and equal.constant() is NotImplemented:
        return equal
    return boolean(not equal.truth(tx))


@object_method("__lt__", "__le__", "__gt__", "__ge__")
def _object_order(tx: Interpreter, left: SymbolicValue, right: SymbolicValue, /) -> SymbolicValue:
    return ConstantValue(NotImplemented)


@object_method("__str__")
def _object_str(tx: Interpreter, target: SymbolicValue, /) -> SymbolicValue:
    return tx.call_python(repr, [target])


@object_method("__hash__")
def _object_hash(tx: Interpreter, target: SymbolicValue, /) -> SymbolicValue:
    return _default_hash(tx, target)


@method_rule((types.FunctionType, "__call__"), (types.MethodType, "__call__"))
def _call_by_name(tx: Interpreter, function: SymbolicValue, /, *args: SymbolicValue,
                  **kwargs: SymbolicValue) -> SymbolicValue:
    """`function.__call__(...)`"""
    return function.call(tx, [*args], kwargs)


def _compare_methods(op: str) -> None:
    @method_rule((types.MethodType, method_name(op)))
    def compare(tx: Interpreter, left: SymbolicValue, right: SymbolicValue, /) -> SymbolicValue:
        result: SymbolicValue | None = left.binary(tx, op, right, False)
        return ConstantValue(NotImplemented) if result is None else result


for _op in COMPARISONS:
    _compare_methods(_op)


@rule(object.__new__)
def _object_new(tx: Interpreter, owner: SymbolicValue, /, *args: SymbolicValue,
                **kwargs: SymbolicValue) -> SymbolicValue:
    cls = owner.constant()
    if args or kwargs:
        no_arguments_for_new(tx, cls)
    return make_instance(tx, cls, [*args])


@rule(dict.__new__, list.__new__, set.__new__)
def _container_new(tx: Interpreter, cls: SymbolicValue, /, *args: SymbolicValue,
                   **kwargs: SymbolicValue) -> SymbolicValue:
    return make_instance(tx, cls.constant(), [*args])
