"""Random generators of Python, NumPy and PyTorch: what they draw are inputs of the graph.

Place in the pipeline: a value family. What a method returns depends on its arguments and the
generator's state alone, so the replacement draws before it calls the graph, in the program's order
(`draw_lines`). The generator is left in the state that eager leaves it in, and each call draws
anew::

    scale = random.uniform(0.5, 2)              v[3] = c0.uniform(0.5, 2)
    return x * scale + np.random.rand(3)        v[5] = c2(c1.rand(3))
                                                out0, = graph(v[0], v[3], v[5])

Capture knows only the type and sizes of a result, from a generator of its own; where Python needs
the number, the graph ends. The methods in `_OTHER` cannot be predicted like this and break the
graph. With a `torch.Generator`, operations draw ahead that make a tensor of sizes alone, or fill a
tensor with numbers (`_draw_ahead`).
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, final

import numpy
import torch

from weft.capture.core.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, constant, evaluate, known_arguments, python_object
from weft.capture.core.graph import GraphBuilder
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.registry import wraps, wraps_named
from weft.capture.core.source import Source
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import constructor
from weft.capture.library.containers.sequences import ListValue, TupleValue, make_slice
from weft.capture.library.functions.builtins import wrap_builtin
from weft.capture.library.functions.functions import rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.numpy import calls as numpy_calls
from weft.capture.library.numpy.arrays import ArrayValue
from weft.capture.library.tensors.tensor import (
    TensorValue,
    draw_ahead,
    outcome_on_fakes,
    shape_value,
    wrap_result,
)
from weft.quoting import keyword
from weft.shapes.algebra.intervals import INF

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_OTHER: Final = frozenset({
    "bytes", "get_state", "getstate", "jumpahead", "permuted", "randbytes", "set_state", "setstate",
    "spawn",
})
"""Methods that return other objects than numbers, arrays and lists of numbers."""


@final
@dataclass(frozen=True, slots=True)
class Draw:
    """One call of a generator's method: the slot of its result, or those of its items, and the
    expression that draws it."""

    place: Source | list[Source]
    owner: SymbolicValue
    function: Any  # a method's name; else what is called, with the owner as `generator`
    args: Args
    kwargs: Kwargs
    is_array: bool = False
    plain: type | None = None
    """Python's type of a number that NumPy gives a type of its own: so it is kept (and given back
    NumPy's where the program shows it)."""

    def line(self, emit: Emitter) -> str:
        arguments = [_text(emit, arg) for arg in self.args]
        arguments += [keyword(name, _text(emit, arg)) for name, arg in self.kwargs.items()]
        owner = emit.value(self.owner)
        if isinstance(self.function, str):
            function = f"{owner}.{self.function}"
        else:
            function = emit.constant(self.function)
            arguments += [] if self.owner is NONE else [f"generator={owner}"]
        text = f"{function}({', '.join(arguments)})"
        if self.is_array:
            text = f"{emit.constant(torch.from_numpy)}({text})"
        if self.plain is not None:
            text = f"{emit.constant(self.plain)}({text})"
        if isinstance(self.place, Source):
            return f"v[{self.place.collect()}] = {text}"
        items = "".join(f"v[{place.collect()}], " for place in self.place)
        return f"{items}= {text}" if items else text


