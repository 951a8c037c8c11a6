"""The symbolic interpreter: evaluates byte code on symbolic values and records tensor calls.

Place in the pipeline: the heart of capture. `run` interprets one frame; calls of Python functions
run nested frames (inlining). The interpreter is deterministic and counts its steps, so a graph
break that one interpretation finds is emitted by the next one, at the same step (contract 2)::

    tx = SymbolicInterpreter(code, globals, FakeContext(), policy, compiler, break_at=-1)
    result = tx.run_root(tx.root_frame(locals, cells))
"""

from __future__ import annotations

import operator
import re
import sys
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, final

import weft.capture.opcodes  # noqa: F401  fills OPCODES before the first decode
from weft.capture.core.base import LazyValue, SymbolicValue, drain
from weft.capture.core.breaks import GraphBreak, ObservedException, Restart, SkipFrame, graph_break
from weft.capture.core.cell import CellValue
from weft.capture.core.constant import constant
from weft.capture.core.early_ends import EarlyEnds
from weft.capture.core.frame import Frame
from weft.capture.core.graph import GraphBuilder
from weft.capture.core.interpreter_state import (
    AutogradState,
    ClassState,
    ContinuationCompiler,
    DataState,
    EndState,
    ModeState,
    NumberState,
    RemadeState,
)
from weft.capture.core.lifetimes import Lifetimes, check_left, check_let_go
from weft.capture.core.registry import IDENTITY, wrap_of
from weft.capture.core.side_effects import SideEffects
from weft.capture.core.skips import is_library_code, is_of_package_without_torch
from weft.capture.core.source import Source, SourceTree
from weft.capture.core.state import GlobalState
from weft.capture.core.stops import Stops
from weft.capture.guards.class_guards import ClassGuards, guarding_lookups
from weft.capture.guards.guard_set import GuardSet
from weft.capture.guards.identity_guards import IdentityGuards
from weft.capture.guards.outside_objects import OutsideObjects
from weft.capture.library.classes.attributes import gives_length
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.exceptions.exceptions import link_context, new_exception, note_passed
from weft.capture.library.modules.modules import ModuleValue
from weft.capture.library.numbers.data_numbers import note_checks
from weft.capture.library.numbers.symbolic_numbers import (
    SymbolicNumberValue,
    number_node,
    wrap_number,
)
from weft.capture.library.operators.operations import binary_operation, equal_values, same_object
from weft.capture.library.tensors.known_data import known_fake
from weft.capture.repeats.calls import RepeatedCalls
from weft.config import config
from weft.errors import SourceLine
from weft.interrupts import checkpoint
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake import FakeContext
from weft.shapes.policy import DynamicPolicy
from weft.shapes.symnode import UndecidedValue
from weft.stances import error_mode

Args = list[SymbolicValue]
Kwargs = dict[str, SymbolicValue]


