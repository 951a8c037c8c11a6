"""What NumPy itself does in a call, found by trying it while capturing, on arrays of made-up
numbers.

Place in the pipeline: beside `numpy_calls`, whose operations are PyTorch's emulation of NumPy; used
by `recording`. A `Blank` describes an array whose numbers depend on data::

    tried = try_out("fix", ([Blank((3,), (1,), numpy.dtype("float32"))], {}))
    tried.result.dtype, tried.shares_memory, tried.agrees   # float32, False, False
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar, final

import numpy
import torch

import weft.capture.library.numpy.operations  # noqa: F401  registers them
from weft.capture.library.numpy.calls import numpy_function, operation, torch_dtype
from weft.interrupts import surface

_T = TypeVar("_T")

_LARGEST: Final = 1 << 18
"""Arrays of up to so many elements are tried as they are; larger ones get smaller sizes."""
_LARGEST_COMPARED: Final = 1 << 12
_SMALLER: Final = 16

_NUMBERS: Final = {
    "f": (0.6, -1.7, 2.4, -0.3, 1.1, 3.2, -2.8), "c": (0.6 + 1j, -1.7, 2.4 - 2j, -0.3j, 1.1, 3.2j),
    "i": (3, -1, 2, 0, 7, -4, 1), "u": (200, 251, 2, 0, 5, 140, 1), "b": (1, 0, 0, 1, 1),
}
"""The numbers that arrays are filled with, by the kind of their dtype: some are negative, fractions
or equal."""
_CASTS: Final = frozenset({
    "array", "asarray", "astype", "copyto", "method.astype", "method.fill", "operator.setitem",
})
"""Operations that convert numbers: what becomes of a NaN that becomes an integer is not defined."""
_SORTED: Final = {"interp": 1, "method.searchsorted": 0, "searchsorted": 0}
"""Functions one of whose arguments must be sorted, and its position."""
_MORE: Final = 100
"""An integer that is no position in arrays of sizes up to `_FEW`, and no great number."""
_FEW: Final = 3
_EXTREMES: Final = ("extremes",)
_LIMITS: Final = {**_NUMBERS, "i": _EXTREMES, "u": _EXTREMES}
_HALF_LIMITS: Final = {**_LIMITS, "f": _EXTREMES}
"""Numbers whose sums and products do not fit in their type."""
_SAMPLES: Final = (_NUMBERS, {
    **_NUMBERS, "f": (0.6, -1.7, math.nan, 2.4, 0.0, 1.0, math.inf, -math.inf, -0.0, 1.0, 3.0),
})


@final
@dataclass(frozen=True)
class Blank:
    """An array or NumPy scalar of unknown numbers; strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: numpy.dtype[Any]
    scalar: bool = False
    writeable: bool = True

    def filled(self, numbers: tuple[object, ...]) -> Any:
        """The array with these numbers, repeated, in its memory."""
        empty = 0 in self.shape
        size = 0 if empty else 1 + sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        chosen = self._extremes() if numbers is _EXTREMES else numpy.array(numbers)
        memory = numpy.resize(chosen.astype(self.dtype), size)
        steps = [step * memory.itemsize for step in self.strides]
        array = numpy.lib.stride_tricks.as_strided(memory, self.shape, steps)
        if not self.writeable:
            array.setflags(write=False)
        return array[()] if self.scalar else array

    def _extremes(self) -> Any:
        """The largest and the least numbers, whose sums and products need more bits: in an order in
        which two of one sign come first in rows and columns (squares modulo 7), and end near 0."""
        limits = numpy.iinfo(self.dtype) if self.dtype.kind in "iu" else numpy.finfo(self.dtype)
        most, least, unit = limits.max, limits.min, self.dtype.type(1)
        numbers = [3, most, most - unit, least, most, least + unit, least]
        return numpy.array(numbers, dtype=self.dtype)

    def within(self, most: int, sizes: int = _SMALLER) -> Blank:
        """The blank itself if it has at most so many elements, else one with sizes up to
        `sizes`."""
        if math.prod(self.shape) <= most:
            return self
        shape = tuple(min(n, sizes) for n in self.shape)
        steps, size = [0] * len(shape), 1
        for at in sorted(range(len(shape)), key=lambda at: (self.strides[at], -at)):
            steps[at], size = size, size * shape[at]
        return Blank(shape, tuple(steps), self.dtype, self.scalar, self.writeable)


