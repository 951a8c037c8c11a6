"""Passes: what a graph-to-graph step is, how it is registered, ordered, run and shown.

Place in the pipeline: aot runs the passes of each stage of a graph (`Stage`), code generation those
of the last one. `aot/standard_passes.py` lists weft's own in order. A pass follows torch.fx's
convention (`PassBase.call(gm)` returns a `PassResult`), so passes written for torch.fx run
unchanged; a plain function will do too::

    @register_pass(before="codegen")             # works on the ATen graph
    def fold_add(gm):
        ...                                      # change gm.graph in place
        return True                              # whether anything changed

    @register_pass(before="aot", after=("my_other_pass",))     # works on the captured graph

    @register_pass(on_request=True)              # runs where options={"passes": ["audit"]} names it
    def audit(gm): ...

`before` and `after` name stages ("aot", "codegen") or other passes, which need not be there;
`requires` names passes that must be in the pipeline and run earlier. The order is checked. weft's
own passes keep theirs; the others run, in the order of registration, at the place `REGISTERED`
in weft's list unless they name another, and then those that `config.passes` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain, count, pairwise
from typing import Any, Final, Literal, final

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from weft.config import config
from weft.diagnostics import events
from weft.diagnostics.graph_text import graph_text
from weft.errors import BadValue, PassError, UnknownPass
from weft.interrupts import surface
from weft.shapes.graph_facts import GraphFacts, aten_facts, graph_facts, note_graph
from weft.shapes.graph_nodes import copy_node

PassFunction = Callable[[GraphModule], Any]
Stage = Literal["captured", "joint", "split", "kernels"]
"""When a pass runs: on the captured graph of torch calls; on the ATen graph, with the backward
behind the forward if there is one; on each graph that is compiled (the forward, a backward); on
those that become kernels, when the compiler has begun."""

REGISTERED: Final = "registered_passes"
"""The place in the joint stage at which passes run that name no other."""
_STANDARD: Final = "weft.aot.standard_passes"
"""The home of weft's own passes, imported at first use."""


def always(facts: GraphFacts) -> bool:
    """The condition of passes that run for every graph of their stage."""
    return True


@final
@dataclass(frozen=True, slots=True)
class Pass:
    """A named step from graph to graph, with its requirements."""

    name: str
    run: PassFunction
    stage: Stage = "joint"
    when: Callable[[GraphFacts], bool] = always
    """For which graphs it runs."""
    why: str = ""
    """The reason for its place in weft's list; passes of users have none."""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    on_request: bool = False
    """It runs only where `config.passes` names it."""

    @property
    def is_standard(self) -> bool:
        """Whether it is one of weft's own."""
        return bool(self.why)

    def __call__(self, gm: GraphModule) -> PassResult:
        """Apply to `gm`; the result says whether the graph changed (or may have)."""
        try:
            result = self.run(gm)
        except Exception as error:
            surface(error)
            if self.is_standard:
                raise
            raise PassError(f"the pass {self.name} raised {type(error).__name__}: {error}",
                            do="mend the pass, or leave it out") from error
        if isinstance(result, PassResult):
            return result
        if isinstance(result, GraphModule):
            return PassResult(result, True)
        if result is None or isinstance(result, bool):
            return PassResult(gm, result is not False)
        raise PassError(f"the pass {self.name} returned {result!r}",
                        do="return None, whether the graph changed, a GraphModule or a PassResult")


_registered: dict[str, Pass] = {}
_order: list[str] = []
"""The names of weft's own passes."""


def register_pass(
    function: PassFunction | PassBase | type[PassBase] | None = None, *, name: str | None = None,
    before: str | Iterable[str] = (), after: str | Iterable[str] = (),
    requires: str | Iterable[str] = (), on_request: bool = False,
) -> Any:
    """Add a pass to weft's pipelines; a decorator, with or without arguments.

    Takes a function of a GraphModule (which returns None, whether it changed it, a new GraphModule
    or a PassResult), a `PassBase` instance or class. Returns its argument. A pass of the same name
    is replaced. on_request: it runs only where ``options={"passes": [name]}`` names it.
    """

    def register(function: object) -> object:
        added = _pass_of(function, name, before=_names(before), after=_names(after),
                         requires=_names(requires), on_request=on_request)
        _registered[added.name] = added
        return function

    return register if function is None else register(function)


def has_passes_of_users() -> bool:
    """Whether any pass is not weft's own."""
    return not all(p.is_standard for p in _registered.values())


def unregister_pass(name: str) -> None:
    """Removes a pass."""
    _registered.pop(name, None)


def registered_passes() -> frozenset[Pass]:
    """All that are registered now."""
    return frozenset(_registered.values())


def register_standard(passes: Sequence[Pass]) -> None:
    """Add weft's own passes, in their order; those that users have registered instead stay."""
    for p in passes:
        _registered.setdefault(p.name, p)
        _order.append(p.name)


def _pass_of(function: object, name: str | None = None, **requirements: Any) -> Pass:
    """A pass of what a user gave."""
    run = function() if isinstance(function, type) and issubclass(function, PassBase) else function
    if not callable(run):
        raise BadValue(f"a pass is a function or a PassBase, got {function!r}")
    own = name or getattr(function, "__name__", None) or type(function).__name__
    stage: Stage = "captured" if "aot" in requirements.get("before", ()) else "joint"
    return Pass(own, run, stage, **requirements)


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


# -- which passes run, and in which order ----------------------------------------------------------


