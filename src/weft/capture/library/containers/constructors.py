"""Calls of C types: `list(x)`, `dict(a=1)`, `enumerate(xs)`, `type(x)`, `super()`.

Place in the pipeline: see `weft.capture.library`.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import Signal, SkipFrame, graph_break
from weft.capture.core.cell import CellValue
from weft.capture.core.constant import (
    FALSE,
    NONE,
    ONE,
    ZERO,
    boolean,
    constant,
    evaluate,
    evaluate_call,
    is_none,
    plain_value,
    python_object,
)
from weft.capture.core.lifetimes import check_held
from weft.capture.core.rules import passed
from weft.capture.library.classes import descriptor_polyfills
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import ClassValue, SuperValue, constructor
from weft.capture.library.classes.instances import ObjectValue, checked_text
from weft.capture.library.classes.made_classes import type_of_three
from weft.capture.library.containers.deques import DequeValue
from weft.capture.library.containers.iterators import LazyIterator
from weft.capture.library.containers.lazy_iterators import (
    BackwardsIterator,
    ChainIterator,
    CountIterator,
    CycleIterator,
    EnumerateIterator,
    FilterIterator,
    MapIterator,
    PoolIterator,
    RepeatIterator,
    SliceIterator,
    StarmapIterator,
    ZipIterator,
)
from weft.capture.library.containers.mapping import DictValue, ProxyValue
from weft.capture.library.containers.sequences import (
    ListValue,
    RangeIterator,
    RangeValue,
    ReversedIterator,
    SequenceValue,
    SizeValue,
    TupleValue,
    make_slice,
)
from weft.capture.library.containers.sets import SetValue
from weft.capture.library.exceptions.exceptions import ExceptionValue
from weft.capture.library.functions.builtins import EXTERNAL_METHODS, BuiltinValue
from weft.capture.library.functions.functions import (
    BoundMethodValue,
    FunctionValue,
    PartialValue,
    rule,
)
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.numbers.symbolic_ranges import symbolic_range
from weft.capture.library.tensors.print_state import constant_text
from weft.capture.library.tensors.tensor import TensorValue
from weft.capture.library.texts.symbolic_texts import format_symbolic

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@constructor(type)
def _type(tx: Interpreter, cls: type, target: SymbolicValue, bases: SymbolicValue | None = None,
          namespace: SymbolicValue | None = None, /) -> SymbolicValue:
    if bases is not None and namespace is not None:
        return type_of_three(tx, [target, bases, namespace])
    if bases is not None:
        raise graph_break("unknown-operation", "making a class")
    kind = target.python_type()
    return tx.wrap_fixed(kind, kind.__name__)


@constructor(super)
def _super(tx: Interpreter, cls: type, after: SymbolicValue | None = None,
           instance: SymbolicValue | None = None, /) -> SymbolicValue:
    if after is not None and instance is not None:
        return _checked_super(tx, after.constant(), instance)
    if after is not None:
        raise graph_break("unknown-operation", "super of a class alone")
    frame = tx.frame
    assert frame is not None
    code = frame.code
    if not code.co_argcount:
        raise _super_error(tx, "no arguments")
    cell = frame.cells.get("__class__")
    cls_value = cell.read(tx) if cell is not None else None
    name = code.co_varnames[0]
    owner = frame.locals.get(name)
    if owner is None and name in frame.cells:
        owner = frame.cells[name].read(tx)
    if owner is None:
        raise _super_error(tx, "arg[0] deleted")
    if cls_value is None:
        raise _super_error(tx, "__class__ cell not found" if cell is None else
                           "empty __class__ cell")
    return _checked_super(tx, cls_value.constant(), tx.force(owner))


def _super_error(tx: Interpreter, text: str) -> Signal:
    """The RuntimeError of `super()`. Python raises it in the compiled frame itself: a continuation
    has other arguments and cells, which the text would speak of."""
    assert tx.frame is not None
    if tx.frame.caller is None:
        return SkipFrame(f"super(): {text}")
    return tx.error(RuntimeError, f"super(): {text}")


def _checked_super(tx: Interpreter, after: type, owner: SymbolicValue) -> SymbolicValue:
    kinds = [owner.python_type(), *([owner.cls] if isinstance(owner, ClassValue) else [])]
    if not any(issubclass(kind, after) for kind in kinds):
        raise tx.error(TypeError, _refused_super(after, owner))
    return SuperValue(after, owner)


def _refused_super(after: type, owner: SymbolicValue) -> str:
    if sys.version_info < (3, 13):
        return "super(type, obj): obj must be an instance or subtype of type"
    what = (f"type {owner.cls.__name__}" if isinstance(owner, ClassValue) else
            f"instance of {owner.python_type().__name__}")
    return (f"super(type, obj): obj ({what}) is not an instance or subtype of type "
            f"({after.__name__}).")


@constructor(list)
def _list(tx: Interpreter, cls: type, iterable: SymbolicValue | None = None, /) -> SymbolicValue:
    return ListValue(_items(tx, iterable))


def _items(tx: Interpreter, iterable: SymbolicValue | None) -> list[SymbolicValue]:
    return [] if iterable is None else tx.to_list(iterable)


@constructor(tuple)
def _tuple(tx: Interpreter, cls: type, iterable: SymbolicValue | None = None, /) -> SymbolicValue:
    return iterable if type(iterable) is TupleValue else TupleValue(_items(tx, iterable))


@constructor(torch.Size)
def _size(tx: Interpreter, cls: type, iterable: SymbolicValue | None = None, /) -> SymbolicValue:
    items = _items(tx, iterable)
    if not all(item.python_type() is int for item in map(tx.force, items)):
        raise graph_break("unknown-operation", "a size of values that are no numbers")
    return SizeValue(items)


@constructor(dict, OrderedDict)
def _dict(tx: Interpreter, cls: type, others: SymbolicValue | None = None, /,
          **items: SymbolicValue) -> SymbolicValue:
    mapping = DictValue(cls=cls)
    mapping.m_update(tx, others, **items)
    return mapping


@constructor(defaultdict)
def _defaultdict(tx: Interpreter, cls: type, factory: SymbolicValue = NONE,
                 others: SymbolicValue | None = None, /, **items: SymbolicValue) -> SymbolicValue:
    kind = factory.python_type()
    if kind is not type(None) and type_lookup(kind, "__call__") is MISSING:
        raise graph_break("unknown-operation", "arguments of defaultdict")
    mapping = DictValue(cls=cls, factory=factory)
    mapping.m_update(tx, others, **items)
    return mapping


@constructor(types.MappingProxyType)
def _mapping_proxy(tx: Interpreter, cls: type, mapping: SymbolicValue, /) -> SymbolicValue:
    if not isinstance(mapping, DictValue):
        raise graph_break("unknown-operation", f"a mappingproxy of {mapping!r}")
    return ProxyValue(mapping)


@constructor(set, frozenset)
def _set(tx: Interpreter, cls: type, iterable: SymbolicValue | None = None, /) -> SymbolicValue:
    if iterable is None:
        return SetValue.copy_of(tx, TupleValue([]), cls)
    if cls is frozenset and iterable.python_type() is frozenset:
        return iterable
    contents = getattr(iterable, "contents", iterable)
    # for a set, an overridden `__iter__` is not called
    return SetValue.copy_of(tx, contents if isinstance(contents, SetValue) else iterable, cls)


@constructor(range)
def _range(tx: Interpreter, cls: type, bound: SymbolicValue, /, *more: SymbolicValue
           ) -> SymbolicValue:
    bounds = [bound, *more]
    if any(isinstance(b, TensorValue) for b in bounds):
        raise graph_break("data-dependent-value", "a range whose bounds are tensors")
    bounds = [plain_value(b) or b if issubclass(b.python_type(), int) else b for b in bounds]
    symbolic = symbolic_range(tx, bounds)
    if symbolic is not None:
        return symbolic
    return tx.wrap_new(evaluate(tx, lambda: range(*(b.constant() for b in bounds))))


@constructor(slice)
def _slice(tx: Interpreter, cls: type, bound: SymbolicValue, stop: SymbolicValue | None = None,
           step: SymbolicValue = NONE, /) -> SymbolicValue:
    return make_slice([bound] if stop is None else [bound, stop, step])


@constructor(bool)
def _bool(tx: Interpreter, cls: type, value: SymbolicValue = FALSE, /) -> SymbolicValue:
    return boolean(value.truth(tx))


@constructor(int, float, complex, bytes)
def _number(tx: Interpreter, cls: type, *args: SymbolicValue, **kwargs: SymbolicValue
            ) -> SymbolicValue:
    value = args[0] if len(args) == 1 and not kwargs else None
    if isinstance(value, TensorValue):
        name = "__index__" if cls is bytes else f"__{cls.__name__}__"
        return value.method(tx, name, [], {})
    if isinstance(value, SymbolicNumberValue) and cls in (int, float):
        return value.method(tx, f"__{cls.__name__}__", [], {})
    number = evaluate_call(tx, cls, args, kwargs)
    if number is not MISSING:
        return tx.wrap_new(number)
    if value is None:
        raise graph_break("unknown-operation", f"{cls.__name__} of {args!r}")
    return _convert(tx, cls, value)


_CONVERSIONS: Final = {int: ("__int__", "__index__"), float: ("__float__", "__index__"),
                       complex: ("__complex__", "__float__"), bytes: ("__bytes__",)}


def _convert(tx: Interpreter, cls: type, value: SymbolicValue) -> SymbolicValue:
    """`int(obj)`, `float(obj)`, ... of an object with a conversion method."""
    kind = value.python_type()
    names = [name for name in _CONVERSIONS[cls] if hasattr(kind, name)]
    if not names:
        raise graph_break("unknown-operation", f"{cls.__name__} of {value!r}")
    converted = tx.force(value.method(tx, names[0], [], {}))
    if converted.python_type() is not cls:
        raise graph_break("unknown-operation", f"{names[0]} of {value!r}")
    return converted


@constructor(str)
def _str(tx: Interpreter, cls: type, object: SymbolicValue | None = None,
         encoding: SymbolicValue | None = None, errors: SymbolicValue | None = None
         ) -> SymbolicValue:
    if encoding is not None or errors is not None:
        return _made_of_constants(
            tx, str, **passed(object=object, encoding=encoding, errors=errors))
    if object is None:
        return constant("")
    text = format_symbolic(tx, str, object)
    if text is not None:
        return text
    obj = python_object(tx, object)
    if obj is not MISSING:
        return constant_text(tx, str, obj)
    return text_of(tx, object)


def _rule_of_method(method: BoundMethodValue) -> object:
    function: Any = method.function.real()
    return EXTERNAL_METHODS.get((getattr(function, "__objclass__", object), function.__name__))


def text_of(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """`str(value)` of a value that is not a constant."""
    if isinstance(value, ObjectValue):
        for name in ("__str__", "__repr__"):
            method = value.special(tx, name)
            if isinstance(method, BoundMethodValue) and isinstance(method.function, FunctionValue):
                return checked_text(tx, name, method.call(tx, [], {}))
            if (isinstance(method, BoundMethodValue) and plain_value(value) is not None
                    and getattr(method.function.real(), "__objclass__", object) is not object):
                return method.call(tx, [], {})
            args = getattr(value, "args", None)
            text = value.text(tx) if isinstance(value, ExceptionValue) else None
            if text is not None:
                return text
            if args is not None:
                return _message(tx, value.cls, args)
            if isinstance(method, BoundMethodValue) and _rule_of_method(method) is not None:
                return method.call(tx, [], {})
    if isinstance(value, BuiltinValue):  # guarded by identity
        return constant(str(value.real()))
    if isinstance(value, TensorValue):
        return value.text(tx, str)
    if isinstance(value, ObjectValue):
        raise graph_break("unknown-operation", f"str of {value!r}")
    return tx.call_python(repr, [value])


def _message(tx: Interpreter, cls: type, args: list[SymbolicValue]) -> SymbolicValue:
    """`str` of an exception."""
    if issubclass(cls, KeyError) and len(args) == 1:
        return tx.call_python(repr, args)
    if len(args) > 1:
        return tx.call_python(str, [TupleValue(args)])
    return tx.call_python(str, args) if args else constant("")


@constructor(deque)
def _make_deque(tx: Interpreter, cls: type, iterable: SymbolicValue | None = None,
                maxlen: SymbolicValue = NONE) -> SymbolicValue:
    queue = DequeValue([])
    queue.m___init__(tx, iterable, maxlen)
    return queue


@constructor(object)
def _object(tx: Interpreter, cls: type) -> SymbolicValue:
    return ObjectValue(object)


@constructor(partial)
def _partial(tx: Interpreter, cls: type, function: SymbolicValue, /, *args: SymbolicValue,
             **kwargs: SymbolicValue) -> SymbolicValue:
    if isinstance(function, PartialValue) and not function.attributes.truth(tx):
        return PartialValue(function.function, [*function.args, *args],
                            {**function.keywords, **kwargs})
    return PartialValue(function, [*args], kwargs)


@constructor(types.MethodType)
def _method(tx: Interpreter, cls: type, function: SymbolicValue, owner: SymbolicValue, /
            ) -> SymbolicValue:
    if type_lookup(function.python_type(), "__call__") is MISSING:
        raise tx.error(TypeError, "first argument must be callable")
    return _bound(tx, function, owner)


@rule(descriptor_polyfills.bound)
def _bound(tx: Interpreter, function: SymbolicValue, owner: SymbolicValue, /) -> SymbolicValue:
    return BoundMethodValue(owner, function)


@constructor(types.CellType)
def _cell(tx: Interpreter, cls: type, contents: SymbolicValue | None = None, /) -> SymbolicValue:
    return CellValue(contents)


@constructor(torch.dtype, torch.device, torch.finfo, torch.iinfo)
def _made_of_constants(tx: Interpreter, cls: type, *args: SymbolicValue, **kwargs: SymbolicValue
                       ) -> SymbolicValue:
    obj = evaluate_call(tx, cls, args, kwargs)
    if obj is MISSING:
        raise graph_break("unknown-operation", f"{cls.__name__} of values that are no constants")
    return tx.wrap_new(obj)


# -- iterators ------------------------------------------------------------------------------------

def _sources(tx: Interpreter, iterables: Sequence[SymbolicValue]) -> list[SymbolicValue]:
    return [iterable.iter(tx) for iterable in iterables]


def _each(tx: Interpreter, iterator: SymbolicValue) -> Iterator[SymbolicValue]:
    while (item := iterator.next(tx)) is not None:
        yield item


def iterator_of(tx: Interpreter, value: SymbolicValue) -> Iterator[SymbolicValue]:
    """A Python iterator over the items."""
    return _each(tx, value.iter(tx))


@constructor(zip)
def _zip(tx: Interpreter, cls: type, *iterables: SymbolicValue, strict: SymbolicValue = FALSE
         ) -> SymbolicValue:
    return ZipIterator(_sources(tx, iterables), strict.truth(tx))


@constructor(enumerate)
def _enumerate(tx: Interpreter, cls: type, iterable: SymbolicValue, start: SymbolicValue = ZERO
               ) -> SymbolicValue:
    if not issubclass(start.python_type(), int):
        raise graph_break("unknown-operation", f"enumerate from {start!r}")
    return EnumerateIterator(iterable.iter(tx), start)


@constructor(map)
def _map(tx: Interpreter, cls: type, function: SymbolicValue, iterable: SymbolicValue, /,
         *more: SymbolicValue) -> SymbolicValue:
    return MapIterator(function, _sources(tx, [iterable, *more]))


@constructor(filter, itertools.filterfalse)
def _filter(tx: Interpreter, cls: type, function: SymbolicValue, iterable: SymbolicValue, /
            ) -> SymbolicValue:
    return FilterIterator(cls, function, iterable.iter(tx))


@constructor(reversed)
def _reversed(tx: Interpreter, cls: type, value: SymbolicValue, /) -> SymbolicValue:
    check_held(tx, value)
    if isinstance(value, RangeValue):
        return RangeIterator(value.range[::-1])
    if isinstance(value, SequenceValue):
        return ReversedIterator(value)
    kind = value.python_type()
    own = type_lookup(kind, "__reversed__")
    indexed = own is MISSING and type_lookup(kind, "__getitem__") is not MISSING
    if own is None or (own is MISSING and not indexed):
        raise tx.error(TypeError, f"'{kind.__name__}' object is not reversible")
    if indexed:
        return BackwardsIterator(value, value.length(tx))
    if isinstance(value, (ObjectValue, TensorValue)):
        return value.method(tx, "__reversed__", [], {})
    items = tx.unpack(value)
    return LazyIterator(cls, lambda: iter(items[::-1]), True)


@constructor(itertools.chain)
def _chain(tx: Interpreter, cls: type, *iterables: SymbolicValue) -> SymbolicValue:
    return ChainIterator(TupleValue(iterables).iter(tx))


@rule(itertools.chain.from_iterable)
def _chain_from(tx: Interpreter, iterable: SymbolicValue, /) -> SymbolicValue:
    return ChainIterator(iterable.iter(tx))


@constructor(itertools.repeat)
def _repeat(tx: Interpreter, cls: type, object: SymbolicValue, times: SymbolicValue | None = None
            ) -> SymbolicValue:
    if times is not None and not issubclass(times.python_type(), int):
        raise graph_break("unknown-operation", "itertools.repeat of these arguments")
    return RepeatIterator(object, None if times is None else times.constant())


@constructor(itertools.count)
def _count(tx: Interpreter, cls: type, start: SymbolicValue = ZERO, step: SymbolicValue = ONE
           ) -> SymbolicValue:
    if not all(issubclass(value.python_type(), (int, float, complex)) for value in (start, step)):
        raise graph_break("unknown-operation", "itertools.count of these arguments")
    return CountIterator(start, step)


@constructor(itertools.cycle)
def _cycle(tx: Interpreter, cls: type, iterable: SymbolicValue, /) -> SymbolicValue:
    return CycleIterator(iterable.iter(tx))


@constructor(itertools.islice)
def _islice(tx: Interpreter, cls: type, iterable: SymbolicValue, /, *bounds: SymbolicValue
            ) -> SymbolicValue:
    numbers = [bound.constant() for bound in bounds]
    evaluate(tx, lambda: itertools.islice((), *numbers))  # raises what is wrong with them
    return SliceIterator(iterable.iter(tx), slice(*numbers))


@constructor(itertools.zip_longest)
def _zip_longest(tx: Interpreter, cls: type, *iterables: SymbolicValue,
                 fillvalue: SymbolicValue = NONE) -> SymbolicValue:
    sources = [iterator_of(tx, iterable) for iterable in iterables]
    rows = itertools.zip_longest(*sources, fillvalue=fillvalue)
    return LazyIterator(cls, lambda: map(TupleValue, rows), True)


@constructor(itertools.product)
def _product(tx: Interpreter, cls: type, *iterables: SymbolicValue,
             repeat: SymbolicValue | None = None) -> SymbolicValue:
    return _pools(tx, cls, iterables, repeat=repeat)


@constructor(itertools.permutations, itertools.combinations,
             itertools.combinations_with_replacement)
def _choose(tx: Interpreter, cls: type, iterable: SymbolicValue, r: SymbolicValue | None = None
            ) -> SymbolicValue:
    return _pools(tx, cls, [iterable], r=r)


def _pools(tx: Interpreter, cls: type, iterables: Sequence[SymbolicValue],
           **options: SymbolicValue | None) -> SymbolicValue:
    numbers = {name: value.constant() for name, value in passed(**options).items()}
    pools = [tx.to_list(iterable) for iterable in iterables]
    evaluate(tx, lambda: cls(*([()] * len(pools)), **numbers))  # raises what is wrong with them
    return PoolIterator(cls, pools, numbers)


@constructor(itertools.starmap)
def _starmap(tx: Interpreter, cls: type, function: SymbolicValue, iterable: SymbolicValue, /
             ) -> SymbolicValue:
    return StarmapIterator(function, iterable.iter(tx))


@constructor(itertools.accumulate)
def _accumulate(
    tx: Interpreter, cls: type, iterable: SymbolicValue, func: SymbolicValue = NONE, *,
    initial: SymbolicValue = NONE,
) -> SymbolicValue:
    def combine(total: SymbolicValue, item: SymbolicValue) -> SymbolicValue:
        return tx.binary("add", total, item) if is_none(func) else tx.call(func, [total, item])

    first = None if is_none(initial) else initial
    totals = itertools.accumulate(iterator_of(tx, iterable), combine, initial=first)
    return LazyIterator(cls, lambda: totals)


@constructor(itertools.takewhile)
def _takewhile(tx: Interpreter, cls: type, predicate: SymbolicValue, iterable: SymbolicValue, /
               ) -> SymbolicValue:
    items = itertools.takewhile(_holds(tx, predicate), iterator_of(tx, iterable))
    return LazyIterator(cls, lambda: items)


@constructor(itertools.dropwhile)
def _dropwhile(tx: Interpreter, cls: type, predicate: SymbolicValue, iterable: SymbolicValue, /
               ) -> SymbolicValue:
    items = itertools.dropwhile(_holds(tx, predicate), iterator_of(tx, iterable))
    return LazyIterator(cls, lambda: items)


def _holds(tx: Interpreter, predicate: SymbolicValue) -> Callable[[SymbolicValue], bool]:
    return lambda item: tx.call(predicate, [item]).truth(tx)


@constructor(itertools.pairwise)
def _pairwise(tx: Interpreter, cls: type, iterable: SymbolicValue, /) -> SymbolicValue:
    pairs = itertools.pairwise(iterator_of(tx, iterable))
    return LazyIterator(cls, lambda: map(TupleValue, pairs), True)
