"""The parts of an interpreter's state that only some values and rules deal with.

Place in the pipeline: an `Interpreter` has one of each (`tx.data`, `tx.modes`, ...). All are empty
when an interpretation begins, and say what it has found or done so far; only `EndState` is made
when the root frame has ended.
"""

from __future__ import annotations

import types
import weakref
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, final

from torch import fx

from weft.capture.core.base import SymbolicValue
from weft.capture.core.data_checks import EarlyCheck, InputTest
from weft.capture.core.graph import GraphInput
from weft.capture.core.source import Source
from weft.capture.core.state import Step
from weft.config import CompileOptions
from weft.errors import SourceLine
from weft.shapes.policy import DynamicPolicy
from weft.stances import error_mode


class ContinuationCompiler(Protocol):
    """What capture asks of the compiler that it works for (`compiler.FrameCompiler`)."""

    options: CompileOptions

    def policy(self, code: types.CodeType) -> DynamicPolicy:
        """Which sizes of the code are symbolic, as earlier captures taught."""

    def compiled(self, function: types.FunctionType) -> Any:
        """The compiled form of a function; its first call captures it."""

    def own_code(self, code: types.CodeType) -> types.CodeType:
        """The code object that continuations are made from."""

    def compiled_copy(self, function: types.FunctionType) -> Any:
        """The compiled form of a function of the program."""

    def expect_symbolic(self, code: types.CodeType, name: str, dims: list[int]) -> None:
        """Make some dimensions of a continuation's argument symbolic."""


@final
@dataclass(slots=True)
class DataState:
    """What is known about tensors' data, and what the graph checks about it."""

    places: dict[str, Any] = field(default_factory=dict)
    """Graph nodes that hold the values of unbacked symbols (`library/numbers/data_numbers.py`)."""
    n_checked: int = 0
    """How many of the shape context's conditions on data the graph checks so far."""
    early_checks: list[EarlyCheck] = field(default_factory=list)
    """Conditions that the replacement checks before it calls the graph."""
    checked_at: list[int] = field(default_factory=list)
    """The steps of branches that became checks in the graph."""
    catches_refusals: bool = False
    """Whether the program may catch the error of an operator of the graph."""
    expected_at: Counter[Hashable] = field(default_factory=Counter)
    """How often each branch was expected to go one way, by code, instruction and loop turn."""
    turns: int = 0
    """How many turns `for` loops have made."""
    relied_on: set[Source] = field(default_factory=set)
    """Tensors whose contents are guarded (`library/tensors/known_data.py`)."""
    memories: weakref.WeakValueDictionary[int, Any] = field(
        default_factory=weakref.WeakValueDictionary)
    """The memory of NumPy arrays made while capturing, by id (`library/numpy/known_arrays.py`)."""
    input_tests: dict[Any, InputTest] = field(default_factory=dict)
    """Conditions of branches on the inputs' data, by graph node."""
    read_behind_writes: dict[tuple[Source, ...], list[GraphInput]] = field(default_factory=dict)
    """By the inputs that the graph had written: others whose data was known or tested then."""
    from_inputs: dict[Any, bool] = field(default_factory=dict)
    """Whether a graph node depends on inputs alone, for the nodes examined so far."""
    n_asked: int = 0
    """How often it was asked what a tensor holds."""


@dataclass(slots=True)
class CallState:
    """The operators in the graph that can be run again on other tensors (`capture/repeats/`)."""

    nodes: list[fx.Node] = field(default_factory=list)
    n_effects: int = 0
    """How many of them do more than compute a result."""


