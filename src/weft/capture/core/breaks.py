"""Graph breaks: the registry of reasons, and the signals that end or restart an interpretation.

Place in the pipeline: beside the interpreter. Whatever capture cannot handle ends in
`graph_break(id, detail)`; ids are stable, and `BREAKS` has an explanation and a hint for each::

    raise graph_break("data-dependent-branch", "if on a tensor")
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, final

from weft.errors import GraphBreakError, SourceLine
from weft.stances import error_mode


@final
@dataclass(frozen=True, slots=True)
class BreakKind:
    """A reason for graph breaks, explained for users."""

    id: str
    explanation: str
    hint: str


_KINDS: Final = (
    BreakKind("data-dependent-branch",
              "The program branches on a tensor's data or on a number that it draws, which are "
              "unknown while capturing.",
              "use torch.where or torch.cond, or accept the break"),
    BreakKind("data-dependent-value",
              "A Python number is taken from a tensor (.item(), .tolist(), int(t), .numpy()), or "
              "an operator needs it.",
              "keep the value in a tensor"),
    BreakKind("data-dependent-shape",
              "The size of an operator's result depends on data (nonzero, unique, masks).",
              "use an operator with a fixed output size, such as torch.where"),
    BreakKind("varying-argument",
              "The operator takes plain numbers, and those computed of sizes keep changing.",
              "pass sizes (`size=`, not `scale_factor=`)"),
    BreakKind("print",
              "Printing happens in order, outside of graphs; so do logging and warnings of what is "
              "unknown.",
              "move the output out of the compiled function"),
    BreakKind("debugger",
              "The function may stop in a debugger (breakpoint(), set_trace()): it and its callers "
              "run as plain Python.",
              "take the breakpoint or fullgraph=True away"),
    BreakKind("cached-function",
              "A cached function (functools.lru_cache) that does more than compute is called "
              "between graphs: what it does happens once for each key.",
              "let the function only compute, or call it outside of the compiled function"),
    BreakKind("disabled", "The function is marked with weft.disable or torch.compiler.disable.",
              "remove the mark if the function can be captured"),
    BreakKind("distributed-wrapper",
              "A wrapper of torch.distributed (DDP, FSDP, fully_shard) synchronises processes "
              "around the module's forward: it runs between the graphs, and the module inside it "
              "is compiled as graphs of its own.",
              "compile the wrapper, or the module inside it, instead of the function around it: "
              "weft.compile(DDP(m)) or DDP(weft.compile(m)); docs/using/distributed.md has each"),
    BreakKind("forbidden", "The function is one that must not be called by compiled code, such as "
              "torch.compiler.set_stance: it is called between the graphs.",
              "call it outside of the compiled function"),
    BreakKind("checkpoint",
              "The checkpointed function does not do the same when the backward runs it again (it "
              "writes to what exists outside, or asks for the gradient mode, which differs), or is "
              "called in a way that a graph cannot hold: it runs between the graphs.",
              "use_reentrant=False, and let the function only compute"),
    BreakKind("transform",
              "The function transform makes a graph of its own: it runs between the graphs.",
              "torch.func.jvp computes the same at once"),
    BreakKind("unknown-c-function", "A C function that capture has no rule for.",
              "call it outside of the compiled function, or accept the break"),
    BreakKind("unknown-operation", "A Python operation on these values has no rule yet.",
              "accept the break, and report it"),
    BreakKind("unknown-opcode", "A byte code instruction that capture has no rule for.",
              "accept the break, and report it"),
    BreakKind("unknown-value", "A value of this type has no rule.", "accept the break"),
    BreakKind("unheld-tensor",
              "Graphs hold strided tensors: operations on sparse, quantized and nested tensors, "
              "and on those wrapped by a transform outside, run between the graphs.",
              "keep to strided tensors, or accept the break"),
    BreakKind("skipped-function", "The function lies in code that is not captured.",
              "accept the break"),
    BreakKind("operator-failed", "The operator raised an error on these inputs.",
              "check the shapes and dtypes; eager raises the same error"),
    BreakKind("recursion", "Calls are nested too deeply.", "raise weft.config.inline_depth_limit"),
    BreakKind("state", "A change of global state that cannot be part of a graph.",
              "move it out of the compiled function"),
    BreakKind("watched-object",
              "Something is to happen when an object made here is freed (a weak reference's "
              "callback, weakref.finalize, weak dictionaries, a generator's `finally`): the rest "
              "of the function runs as plain Python, whose variables hold it exactly as long.",
              "make the object outside of the compiled function"),
    BreakKind("observed-interpreter",
              "The function asks the interpreter about itself (reference counts, sizes of objects, "
              "frames of a traceback), which capture changes: it runs between the graphs. A frame "
              "that holds no tensors is left as it is.",
              "call it outside of the compiled function, or accept the break"),
    BreakKind("gradient-hook",
              "The hook is to run in the backward, among autograd's nodes: it is hung on them "
              "between the graphs.",
              "register it outside, or let it only compute and hang on a tensor computed inside"),
    BreakKind("unrolled-loop", "The operator is a loop over a length that is symbolic or long.",
              "accept the break: eager's loop runs between the graphs"),
    BreakKind("user", "The program asked for a graph break.", "remove the request"),
)

BREAKS: Final[dict[str, BreakKind]] = {kind.id: kind for kind in _KINDS}


class Signal(Exception):
    """Base class of what ends an interpretation early; users never see it."""


@final
class GraphBreak(Signal):
    """The current instruction cannot be captured."""

    def __init__(self, kind: BreakKind, detail: str, about: tuple[Any, ...] = ()) -> None:
        super().__init__(detail)
        self.kind = kind
        self.detail = detail
        self.about = about
        """Graph nodes whose data would be needed to go on."""
        self.stack: tuple[SourceLine, ...] = ()
        self.step = -1
        self.error_mode = error_mode()
        self.in_library = True
        """Whether all frames from the innermost to this one belong to the standard library."""
        self.outward = True
        """Whether the graph can end in a caller only, not in the current frame."""

    @property
    def rest_is_eager(self) -> bool:
        """Whether the rest of all frames runs as plain Python."""
        return self.kind.id == "watched-object"

    @property
    def observes(self) -> bool:
        """Whether the program asks the interpreter about itself."""
        return self.kind.id == "observed-interpreter"

    @property
    def needs_plain_callers(self) -> bool:
        """Whether somebody will look at the frame and its callers."""
        return self.kind.id == "debugger"

    @property
    def reason(self) -> str:
        return f"{self.detail} ({self.kind.explanation})"

    def error(self) -> GraphBreakError:
        """What is raised where breaks are errors."""
        return GraphBreakError(self.reason, id=self.kind.id, stack=self.stack, hint=self.kind.hint)


@final
class Restart(Signal):
    """Interpret again, and end the graph at the given step."""

    def __init__(self, step: int, reason: GraphBreak) -> None:
        super().__init__(str(reason))
        self.step = step
        self.reason = reason


@final
class StartOver(Signal):
    """Interpret again: something is known now that was not known at the start."""


@final
class SkipFrame(Signal):
    """Run the frame eagerly.

    always: no other call of this code could be captured. counts: it is one of the failures after
    which the code is left to Python.
    """

    def __init__(self, reason: str, *, always: bool = False, counts: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.always = always
        self.counts = counts


@final
class ObservedException(Signal):
    """The interpreted program raised; `value` is the exception's symbolic value."""

    def __init__(self, value: Any, *, again: bool = False) -> None:
        super().__init__()
        self.value = value
        self.stack: tuple[SourceLine, ...] = ()
        """Where it was raised, if an operation that capture evaluated raised it."""
        self.again = again
        """Whether it is a re-raise: its traceback has an entry for the frame already."""
        self.linked = again
        """Whether the exception's `__context__` is set."""

    def __str__(self) -> str:
        return f"the program raised {self.value!r}"


def graph_break(id: str, detail: str, *about: object) -> GraphBreak:
    """The signal of a graph break of a registered kind; `about` are the graph nodes whose data is
    needed."""
    return GraphBreak(BREAKS[id], detail, about)
