"""Which arguments of an operator are integers: there a tensor of one stands for its number.

Place in the pipeline: asked by `tensor` before an operation is recorded. PyTorch takes the number
out of such a tensor, which depends on data; the graph takes it as a symbolic number::

    F.one_hot(i, i.max() + 1)       # one_hot(i, u0)
"""

from __future__ import annotations

import functools
from typing import Final

import torch

_INTEGERS: Final = frozenset({"int", "SymInt", "Optional[int]", "Optional[SymInt]"})


@functools.cache
def integer_arguments(name: str) -> frozenset[int | str]:
    """The positions and names that are integers in all forms of the operator."""
    packet = getattr(torch.ops.aten, name, None)
    forms = [] if packet is None else [
        [(at, argument.name, str(argument.type))
         for at, argument in enumerate(getattr(packet, overload)._schema.arguments)
         if not argument.is_out] for overload in packet.overloads()]
    used = {key for form in forms for at, name, _ in form for key in (at, name)}
    others = {key for form in forms for at, name, kind in form if kind not in _INTEGERS
              for key in (at, name)}
    return frozenset(used - others)