@final
@dataclass(slots=True)
class ModeState:
    """Modes that are not PyTorch's own (those are in `tx.state`): overridden torch functions, and
    warnings."""

    functions: list[SymbolicValue] = field(default_factory=list)
    """Active torch function modes, innermost last: default devices set outside
    (`device_modes.py`), then those that the program entered."""
    outer: list[SymbolicValue] = field(default_factory=list)
    """The torch function modes at the start."""
    overriding: bool = False
    """Whether a tensor's class has its own `__torch_function__`."""
    subclasses_off: int = 0
    """How many nested blocks disable the classes' `__torch_function__`."""
    hidden: list[list[SymbolicValue]] = field(default_factory=list)
    """The active modes where blocks began that disable them too, innermost last."""
    scripted: int = 0
    """How many calls of functions compiled by torch.jit are being captured."""
    ignored_warnings: list[Any] = field(default_factory=list)
    """Warning filters of the program that ignore warnings (`core/ignored_warnings.py`)."""
    texts_wait: bool = False
    """Whether texts of tensors are made when the graph has run (`tensors/print_state.py`)."""


@final
@dataclass(slots=True)
class EndState:
    """The global modes at the end of the root frame."""

    changes: tuple[list[Step], list[Step]] = field(default_factory=lambda: ([], []))
    """Calls that undo the program's changes of modes, and calls that make them again."""
    error_mode: Any = field(default_factory=error_mode)
    state_changed: bool = False
    """Whether a torch.func transform or a block without `__torch_function__` is still open."""
    functions: list[SymbolicValue] = field(default_factory=list)
    """The torch function modes."""
    in_inference: bool = False
    """Whether the program ends inside an inference mode that it entered."""


@final
@dataclass(slots=True)
class AutogradState:
    """What the program did to the fake tensors' autograd graph."""

    leaves: dict[int, Any] = field(default_factory=dict)
    """Leaf tensors, by the id of their fakes."""
    replaced: dict[int, tuple[int, tuple[SourceLine, ...]]] = field(default_factory=dict)
    """The step and lines at which an outside tensor became another leaf (its `.data` was set, or it
    was told to require gradients), by the id of the fake that stands for it since."""
    frozen: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    """Outside leaves that ceased to require gradients, by the id of their value: the fake
    since then, and the fake and node before."""
    freed: dict[int, tuple[Any, tuple[int, tuple[SourceLine, ...]]]] = field(default_factory=dict)
    """Nodes of the fakes' autograd graph that a backward pass has freed, with its step and lines,
    by id."""
    functions: dict[int, SymbolicValue] = field(default_factory=dict)
    """The values of nodes of that graph that the program has read, by id."""
    wrapped: dict[int, Any] = field(default_factory=dict)
    """The tensors that transforms have wrapped, by the id of their fakes."""
    late_reads: dict[tuple[frozenset[Source], frozenset[Source]], Any] = field(
        default_factory=dict)
    """What users' functions and hooks read, by the sources read in the backward and before."""


@final
@dataclass(slots=True)
class NumberState:
    """Numbers that differ from call to call."""

    values: dict[Source, SymbolicValue] = field(default_factory=dict)
    """Python numbers from outside that are symbolic."""
    nodes: dict[Any, Any] = field(default_factory=dict)
    """Graph nodes of symbolic numbers, by expression."""
    draws: list[Any] = field(default_factory=list)
    """Draws from Python's and NumPy's random generators, in order."""


@final
@dataclass(slots=True)
class RemadeState:
    """Calls on mutable objects of C types (`library/standard/remade.py`)."""

    calls: list[Any] = field(default_factory=list)
    """All that the replacement may have to make again, in order."""
    late: list[Any] = field(default_factory=list)
    """Those of them that capture has not made itself."""


@final
@dataclass(slots=True)
class ClassState:
    """Classes that the program made or changed."""

    made: dict[type, SymbolicValue] = field(default_factory=dict)
    """Models of the classes that the program made, and their recipes (`library/classes/`)."""
    stand_ins: dict[SymbolicValue, Any] = field(default_factory=dict)
    """Stand-ins for the values that the body of the class under way has bound."""
    attributes: dict[type, Any] = field(default_factory=dict)
    """Attributes that the program set on classes (`library/classes/attributes.py`)."""

    def hide_models(self) -> None:
        """Remove the models from the `__subclasses__` of the program's classes."""
        for model in self.made:
            with suppress(TypeError):  # a base written in C has another layout
                _SET_BASES(model, (_NoBase,))


class _NoBase:
    """The base given to models that are no longer needed."""


_SET_BASES: Final = type.__dict__["__bases__"].__set__
