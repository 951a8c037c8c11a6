"""Scalar formulas in Python's notation.

Place in the pipeline: part of `lowering/`, whose pointwise operators and reductions are given as
functions of terms (`registry.Body`)::

    def sigmoid_backward(grad: Term, y: Term) -> Term:
        return grad * (y * (1 - y))

A number gets the type of the term beside it. Nodes are made in the order in which Python evaluates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, final

from weft.codegen.ir.dtypes import FLOAT_TYPES, DType
from weft.codegen.ir.loop_ir import Node, Scalar
from weft.codegen.values import Emitter
from weft.shapes.algebra.expr import IntExpr

Number: TypeAlias = Scalar | IntExpr
Operand: TypeAlias = "Term | Number"


@final
class Term:
    """A scalar node of a kernel, with Python's operators."""

    __slots__ = ("em", "node")

    def __init__(self, em: Emitter, node: Node) -> None:
        self.em = em
        self.node = node

    @property
    def dtype(self) -> DType:
        return self.node.dtype

    @property
    def is_float(self) -> bool:
        return self.node.dtype in FLOAT_TYPES

    def number(self, value: Number) -> Term:
        """A number of the term's type."""
        return Term(self.em, self.em.number(value, self.dtype))

    def cast(self, dtype: DType) -> Term:
        """The term converted to a compute type."""
        return Term(self.em, self.em.cast(self.node, dtype))

    def __neg__(self) -> Term:
        return apply("neg", self)

    def __abs__(self) -> Term:
        return apply("abs", self)

    def __invert__(self) -> Term:
        return apply("not_", self)

    def __add__(self, other: Operand) -> Term:
        return apply("add", self, other)

    def __sub__(self, other: Operand) -> Term:
        return apply("sub", self, other)

    def __rsub__(self, other: Number) -> Term:
        return apply("sub", self.number(other), self)

    def __mul__(self, other: Operand) -> Term:
        return apply("mul", self, other)

    def __truediv__(self, other: Operand) -> Term:
        return apply("div", self, other)

    def __and__(self, other: Term) -> Term:
        return apply("and_", self, other)

    def __or__(self, other: Term) -> Term:
        return apply("or_", self, other)

    def __lt__(self, other: Operand) -> Term:
        return apply("lt", self, other)

    def __le__(self, other: Operand) -> Term:
        return apply("le", self, other)

    def __gt__(self, other: Operand) -> Term:
        return apply("gt", self, other)

    def equals(self, other: Operand) -> Term:
        """Whether the two numbers are equal (`==` compares Python's objects)."""
        return apply("eq", self, other)

    def differs(self, other: Operand) -> Term:
        """Whether the two numbers are not equal."""
        return apply("ne", self, other)


def apply(name: str, first: Term, *others: Operand) -> Term:
    """The scalar operator of that name (`ir/scalar_ops`) on a term and others."""
    nodes = [(other if isinstance(other, Term) else first.number(other)).node for other in others]
    return Term(first.em, first.em.op(name, first.node, *nodes))


def where(condition: Term, chosen: Operand, other: Operand) -> Term:
    """`chosen` where the condition holds, else `other`; at least one of them is a term."""
    like = chosen if isinstance(chosen, Term) else other
    assert isinstance(like, Term)
    first = chosen if isinstance(chosen, Term) else like.number(chosen)
    second = other if isinstance(other, Term) else like.number(other)
    return Term(like.em, like.em.op("where", condition.node, first.node, second.node))


def scalar(name: str) -> Callable[..., Term]:
    """A scalar operator as a function of terms."""

    def function(first: Term, *others: Operand) -> Term:
        return apply(name, first, *others)

    return function


def unchanged(x: Term) -> Term:
    """The term itself: a copy, or a conversion."""
    return x


def square(x: Term) -> Term:
    return x * x


exp, expm1, log, log1p = map(scalar, ("exp", "expm1", "log", "log1p"))
sqrt, rsqrt, reciprocal = map(scalar, ("sqrt", "rsqrt", "reciprocal"))
sigmoid, tanh, normal_cdf = map(scalar, ("sigmoid", "tanh", "normal_cdf"))
isinf, isnan, trunc = map(scalar, ("isinf", "isnan", "trunc"))
maximum, minimum, fma = map(scalar, ("maximum", "minimum", "fma"))
