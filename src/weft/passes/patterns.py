"""Patterns: rewrites that say by example what they look for, and what takes its place.

Place in the pipeline: `aot/rewrites/replace_patterns.py` records the functions of a pattern and
puts the replacements into ATen graphs; here are the registry and the comparison of graphs::

    def search(x):                     # ordinary PyTorch code
        return x * torch.sigmoid(x)

    def replacement(x):
        return torch.nn.functional.silu(x)

    register_pattern(search, replacement, [torch.empty(4, 4)])

What is looked for is a graph of operators, not the text: operands of sums and products in either
order, dimensions counted from either end, a `transpose` for a `permute`, and views and copies that
keep the order of the elements do not count. Python numbers among the examples are numbers of the
pattern: any number will do in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from inspect import signature
from itertools import takewhile
from typing import Any, Final, final

import torch
from torch.fx import Node

from weft._torch import OpOverload
from weft.errors import BadValue
from weft.passes.node_key import exact_key
from weft.shapes.symnode import certainly_equal

aten = torch.ops.aten

Number = int | float


@final
@dataclass(frozen=True, slots=True)
class Match:
    """What a pattern has found: the node of each tensor argument, and the numbers, by name.

    `replaces` is the node whose value the replacement computes, `inside` all that it covers.
    """

    nodes: dict[str, Node]
    numbers: dict[str, Number]
    replaces: Node
    inside: frozenset[Node]

    def tensor(self, name: str) -> torch.Tensor:
        """The metadata (a fake tensor) of an argument."""
        value: torch.Tensor = self.nodes[name].meta["val"]
        return value

    def tensor_replaced(self) -> torch.Tensor:
        """The metadata of the result."""
        value: torch.Tensor = self.replaces.meta["val"]
        return value


Condition = Callable[[Match], bool]


def always(match: Match) -> bool:
    """The condition of patterns that are replaced wherever they are found."""
    return True


@final
@dataclass(frozen=True, slots=True)
class Pattern:
    """What is looked for, what takes its place, and when.

    examples: arguments of `search`, for each kind of call (ranks, operators that a type needs); of
    a number any value will do. needs: operators without which a graph cannot have the pattern.
    keeps_users: inner values may have readers outside of the pattern: they are computed for them as
    well.
    """

    name: str
    search: Callable[..., Any]
    replacement: Callable[..., Any]
    examples: tuple[tuple[Any, ...], ...]
    when: Condition = always
    needs: frozenset[OpOverload] = frozenset()
    keeps_users: bool = False
    is_standard: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(signature(self.search).parameters)


_patterns: dict[str, Pattern] = {}


def register_pattern(
    search: Callable[..., Any], replacement: Callable[..., Any], examples: Sequence[Any], *,
    when: Condition = always, name: str | None = None, keeps_users: bool = False,
) -> None:
    """Replace what `search` computes by what `replacement` computes, in every graph compiled later.

    Both are functions of the same arguments, in ordinary PyTorch code, with one tensor as result.
    examples: arguments of a call, or a list of tuples for several kinds of calls: patterns of
    tensors with 3 and with 4 dimensions are two. Numbers among them stand for any number. `when` is
    asked with a `Match` and may refuse it. A match with inner values that others read, too, is
    refused unless `keeps_users` says that they shall be computed as well. A pattern of the same
    name is replaced; entries compiled with patterns of users are not stored on disk.

    Raises BadValue for functions of other arguments; what cannot be recorded is a `PassError` of
    the first compilation.
    """
    own = name or getattr(search, "__name__", None)
    if not (callable(search) and callable(replacement) and callable(when) and isinstance(own, str)):
        raise BadValue("a pattern is two functions, examples of their arguments and a condition")
    calls = tuple(examples) if all(isinstance(e, tuple) for e in examples) else (tuple(examples),)
    pattern = Pattern(own, search, replacement, calls, when, keeps_users=keeps_users)
    _check(pattern)
    _patterns[own] = pattern


def unregister_pattern(name: str) -> None:
    """Removes a pattern of a user."""
    _patterns.pop(name, None)


def patterns_of_users() -> tuple[Pattern, ...]:
    """Those that are registered now."""
    return tuple(_patterns.values())


def _check(pattern: Pattern) -> None:
    names = pattern.arguments
    if names != tuple(signature(pattern.replacement).parameters):
        raise BadValue(f"search and replacement of the pattern {pattern.name} have other arguments",
                       do="give both the same parameters, in the same order")
    if not pattern.examples:
        raise BadValue(f"the pattern {pattern.name} has no example", do="pass one call's arguments")
    for call in pattern.examples:
        if len(call) != len(names):
            raise BadValue(f"the pattern {pattern.name} takes {len(names)} arguments, an example "
                           f"has {len(call)}")
        for value in call:
            if type(value) not in (int, float) and not isinstance(value, torch.Tensor):
                raise BadValue(f"an example of the pattern {pattern.name} is {value!r}",
                               do="pass tensors and numbers")


# -- comparison of graphs --------------------------------------------------------------------------

KEEP_ORDER: Final = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.clone.default,
    aten.contiguous.default, aten.alias.default, aten.detach.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default,
})
"""Views and copies that keep the order of the elements."""
COMMUTATIVE: Final = frozenset({
    aten.add.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default,
    aten.logical_and.default, aten.logical_or.default,
})


def source(node: Node) -> Node:
    """The node that has the same elements in the same order, behind views and copies of all."""
    while _keeps_order(node):
        node = node.all_input_nodes[0]
    return node


def _keeps_order(node: Node) -> bool:
    if node.target in KEEP_ORDER:
        return True
    if node.target is not aten.expand.default:
        return False
    return certainly_equal(node.meta["val"].numel(), node.all_input_nodes[0].meta["val"].numel())


def _chain(node: Node) -> Iterator[Node]:
    """The node and what it is a view or a copy of, up to its source."""
    yield node
    while _keeps_order(node):
        node = node.all_input_nodes[0]
        yield node


@final
@dataclass
class Comparison:
    """The walk through the graph of a pattern and another graph, from a result to the arguments.

    Loose: what the arguments may be. Exact, when these are known and the pattern was recorded on
    them: whether both compute the same.
    """

    is_exact: bool
    bound: dict[Node, Node] = field(default_factory=dict)
    """The pattern's inputs, with what they are in the other graph."""
    numbers: dict[float, Number] = field(default_factory=dict)
    """The pattern's numbers, by the value that stands for each; None has not been seen yet."""
    pairs: dict[Node, Node] = field(default_factory=dict)
    inside: set[Node] = field(default_factory=set)

    def agree(self, want: Node, node: Node) -> bool:
        """Whether `node` is what the pattern's node `want` is."""
        wanted, other = source(want), source(node)
        if wanted.op == "placeholder":
            self._cover(wanted, node)
            return self._bind(wanted, node, is_viewed=want is not wanted)
        if wanted in self.pairs:
            return self.pairs[wanted] is other
        if other.op != "call_function" or (self.is_exact and not _look_alike(wanted, other)):
            return False
        target, arguments = _form(wanted)
        if target is not _form(other)[0] or not self._agree_on_options(wanted, other):
            return False
        for order in _orders(*_form(other)):
            before = dict(self.pairs), dict(self.bound), dict(self.numbers), set(self.inside)
            if self._agree_on(arguments, order):
                self.pairs[wanted] = other
                self.inside.update(_chain(node))
                return True
            self.pairs, self.bound, self.numbers, self.inside = before
        return False

    def _bind(self, placeholder: Node, node: Node, *, is_viewed: bool) -> bool:
        """An argument is the operand itself. If the pattern makes views and copies of it, it is as
        far behind those of the graph as its dimensions allow."""
        known = self.bound.get(placeholder)
        if known is not None:
            return source(known) is source(node)
        rank = placeholder.meta["val"].dim()
        fitting = [n for n in _chain(node) if not is_viewed or n.meta["val"].dim() == rank]
        if not fitting:
            return False
        self.bound[placeholder] = fitting[-1] if is_viewed else node
        return True

    def _cover(self, placeholder: Node, node: Node) -> None:
        """Views and copies between an argument that is known and its use are the pattern's."""
        if (known := self.bound.get(placeholder)) is not None:
            self.inside.update(takewhile(lambda n: n is not known, _chain(node)))

    def _agree_on(self, want: object, value: object) -> bool:
        """Whether arguments agree."""
        if isinstance(want, Node):
            if not isinstance(value, Node):
                return False
            if self.is_exact and not _look_alike(want, value):
                return False
            return self.agree(want, value)
        if isinstance(want, (list, tuple)):
            return isinstance(value, (list, tuple)) and len(want) == len(value) and all(
                self._agree_on(w, v) for w, v in zip(want, value, strict=True))
        if isinstance(value, Node):
            return False
        if not self.is_exact:
            return self._may_agree(want, value)
        return exact_key(want) == exact_key(value) or _are_equal_numbers(want, value)

    def _may_agree(self, want: object, value: object) -> bool:
        if type(want) is float and want in self.numbers and isinstance(value, (int, float)):
            known = self.numbers[want]
            if known == known and exact_key(known) != exact_key(value):
                return False
            self.numbers[want] = value
        return True

    def _agree_on_options(self, want: Node, node: Node) -> bool:
        if want.kwargs.keys() != node.kwargs.keys():
            return False
        return all(self._agree_on(want.kwargs[k], node.kwargs[k]) for k in want.kwargs)


