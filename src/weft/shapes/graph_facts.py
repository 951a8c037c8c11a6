"""What stages tell each other about a graph and its nodes, beside torch.fx's own metadata.

Place in the pipeline: contracts 3 and 4 (docs/architecture/aot.md). `meta` has what users' backends
and passes read under torch.fx's names (`val`, `example_value`, `stack_trace`, …) and the source
lines (`stack`); all else is one of these objects, under one key. They never change, because copies
of nodes share them::

    node = add_node(graph, op, args, {}, {"val": value, **marked(BACKWARD)})
    note(node, replace(aten_facts(node), must_run=True))
    aten_facts(node).phase                        # "backward"
    graph_facts(gm).asserts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Protocol, final

from torch.fx import GraphModule, Node

from weft._torch import OpOverload
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.operator_effects import OperatorNotes
from weft.shapes.guard import ShapeGuard
from weft.shapes.unbacked import Binding

_KEY: Final = "weft"


class LateReads(Protocol):
    """What the code of one of the program's functions or hooks reads when it runs in the backward.
    """

    def hold(self) -> bool:
        """Whether its backward reads now what it read when the graph was captured."""

    def as_in_forward(self) -> AbstractContextManager[None]:
        """Inside, its forward reads what it read then."""


@final
class ProgramFunction:
    """What a node of a captured graph calls, if that runs code of the program.

    is_unseen: capture has not interpreted that code. late_reads: what it reads in the backward.
    gradient_hook: it registers this hook of the tensor, made of further ones.
    """

    def __init__(
        self, name: str, call: Callable[..., Any], *, is_unseen: bool = False,
        late_reads: LateReads | None = None, gradient_hook: Callable[..., Any] | None = None,
    ) -> None:
        self.__name__ = self.__qualname__ = name  # which the graph shows
        self.call = call
        self.is_unseen = is_unseen
        self.late_reads = late_reads
        self.gradient_hook = gradient_hook

    def __call__(self, *args: object, **kwargs: object) -> object:
        return self.call(*args, **kwargs)


@final
@dataclass(frozen=True, slots=True)
class CapturedFacts:
    """What capture says of a node of the graph that backends get (contract 3)."""

    notes: OperatorNotes | None = None
    """What the operators of a call do to memory, and whether they may refuse data."""
    has_effect: bool = False
    """The call is kept for what it does."""
    by_python: bool = False
    """The call runs PyTorch's Python kernels for sizes that are symbols."""
    answers: tuple[Any, ...] = ()
    """What capture assumed of data when PyTorch's code asked, in order."""
    carries_floats: bool = False
    """The call hands symbolic floats through C++."""
    late_reads: LateReads | None = None
    """Of an operator whose formula for gradients is code of the program."""
    version: int | None = None
    """How often an input had been written when the graph began."""
    grad_fn: Any = None
    """An input's autograd node when the graph began."""
    layout: tuple[Sequence[Any], Sequence[Any]] | None = None
    """An input's sizes and strides when the graph began."""
    is_known: bool = False
    """An input whose contents are guarded."""
    is_state: bool = False
    """An input that is a parameter or a buffer of a module."""
    is_carrier: bool = False
    """An input without values, through which the gradient of a wrapped tensor flows."""


@final
@dataclass(frozen=True, slots=True)
class AtenFacts:
    """What aot says of a node of an ATen graph (contract 4)."""

    phase: Literal["forward", "backward"] | None = None
    """The side of a joint graph that it is on; None: either will do."""
    binds: tuple[Binding, ...] = ()
    """The symbols that the result introduces, because they depend on data."""
    runs_again: bool = False
    """A checkpoint runs it again in the backward."""
    copies_input: bool = False
    """A copy that the program made of an input, which it may write to."""
    read_late: bool = False
    """A tensor of the program that only a function in the backward reads."""
    must_run: bool = False
    """Nothing reads the result, but the operator may raise."""
    gets_none: bool = False
    """A function of the program gets `None` here, and was traced with a gradient."""
    is_state: bool = False
    """An input that is a parameter or a buffer of a module, and may be passed in a kept form."""
    dies: bool = False
    """An input of a backward that may be freed after its last use."""
    alone: bool = False
    """A copy in another layout, which shares its kernel with nothing on a GPU."""
    strides: tuple[int, ...] | None = None
    """Strides with room at the ends of rows, if the node becomes memory."""

    def marks(self) -> list[str]:
        """What passes have noted, as texts."""
        noted = [f.name for f in fields(self) if getattr(self, f.name) is True]
        return noted if self.strides is None else [*noted, f"strides={self.strides}"]


FORWARD: Final = AtenFacts("forward")
BACKWARD: Final = AtenFacts("backward")


@final
@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What is said of a whole graph, a captured one or (from `written` on) an ATen graph."""

    shapes: ShapeContext | None = None
    """The symbols of a captured graph that depend on data."""
    is_irreversible: bool = False
    """An error in it would leave traces."""
    restored: tuple[int, ...] = ()
    """Inputs that it may have written when it raises; who runs it restores them."""
    is_on_parts: bool = False
    """Its tensors are the parts of wrapped ones."""
    is_part: bool = False
    """It is a part of a graph with branches."""
    reaches_all: bool = False
    """Inputs that no value depends on get zeros as gradients."""
    written: tuple[tuple[int, int], ...] = ()
    """(output, input): new values of inputs, which may be written into the inputs' memory."""
    asserts: tuple[ShapeGuard, ...] = ()
    """Conditions on data that the graph checks."""
    stages: tuple[tuple[int, ...], ...] = ()
    """Outputs that the caller takes one stage after the other; empty: all together."""
    lowered: Callable[[OpOverload], bool] | None = None
    """Whether the compiler knows an operator; None: it runs all of them by ATen."""
    is_trained: bool = False
    """It has a backward behind its forward."""
    inner: tuple[int, ...] = ()
    """Outputs of a joint graph that its backward reads in the caller's layout."""
    region: str = ""
    """How profiles name the calls of a captured graph."""


_OF_CAPTURED: Final = CapturedFacts()
_OF_ATEN: Final = AtenFacts()
_OF_GRAPH: Final = GraphFacts()


def captured_facts(node: Node) -> CapturedFacts:
    """What is known of a node of a captured graph."""
    facts: CapturedFacts = node.meta.get(_KEY, _OF_CAPTURED)
    return facts


def program_function(node: Node) -> ProgramFunction | None:
    """What a node calls, if that runs code of the program."""
    return node.target if isinstance(node.target, ProgramFunction) else None


def aten_facts(node: Node) -> AtenFacts:
    """What is known of a node of an ATen graph."""
    facts: AtenFacts = node.meta.get(_KEY, _OF_ATEN)
    return facts


def graph_facts(gm: GraphModule) -> GraphFacts:
    """What is known of a graph."""
    facts: GraphFacts = gm.meta.get(_KEY, _OF_GRAPH)
    return facts


def note(node: Node, facts: CapturedFacts | AtenFacts) -> None:
    """Say something of a node, instead of what was said before."""
    node.meta[_KEY] = facts


def note_graph(gm: GraphModule, facts: GraphFacts) -> None:
    """Say something of a graph, instead of what was said before."""
    gm.meta[_KEY] = facts


def marked(facts: AtenFacts) -> dict[str, object]:
    """The facts as metadata of a node that is about to be made."""
    return {_KEY: facts}
