"""What rules and value families see of the interpreter, and of the writer of replacements.

Place in the pipeline: the bottom of capture, so that values, rules and instructions need not know
the classes behind: `interpreter.SymbolicInterpreter` and `replacement.emitter.ReplacementEmitter`.
Every rule names them `tx` and `emit`::

    def m_append(self, tx: Interpreter, item: SymbolicValue) -> SymbolicValue: ...
    def rebuild(self, emit: Emitter) -> str: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

from torch import fx

if TYPE_CHECKING:
    from weft.capture.core.base import Args, Kwargs, Namespace, SymbolicValue
    from weft.capture.core.breaks import ObservedException
    from weft.capture.core.early_ends import EarlyEnds
    from weft.capture.core.frame import Frame
    from weft.capture.core.interpreter_state import (
        AutogradState,
        CallState,
        ClassState,
        ContinuationCompiler,
        DataState,
        EndState,
        ModeState,
        NumberState,
        RemadeState,
    )
    from weft.capture.core.lifetimes import Lifetimes
    from weft.capture.core.side_effects import SideEffects
    from weft.capture.core.source import Source, SourceTree
    from weft.capture.core.state import GlobalState
    from weft.capture.core.stops import Stops
    from weft.capture.guards.class_guards import ClassGuards
    from weft.capture.guards.guard_set import GuardSet
    from weft.capture.guards.identity_guards import IdentityGuards
    from weft.capture.guards.outside_objects import OutsideObjects
    from weft.errors import SourceLine
    from weft.shapes.context import ShapeContext
    from weft.shapes.fakes.fake import FakeContext
    from weft.shapes.policy import DynamicPolicy


class Interpreter(Protocol):
    """One interpretation of a root frame and of all that it inlines."""

    code: CodeType
    """What is interpreted."""
    root_globals: dict[str, Any]
    compiler: ContinuationCompiler
    called_in_handler: bool
    """Whether the caller handles an exception."""

    # Where the interpretation is.
    step: int
    stops: Stops
    frame: Frame | None
    root: Frame | None
    direct_call: bool
    """Set by instructions that call: the next frame is resumable."""
    frames_left_out: bool
    """Set by rules that stand for Python functions: the next frame is called by one of them."""

    # What it has recorded.
    tree: SourceTree
    guards: GuardSet
    class_guards: ClassGuards
    identities: IdentityGuards
    outside: OutsideObjects
    builder: Any
    """Where calls are recorded: the graph, or the subgraph under construction."""
    effects: SideEffects
    early_ends: EarlyEnds
    end: EndState

    # What is known so far, by subject.
    fakes: FakeContext
    policy: DynamicPolicy
    shapes: ShapeContext
    state: GlobalState
    modes: ModeState
    data: DataState
    numbers: NumberState
    autograd: AutogradState
    classes: ClassState
    remade: RemadeState
    lifetimes: Lifetimes
    copying: list[SymbolicValue]
    """Containers of which Python copies are being made, outermost first."""

    def run(self, frame: Frame) -> SymbolicValue:
        """Interpret a frame until it returns, or until its generator yields."""

    @property
    def calls(self) -> CallState:
        """The operators in the graph that can be run again on other tensors."""

    def run_inlined(self, frame: Frame, function: SymbolicValue, args: Args, kwargs: Kwargs
                    ) -> SymbolicValue:
        """Interpret the frame of a function called with these arguments, or do what that does."""

    def unwind(self, frame: Frame, error: ObservedException) -> None:
        """Continue at the exception's handler in this frame, or raise to the caller."""

    def tick(self) -> None:
        """Count one turn of a loop that a single instruction makes."""

    # -- wrapping ---------------------------------------------------------------------------------

    def force(self, value: SymbolicValue) -> SymbolicValue:
        """The value itself; an unread one is wrapped, and guarded, now."""

    def wrap(self, obj: Any, source: Source | None) -> SymbolicValue:
        """The value of an object from outside the frame; adds the guards that it needs."""

    def wrap_symbolic_number(self, obj: Any, source: Source | None) -> SymbolicValue | None:
        """A symbolic value for an outside int or float that changes between calls, or None."""

    def wrap_new(self, obj: Any) -> SymbolicValue:
        """The value of an object that capture made itself: no source, no guards."""

    def wrap_fixed(self, obj: Any, name: str) -> SymbolicValue:
        """The value of an object that is part of the program's text, such as a module or a
        method."""

    def globals_of(self, namespace: dict[str, Any]) -> Namespace:
        """The dictionary value of a module's globals."""

    # -- operations -------------------------------------------------------------------------------

    def call(self, function: SymbolicValue, args: Args, kwargs: Kwargs | None = None
             ) -> SymbolicValue:
        """`function(*args, **kwargs)`."""

    def call_python(self, function: Any, args: Args, kwargs: Kwargs | None = None
                    ) -> SymbolicValue:
        """Call a real function or class (a polyfill, a method that Python looks up)."""

    def binary(self, op: str, left: SymbolicValue, right: SymbolicValue) -> SymbolicValue:
        """`operator.<op>(left, right)`."""

    def equal(self, left: SymbolicValue, right: SymbolicValue) -> bool:
        """`left == right` as containers compare: identity first."""

    def same(self, left: SymbolicValue, right: SymbolicValue) -> bool:
        """`left is right`."""

    def unpack(self, value: SymbolicValue) -> list[SymbolicValue]:
        """`[*value]`."""

    def to_list(self, value: SymbolicValue) -> list[SymbolicValue]:
        """`list(value)`."""

    def each_of(self, value: SymbolicValue) -> Iterable[SymbolicValue]:
        """The items that `list(value)` takes, one at a time."""

    def constants(self, values: Iterable[SymbolicValue]) -> list[Any] | None:
        """The Python objects of the values if all are constant, else None."""

    # -- recording --------------------------------------------------------------------------------

    def mode_node(self, function: Any, *args: Any) -> None:
        """Record a call that sets a mode; it does not count as an operator."""

    def note_check(self) -> None:
        """Record that the current branch became a check in the graph."""

    def watch(self, value: SymbolicValue) -> None:
        """End the graph before this object, made inside, is freed: freeing it has an effect."""

    # -- errors and breaks ------------------------------------------------------------------------

    def error(self, kind: type[BaseException], *args: Any, **fields: Any) -> ObservedException:
        """The signal that the program raises an exception of this class, with these attributes."""

    def stack(self) -> tuple[SourceLine, ...]:
        """The current lines of the program, outermost first."""

    def module_stack(self) -> dict[str, tuple[str, type]]:
        """The modules whose `forward` is running, in torch.compile's form: paths and classes."""

    def line(self) -> SourceLine | None:
        """The current line of the program."""

    def breaking_step(self) -> int:
        """The current step, or that of the nearest caller where the graph can end."""