def _are_equal_numbers(want: object, value: object) -> bool:
    """1 and 1.0 beside tensors, whose types are compared."""
    if isinstance(want, int | float) and isinstance(value, int | float):
        return bool not in (type(want), type(value)) and repr(float(want)) == repr(float(value))
    return False


def _look_alike(want: Node, node: Node) -> bool:
    """Whether two nodes' tensors have the same type and sizes."""
    x, y = want.meta["val"], node.meta["val"]
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return type(x) is type(y)
    return x.dtype == y.dtype and x.device == y.device and certainly_equal(x.size(), y.size())


def _orders(target: Any, arguments: Sequence[Any]) -> Iterator[Sequence[Any]]:
    yield arguments
    if target in COMMUTATIVE and len(arguments) == 2:
        yield arguments[1], arguments[0]


def _form(node: Node) -> tuple[Any, Sequence[Any]]:
    """The operator and its arguments in one spelling."""
    target, args = node.target, node.args
    if target in (aten.transpose.int, aten.t.default):
        return aten.permute.default, (args[0], _swapped(node))
    if not isinstance(target, OpOverload):
        return target, args
    return target, _with_dims_from_front(node, target)


def _swapped(node: Node) -> tuple[int, ...]:
    rank = node.meta["val"].dim()
    order = list(range(rank))
    if node.target is aten.t.default:
        return tuple(reversed(order))
    first, second = (d % rank for d in node.args[1:3] if isinstance(d, int))
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def _with_dims_from_front(node: Node, target: OpOverload) -> Sequence[Any]:
    """The arguments, with dimensions that count from the end counted from the front."""
    tensors = node.all_input_nodes
    named = zip(target._schema.arguments, node.args, strict=False)
    if not tensors or not any(a.name in ("dim", "dims") for a, _ in named):
        return node.args
    rank = tensors[0].meta["val"].dim() or 1
    return tuple(
        _from_front(value, rank) if a.name in ("dim", "dims") else value
        for a, value in zip(target._schema.arguments, node.args, strict=False))


def _from_front(value: Any, rank: int) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_from_front(v, rank) for v in value)
    return value % rank if type(value) is int else value
