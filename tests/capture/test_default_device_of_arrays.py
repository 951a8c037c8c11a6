"""A default device holds for every tensor that the program makes, whatever it is made of.

The constructors are those that PyTorch's own mode knows; the other device is `meta`.
"""

from __future__ import annotations

import contextlib

import numpy
import pytest
import torch
from torch.utils._device import _device_constructors

import weft

ARGUMENTS = {
    "arange": (3,), "eye": (2,), "full": ((2,), 1.0), "linspace": (0, 1, 3), "range": (0, 2),
    "logspace": (0, 1, 3), "randint": (5, (2,)), "randperm": (3,), "tril_indices": (2, 2),
    "triu_indices": (2, 2), "scalar_tensor": (1.0,), "empty_permuted": ((2, 3), (1, 0)),
    "empty_strided": ((2, 3), (3, 1)), "fft_fftfreq": (4,), "fft_rfftfreq": (4,),
    **{f"{name}_window": (3,) for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")},
    **{name: ((2,),) for name in ("empty", "zeros", "ones", "rand", "randn")},
}
"""Of the constructors that take numbers."""

CONTENTS = [
    lambda a: a, lambda a: a[0, 1], lambda a: a.sum(), lambda a: numpy.dot(a, a.T),
    lambda a: [1.0, a.shape[0]], lambda a: a[0, 1].item(),
    lambda a: numpy.arange(3), lambda a: numpy.array([1, 2]) * a.shape[0],
    lambda a: numpy.float64(1), lambda a: True,
]
"""Of the constructors that take data."""


def _makers():
    for constructor in sorted(_device_constructors(), key=lambda one: one.__name__):
        name = constructor.__name__
        if name in ARGUMENTS:
            yield name, lambda a, of=constructor, args=ARGUMENTS[name]: of(*args)
        if name in ("tensor", "as_tensor", "asarray"):
            for index, contents in enumerate(CONTENTS):
                yield (f"{name} {index}",
                       lambda a, of=constructor, data=contents: of(data(a)))
            yield f"{name} on cpu", lambda a, of=constructor: of(a, device="cpu")
    yield "from_numpy", torch.from_numpy
    yield "Tensor", lambda a: torch.Tensor([1.0])
    yield "stack", lambda a: torch.stack([torch.tensor(a), torch.zeros(2, 3)])


MAKERS = dict(_makers())


def test_all_constructors_of_numbers_are_tried():
    assert ARGUMENTS.keys() <= {one.__name__ for one in _device_constructors()}


@pytest.mark.filterwarnings("ignore:torch.range is deprecated")
@pytest.mark.parametrize("place", ["outside", "inside", "cpu inside"])
def test_tensors_are_made_on_the_default_device(place):
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    outside = contextlib.nullcontext() if place == "inside" else torch.device("meta")
    for name, make in MAKERS.items():
        def describe(array, make=make):
            if place == "outside":
                made = make(array)
                return made.device.type, made.dtype, tuple(made.shape)
            with torch.device("meta" if place == "inside" else "cpu"):
                made = make(array)
            return made.device.type, made.dtype, tuple(made.shape)

        compiled = weft.compile(describe, backend="eager")
        with outside:
            expected = describe(array)
            assert compiled(array) == expected, name
            assert compiled(array + 1) == expected, name


def test_another_mode_sees_the_arrays_that_become_tensors():
    seen = []

    class Names(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    def make(array):
        with Names():
            return torch.tensor(array) + 1

    array = numpy.ones(2)
    make(array)
    expected, seen[:] = list(seen), []
    weft.compile(make, backend="eager")(array)
    assert seen == expected