@final
class SymbolicInterpreter:
    """One interpretation of a root frame and of all that it inlines."""

    def __init__(
        self, code: types.CodeType, globals: dict[str, Any], fakes: FakeContext,
        policy: DynamicPolicy, compiler: ContinuationCompiler, *, break_at: int = -1,
        data_dependent: bool = True,
    ) -> None:
        # What is interpreted, and for whom.
        self.code = code
        self.root_globals = globals
        self.fakes = fakes
        self.policy = policy
        self.compiler = compiler
        self.called_in_handler = sys.exc_info()[1] is not None
        """Whether the caller handles an exception. (Later on capture may handle one of its own.)"""
        # Where the interpretation is.
        self.step = 0
        self.stops = Stops(break_at)
        self.depth = 0
        self.frame: Frame | None = None
        self.root: Frame | None = None
        self.direct_call = False
        """Set by call opcodes: the next frame is resumable."""
        self.frames_left_out = False
        """Set by rules that stand for Python functions: the next frame is called by one of them."""
        self._raised_at: dict[int, tuple[SymbolicValue, int]] = {}
        """Exceptions of the program by id, and the steps at which they were raised first."""
        # What it has recorded: the results of a capture.
        self.tree = SourceTree()
        self.guards = GuardSet(self.tree)
        self.guards.stack = self.stack
        self.identities = IdentityGuards(self.guards)
        self.outside = OutsideObjects(self.guards)
        self.builder: Any = GraphBuilder()
        """Where calls are recorded: the graph, or the subgraph under construction."""
        self.calls = RepeatedCalls(self.builder)
        self.effects = SideEffects()
        self.shapes = self._shape_context(data_dependent)
        self.early_ends = EarlyEnds()
        self.end = EndState()
        """What `run_root` found at the end."""
        # What is known so far, by subject.
        self.state = GlobalState()
        self.modes = ModeState()
        self.data = DataState()
        self.numbers = NumberState()
        self.autograd = AutogradState()
        self.classes = ClassState()
        self.class_guards = ClassGuards(self.guards, self.classes.made)
        self.remade = RemadeState()
        self.lifetimes = Lifetimes()
        self.copying: list[SymbolicValue] = []
        """Containers of which Python copies are being made, outermost first."""

    def _shape_context(self, data_dependent: bool) -> ShapeContext:
        this = weakref.ref(self)  # weak: fakes keep the context alive
        shapes = ShapeContext(line=lambda: None if (tx := this()) is None else tx.line(),
                              data_dependent=data_dependent,
                              specialize_zero_one=config.specialize_zero_one)
        if data_dependent:
            shapes.data.may_expect = self.policy.expects
            shapes.data.note_expectation = lambda: None if (tx := this()) is None else (
                tx.note_expectation())
            self.fakes.mode.symbols = shapes
            shapes.data.known_content = lambda fake: None if (tx := this()) is None else (
                known_fake(tx, fake))
        return shapes

    # -- the root ---------------------------------------------------------------------------------

    def root_frame(self, locals: Sequence[object], cells: tuple[object, ...]) -> Frame:
        """The frame of the captured code, with its variables not yet read."""
        code = self.code
        values: dict[str, SymbolicValue] = {}
        boxes: dict[str, CellValue] = {}
        for index, obj in enumerate(locals):
            name = code.co_varnames[index]
            values[name] = LazyValue(self.tree.local(index, name), obj)
        for index, cell in enumerate(cells):
            name = code.co_freevars[index]
            boxes[name] = CellValue.outside(self, cell, self.tree.cell(index, name), name)
        self.root = Frame(code, self.globals_of(self.root_globals), values, boxes, None)
        self.root.resumable = True
        return self.root

    def run_root(self, frame: Frame) -> SymbolicValue:
        """Interpret the root frame; graph breaks become restarts."""
        with self.state.saved(), guarding_lookups(self.class_guards):
            try:
                return self.run(frame)
            except GraphBreak as signal:
                raise Restart(signal.step, signal) from None
            finally:
                self.end = EndState(
                    changes=self.state.changes(), error_mode=error_mode(),
                    state_changed=self.state.levels_changed() or self.modes.subclasses_off != 0,
                    functions=list(self.modes.functions), in_inference=bool(self.state.inference))

    # -- frames -----------------------------------------------------------------------------------

    def run(self, frame: Frame) -> SymbolicValue:
        """Interpret a frame until it returns, or until its generator yields."""
        checkpoint()
        outer, self.frame = self.frame, frame
        if self.depth > config.inline_depth_limit:
            raise graph_break("recursion", "calls nested too deeply to inline")
        self.depth += 1
        try:
            while True:
                try:
                    return self._run_until_raise(frame)
                except ObservedException as error:
                    self.unwind(frame, error)
        except GraphBreak as signal:
            self._note_break(signal, frame)
            raise
        except UndecidedValue as error:
            undecided = graph_break("data-dependent-value", str(error))
            self._note_break(undecided, frame)
            raise undecided from error
        finally:
            self.depth -= 1
            self.frame = outer

    def run_inlined(self, frame: Frame, function: SymbolicValue, args: Args, kwargs: Kwargs
                    ) -> SymbolicValue:
        """Interpret the frame of a function called with these arguments, or do what that does."""
        return self.calls.run(self, frame, function, args, kwargs, _path_of)

    def _run_until_raise(self, frame: Frame) -> SymbolicValue:
        program, stops = frame.program.instructions, self.stops
        while True:
            ins = program[frame.pc]
            frame.current = ins
            frame.pc += 1
            self.step += 1
            frame.step = self.step
            if self.step >= stops.at:
                stops.check(self, frame)
            result: SymbolicValue | None = ins.handler(self, frame, ins)
            if result is not None:
                return result

    def tick(self) -> None:
        """Count one turn of a loop that a single instruction makes."""
        self.step += 1
        self.stops.check_limits(self)

    def _note_break(self, signal: GraphBreak, frame: Frame) -> None:
        """Attribute a break to the innermost instruction that a continuation can follow.

        Called for each frame that the signal leaves, innermost first. `signal.outward` says whether
        the place of the break moves on to the next one.
        """
        if self.step > config.step_limit:
            raise SkipFrame("too many instructions", always=True)
        if signal.step < 0:
            signal.stack = self.stack()
        if signal.outward:
            signal.step = frame.step
        # The caller breaks instead if it cannot take this frame's result as it is, or if all frames
        # so far are of the standard library (threads, queues, files: many breaks, no tensors) or of
        # packages that do not know torch, such as progress bars.
        signal.in_library = signal.in_library and (is_library_code(frame.code) or (
            frame.caller is not None and is_of_package_without_torch(frame.code)))
        signal.outward = (
            signal.rest_is_eager or signal.in_library or not frame.resumable
            or (signal.observes and not frame.has_all_callers))

    def unwind(self, frame: Frame, error: ObservedException) -> None:
        """Continue at the exception's handler in this frame, or raise to the caller.

        As CPython does: link the exception to the one being handled, add the frame to its
        traceback, cut the stack to the height that the handler expects, and push the exception.
        """
        self._raised_at.setdefault(id(error.value), (error.value, resumable_step(frame)))
        if not error.linked:
            link_context(self, error.value, frame.handled_exception())
        if not error.again:
            note_passed(self, error.value, frame)
        error.linked, error.again = True, False
        row = frame.program.handler_of(frame.current.index)
        if row is None:
            check_left(self, frame)
            raise error
        for value in frame.stack[row.depth:]:
            check_let_go(self, value)
        del frame.stack[row.depth:]
        if row.lasti:  # the handler may raise again, as if from the instruction that failed
            back = frame.last_offset
            frame.stack.append(constant(frame.current.offset if back < 0 else back))
        frame.last_offset = -1
        frame.stack.append(error.value)
        frame.pc = row.target

    # -- wrapping ---------------------------------------------------------------------------------

    def force(self, value: SymbolicValue) -> SymbolicValue:
        """The value itself; an unread one is wrapped, and guarded, now."""
        if value.__class__ is LazyValue:
            return self.wrap(value.object, value.source)
        return value

    def wrap(self, obj: object, source: Source | None) -> SymbolicValue:
        """The value of an object from outside the frame; adds the guards that it needs."""
        known = self.outside.value_of(obj)
        if known is not None:
            if source is not None:
                self.guards.note(source)
                if source is not known.source:
                    self.outside.guard_same(known, source)
            return known
        special = IDENTITY.get(id(obj))
        if special is not None:
            if source is not None:
                self.guards.add(source, "is", obj)
            value = special[1]()
        else:
            value = wrap_of(type(obj))(self, obj, source)
        if not value.is_constant and not isinstance(value, SymbolicNumberValue):
            self.outside.remember(obj, value)
            namespace = value.own_attributes()
            if namespace is not None:
                self.outside.share_namespace(value, namespace)
        return value

    def wrap_symbolic_number(self, obj: object, source: Source | None) -> SymbolicValue | None:
        """A symbolic value for an outside int or float that changes between calls, or None."""
        return wrap_number(self, obj, source)

    def wrap_new(self, obj: object) -> SymbolicValue:
        """The value of an object that capture made itself: no source, no guards."""
        return wrap_of(type(obj))(self, obj, None)

    def wrap_fixed(self, obj: object, name: str) -> SymbolicValue:
        """The value of an object that is part of the program's text, such as a module or a
        method."""
        return self.wrap(obj, self.tree.object(obj, name))

    def globals_of(self, namespace: Mapping[str, object]) -> DictValue:
        """The dictionary value of a module's globals."""
        known = self.outside.value_of(namespace)
        if known is not None:
            assert isinstance(known, DictValue)
            return known
        name = namespace.get("__name__", "globals")
        value = DictValue(self.tree.object(namespace, f"{name}"), namespace)
        value.is_namespace = True
        self.outside.remember(namespace, value)
        return value

    # -- operations -------------------------------------------------------------------------------

    def call(self, function: SymbolicValue, args: Args, kwargs: Kwargs | None = None
             ) -> SymbolicValue:
        """`function(*args, **kwargs)`."""
        return function.call(self, args, kwargs or {})

    def call_python(self, function: Any, args: Args, kwargs: Kwargs | None = None
                    ) -> SymbolicValue:
        """Call a real function or class (a polyfill, a method that Python looks up)."""
        return self.call(self.wrap_fixed(function, function.__qualname__), args, kwargs)

    def binary(self, op: str, left: SymbolicValue, right: SymbolicValue) -> SymbolicValue:
        """`operator.<op>(left, right)`."""
        return binary_operation(self, op, left, right)

    def equal(self, left: SymbolicValue, right: SymbolicValue) -> bool:
        """`left == right` as containers compare: identity first."""
        return equal_values(self, left, right)

    def same(self, left: SymbolicValue, right: SymbolicValue) -> bool:
        """`left is right`."""
        return same_object(self, left, right)

    def unpack(self, value: SymbolicValue) -> list[SymbolicValue]:
        """`[*value]`."""
        return list(self.force(value).iterate(self))

    def to_list(self, value: SymbolicValue) -> list[SymbolicValue]:
        """`list(value)`."""
        return list(self.each_of(value))

    def each_of(self, value: SymbolicValue) -> Iterable[SymbolicValue]:
        """The items that `list(value)` takes, one at a time. It asks the class for a length hint
        and so may run its code."""
        value = self.force(value)
        if not gives_length(value):
            return value.iterate(self)
        iterator = value.iter(self)
        self.call(self.wrap_fixed(operator.length_hint, "length_hint"), [value])
        return drain(self, iterator)

    def constants(self, values: Iterable[SymbolicValue]) -> list[object] | None:
        """The Python objects of the values if all are constant, else None."""
        objects = []
        for value in values:
            if not value.is_constant:
                return None
            objects.append(value.constant())
        return objects

    # -- recording --------------------------------------------------------------------------------

    def mode_node(self, function: object, *args: object) -> None:
        """Record a call that sets a mode; it does not count as an operator."""
        self.builder.effect(function, args, self.stack())
        self.builder.n_calls -= 1

    def note_check(self) -> None:
        """Record that the current branch became a check in the graph."""
        self.data.checked_at.append(self.breaking_step())

    def note_expectation(self) -> None:
        """Record that a decision on data became a check; emit it before the nodes that rely on
        it."""
        self.note_check()
        if not self.shapes.data.expects:  # otherwise the operator's own node comes first
            note_checks(self, partial(number_node, self))

    def watch(self, value: SymbolicValue) -> None:
        """End the graph before this object, made inside, is freed: freeing it has an effect."""
        self.lifetimes.watch(value)
        self.stops.watch()

    # -- errors and breaks ------------------------------------------------------------------------

    def error(
        self, kind: type[BaseException], *args: object, **fields: object
    ) -> ObservedException:
        """The signal that the program raises an exception of this class.

        `fields` are attributes that CPython's C code sets on it.
        """
        exception = new_exception(kind, [self.wrap_new(a) for a in args])
        exception.fields.update({name: self.wrap_new(field) for name, field in fields.items()})
        signal = ObservedException(exception)
        signal.stack = self.stack()
        return signal

    def stack(self) -> tuple[SourceLine, ...]:
        """The current lines of the program, outermost first."""
        return self.frame.lines() if self.frame is not None else ()

    def module_stack(self) -> dict[str, tuple[str, type]]:
        """The modules whose `forward` is running, in torch.compile's form: paths and classes."""
        return {} if self.frame is None else _modules_of(self.frame)

    def line(self) -> SourceLine | None:
        """The current line of the program."""
        return None if self.frame is None else self.frame.where()

    def breaking_step(self) -> int:
        """The current step, or that of the nearest caller where the graph can end."""
        return -1 if self.frame is None else resumable_step(self.frame)

    def raised_at(self, error: ObservedException) -> int:
        """The step that first raised an exception, as far inside as a continuation can resume."""
        return self._raised_at[id(error.value)][1]

    # -- the end ----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop the references to the program's objects: the interpreter itself is freed much
        later."""
        self.classes.hide_models()
        self.outside.clear()
        self._raised_at.clear()
        self.early_ends = EarlyEnds()
        self.lifetimes = Lifetimes()
        self.modes.ignored_warnings.clear()
        self.remade = RemadeState()
        self.numbers.values.clear()
        self.autograd = AutogradState()
        self.effects = SideEffects()
        self.guards.stack = tuple
        self.calls.forget()
        for item in getattr(self.builder, "inputs", ()):
            item.example = None
        if self.root is not None:
            self.root.locals.clear()
            self.root.cells.clear()
            self.root.stack.clear()


def resumable_step(frame: Frame) -> int:
    """The current step of the innermost frame whose callers can all be resumed."""
    step = frame.step
    inner: Frame | None = frame
    while inner is not None and inner.caller is not None:
        if not inner.resumable:
            step = inner.caller.step
        inner = inner.caller
    return step


_KEY: Final = re.compile(r"\['?(\w+)'?\]")
"""A key in the name of a source: ``[0]``, ``['attention']``."""


def _modules_of(frame: Frame) -> dict[str, tuple[str, type]]:
    """The modules whose `forward` is this frame or a caller of it."""
    if frame.modules is None:
        if frame.caller is None:
            frame.modules = {}
            return frame.modules
        frame.modules = _modules_of(frame.caller)
        names = frame.code.co_varnames
        own = frame.locals.get(names[0]) if names and frame.code.co_name == "forward" else None
        if isinstance(own, ModuleValue) and own.source is not None:
            frame.modules = {
                **frame.modules, str(id(own.real())): (_path_of(own.source), own.cls)}
    return frame.modules


def _path_of(source: Source) -> str:
    """The path of a module in torch.compile's form."""
    path = _KEY.sub(r".\1", source.name)
    return f"L['self']{path[4:]}" if path.startswith("self.") else path