class Emitter(Protocol):
    """The text of one replacement function while it is written."""

    @property
    def tx(self) -> Interpreter:
        """The interpretation whose results it rebuilds."""

    lines: list[str]
    outputs: list[fx.Node]
    settled: set[int]

    def value(self, value: SymbolicValue) -> str:
        """An expression for a value."""

    def has(self, value: SymbolicValue) -> bool:
        """Whether the value has an expression already."""

    def constant(self, obj: Any) -> str:
        """An expression for an object that the replacement holds."""

    def filled(self, value: SymbolicValue) -> str:
        """An expression for a value that has its contents already."""

    def hashed(self, value: SymbolicValue) -> str:
        """An expression for a value that is about to be hashed."""

    def output(self, node: fx.Node) -> str:
        """An expression for the result of a graph node."""

    def line(self, text: str) -> None:
        """Add a line."""

    def block(self, head: str) -> AbstractContextManager[None]:
        """Indent the lines that are added within."""

    def bind(self, value: SymbolicValue, text: str) -> str:
        """A variable for a value that is made by this expression."""

    def temporary(self, text: str) -> str:
        """A variable that holds what the expression gives."""

    def later(self, fill: Callable[[], None]) -> None:
        """Fill a container after those that contain it exist."""

    def fill(self) -> None:
        """Fill the containers that wait."""
