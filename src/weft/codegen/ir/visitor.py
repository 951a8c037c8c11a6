"""One method for each kind of node of the loop IR, chosen by the node's type.

Place in the pipeline: beside `loop_ir.py`. The writers of statements for C++ and for Triton are
such visitors, and so is the copy of nodes into another kernel (`triton/split_reductions.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from weft.codegen.ir.loop_ir import Const, IndexValue, Indirect, Load, Node, Op, Reduce

Result = TypeVar("Result")


class NodeVisitor(ABC, Generic[Result]):
    """Does something with each node that is computed point by point."""

    def visit(self, node: Node) -> Result:
        """What the method for this kind of node returns."""
        match node:
            case Op():
                return self.op(node)
            case Load():
                return self.load(node)
            case Const():
                return self.const(node)
            case IndexValue():
                return self.index_value(node)
            case Indirect():
                return self.indirect(node)
            case Reduce():
                return self.reduce(node)

    @abstractmethod
    def const(self, node: Const) -> Result: ...

    @abstractmethod
    def index_value(self, node: IndexValue) -> Result: ...

    @abstractmethod
    def indirect(self, node: Indirect) -> Result: ...

    @abstractmethod
    def load(self, node: Load) -> Result: ...

    @abstractmethod
    def op(self, node: Op) -> Result: ...

    def reduce(self, node: Reduce) -> Result:
        """Most visitors meet none: whole loops compute a reduction, not one point."""
        raise AssertionError(f"v{node.id} is a reduction over all points of the inner loops")