@final
class RandomGeneratorValue(OutsideObject):
    """A `random.Random`, `torch.Generator`, `numpy.random.RandomState` or `numpy.random.Generator`
    from outside, or made ahead of the graph."""

    __slots__ = ()
    has_rules = True

    def dict_key(self, tx: Interpreter) -> object:
        return tx.identities.key(self, self.object)

    def __repr__(self) -> str:
        return f"a {type(self.object).__name__}"

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "__class__":
            return tx.wrap_fixed(self.python_type(), self.python_type().__name__)
        if name == "device" and self.source is not None:
            return tx.wrap(self.object.device, self.source.attribute(name))
        if name.startswith("_") or not callable(getattr(type(self.object), name, None)):
            return super().getattr(tx, name)
        return BoundBuiltin(self, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        patched = _is_patched(type(self.object), name) or name in _own(self.object)
        if patched or name in _OTHER or name.startswith("_") or "out" in kwargs:
            raise graph_break("unknown-c-function", f"{name} of {self!r}")
        if not isinstance(tx.builder, GraphBuilder):
            raise graph_break("unknown-operation", f"{name} of {self!r} in an operator's function")
        known = known_arguments(tx, args, kwargs, _model_of)
        if known is None:
            raise graph_break("data-dependent-value", f"{name} of {self!r} on these values")
        positional, named = known
        kind: Any = type(self.object)
        if kind is torch.Generator:
            return self._torch_method(tx, name, args, kwargs)
        if issubclass(kind, random.Random) and not _is_of_one_kind(
                name, [*positional, *named.values()]):
            raise graph_break("unknown-c-function", f"{name} of {self!r}: objects of some kind")
        if name == "shuffle":
            return self._shuffle(tx, args)
        other = _another(kind)
        model = evaluate(tx, lambda: getattr(other, name)(*positional, **named))
        if type(model) is list:
            return self._draw_list(tx, name, model, args, kwargs)
        place = tx.tree.drawn(f"{name}()")
        value = _draw_value(tx, model, place, _limits(name, args, kwargs))
        is_array = isinstance(value, ArrayValue)
        if is_array and any(
                _is_symbolic(tx, tx.force(arg)) for arg in (*args, *kwargs.values())):
            raise graph_break("unknown-operation", f"{name} of {self!r} of a symbolic size")
        plain = _PLAIN.get(type(model))
        tx.numbers.draws.append(Draw(place, self, name, args, kwargs, is_array, plain))
        return value

    def _shuffle(self, tx: Interpreter, args: Args) -> SymbolicValue:
        """`random.shuffle(numbers)`: the list is filled with what a copy of it holds then."""
        if not args or not isinstance(args[0], ListValue) or not isinstance(
                self.object, random.Random):
            raise graph_break("unknown-c-function", f"shuffle of {self!r}")
        items: Args = [TupleValue(args[0].all(tx))]
        drawn = self._draw_list(tx, _shuffled, _model_of(tx, args[0]), items, {})
        args[0].setitem(tx, make_slice([NONE]), drawn)
        return NONE

    def _draw_list(self, tx: Interpreter, function: object, model: Any, args: Args, kwargs: Kwargs
                   ) -> ListValue:
        """A drawn list of numbers; `model` is one like it."""
        for count in (*args, *kwargs.values()):
            if isinstance(count, SymbolicNumberValue):
                count.constant()  # the length of the list is fixed
        places = [tx.tree.drawn(f"a random item {i}") for i, _ in enumerate(model)]
        values = [_draw_value(tx, item, place, (-INF, INF))
                  for item, place in zip(model, places, strict=True)]
        tx.numbers.draws.append(Draw(places, self, function, args, kwargs))
        return ListValue(values)

    def _torch_method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs
                      ) -> SymbolicValue:
        if name != "manual_seed":
            raise graph_break("unknown-c-function", f"{name} of {self!r}")
        tx.numbers.draws.append(Draw(tx.tree.drawn("manual_seed()"), self, name, args, kwargs))
        return self


_METHOD_KINDS: Final = (
    types.FunctionType, types.MethodDescriptorType, type(numpy.random.RandomState.rand))


def _is_patched(kind: type, name: str) -> bool:
    """Whether the program replaced the method, or one that it uses: trying a call would run its
    code."""
    drawn_by = ("random", "getrandbits") if issubclass(kind, random.Random) else ()
    return not isinstance(type_lookup(kind, name), _METHOD_KINDS) or any(
        not isinstance(type_lookup(kind, part), types.MethodDescriptorType) for part in drawn_by)


def _own(generator: object) -> Any:
    """Attributes that the program may have set on a generator itself."""
    return getattr(generator, "__dict__", ())


@functools.cache
def _another(kind: Any) -> object:
    """A new generator of that type, to try calls on."""
    return kind(0) if kind.__name__ != "Generator" else numpy.random.default_rng(0)


def _is_symbolic(tx: Interpreter, value: SymbolicValue) -> bool:
    return isinstance(value, SymbolicNumberValue) or (
        isinstance(value, _SEQUENCES) and any(_is_symbolic(tx, i) for i in value.iterate(tx)))


def _model_of(tx: Interpreter, value: SymbolicValue) -> object:
    """What an argument may be; MISSING if it is not known ahead of the graph."""
    value = tx.force(value)
    if isinstance(value, SymbolicNumberValue):
        return value.in_this_call()
    if isinstance(value, _SEQUENCES):
        items = [_model_of(tx, item) for item in value.iterate(tx)]
        return MISSING if any(i is MISSING for i in items) else value.python_type()(items)
    return python_object(tx, value)


