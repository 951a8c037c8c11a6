"""Calls of operators with floats that are symbolic: of sizes, or of numbers that change.

Place in the pipeline: capture writes `call` into its graph where C++ would ask for the plain float
and so fix it. When the graph runs it is the operator; on fakes it is PyTorch's formula for it, in
which the float stays an operand::

    call(aten.upsample_bicubic2d.default, x, [n, n], False, n / 14, n / 14)
"""

from __future__ import annotations

from typing import Any

import torch

from weft._torch import OpOverload, decomposition_table


def call(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The operator, by its formula where an argument is a symbolic float."""
    symbolic = any(isinstance(value, torch.SymFloat) for value in (*args, *kwargs.values()))
    return (decomposition_table[op] if symbolic else op)(*args, **kwargs)
