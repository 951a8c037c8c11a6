"""Replaces what patterns describe (`passes/patterns.py`): weft's own ones, and those of users.

    before:  s = aten.sigmoid(x);  y = aten.mul(x, s)
    after:   y = aten.silu(x)

A pattern is recorded twice. On its examples, once per process: where a graph has these operators in
this order, the arguments are what is found at their places. Then on these arguments' own metadata:
only if that gives the very operators that the graph has, with all their numbers and sizes, is the
replacement recorded, with the metadata of what it replaces, and copied into the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import torch
from torch.fx import GraphModule, Node

from weft._torch import FakeTensor, OpOverload
from weft.aot import graph as aten_graph
from weft.aot.evaluate import Evaluator
from weft.aot.rewrites.expand import expand
from weft.aot.rewrites.templates import Template, copy_before, record
from weft.aot.views import Unsupported
from weft.config import config
from weft.diagnostics import events
from weft.diagnostics.graph_text import graph_text
from weft.errors import PassError
from weft.interrupts import surface
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.passes.fold_constants import fold_constants
from weft.passes.merge_equal_nodes import merge_equal_nodes
from weft.passes.patterns import (
    Comparison,
    Match,
    Pattern,
    patterns_of_users,
    source,
)
from weft.passes.simplify import simplify
from weft.passes.standard_patterns import STANDARD_PATTERNS
from weft.shapes.graph_facts import GraphFacts, aten_facts, graph_facts, note_graph
from weft.shapes.symnode import UndecidedValue, certainly_equal

Lowered = Callable[[OpOverload], bool] | None

_REFUSALS: Final = (Unsupported, NotImplementedError, UndecidedValue, ZeroDivisionError,
                    RuntimeError, TypeError, ValueError, IndexError)
"""What recording raises if a function does not fit the tensors at hand (their sizes, say)."""


def replace_patterns(gm: GraphModule) -> bool:
    """Replace what is found, patterns of users first, from the graph's results to its inputs."""
    changed = False
    operators = {node.target for node in gm.graph.nodes}
    for pattern in _patterns(graph_facts(gm)):
        if pattern.needs <= operators and _replace_all(gm, pattern):
            changed = True
            eliminate_dead_code(gm)
            operators = {node.target for node in gm.graph.nodes}
    return changed


def _patterns(facts: GraphFacts) -> Iterator[Pattern]:
    yield from patterns_of_users()
    if not facts.is_trained and facts.lowered is not None and not config.emulate_precision_casts:
        yield from STANDARD_PATTERNS


def _replace_all(gm: GraphModule, pattern: Pattern) -> bool:
    lowered = graph_facts(gm).lowered
    changed = False
    for sample in samples(pattern, lowered):
        target = source(_root(sample)).target
        for node in reversed([n for n in gm.graph.nodes if n.target is target]):
            match = find(pattern, sample, node, lowered) if node.users else None
            changed = (match is not None and _replace(match, pattern, lowered)) or changed
    return changed


# -- looking ---------------------------------------------------------------------------------------


def find(pattern: Pattern, sample: Template, root: Node, lowered: Lowered) -> Match | None:
    """The pattern with `root` as its result, if it is there and may be replaced."""
    markers = _markers(pattern)
    loose = Comparison(False, numbers=dict.fromkeys(markers.values(), nan))
    if not loose.agree(_root(sample), root):
        return None
    numbers = {name: loose.numbers[marker] for name, marker in markers.items()}
    pairs = zip(_tensors(pattern), sample.placeholders, strict=True)
    nodes = {name: loose.bound[p] for name, p in pairs if p in loose.bound}
    if len(nodes) < len(sample.placeholders) or any(n != n for n in numbers.values()):
        return None
    if not all(isinstance(node.meta["val"], FakeTensor) for node in nodes.values()):
        return None
    candidate = Match(nodes, numbers, root, frozenset())
    inside = _confirm(pattern, candidate, lowered)
    if inside is None or not _may_be_replaced(inside, root, pattern.keeps_users):
        return None
    match = replace(candidate, inside=frozenset(inside))
    return match if pattern.when(match) else None


def _confirm(pattern: Pattern, match: Match, lowered: Lowered) -> set[Node] | None:
    """The nodes that compute what the pattern computes of these arguments; None if some compute
    something else."""
    template = _record(pattern.search, _values(pattern, match), lowered)
    if template is None:
        return None
    operands = [match.nodes[name] for name in _tensors(pattern)]
    exact = Comparison(True, dict(zip(template.placeholders, operands, strict=True)))
    return exact.inside if exact.agree(_root(template), match.replaces) else None


def _values(pattern: Pattern, match: Match) -> list[Any]:
    """The arguments: numbers and exemplars."""
    return [match.numbers[n] if n in match.numbers else match.tensor(n) for n in pattern.arguments]


def _may_be_replaced(inside: Iterable[Node], root: Node, keeps_users: bool) -> bool:
    """Whether nobody else reads the inner values, and nothing must be kept of them."""
    inner = {*inside, root}
    for node in inner:
        facts = aten_facts(node)
        if facts.must_run or facts.runs_again or facts.copies_input or facts.binds:
            return False
        if facts.phase != aten_facts(root).phase:
            return False
        if node is not root and not keeps_users and not inner.issuperset(node.users):
            return False
    return True


