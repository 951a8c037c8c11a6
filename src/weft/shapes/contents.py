"""Contents of small integer tensors that a capture may rely on, and a guard compares.

Place in the pipeline: part of a code object's `DynamicPolicy`. Where a program's control flow needs
such numbers (image sizes, sequence lengths, strides in buffers), capture either breaks the graph or
specialises on the content. A few contents are served so; if more come, the tensor counts as data
for good::

    contents.learn("grid", grid)        # captures may rely on it from now on
    contents.known("grid", grid)        # SameContents, the predicate of the guard
    contents.known("grid", other)       # the same for another content, at first
    contents.known("grid", one_more)    # None, and it may not be learned again

Attributes of modules with one name (`kernel_size` of each convolution) are learned together,
because each lesson interprets the whole frame again.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import Final, final

import torch

from weft.storable import storable

LARGEST: Final = 256
"""The most numbers in a tensor whose contents a guard compares."""

_MOST: Final = 3
"""For how many different contents of a tensor a program is captured at most."""


@storable
@final
class SameContents:
    """Whether a tensor (of the right type and sizes) holds the same numbers as another one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._numbers = tensor.tolist()

    def __call__(self, tensor: torch.Tensor) -> bool:
        return bool(tensor.tolist() == self._numbers)

    def raw(self, tensor: torch.Tensor) -> bytes | None:
        """The tensor's memory, if C can compare it (other guards check its layout)."""
        if tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)

    def __repr__(self) -> str:
        return f"contains {self._numbers}"


@final
class Contents:
    """The tensors whose contents captures of one code object rely on, by the names of their
    sources."""

    def __init__(self) -> None:
        self._known: dict[str, SameContents] = {}
        self._counts: Counter[str] = Counter()
        self._attributes: set[str] = set()

    def may_learn(self, name: str) -> bool:
        """Whether the content has not changed too often."""
        return self._counts[name] < _MOST

    def learn(self, name: str, tensor: torch.Tensor) -> None:
        """Rely on the tensor's content."""
        self._counts[name] += 1
        self._known[name] = SameContents(tensor)
        self._attributes.add(_attribute(name))

    def known(self, name: str, tensor: torch.Tensor) -> SameContents | None:
        """The predicate for a tensor that captures rely on, or None if they may not any more."""
        same = self._known.pop(name, None)
        if same is not None and may_be_known(tensor) and same(tensor):
            self._known[name] = same
            return same
        if same is None and _attribute(name) not in self._attributes:
            return None
        if not may_be_known(tensor) or not self.may_learn(name):
            return None
        self.learn(name, tensor)
        return self._known[name]


def _attribute(name: str) -> str:
    """The last attribute in a source's name, or the whole name."""
    return name.rpartition(".")[2]


def may_be_known(tensor: torch.Tensor) -> bool:
    """Whether the tensor's content is a few integers."""
    whole = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    return whole and tensor.numel() <= LARGEST and tensor.device.type != "meta"
