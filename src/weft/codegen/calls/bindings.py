"""torch's Python bindings of ATen operators, which read their arguments faster than operators do.

Place in the pipeline: used by `library_calls.py`. `torch.ops.aten.convolution.default(…)` converts
each argument by the operator's schema, which takes 8 µs; `torch.convolution(…)`, the same call, 3.

>>> binding_of(torch.ops.aten.convolution.default).__name__
'convolution'
>>> binding_of(torch.ops.aten.sum.dim_IntList)         # one of several functions of that name
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import BuiltinFunctionType

import torch

from weft._torch import OpOverload, function_spaces


@cache
def binding_of(op: object) -> Callable[..., object] | None:
    """The binding that makes exactly the calls of `op`; None if there is none.

    There is none for factories, whose bindings choose some arguments themselves, for operators with
    `reduction`, which has another default there, and for lists that may have None in them.
    """
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return None
    arguments = op._schema.arguments
    of_tensors = bool(arguments) and "Tensor" in str(arguments[0].type)
    if not of_tensors or any(
        a.name == "reduction" or "List[Optional" in str(a.type) for a in arguments
    ):
        return None
    packet = op.overloadpacket
    if [name for name in packet.overloads() if _may_be_meant(packet, name)] != [op._overloadname]:
        return None
    name = packet.__name__
    candidates = (getattr(space, name, None) for space in function_spaces())
    return next((f for f in candidates if isinstance(f, BuiltinFunctionType)), None)


def _may_be_meant(packet: object, overload: str) -> bool:
    """Whether a call of the binding could be one of this overload: it writes to no argument, and
    dimensions have no names."""
    schema: torch.FunctionSchema = getattr(packet, overload)._schema
    named = any("Dimname" in str(a.type) for a in schema.arguments)
    return not (schema.is_mutable or named)