# -- replacing -------------------------------------------------------------------------------------


def _replace(match: Match, pattern: Pattern, lowered: Lowered) -> bool:
    root, result = match.replaces, match.tensor_replaced()

    def replacement(*args: Any) -> torch.Tensor:
        value: torch.Tensor = pattern.replacement(*args)
        is_same = certainly_equal(value.size(), result.size())
        return value if is_same else value.reshape(result.shape)

    template = _record(replacement, _values(pattern, match), lowered, result, pattern.replacement)
    if template is None:
        if pattern.is_standard:
            return False
        raise PassError(f"the replacement of the pattern {pattern.name} gives no {result.dtype} "
                        f"tensor of the sizes {list(result.shape)}",
                        do="mend the pattern, or refuse such calls in its condition")
    operands = [match.nodes[name] for name in _tensors(pattern)]
    root.replace_all_uses_with(copy_before(root, template, operands)[_root(template)])
    events.record("pattern", name=pattern.name, stack=root.meta.get("stack", ()))
    return True


# -- recording -------------------------------------------------------------------------------------


def samples(pattern: Pattern, lowered: Lowered) -> list[Template]:
    """What a pattern looks like: recorded on each of its examples."""
    known = _recorded().samples
    if (pattern, lowered) not in known:
        known[pattern, lowered] = [_sample(pattern, call, lowered) for call in pattern.examples]
    return known[pattern, lowered]


def _sample(pattern: Pattern, call: Sequence[Any], lowered: Lowered) -> Template:
    intern, markers = Evaluator.current().intern, _markers(pattern)
    values = [markers.get(name, value) if name in markers else intern(value)
              for name, value in zip(pattern.arguments, call, strict=True)]
    try:
        template = _normal(record(pattern.search, values, {}, Evaluator.current()), lowered)
        root = source(_root(template))
    except Exception as error:
        surface(error)
        raise PassError(f"the pattern {pattern.name} cannot be recorded: {error}",
                        do="write it in PyTorch's operators on its arguments") from error
    if root.op != "call_function" or not all(map(_is_plain, template.graph.nodes)):
        raise PassError(f"the pattern {pattern.name} computes nothing, or draws random numbers",
                        do="show operators that give the same result each time")
    return template


def _is_plain(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ())


def _markers(pattern: Pattern) -> dict[str, float]:
    """The number that stands for each argument that is one."""
    [first, *_] = pattern.examples
    return {name: 0.7310585 + 0.0173 * i for i, (name, value)
            in enumerate(zip(pattern.arguments, first, strict=True)) if type(value) in (int, float)}


def _tensors(pattern: Pattern) -> list[str]:
    markers = _markers(pattern)
    return [name for name in pattern.arguments if name not in markers]


def _root(template: Template) -> Node:
    root: Node = template.outputs
    return root


_MEMO_LIMIT: Final = 1000


@final
@dataclass(slots=True)
class _Recorded:
    """What was recorded with one evaluator, which keeps the exemplars in it."""

    samples: dict[object, list[Template]] = field(default_factory=dict)
    calls: dict[object, Template | None] = field(default_factory=dict)


_RECORDED: Final[WeakKeyDictionary[Evaluator, _Recorded]] = WeakKeyDictionary()


def _recorded() -> _Recorded:
    return _RECORDED.setdefault(Evaluator.current(), _Recorded())


def _record(
    function: Callable[..., Any], values: Sequence[Any], lowered: Lowered, expected: Any = None,
    known_as: object = None,
) -> Template | None:
    """A function of a pattern on these numbers and exemplars; None if it does not fit them."""
    key = (known_as or function, lowered, id(expected),
           tuple((type(v), id(v) if isinstance(v, FakeTensor) else repr(v)) for v in values))
    known = _recorded().calls
    if key not in known:
        if len(known) >= _MEMO_LIMIT:
            known.clear()
        try:
            known[key] = _normal(record(function, values, {}, Evaluator.current(), expected),
                                 lowered)
        except _REFUSALS:
            known[key] = None
    return known[key]


def _normal(template: Template, lowered: Lowered) -> Template:
    """The template after the passes that its graph will have gone through."""
    gm = aten_graph.make(template.graph)
    note_graph(gm, GraphFacts(lowered=lowered))
    if lowered is not None:
        expand(gm)
    fold_constants(gm)
    simplify(gm)
    merge_equal_nodes(gm)
    return template


# -- for people ------------------------------------------------------------------------------------


def pattern_text(pattern: Pattern, lowered: Lowered) -> str:
    """What a pattern looks for and what takes its place, as graphs of its first example."""
    sample = samples(pattern, lowered)[0]
    values = [p.meta["val"] for p in sample.placeholders]
    markers, rest = _markers(pattern), iter(values)
    arguments = [markers[n] if n in markers else next(rest) for n in pattern.arguments]
    after = _record(pattern.replacement, arguments, lowered)
    texts = [f"# {pattern.name}({', '.join(pattern.arguments)})", "# looks for", _text(sample)]
    texts += ["# replaces it by", "nothing" if after is None else _text(after)]
    return "\n".join(texts)


def _text(template: Template) -> str:
    gm = aten_graph.make(template.graph)
    return graph_text(gm, lambda node: "")
