"""Passes: what a graph-to-graph step is, how it is registered, ordered, run and shown.

Place in the pipeline: aot hands the ATen graph to the pipeline of stage "aten", and the captured
graph to that of stage "captured". A pass follows torch.fx's convention (`PassBase.call(gm)` returns
a `PassResult`), so passes written for torch.fx run unchanged; a plain function will do too::

    @register_pass(before="codegen")             # works on the ATen graph
    def fold_add(gm):
        ...                                      # change gm.graph in place
        return True                              # whether anything changed

    @register_pass(before="aot", after=("my_other_pass",))     # works on the captured graph

`before` and `after` name stages ("aot", "codegen") or other passes, which need not be there;
`requires` names passes that must be in the pipeline and run earlier. The order is checked, and is
the order of registration where nothing else is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from weft.diagnostics import events
from weft.diagnostics.graph_text import graph_text
from weft.errors import BadValue

PassFunction = Callable[[GraphModule], Any]


@final
@dataclass(frozen=True, slots=True)
class Pass:
    """A named step from graph to graph, with its requirements."""

    name: str
    run: PassFunction
    graph: str = "aten"
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    doc: str = ""

    def __call__(self, gm: GraphModule) -> PassResult:
        """Apply to `gm`; the result says whether the graph changed."""
        result = self.run(gm)
        if isinstance(result, PassResult):
            return result
        if isinstance(result, GraphModule):
            return PassResult(result, True)
        return PassResult(gm, bool(result))


_registered: dict[str, Pass] = {}


def register_pass(
    function: PassFunction | PassBase | type[PassBase] | None = None, *, name: str | None = None,
    before: str | Iterable[str] = (), after: str | Iterable[str] = (),
    requires: str | Iterable[str] = (),
) -> Any:
    """Add a pass to weft's pipelines; a decorator, with or without arguments.

    Takes a function of a GraphModule (which returns whether it changed it, a new GraphModule or a
    PassResult), a `PassBase` instance or class. Returns its argument. A pass of the same name is
    replaced.
    """

    def register(subject: Any) -> Any:
        new = _make(subject, name, _names(before), _names(after), _names(requires))
        _registered[new.name] = new
        return subject

    return register if function is None else register(function)


def unregister_pass(name: str) -> None:
    """Removes a pass."""
    _registered.pop(name, None)


def _make(
    subject: Any, name: str | None, before: tuple[str, ...], after: tuple[str, ...],
    requires: tuple[str, ...],
) -> Pass:
    run = subject() if isinstance(subject, type) and issubclass(subject, PassBase) else subject
    if not callable(run):
        raise BadValue(f"a pass is a function or a PassBase, got {subject!r}")
    pass_name = name or getattr(subject, "__name__", None) or type(subject).__name__
    graph = "captured" if "aot" in before else "aten"
    return Pass(pass_name, run, graph, before, after, requires, (subject.__doc__ or "").strip())


def _names(value: str | Iterable[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def registered(graph: str) -> list[Pass]:
    """The passes for one kind of graph, in the order in which they run."""
    return ordered([p for p in _registered.values() if p.graph == graph])


def ordered(passes: Sequence[Pass]) -> list[Pass]:
    """Passes in an order that meets every declared requirement; raises BadValue if there is
    none."""
    by_name = {p.name: p for p in passes}
    earlier: dict[str, set[str]] = {p.name: set() for p in passes}
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


def run_pipeline(
    gm: GraphModule, passes: Sequence[Pass], *, verify: Callable[[GraphModule], None] | None = None
) -> GraphModule:
    """Applies passes in order; each change is an event with the graph before and after."""
    for p in passes:
        watched = events.watched()
        before = graph_text(gm) if watched else ""
        result = p(gm)
        gm = result.graph_module
        if result.modified and watched:
            events.record("pass", name=p.name, before=before, after=graph_text(gm))
        if verify is not None:
            verify(gm)
    return gm