@final
@dataclass(frozen=True)
class Tried:
    """What one trial call showed."""

    result: Any
    """NumPy's result, with a `Blank` for each array and NumPy scalar in it."""
    shares_memory: bool
    """Whether the result is a view of an argument."""
    argument: int
    """The position of the argument that is the result, or -1."""
    agrees: bool
    """Whether PyTorch's emulation of NumPy gives the same result."""


Call = tuple[list[Any], dict[str, Any]]
"""The arguments of a call."""


def try_out(path: str, call: Call) -> Tried | None:
    """NumPy's function of that name on such arguments; None if the trial shows nothing."""
    key = (path, _frozen(call))
    if key not in _TRIED:
        _TRIED[key] = _try_out(path, call)
    return _TRIED[key]


_TRIED: Final[dict[Any, Tried | None]] = {}


def _frozen(value: object) -> Any:
    """A hashable form of an argument; equal ones are the same to NumPy."""
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_frozen, value))
    if isinstance(value, numpy.ndarray):
        digest = hashlib.sha256(value.tobytes()).digest()
        return (value.dtype, value.shape, value.strides, digest)
    return value if isinstance(value, Blank) else (type(value), repr(value))


def _try_out(path: str, call: Call) -> Tried | None:
    with numpy.errstate(all="ignore"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        inputs, result = _first_result(path, call)
        if isinstance(result, numpy.linalg.LinAlgError):  # of these numbers: nothing was learned
            return None
        if isinstance(result, Exception):  # it comes again where the program runs
            return Tried(None, False, -1, False)
        shares = any(numpy.may_share_memory(a, b)
                     for a in instances(numpy.ndarray, result)
                     for b in instances(numpy.ndarray, inputs))
        argument = next((at for at, a in enumerate(inputs[0]) if a is result), -1) if (
            isinstance(result, numpy.ndarray)) else -1
        return Tried(_blanks(result), shares, argument,
                     all(_agrees(path, call, s) for s in _samples(path, call)))


def _samples(path: str, call: Call) -> list[dict[str, Any]]:
    """What arrays are filled with to compare the emulation with NumPy."""
    dtypes = {blank.dtype for blank in instances(Blank, call)}
    kinds = {dtype.kind for dtype in dtypes}
    if path in _CASTS:
        return [*_SAMPLES[:1]]
    samples = [*(_SAMPLES if "f" in kinds else _SAMPLES[:1])]
    if kinds & {"i", "u"} and _are_sizes(path, call):
        return samples
    if numpy.dtype(numpy.float16) in dtypes:
        return [*samples, _HALF_LIMITS]
    return [*samples, _LIMITS] if kinds & {"i", "u"} else samples


def _are_sizes(path: str, call: Call) -> bool:
    """Whether integers among the arguments are counts, sizes or positions: others of them give a
    result of another shape, or are refused. At the limits of a type these would ask for all of
    memory, or be written past (`bincount`)."""

    def outcome(number: int, most: int) -> Any:
        inputs = _fill(call, lambda blank: blank.within(most, _FEW).filled(
            (number if blank.dtype.kind in "iu" else 1,)))
        return _outcome(numpy_function(path), inputs)

    most = 1
    if isinstance(few := outcome(1, most), Exception):  # other arguments are about the real sizes
        few = outcome(1, most := _LARGEST_COMPARED)
    more = outcome(_MORE, most)
    return isinstance(more, Exception) or _shapes(few) != _shapes(more)


def _shapes(result: object) -> Any:
    if isinstance(result, (list, tuple)):
        return [*map(_shapes, result)]
    return result.shape if isinstance(result, numpy.ndarray) else None


def _first_result(path: str, call: Call) -> tuple[Any, Any]:
    """Arguments full of ones (or else identity matrices), and what the function returns or
    raises."""
    inputs = _fill(call, lambda blank: blank.within(_LARGEST).filled((1,)))
    result = _outcome(numpy_function(path), inputs)
    if isinstance(result, numpy.linalg.LinAlgError):
        inputs = _fill(call, lambda blank: blank.within(_LARGEST).filled(
            (1, *[0] * (blank.shape or (0,))[-1])))
        result = _outcome(numpy_function(path), inputs)
    return inputs, result


def _agrees(path: str, call: Call, sample: dict[str, Any]) -> bool:
    """Whether the emulation computes what NumPy computes, as far as a sample shows."""

    def varied(blank: Blank) -> Any:
        return blank.within(_LARGEST_COMPARED).filled(sample.get(blank.dtype.kind, (1,)))

    inputs, copies = _fill(call, varied), _fill(call, varied)
    for values in (inputs[0], copies[0]) if path in _SORTED else ():
        values[_SORTED[path]] = numpy.sort(values[_SORTED[path]])
    if path.startswith("empty"):
        return True
    try:
        operands, named = _as_operands(copies)
    except TypeError:  # of no type that tensors have
        return False
    wanted = _outcome(numpy_function(path), inputs)
    computed = _outcome(operation(path), (operands, named))
    if isinstance(wanted, Exception) or isinstance(computed, Exception):
        return isinstance(wanted, Exception) and isinstance(computed, Exception)
    return _same(wanted, computed) and _same(inputs, (operands, named))


def _outcome(function: Callable[..., Any], call: Any) -> Any:
    """What the call returns or raises: not all functions take all numbers."""
    args, kwargs = call
    try:
        return function(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  whatever it is, the two are compared
        surface(error)
        return error


def _blanks(result: object) -> Any:
    if isinstance(result, numpy.generic):
        return Blank((), (), result.dtype, scalar=True)
    if isinstance(result, numpy.ndarray):
        steps = tuple(step // (result.itemsize or 1) for step in result.strides)
        return Blank(result.shape, steps, result.dtype, writeable=result.flags.writeable)
    if isinstance(result, (list, tuple)):
        return [*map(_blanks, result)] if isinstance(result, list) else (*map(_blanks, result),)
    return result


def _fill(value: Any, fill: Callable[[Blank], Any]) -> Any:
    if isinstance(value, Blank):
        return fill(value)
    if isinstance(value, numpy.ndarray):
        return value.copy("K")
    if type(value) in (list, tuple):
        return type(value)(_fill(item, fill) for item in value)
    if type(value) is dict:
        return {name: _fill(item, fill) for name, item in value.items()}
    return value


def _as_operands(value: Any) -> Any:
    """NumPy's objects as the operations on tensors take them."""
    if isinstance(value, numpy.ndarray):
        return torch.from_numpy(value)
    if isinstance(value, numpy.generic):
        return torch.from_numpy(numpy.array(value))
    if isinstance(value, numpy.dtype) or (isinstance(value, type)
                                          and issubclass(value, (numpy.generic, int, float))):
        return torch_dtype(value)
    if isinstance(value, slice):
        bounds = (value.start, value.stop, value.step)
        return slice(*(b.item() if isinstance(b, numpy.integer) else b for b in bounds))
    if type(value) in (list, tuple):
        return type(value)(map(_as_operands, value))
    if type(value) is dict:
        return {name: _as_operands(item) for name, item in value.items()}
    return value


def instances(kind: type[_T], value: object) -> Iterator[_T]:
    """The instances of a class in a value: itself, or in lists, tuples and dicts."""
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from instances(kind, item)
    elif isinstance(value, dict):
        yield from instances(kind, list(value.values()))


def _same(wanted: object, ours: object) -> bool:
    """Whether the emulation's result is NumPy's, after conversion to NumPy's type."""
    if isinstance(ours, torch.Tensor):
        if not isinstance(wanted, (numpy.ndarray, numpy.generic)):
            return False
        numbers = ours.resolve_conj().resolve_neg().numpy().astype(wanted.dtype)
        if wanted.dtype.kind in "fc" and not (ours.is_floating_point() or ours.is_complex()):
            return False  # rounded, for other numbers
        real = wanted.real.dtype
        loose = 64 * float(numpy.finfo(real).eps) if real.kind == "f" else 0.0
        return numbers.shape == wanted.shape and (
            numpy.array_equal(wanted, numbers)  # faster, and enough for most
            or numpy.allclose(wanted, numbers, rtol=loose, atol=loose, equal_nan=True))
    if isinstance(wanted, (list, tuple)) and isinstance(ours, (list, tuple)):
        return len(wanted) == len(ours) and all(map(_same, wanted, ours))
    if isinstance(wanted, dict) and isinstance(ours, dict):
        return all(_same(wanted[name], ours[name]) for name in wanted)
    kinds = (numpy.ndarray, numpy.generic, list, tuple)
    if isinstance(wanted, (type, numpy.dtype, slice)):
        return True
    return not isinstance(wanted, kinds) and bool(wanted == ours or wanted != wanted)
