"""The size of a nested tensor's ragged dimension: a number that equals only itself.

Place in the pipeline: made where tensors tell their sizes. PyTorch gives each tensor of offsets
such a number; programs pass it on to `view` and compare it, which needs no value::

    x.view(x.size(0), x.size(1), 2, 4)     # x.size(1): RaggedSize; in the graph, x.size(1) again
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, final

import torch

from weft.capture.core.base import SymbolicValue
from weft.capture.core.constant import boolean
from weft.shapes.symnode import SymNode

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


def is_ragged(size: object) -> TypeGuard[torch.SymInt]:
    """Whether a size of a fake tensor is a ragged one."""
    return isinstance(size, torch.SymInt) and not isinstance(size.node, SymNode)


@final
class RaggedSize(SymbolicValue):
    """`owner.size(dim)` of a nested tensor."""

    __slots__ = ("dim", "example", "owner")
    kind = torch.SymInt

    def __init__(self, owner: SymbolicValue, dim: int, example: torch.SymInt) -> None:
        super().__init__()
        self.owner = owner
        self.dim = dim
        self.example = example

    def proxy(self, tx: Interpreter) -> Any:
        return tx.builder.call("size", (self.owner.proxy(tx), self.dim), {},
                               self.example, tx.stack())

    def fake(self, tx: Interpreter) -> torch.SymInt:
        return self.example

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op not in ("eq", "ne") or not isinstance(other, RaggedSize):
            return None
        return boolean(bool(self.example == other.example) is (op == "eq"))

    def rebuild(self, emit: Emitter) -> str:
        return f"{emit.value(self.owner)}.size({self.dim})"
