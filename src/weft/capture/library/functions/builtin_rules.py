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
from typing import TYPE_CHECKING, Any

from weft.capture.core.base import MISSING, Args, Kwargs, NullValue, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import (
    NESTED,
    NONE,
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
from weft.capture.library.functions.builtins import EXTERNAL_METHODS, OBJECT_METHODS, BuiltinValue
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
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.capture.library.texts.symbolic_texts import format_symbolic
from weft.registrar import registrar

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@rule(len)
def _len(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    value = args[0]
    if isinstance(value, TensorValue | ObjectValue):
        return value.rows(tx)
    return constant(value.length(tx))


@rule(iter)
def _iter(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) == 1:
        check_held(tx, args[0])
        return args[0].iter(tx)
    if not _callable(tx, args[:1], {}).constant():
        raise graph_break("unknown-operation", f"iter of {args[0]!r} and a last value")

    def produce() -> Iterator[SymbolicValue]:
        while not tx.equal(item := tx.call(args[0], []), args[1]):
            yield item

    return LazyIterator(type(iter(int, 1)), produce)


@rule(next)
def _next(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    try:
        return next_or_stop(tx, args[0])
    except ObservedException as error:
        if len(args) > 1 and issubclass(error.value.python_type(), StopIteration):
            return args[1]
        raise


@rule(callable)
def _callable(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return boolean(type_lookup(args[0].python_type(), "__call__") is not MISSING)


@rule(hasattr)
def _hasattr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return boolean(attribute_or_none(tx, args[0], _attribute_name(args[1])) is not None)


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
def _getattr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    name = _attribute_name(args[1])
    if len(args) == 2:
        return read_attribute(tx, args[0], name)
    found = attribute_or_none(tx, args[0], name)
    return args[2] if found is None else found


def _attribute_name(value: SymbolicValue) -> str:
    name = value.constant()
    if not isinstance(name, str):
        raise graph_break("unknown-operation", f"{value!r} as the name of an attribute")
    return name


@rule(setattr)
def _setattr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    args[0].setattr(tx, _attribute_name(args[1]), args[2])
    return NONE


@rule(delattr)
def _delattr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    args[0].delattr(tx, _attribute_name(args[1]))
    return NONE


@rule(id)
def _id(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    obj = args[0].real()
    if obj is MISSING:
        return RunTimeNumber(id, [args[0]])
    if args[0].source is not None and not args[0].is_constant:
        tx.guards.add(args[0].source, "is", obj)
    return constant(id(obj))


@rule(hash)
def _hash(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if isinstance(args[0], ObjectValue):
        method = args[0].special(tx, "__hash__")
        if isinstance(method, BoundMethodValue) and isinstance(method.function, FunctionValue):
            return method.call(tx, [], {})
    plain = plain_value(args[0])
    if plain is not None and args[0].python_type().__hash__ is plain.python_type().__hash__:
        is_nan = isinstance(plain, ConstantValue) and plain.is_nan
        return _default_hash(tx, args[0]) if is_nan else _hash(tx, [plain], {})
    if args[0].is_constant or isinstance(args[0], SymbolicNumberValue):
        return constant(evaluate(tx, lambda: hash(args[0].constant())))
    if isinstance(args[0], TupleValue):
        key = args[0].dict_key(tx)
        if not has_real_hash(key):
            raise graph_break("unknown-operation", f"hash of {args[0]!r}")
        return constant(hash(key))
    inherited: Any = object.__hash__
    if args[0].python_type().__hash__ is not inherited:
        raise graph_break("unknown-operation", f"hash of {args[0]!r}")
    return _default_hash(tx, args[0])


def _default_hash(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """`object.__hash__`"""
    if value.real() is MISSING:
        return RunTimeNumber(object.__hash__, [value])
    _id(tx, [value], {})
    return constant(object.__hash__(value.real()))


@rule(vars)
def _vars(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if not args:
        return _locals(tx, args, kwargs)
    found = attribute_or_none(tx, args[0], "__dict__")
    if found is None:
        raise tx.error(TypeError, "vars() argument must have __dict__ attribute")
    return found


@rule(locals)
def _locals(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    frame = tx.frame
    assert frame is not None
    found = DictValue()
    code = frame.code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        raise graph_break("unknown-operation", "locals() of a class body")
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        if name in frame.locals and not isinstance(frame.locals[name], NullValue):
            found.store(tx, name, constant(name), tx.force(frame.locals[name]))
        elif name in frame.cells and (value := frame.cells[name].read(tx)) is not None:
            found.store(tx, name, constant(name), value)
    return found


@rule(dir)
def _dir(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if args:
        return _names_of(tx, args[0])
    names = _locals(tx, args, kwargs)
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
def _globals(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    assert tx.frame is not None
    return tx.frame.globals


def _test(function: Any, answer: Callable[..., bool]) -> None:
    """The rule of a function that tests its arguments."""
    rule(function)(lambda tx, args, kwargs: boolean(answer(tx, *args)))


_test(all, lambda tx, items: all(item.truth(tx) for item in items.iterate(tx)))
_test(any, lambda tx, items: any(item.truth(tx) for item in items.iterate(tx)))
_test(operator.not_, lambda tx, value: not value.truth(tx))
_test(operator.truth, lambda tx, value: value.truth(tx))
_test(operator.is_, lambda tx, a, b: tx.same(a, b))
_test(operator.is_not, lambda tx, a, b: not tx.same(a, b))
_test(operator.contains, lambda tx, owner, item: owner.contains(tx, item))


@rule(sum)
def _sum(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    total = args[1] if len(args) > 1 else kwargs.get("start", constant(0))
    if issubclass(total.python_type(), (str, bytes, bytearray)):
        raise graph_break("unknown-operation", f"a sum that starts with {total!r}")
    numbers: list[Any] = []  # from 3.12 on, Python sums floats with compensation
    items: Iterator[SymbolicValue] = iter(args[0].iterate(tx))
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
def _product(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    first = kwargs.get("start", constant(1))
    return functools.reduce(functools.partial(tx.binary, "mul"), args[0].iterate(tx), first)


def _extreme(function: Any, op: str) -> Callable[[Interpreter, Args, Kwargs], SymbolicValue]:
    def handler(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        items = list(args[0].iterate(tx)) if len(args) == 1 else args
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            evaluate(tx, lambda: function(()))  # raises
        key = kwargs.get("key")
        plain = key is None or is_none(key)
        symbolic = extreme_number(tx, op, items) if plain else None
        if symbolic is not None:
            return symbolic
        best = items[0]
        best_key = best if plain else tx.call(key, [best])  # type: ignore[arg-type]
        for item in items[1:]:
            item_key = item if plain else tx.call(key, [item])  # type: ignore[arg-type]
            if tx.binary(op, item_key, best_key).truth(tx):
                best, best_key = item, item_key
        return best

    return handler


rule(max)(_extreme(max, "gt"))
rule(min)(_extreme(min, "lt"))


@rule(sorted)
def _sorted(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return ListValue(sort_values(tx, tx.to_list(args[0]), kwargs))


@rule(abs)
def _abs(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if isinstance(args[0], TensorValue):
        return record(tx, abs, args)
    if args[0].is_constant:
        return constant(evaluate(tx, lambda: abs(args[0].constant())))
    require_special(tx, args[0], "__abs__")
    return args[0].method(tx, "__abs__", [], {})


@rule(round)
def _round(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if isinstance(args[0], SymbolicNumberValue) and not kwargs:
        return args[0].method(tx, "__round__", args[1:], {})
    made = evaluate_call(tx, round, args, {})
    if made is MISSING:
        if not hasattr(args[0].python_type(), "__round__"):
            raise graph_break("unknown-operation", f"round of {args[0]!r}")
        return args[0].method(tx, "__round__", args[1:], kwargs)
    return constant(made)


@rule(divmod)
def _divmod(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    numbers = [operand(arg) for arg in args]
    if any(isinstance(arg, ObjectValue) for arg in args):
        return tx.binary("divmod", *args)
    if any(map(numpy_kind, args)) or all(arg.is_constant for arg in args):
        number, divisor = (arg.constant() for arg in args)
        return tx.wrap_new(evaluate(tx, lambda: divmod(number, divisor)))
    if None in numbers:
        raise graph_break("unknown-operation", f"divmod of {args[0]!r} and {args[1]!r}")
    check_divisor(tx, "divmod", *numbers)
    return TupleValue([tx.binary("floordiv", *args), tx.binary("mod", *args)])


@rule(pow)
def _pow(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) == 2:
        return tx.binary("pow", *args)
    if isinstance(args[0], ObjectValue):
        return args[0].method(tx, "__pow__", args[1:], {})
    return constant(evaluate(tx, lambda: pow(*(a.constant() for a in args))))


def _importing(function: Callable[[str], Any]) -> None:
    """The rule of a function that imports; it returns a module that is loaded already."""

    @rule(function)
    def handler(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        name = args[0].constant() if len(args) == 1 and args[0].is_constant else None
        if kwargs or type(name) is not str or name not in sys.modules:
            raise graph_break("unknown-c-function", "an import")
        return tx.wrap_fixed(function(name), name)


_importing(__import__)
_importing(importlib.import_module)


@rule(ascii)
def _ascii(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    text = _repr(tx, args, kwargs)
    return constant(text.constant().encode("ascii", "backslashreplace").decode("ascii"))


@rule(repr)
def _repr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    text = format_symbolic(tx, repr, args[0])
    if text is not None:
        return text
    obj = python_object(tx, args[0])
    if obj is not MISSING:
        return constant_text(tx, repr, obj)
    if isinstance(args[0], ObjectValue):
        method = args[0].special(tx, "__repr__")
        if isinstance(method, BoundMethodValue) and _is_known(method):
            return checked_text(tx, "__repr__", method.call(tx, [], {}))
    if isinstance(args[0], TensorValue):
        return args[0].text(tx, repr)
    return _text_of_named(tx, args[0]) or _container_text(tx, args[0])


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
    text = _repr(tx, [tx.force(value)], {})
    return python_object(tx, text)  # type: ignore[no-any-return]


@rule(format)
def _format(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    spec = args[1] if len(args) > 1 else constant("")
    if not issubclass(spec.python_type(), str):
        kind = "None" if is_none(spec) else spec.python_type().__name__
        raise tx.error(TypeError, f"format() argument 2 must be str, not {kind}")
    return format_value(tx, args[0], spec)


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
        made = method.call(tx, [spec], {})
        kind = tx.force(made).python_type()
        if not issubclass(kind, str):
            raise tx.error(TypeError, f"__format__ must return a str, not {kind.__name__}")
        return made
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
    def handler(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        value = args[0]
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
    def handler(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return tx.binary(op, args[0], args[1])


for _op in (*ARITHMETIC, *COMPARISONS, *IN_PLACE):
    _binary_rule(_op)


@rule(operator.getitem)
def _getitem(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return args[0].getitem(tx, args[1])


@rule(operator.setitem)
def _setitem(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    args[0].setitem(tx, args[1], args[2])
    return NONE


@rule(operator.index)
def _index(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if args[0].is_constant:
        return constant(evaluate(tx, lambda: operator.index(args[0].constant())))
    plain = plain_value(args[0])
    if plain is not None and issubclass(plain.python_type(), int):
        return plain  # whatever its class defines
    require_special(tx, args[0], "__index__")
    made = tx.force(args[0].method(tx, "__index__", [], {}))
    kind = made.python_type()
    if not issubclass(kind, int):
        raise tx.error(TypeError, f"__index__ returned non-int (type {kind.__name__})")
    if kind is not int:
        raise graph_break("unknown-operation", f"an index of type {kind.__name__}")
    return made


@rule(functools.reduce)
def _reduce(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    items = tx.unpack(args[1])
    if len(args) > 2:
        items.insert(0, args[2])
    if not items:
        raise tx.error(TypeError, "reduce() of empty iterable with no initial value")
    total = items[0]
    for item in items[1:]:
        total = tx.call(args[0], [total, item])
    return total


# -- methods of object ----------------------------------------------------------------------------


_object_method = registrar(OBJECT_METHODS)


@_object_method("__setattr__")
def _object_setattr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    target = args[0]
    setter = target.generic_setattr if isinstance(target, ObjectValue) else target.setattr
    setter(tx, args[1].constant(), args[2])
    return NONE


@_object_method("__getattribute__")
def _object_getattr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    target, name = args[0], args[1].constant()
    if not isinstance(target, ObjectValue):
        return read_attribute(tx, target, name)
    try:
        return target.generic_getattr(tx, name, fallback=False)
    except ObservedException as error:
        name_attribute(tx, error.value, target, name)
        raise


@_object_method("__delattr__")
def _object_delattr(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    target = args[0]
    if not isinstance(target, ObjectValue):
        raise graph_break("unknown-operation", f"object.__delattr__ of {target!r}")
    target.generic_delattr(tx, args[1].constant())
    return NONE


@_object_method("__init__")
def _object_init(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) > 1 or kwargs:
        no_arguments_for_init(tx, args[0].python_type())
    return NONE


@_object_method("__init_subclass__")
def _object_init_subclass(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) > 1 or kwargs:
        raise graph_break("unknown-c-function", "arguments of object.__init_subclass__")
    return NONE


@_object_method("__eq__")
def _object_eq(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return boolean(True) if args[0] is args[1] else ConstantValue(NotImplemented)


@_object_method("__ne__")
def _object_ne(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    equal = args[0].method(tx, "__eq__", args[1:], {})
    if equal.is_constant and equal.constant() is NotImplemented:
        return equal
    return boolean(not equal.truth(tx))


@_object_method("__lt__")
@_object_method("__le__")
@_object_method("__gt__")
@_object_method("__ge__")
def _object_order(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return ConstantValue(NotImplemented)


@_object_method("__str__")
def _object_str(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return tx.call_python(repr, args)


@_object_method("__hash__")
def _object_hash(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return _default_hash(tx, args[0])


def _call_by_name(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """`function.__call__(...)`"""
    return args[0].call(tx, args[1:], kwargs)


def _compare_methods(op: str) -> Any:
    def compare(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        result: SymbolicValue | None = args[0].binary(tx, op, args[1], False)
        return ConstantValue(NotImplemented) if result is None else result

    return compare


for _kind in (types.FunctionType, types.MethodType):
    EXTERNAL_METHODS[(_kind, "__call__")] = _call_by_name
for _op in COMPARISONS:
    EXTERNAL_METHODS[(types.MethodType, method_name(_op))] = _compare_methods(_op)


@rule(object.__new__)
def _object_new(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if not args:
        raise tx.error(TypeError, "object.__new__(): not enough arguments")
    cls = args[0].constant()
    if len(args) > 1 or kwargs:
        no_arguments_for_new(tx, cls)
    return make_instance(tx, cls, args[1:])


@rule(dict.__new__, list.__new__, set.__new__)
def _container_new(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return make_instance(tx, args[0].constant(), args[1:])