def passes_of(stage: Stage) -> list[Pass]:
    """The passes for graphs of a stage, in the order in which they run."""
    requested = [p for p in requested_passes(config.passes) if p.stage == stage]
    named = {p.name for p in requested}
    own = [_registered[name] for name in _order if name in _registered]
    others = [p for p in _registered.values()
              if p.name not in _order and p.name not in named and not p.on_request]
    fixed = [p for p in own if p.stage == stage]
    added = [p for p in others if p.stage == stage] + requested
    if not added:
        return fixed
    at = next((i for i, p in enumerate(fixed) if p.name == REGISTERED), len(fixed))
    return ordered([*fixed[:at], *added, *fixed[at:]],
                   [[p.name for p in fixed], [p.name for p in requested]])


def requested_passes(wanted: Iterable[str | PassFunction]) -> list[Pass]:
    """The passes that a setting gives, by name or as functions; raises UnknownPass or BadValue.

    A pass of weft's own that is named runs once more, behind those before it.
    """
    passes: list[Pass] = []
    for item in wanted:
        p = _named(item) if isinstance(item, str) else (
            item if isinstance(item, Pass) else _pass_of(item))
        taken = {*(q.name for q in passes), *(_order if isinstance(item, str) else _registered)}
        passes.append(replace(p, name=_free_name(p.name, taken)))
    return passes


def _free_name(name: str, taken: Container[str]) -> str:
    numbered = (f"{name}_{k}" for k in count(2))
    return next(n for n in chain((name,), numbered) if n not in taken)


def _named(name: str) -> Pass:
    import_module(_STANDARD)
    if name not in _registered:
        raise UnknownPass(name, _registered)
    return _registered[name]


def ordered(passes: Sequence[Pass], sequences: Iterable[Sequence[str]] = ()) -> list[Pass]:
    """Passes in an order that meets every declared requirement, and keeps these sequences of names;
    raises BadValue if there is none."""
    by_name = {p.name: p for p in passes}
    earlier: dict[str, set[str]] = {p.name: set() for p in passes}
    for sequence in sequences:
        for first, second in pairwise(sequence):
            earlier[second].add(first)
    for p in passes:
        missing = [r for r in p.requires if r not in by_name]
        if missing:
            raise BadValue(f"pass {p.name!r} requires {missing[0]!r}, which is not registered")
        earlier[p.name].update(a for a in (*p.after, *p.requires) if a in by_name)
        for b in p.before:
            if b in by_name:
                earlier[b].add(p.name)
    return [by_name[name] for name in _sort(earlier)]


def _sort(earlier: dict[str, set[str]]) -> list[str]:
    """Stable topological order."""
    done: list[str] = []
    waiting = list(earlier)
    while waiting:
        ready = next((n for n in waiting if earlier[n] <= set(done)), None)
        if ready is None:
            raise BadValue(f"passes wait for each other: {', '.join(waiting)}")
        done.append(ready)
        waiting.remove(ready)
    return done


# -- running them ----------------------------------------------------------------------------------


def run_stage(
    stage: Stage, gm: GraphModule, *, verify: Callable[[GraphModule], None] | None = None,
    watch: Callable[[GraphModule], Callable[[GraphModule, str], None]] | None = None,
) -> GraphModule:
    """Apply the passes of a stage to a graph.

    Each change is an event with the graph before and after. `watch` looks at a graph before a
    user's pass, and gives what completes and checks it after the pass of that name; `verify` raises
    if a changed graph breaks a rule.
    """
    watched = events.watched()
    remarks = _nothing_noted if stage == "captured" else _marks
    text = graph_text(gm, remarks) if watched else ""
    for p in passes_of(stage):
        if not p.when(graph_facts(gm)):
            continue
        complete = None if watch is None or p.is_standard else watch(gm)
        result = p(gm)
        if not result.modified:
            continue
        if stage == "captured":
            gm = _with_facts(result.graph_module, graph_facts(gm))
        else:
            _take_over(gm, result.graph_module.graph, p.name)
        if complete is not None:
            complete(gm, p.name)
        if watched:
            before, text = text, graph_text(gm, remarks)
            if before != text:
                events.record("pass", name=p.name, before=before, after=text)
        if verify is not None:
            verify(gm)
    return gm


def _marks(node: Node) -> str:
    return "".join(f"  {mark}" for mark in aten_facts(node).marks())


def _nothing_noted(node: Node) -> str:
    return ""


def _with_facts(gm: GraphModule, facts: GraphFacts) -> GraphModule:
    """The graph module, which a pass may have made new."""
    if graph_facts(gm) is not facts:
        note_graph(gm, facts)
    return gm


def _take_over(gm: GraphModule, new: Graph, name: str) -> None:
    """Replace the calls of an ATen graph by those of a graph that a pass has made. The inputs stay
    the same nodes: the stages around know them."""
    old = gm.graph
    if new is old:
        return
    inputs, placeholders = (graph.find_nodes(op="placeholder") for graph in (old, new))
    if len(inputs) != len(placeholders):
        raise PassError(f"the pass {name} made {len(placeholders)} inputs of {len(inputs)}",
                        do="leave the inputs of the graph as they are")
    for node in reversed(old.nodes):
        if node.op != "placeholder":
            old.erase_node(node)
    copies = dict(zip(placeholders, inputs, strict=True))
    for node in new.nodes:
        if node.op == "output":
            old.output(map_arg(node.args[0], copies.__getitem__))
        elif node not in copies:
            copies[node] = copy_node(old, node, copies)
