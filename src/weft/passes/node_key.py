"""Hashable keys of node arguments that tell all constants apart: 1, 1.0 and True, 0.0 and -0.0.

Used by passes that compare nodes and by aot's templates.

    exact_key((node, 1.0)) == exact_key((node, 1))     # False
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node


def exact_key(value: Any) -> object:
    """The key of an argument; nodes are told apart by identity."""
    kind = type(value)
    if kind is Node:
        return value
    if isinstance(value, (tuple, list)):
        return (kind, *[exact_key(v) for v in value])
    if kind is float or kind is complex:
        return (kind, repr(value))
    if kind is torch.SymInt or kind is torch.SymFloat or kind is torch.SymBool:
        return (kind, id(value.node.shape_env), value.node.value)
    return (kind, value)
