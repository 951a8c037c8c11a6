"""What is defined at the place of a C++ function that is being written, and what is known there.

Place in the pipeline: shared by the writers of one function. A value that is defined in a block is
not defined behind it; in one segment of a split loop, comparisons are constants::

    with scope.block(segment):
        …                       # defines v3, knows that v1 is true
                                # v3 is not defined here
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from weft.codegen.cpp.loop_splitting import Segment
from weft.codegen.ir.loop_ir import Node


@final
class Scope:
    """The nodes that are defined (or need no definition), and the segment of the split loop."""

    def __init__(self) -> None:
        self.defined: set[int] = set()
        self.segment = Segment(0, 0, {}, {}, frozenset())

    @contextmanager
    def block(self, segment: Segment | None = None) -> Iterator[None]:
        """What is defined inside is not defined afterwards; inside, the segment's facts hold."""
        defined, around = set(self.defined), self.segment
        if segment is not None:
            self.segment = segment
        yield
        self.defined, self.segment = defined, around

    @property
    def known(self) -> dict[int, bool]:
        """The boolean nodes that are constant here."""
        return self.segment.known

    def same(self, node: Node) -> Node:
        """The node whose value `node` has here."""
        return self.segment.same.get(node.id, node)

    def needs(self, node: Node) -> bool:
        """Whether a use of the node here is a use of its own value."""
        return node.id not in self.segment.unused and node.id not in self.segment.same