def _text(emit: Emitter, value: SymbolicValue) -> str:
    value = emit.tx.force(value)
    if isinstance(value, SymbolicNumberValue):
        return emit.value(value)
    if isinstance(value, _SEQUENCES) and _is_symbolic(emit.tx, value):
        return f"({''.join(_text(emit, item) + ', ' for item in value.iterate(emit.tx))})"
    return emit.constant(python_object(emit.tx, value))


_SEQUENCES: Final = (TupleValue, ListValue)
_BETWEEN: Final = frozenset({"choice", "integers", "randint", "random_integers", "randrange"})
"""Methods whose result lies between their first two arguments, or 0 and the first."""


def _limits(name: str, args: Args, kwargs: Kwargs) -> tuple[int, int]:
    """The bounds of the integer that the method returns."""
    ends = [arg.constant() for arg in args[:2] if arg.is_constant]
    if name not in _BETWEEN or kwargs or len(ends) < min(len(args), 2) or not ends or not all(
            type(end) is int for end in ends):
        return (-INF, INF)
    return (min(ends) if len(ends) > 1 else 0, max(ends))


def _is_of_one_kind(name: str, args: list[Any]) -> bool:
    """Whether all results of the method are floats, or all are ints of 64 bits."""
    if name == "getrandbits":
        return bool(args) and args[0] < _INT_BITS
    if name not in _PICK or not args:
        return all(type(bound) is not int or abs(bound) < INF for bound in args)
    items = [args[0][0], args[0][-1]] if type(args[0]) is range and args[0] else [*args[0]]
    kinds = {*map(type, items)}
    return kinds == {float} or (kinds == {int} and all(abs(item) < INF for item in items))


_PICK: Final = frozenset({"choice", "choices", "sample", "shuffle"})
"""Methods whose first argument holds what they return."""
_INT_BITS: Final = 62


def _shuffled(items: tuple[object, ...], generator: random.Random) -> list[object]:
    shuffled = [*items]
    generator.shuffle(shuffled)
    return shuffled


def _draw_value(
    tx: Interpreter, model: Any, place: Source, limits: tuple[int, int]
) -> SymbolicValue:
    """The value of a drawn result; `model` is one like it."""
    if model is None:  # of `seed`
        return NONE
    kind = type(model)
    if isinstance(model, numpy.ndarray) and numpy_calls.tensor_of(model) is not None:
        tensor = numpy_calls.tensor_of(model)
        assert tensor is not None
        return ArrayValue(TensorValue(tx.fakes.fake(tensor), None, place, tensor))
    if kind in (float, numpy.float64):
        number: Any = tx.shapes.drawn_number(float(model), place)
    elif kind in (int, numpy.int64) and abs(int(model)) < INF:
        number = tx.shapes.unbacked_size(int(model), place, lo=limits[0], hi=limits[1])
    else:
        raise graph_break("unknown-c-function", f"a random {kind.__name__}")
    if kind in _PLAIN:  # the place holds Python's number
        return SymbolicNumberValue(tx, number, None, kind)
    return SymbolicNumberValue(tx, number, place)


_PLAIN: Final[Mapping[type, type]] = {numpy.int64: int, numpy.float64: float}


def draw_lines(emit: Emitter) -> list[str]:
    """Statements that draw what the program draws."""
    draws: list[Draw] = emit.tx.numbers.draws
    return [draw.line(emit) for draw in draws]


def drawn_from(emit: Emitter) -> list[str]:
    """Expressions for the generators from outside that these statements change."""
    owners = [draw.owner for draw in emit.tx.numbers.draws]
    outside = [owner for owner in owners if owner.source and not owner.source.is_drawn]
    return list(dict.fromkeys(map(emit.value, outside)))


def state_restorer(*generators: object) -> Callable[[], None]:
    """A function that resets the generators to their current states."""
    steps = [_restorer(generator) for generator in generators]

    def restore() -> None:
        for step in steps:
            step()

    return restore


def _restorer(generator: Any) -> Callable[[], None]:
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if hasattr(generator, "set_state"):
        return partial(generator.set_state, generator.get_state())
    return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)


