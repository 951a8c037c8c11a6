"""Calls of C types: `list(x)`, `dict(a=1)`, `enumerate(xs)`, `type(x)`, `super()`.

Place in the pipeline: see `weft.capture.library`.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue, by_name
from weft.capture.core.breaks import Signal, SkipFrame, graph_break
from weft.capture.core.cell import CellValue
from weft.capture.core.constant import (
    NONE,
    boolean,
    constant,
    evaluate,
    evaluate_call,
    is_none,
    plain_value,
    python_object,
)
from weft.capture.core.lifetimes import check_held
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
def _type(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) == 3 and not kwargs:
        return type_of_three(tx, args)
    if len(args) != 1:
        raise graph_break("unknown-operation", "making a class")
    kind = args[0].python_type()
    return tx.wrap_fixed(kind, kind.__name__)


@constructor(super)
def _super(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) not in (0, 2) or kwargs:
        raise graph_break("unknown-operation", f"super with {len(args)} arguments")
    if args:
        return _checked_super(tx, args[0].constant(), args[1])
    frame = tx.frame
    assert frame is not None
    code = frame.code
    if not code.co_argcount:
        raise _super_error(tx, "no arguments")
    cell = frame.cells.get("__class__")
    found = cell.read(tx) if cell is not None else None
    name = code.co_varnames[0]
    owner = frame.locals.get(name)
    if owner is None and name in frame.cells:
        owner = frame.cells[name].read(tx)
    if owner is None:
        raise _super_error(tx, "arg[0] deleted")
    if found is None:
        raise _super_error(tx, "__class__ cell not found" if cell is None else
                           "empty __class__ cell")
    return _checked_super(tx, found.constant(), tx.force(owner))


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
def _list(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    _one_argument(cls, args, kwargs)
    return ListValue(tx.to_list(args[0]) if args else [])


def _one_argument(cls: type, args: Args, kwargs: Kwargs) -> None:
    if kwargs or len(args) > 1:
        raise graph_break("unknown-operation", f"arguments of {cls.__name__}")


@constructor(tuple)
def _tuple(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    _one_argument(cls, args, kwargs)
    if args and type(args[0]) is TupleValue:
        return args[0]
    return TupleValue(tx.to_list(args[0]) if args else [])


@constructor(torch.Size)
def _size(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    items = tx.to_list(args[0]) if args else []
    if not all(item.python_type() is int for item in map(tx.force, items)):
        raise graph_break("unknown-operation", "a size of values that are no numbers")
    return SizeValue(items)


@constructor(dict, OrderedDict)
def _dict(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) > 1:
        raise graph_break("unknown-operation", f"arguments of {cls.__name__}")
    made = DictValue(cls=cls)
    made.m_update(tx, args, kwargs)
    return made


@constructor(defaultdict)
def _defaultdict(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    factory = args[0] if args else NONE
    if len(args) > 2 or (factory.python_type() is not type(None)
                         and type_lookup(factory.python_type(), "__call__") is MISSING):
        raise graph_break("unknown-operation", "arguments of defaultdict")
    made = DictValue(cls=cls, factory=factory)
    made.m_update(tx, args[1:], kwargs)
    return made


@constructor(types.MappingProxyType)
def _mapping_proxy(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if not isinstance(args[0], DictValue):
        raise graph_break("unknown-operation", f"a mappingproxy of {args[0]!r}")
    return ProxyValue(args[0])


@constructor(set, frozenset)
def _set(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    _one_argument(cls, args, kwargs)
    if cls is frozenset and args and args[0].python_type() is frozenset:
        return args[0]
    given = getattr(args[0], "contents", args[0]) if args else TupleValue([])
    if not isinstance(given, SetValue):  # for a set, an overridden `__iter__` is not called
        given = args[0] if args else given
    return SetValue.copy_of(tx, given, cls)


@constructor(range)
def _range(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if any(isinstance(a, TensorValue) for a in args):
        raise graph_break("data-dependent-value", "a range whose bounds are tensors")
    args = [plain_value(a) or a if issubclass(a.python_type(), int) else a for a in args]
    symbolic = symbolic_range(tx, args) if args else None
    if symbolic is not None:
        return symbolic
    return tx.wrap_new(evaluate(tx, lambda: range(*(a.constant() for a in args))))


@constructor(slice)
def _slice(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if kwargs or not 1 <= len(args) <= 3:
        raise graph_break("unknown-operation", "arguments of slice")
    return make_slice(args)


@constructor(bool)
def _bool(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    _one_argument(cls, args, kwargs)
    return boolean(args[0].truth(tx) if args else False)


@constructor(int, float, complex, bytes)
def _number(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) == 1 and not kwargs and isinstance(args[0], TensorValue):
        name = "__index__" if cls is bytes else f"__{cls.__name__}__"
        return args[0].method(tx, name, [], {})
    if len(args) == 1 and isinstance(args[0], SymbolicNumberValue) and cls in (int, float):
        return args[0].method(tx, f"__{cls.__name__}__", [], {})
    made = evaluate_call(tx, cls, args, kwargs)
    return _convert(tx, cls, args) if made is MISSING else tx.wrap_new(made)


_CONVERSIONS: Final = {int: ("__int__", "__index__"), float: ("__float__", "__index__"),
                       complex: ("__complex__", "__float__"), bytes: ("__bytes__",)}


def _convert(tx: Interpreter, cls: type, args: Args) -> SymbolicValue:
    """`int(obj)`, `float(obj)`, ... of an object with a conversion method."""
    kind = args[0].python_type()
    names = [name for name in _CONVERSIONS[cls] if hasattr(kind, name)]
    if len(args) != 1 or not names:
        raise graph_break("unknown-operation", f"{cls.__name__} of {args[0]!r}")
    made = tx.force(args[0].method(tx, names[0], [], {}))
    if made.python_type() is not cls:
        raise graph_break("unknown-operation", f"{names[0]} of {args[0]!r}")
    return made


@constructor(str)
def _str(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if len(args) + len(kwargs) > 1 or kwargs:
        return _made_of_constants(tx, str, args, kwargs)
    if not args:
        return constant("")
    text = format_symbolic(tx, str, args[0])
    if text is not None:
        return text
    obj = python_object(tx, args[0])
    if obj is not MISSING:
        return constant_text(tx, str, obj)
    return text_of(tx, args[0])


def _rule_of_method(method: BoundMethodValue) -> Any:
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
def _make_deque(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    made = DequeValue([])
    made.m___init__(tx, args, kwargs)
    return made


@constructor(object)
def _object(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return ObjectValue(object)


@constructor(partial)
def _partial(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    function = args[0]
    if isinstance(function, PartialValue) and not function.attributes.truth(tx):
        args = [function.function, *function.args, *args[1:]]
        kwargs = {**function.keywords, **kwargs}
    return PartialValue(args[0], args[1:], kwargs)


@constructor(types.MethodType)
def _method(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    if type_lookup(args[0].python_type(), "__call__") is MISSING:
        raise tx.error(TypeError, "first argument must be callable")
    return _bound(tx, args, kwargs)


@rule(descriptor_polyfills.bound)
def _bound(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return BoundMethodValue(args[1], args[0])


@constructor(types.CellType)
def _cell(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return CellValue(args[0] if args else None)


@constructor(torch.dtype, torch.device, torch.finfo, torch.iinfo)
def _made_of_constants(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    made = evaluate_call(tx, cls, args, kwargs)
    if made is MISSING:
        raise graph_break("unknown-operation", f"{cls.__name__} of values that are no constants")
    return tx.wrap_new(made)


# -- iterators ------------------------------------------------------------------------------------

Producer = Callable[["Interpreter", Args, Kwargs], Iterator[SymbolicValue]]


def iterator_type(*kinds: type, pure: bool = True, iterables: slice = slice(0, 1),
                  most: int | None = None) -> Callable[[Producer], Producer]:
    """Register a generator of values as the iterator that a call of a type makes.

    It also says which arguments are iterated over from the start, and how many there may be.
    """

    def register(produce: Producer) -> Producer:
        def make(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
            least = 1 if iterables.stop is None else iterables.stop
            if len(args) < least or (most is not None and len(args) > most):
                raise graph_break("unknown-operation", f"arguments of {cls.__name__}")
            args[iterables] = _sources(tx, args[iterables])
            return LazyIterator(cls, partial(_checked_items, cls, produce, tx, args, kwargs), pure)

        constructor(*kinds)(make)
        return produce

    return register


def _checked_items(cls: type, produce: Producer, tx: Interpreter, args: Args, kwargs: Kwargs
             ) -> Iterator[SymbolicValue]:
    """The items; for arguments of wrong types or numbers, Python's error is raised."""
    try:
        yield from produce(tx, args, kwargs)
    except (IndexError, TypeError) as error:
        raise graph_break("unknown-operation", f"arguments of {cls.__name__}: {error}") from error


