"""What NumPy itself does in a call, found by trying it while capturing, on arrays of made-up
numbers.

Place in the pipeline: beside `numpy_calls`, whose operations are PyTorch's emulation of NumPy; used
by `values/numpy_arrays`. A `Blank` describes an array whose numbers depend on data::

    tried = try_out("fix", [Blank((3,), (1,), numpy.dtype("float32"))], {})
    tried.result.dtype, tried.shares_memory, tried.agrees   # float32, False, False
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import numpy
import torch

from weft.capture.numpy_calls import numpy_function, operation, torch_dtype

_LARGEST: Final = 1 << 18
"""Arrays of up to so many elements are tried as they are; larger ones get smaller sizes."""
_LARGEST_COMPARED: Final = 1 << 12
_SMALLER: Final = 16

_NUMBERS: Final = {
    "f": (0.6, -1.7, 2.4, -0.3, 1.1, 3.2, -2.8), "c": (0.6 + 1j, -1.7, 2.4 - 2j, -0.3j, 1.1, 3.2j),
    "i": (3, -1, 2, 0, 6, -4, 1), "u": (200, 250, 2, 0, 5, 140, 1), "b": (1, 0, 0, 1, 1),
}
"""The numbers that arrays are filled with, by the kind of their dtype: some are negative, fractions
or equal."""


@final
@dataclass(frozen=True)
class Blank:
    """An array or NumPy scalar of unknown numbers; strides count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: numpy.dtype[Any]
    scalar: bool = False

    def filled(self, numbers: tuple[Any, ...]) -> Any:
        """The array with these numbers, repeated, in its memory."""
        empty = 0 in self.shape
        size = 0 if empty else 1 + sum(
            (n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        memory = numpy.resize(numpy.array(numbers).astype(self.dtype), size)
        steps = [step * memory.itemsize for step in self.strides]
        made = numpy.lib.stride_tricks.as_strided(memory, self.shape, steps)
        return made[()] if self.scalar else made

    def within(self, most: int) -> Blank:
        """The blank itself if it has at most so many elements, else one with smaller sizes."""
        if math.prod(self.shape) <= most:
            return self
        shape = tuple(min(n, _SMALLER) for n in self.shape)
        steps = [math.prod(shape[at + 1:]) for at in range(len(shape))]
        return Blank(shape, tuple(steps), self.dtype, self.scalar)


@final
@dataclass(frozen=True)
class Tried:
    """What one trial call showed."""

    result: Any
    """NumPy's result, with a `Blank` for each array and NumPy scalar in it."""
    shares_memory: bool
    """Whether the result is a view of an argument."""
    agrees: bool
    """Whether PyTorch's emulation of NumPy gives the same result."""


def try_out(path: str, args: list[Any], kwargs: dict[str, Any]) -> Tried | None:
    """NumPy's function of that name on such arguments; None if the trial shows nothing."""
    key = (path, _frozen(args), _frozen(kwargs))
    if key not in _TRIED:
        _TRIED[key] = _try_out(path, args, kwargs)
    return _TRIED[key]


_TRIED: Final[dict[Any, Tried | None]] = {}


def _frozen(value: Any) -> Any:
    """A hashable form of an argument; equal ones are the same to NumPy."""
    if isinstance(value, dict):
        return tuple((name, _frozen(item)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_frozen, value))
    return value if isinstance(value, Blank) else (type(value), repr(value))


def _try_out(path: str, args: list[Any], kwargs: dict[str, Any]) -> Tried | None:
    with numpy.errstate(all="ignore"), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        given = _fill((args, kwargs), lambda blank: blank.within(_LARGEST).filled((1,)))
        try:
            result = numpy_function(path)(*given[0], **given[1])
        except TypeError:  # whatever the numbers are
            return Tried(None, False, False)
        except Exception:  # noqa: BLE001  whatever it is: nothing was learned
            return None
        shares = any(numpy.may_share_memory(one, other)
                     for one in _arrays(result) for other in _arrays(given))
        return Tried(_blanks(result), shares, _agrees(path, args, kwargs))


def _agrees(path: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the emulation computes what NumPy computes, as far as a sample shows."""

    def varied(blank: Blank) -> Any:
        return blank.within(_LARGEST_COMPARED).filled(_NUMBERS.get(blank.dtype.kind, (1,)))

    given, copies = _fill((args, kwargs), varied), _fill((args, kwargs), varied)
    try:
        wanted = numpy_function(path)(*given[0], **given[1])
    except Exception:  # noqa: BLE001  these numbers are none that the function takes
        return True
    operands, named = _as_operands(copies)
    try:
        found = operation(path)(*operands, **named)
    except Exception:  # noqa: BLE001  whatever it is, NumPy does not raise it
        return False
    return _same(wanted, found) and _same(given, (operands, named))


def _blanks(result: Any) -> Any:
    if isinstance(result, (numpy.ndarray, numpy.generic)):
        return Blank(result.shape, (), result.dtype, isinstance(result, numpy.generic))
    if isinstance(result, (list, tuple)):
        return [*map(_blanks, result)] if isinstance(result, list) else (*map(_blanks, result),)
    return result


def _fill(value: Any, fill: Callable[[Blank], Any]) -> Any:
    if isinstance(value, Blank):
        return fill(value)
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
    if type(value) in (list, tuple):
        return type(value)(map(_as_operands, value))
    if type(value) is dict:
        return {name: _as_operands(item) for name, item in value.items()}
    return value


def _arrays(value: Any) -> Iterator[numpy.ndarray[Any, Any]]:
    if isinstance(value, numpy.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)
    elif isinstance(value, dict):
        yield from _arrays(list(value.values()))


def _same(wanted: Any, found: Any) -> bool:
    """Whether the emulation's result is NumPy's, after conversion to NumPy's type."""
    if isinstance(found, torch.Tensor):
        if not isinstance(wanted, (numpy.ndarray, numpy.generic)):
            return False
        numbers = found.resolve_conj().resolve_neg().numpy().astype(wanted.dtype)
        loose = 1e-2 if wanted.dtype.itemsize == 2 else 1e-4
        return numbers.shape == wanted.shape and numpy.allclose(
            wanted, numbers, rtol=loose, atol=loose, equal_nan=True)
    if isinstance(wanted, (list, tuple)) and isinstance(found, (list, tuple)):
        return len(wanted) == len(found) and all(map(_same, wanted, found))
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(_same(wanted[name], found[name]) for name in wanted)
    kinds = (numpy.ndarray, numpy.generic, numpy.dtype, list, tuple)
    return not isinstance(wanted, kinds) or found is torch_dtype(wanted)