@wraps(random.Random, torch.Generator)
@wraps_named("numpy.random.mtrand.RandomState", "numpy.random._generator.Generator")
def _wrap_generator(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is None:
        source = tx.tree.object(obj, type(obj).__name__)
    tx.guards.add(source, "type_is", type(obj))
    return RandomGeneratorValue(obj, source)


# -- generators made in the frame -----------------------------------------------------------------


def _make(tx: Interpreter, make: Any, /, *args: SymbolicValue, **kwargs: SymbolicValue
          ) -> SymbolicValue:
    """A generator is made ahead of the graph, as its draws are."""
    known = known_arguments(tx, args, kwargs, _model_of)
    if known is None or not isinstance(tx.builder, GraphBuilder):
        raise graph_break("unknown-operation", f"making a generator by {make.__name__}")
    model = evaluate(tx, lambda: make(*known[0], **known[1]))
    place = tx.tree.drawn(type(model).__name__)
    tx.numbers.draws.append(Draw(place, NONE, make, [*args], kwargs))
    return RandomGeneratorValue(model, place)


constructor(random.Random, torch.Generator, numpy.random.RandomState)(_make)
rule(numpy.random.default_rng)(
    lambda tx, /, *args, **kwargs: _make(tx, numpy.random.default_rng, *args, **kwargs))
wraps(type(numpy.random.default_rng))(wrap_builtin)  # written in Cython


# -- operations that draw from a torch.Generator --------------------------------------------------

_MAKERS: Final = frozenset({torch.rand, torch.randint, torch.randn, torch.randperm})
_FILLERS: Final = frozenset({
    "cauchy_", "exponential_", "log_normal_", "normal_", "random_", "uniform_",
})
_PLAIN_OPTIONS: Final = frozenset({"dtype", "device", "high", "low", "n", "size"})


@draw_ahead.define
def _draw_ahead(tx: Interpreter, target: Any, source: SymbolicValue, args: Args, kwargs: Kwargs
                ) -> SymbolicValue:
    """What an operation draws from the generator it is given, which is no node's argument."""
    generator = tx.force(source)
    name = getattr(target, "__name__", target)
    if not isinstance(generator, RandomGeneratorValue) or not isinstance(
            tx.builder, GraphBuilder):
        raise graph_break("unknown-value", f"{generator!r} as an argument of {name}")
    if target in _MAKERS:
        return _made_ahead(tx, generator, target, args, kwargs)
    into = args[0] if target in _FILLERS else None
    if not isinstance(into, TensorValue) or not into.example.is_contiguous() or (
            into.example.requires_grad):
        raise graph_break("unknown-operation", f"{name} by a generator")
    sizes = shape_value(tx, into.example.shape)
    options = {"dtype": constant(into.example.dtype), "device": constant(into.example.device)}
    drawn = _drawn_tensor(tx, generator, partial(_fill, name), [sizes, *args[1:]],
                          {**options, **kwargs}, into.example)
    return into.method(tx, "copy_", [drawn], {})


def _fill(name: str, sizes: Any, *args: Any, dtype: Any, device: Any, **kwargs: Any) -> Any:
    return getattr(torch.empty(sizes, dtype=dtype, device=device), name)(*args, **kwargs)


def _made_ahead(tx: Interpreter, generator: RandomGeneratorValue, target: Any, args: Args,
                kwargs: Kwargs) -> SymbolicValue:
    options = {key: value for key, value in kwargs.items()
               if key in _PLAIN_OPTIONS or not _is_default(value)}
    if not options.keys() <= _PLAIN_OPTIONS:
        raise graph_break("unknown-operation", f"{target.__name__} by a generator")
    fake = outcome_on_fakes(tx, target, args, options)
    options["dtype"], options["device"] = constant(fake.dtype), constant(fake.device)
    return _drawn_tensor(tx, generator, target, args, options, fake)


def _is_default(value: SymbolicValue) -> bool:
    return value.is_constant and value.constant() in (None, False, torch.strided)


def _drawn_tensor(tx: Interpreter, generator: RandomGeneratorValue, function: Any, args: Args,
                  kwargs: Kwargs, fake: torch.Tensor) -> SymbolicValue:
    """An input of the graph that `function` makes before."""
    known = known_arguments(tx, args, kwargs, _model_of)
    device = generator.object.device
    if device != fake.device or known is None:
        raise graph_break("data-dependent-value", f"a random tensor by {generator!r}")
    place = tx.tree.drawn(f"{getattr(function, '__name__', 'filled')}()")
    tx.numbers.draws.append(Draw(place, generator, function, args, kwargs))
    example = function(*known[0], **known[1], generator=torch.Generator(device))
    return wrap_result(tx, tx.builder.placeholder(place, fake, example), fake)

