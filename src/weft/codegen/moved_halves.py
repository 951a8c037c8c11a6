"""Kernels that only move half-precision elements, or change signs, do so with 16-bit integers.

Place in the pipeline: the last step of `kernels.py`, for CPUs. Loads of half types give float32,
stores round: a conversion there and back for every element of `cat`, `roll`, `flip` or `pad`. With
integers nothing is converted, and a NaN keeps its bits, as in eager's copies::

    v0 = in0[i0]                # bf16 -> f32           v0 = in0[i0]                # i16
    buf0[i0] = v0               # f32 -> bf16           buf0[i0] = v0

`neg`, `abs` and `copysign` are operations on these bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, final

import torch

from weft.codegen.ir.dtypes import HALF_TYPES, DType, to_torch
from weft.codegen.ir.loop_ir import Const, Kernel, Load, Node, Op, Scalar, operands


def move_as_integers(kernel: Kernel) -> None:
    """Retype the half buffers of a kernel that computes nothing with their elements."""
    buffers = {b.name: b.dtype for b in kernel.buffers if b.dtype in HALF_TYPES}
    if len(set(buffers.values())) != 1:
        return
    moved = {n.id: n for n in kernel.nodes if n.dtype == "f32"}
    if _only_moves(kernel, buffers, moved):
        _retype(kernel, next(iter(buffers.values())), moved)


def _only_moves(kernel: Kernel, buffers: dict[str, DType], moved: dict[int, Node]) -> bool:
    """Whether all float32 nodes are elements of these buffers, constants, or selections of both,
    and are stored in these buffers only."""
    others = [n for n in kernel.nodes if n.id not in moved]
    return (
        all(_is_element(n, buffers) for n in moved.values())
        and not any(o.id in moved for n in others for o in operands(n))
        and all(s.mode == "assign" and (s.value.id in moved) == (s.buffer in buffers)
                for s in kernel.stores)
    )


def _is_element(node: Node, buffers: dict[str, DType]) -> bool:
    if isinstance(node, Load):
        return node.buffer in buffers
    return isinstance(node, Const) or (isinstance(node, Op) and node.name in _OF_BITS)


def _retype(kernel: Kernel, half: DType, moved: dict[int, Node]) -> None:
    nodes: list[Node] = []
    number = Numbering(1 + max(node.id for node in kernel.nodes))
    for node in kernel.nodes:
        if node.id in moved:
            node.dtype = "i16"
            if isinstance(node, Const):
                node.value = _bits(node.value, half)
            elif isinstance(node, Load):
                node.other = _bits(node.other, half)
            elif isinstance(node, Op):
                nodes += _OF_BITS[node.name](node, number)
        nodes.append(node)
    kernel.nodes = tuple(nodes)
    kernel.buffers = tuple(
        replace(b, dtype="i16") if b.dtype == half else b for b in kernel.buffers
    )


@final
@dataclass
class Numbering:
    """Makes nodes with numbers that no other has."""

    next: int

    def constant(self, value: int) -> Const:
        self.next += 1
        return Const(self.next - 1, "i16", False, value)

    def both(self, name: str, value: Node, mask: Const) -> Op:
        self.next += 1
        return Op(self.next - 1, "i16", value.inner, name, (value, mask))


def _where(node: Op, number: Numbering) -> list[Node]:
    return []


def _neg(node: Op, number: Numbering) -> list[Node]:
    sign = number.constant(SIGN)
    node.name, node.args = "xor", (*node.args, sign)
    return [sign]


def _abs(node: Op, number: Numbering) -> list[Node]:
    magnitude = number.constant(~SIGN)
    node.name, node.args = "and_", (*node.args, magnitude)
    return [magnitude]


def _copysign(node: Op, number: Numbering) -> list[Node]:
    magnitude, sign = number.constant(~SIGN), number.constant(SIGN)
    of, like = node.args
    parts = number.both("and_", of, magnitude), number.both("and_", like, sign)
    node.name, node.args = "or_", parts
    return [magnitude, sign, *parts]


SIGN: Final = -(1 << 15)
_OF_BITS: Final = {"where": _where, "neg": _neg, "abs": _abs, "copysign": _copysign}
"""Operators on the bits of elements: what becomes of the node; the nodes that it needs are
returned."""


def _bits(value: Scalar, half: DType) -> int:
    """The bits of a number in a half type."""
    return int(torch.tensor(value, dtype=to_torch(half)).view(torch.int16).item())