def _sources(tx: Interpreter, args: Args) -> list[SymbolicValue]:
    return [arg.iter(tx) for arg in args]


def _each(tx: Interpreter, iterator: SymbolicValue) -> Iterator[SymbolicValue]:
    while (item := iterator.next(tx)) is not None:
        yield item


def iterator_of(tx: Interpreter, value: SymbolicValue) -> Iterator[SymbolicValue]:
    """A Python iterator over the items."""
    return _each(tx, value.iter(tx))


@constructor(zip)
def _zip(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    strict = kwargs["strict"].truth(tx) if "strict" in kwargs else False
    return ZipIterator(_sources(tx, args), strict)


@constructor(enumerate)
def _enumerate(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    given = by_name(args, kwargs, "iterable", "start")
    start = given.get("start", constant(0))
    if not issubclass(start.python_type(), int):
        raise graph_break("unknown-operation", f"enumerate from {start!r}")
    return EnumerateIterator(given["iterable"].iter(tx), start)


@constructor(map)
def _map(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return MapIterator(args[0], _sources(tx, args[1:]))


@constructor(filter, itertools.filterfalse)
def _filter(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return FilterIterator(cls, args[0], args[1].iter(tx))


@constructor(reversed)
def _reversed(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    value = args[0]
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
def _chain(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return ChainIterator(TupleValue(args).iter(tx))


@rule(itertools.chain.from_iterable)
def _chain_from(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return ChainIterator(args[0].iter(tx))


@constructor(itertools.repeat)
def _repeat(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    given = by_name(args, kwargs, "object", "times")
    times = given.get("times")
    if times is not None and not issubclass(times.python_type(), int):
        raise graph_break("unknown-operation", "itertools.repeat of these arguments")
    return RepeatIterator(given["object"], None if times is None else times.constant())


@constructor(itertools.count)
def _count(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    given = by_name(args, kwargs, "start", "step")
    if len(args) > 2 or not all(
            issubclass(value.python_type(), (int, float, complex)) for value in given.values()):
        raise graph_break("unknown-operation", "itertools.count of these arguments")
    return CountIterator(given.get("start", constant(0)), given.get("step", constant(1)))


@constructor(itertools.cycle)
def _cycle(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return CycleIterator(args[0].iter(tx))


@constructor(itertools.islice)
def _islice(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    bounds = [a.constant() for a in args[1:]]
    evaluate(tx, lambda: itertools.islice((), *bounds))  # raises what is wrong with them
    return SliceIterator(args[0].iter(tx), slice(*bounds))


@iterator_type(itertools.zip_longest, iterables=slice(0, None))
def _zip_longest(tx: Interpreter, args: Args, kwargs: Kwargs) -> Iterator[SymbolicValue]:
    fill = kwargs.get("fillvalue", NONE)
    for items in itertools.zip_longest(*(iterator_of(tx, a) for a in args), fillvalue=fill):
        yield TupleValue(items)


@constructor(itertools.product)
def _product(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return _pools(tx, cls, args, kwargs)


@constructor(itertools.permutations, itertools.combinations,
             itertools.combinations_with_replacement)
def _choose(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    given = by_name(args, kwargs, "iterable", "r")
    return _pools(tx, cls, [given.pop("iterable")], given)


def _pools(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    numbers = {name: value.constant() for name, value in kwargs.items()}
    pools = [tx.to_list(arg) for arg in args]
    evaluate(tx, lambda: cls(*([()] * len(pools)), **numbers))  # raises what is wrong with them
    return PoolIterator(cls, pools, numbers)


@constructor(itertools.starmap)
def _starmap(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    return StarmapIterator(args[0], args[1].iter(tx))


@iterator_type(itertools.accumulate, pure=False, most=2)
def _accumulate(tx: Interpreter, args: Args, kwargs: Kwargs) -> Iterator[SymbolicValue]:
    function = by_name(args, kwargs, "iterable", "func").get("func", NONE)
    plain = is_none(function)
    total = kwargs.get("initial")
    if total is not None and is_none(total):
        total = None
    if total is not None:
        yield total
    for item in iterator_of(tx, args[0]):
        if total is None:
            total = item
        elif plain:
            total = tx.binary("add", total, item)
        else:
            total = tx.call(function, [total, item])
        yield total


@iterator_type(itertools.takewhile, pure=False, iterables=slice(1, 2), most=2)
def _takewhile(tx: Interpreter, args: Args, kwargs: Kwargs) -> Iterator[SymbolicValue]:
    for item in iterator_of(tx, args[1]):
        if not tx.call(args[0], [item]).truth(tx):
            return
        yield item


@iterator_type(itertools.pairwise, most=1)
def _pairwise(tx: Interpreter, args: Args, kwargs: Kwargs) -> Iterator[SymbolicValue]:
    for pair in itertools.pairwise(iterator_of(tx, args[0])):
        yield TupleValue(pair)
