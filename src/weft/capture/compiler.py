"""The miss path: a frame that no compiled variant fits becomes a new variant.

Place in the pipeline: the top of capture, called by the C extension. `FrameCompiler.on_miss` lists
the steps::

    limit → interpret (restarting at graph breaks) → graph → backend → replacement → guards → Entry

None as its answer means: run this call eagerly.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar, final

from torch import fx, inference_mode

from weft import _frame
from weft._torch import are_functorch_transforms_active, dispatch_mode_depth, forward_ad_level
from weft.capture.breaks import (
    GraphBreak,
    ObservedException,
    Restart,
    Signal,
    SkipFrame,
    StartOver,
    graph_break,
)
from weft.capture.bytecode import PerCode
from weft.capture.bytecode.liveness import needs_frame
from weft.capture.frame import Frame
from weft.capture.graph import GraphInput
from weft.capture.guards.recompiles import (
    Variant,
    changes_since,
    fitting_entry,
    note_recompile,
    recompile_reasons,
    stop_compiling,
)
from weft.capture.guards.shape_guards import add_shape_guards
from weft.capture.interpreter import Interpreter
from weft.capture.replacement.break_operations import can_translate
from weft.capture.replacement.checkpointing import eager_entry, runs_checkpoint
from weft.capture.replacement.continuation import CannotResumeError, is_continuation
from weft.capture.replacement.device_modes import (
    enter_devices,
    modes_set_aside,
    only_devices,
    without_modes,
)
from weft.capture.replacement.emitter import Emitter, restore_modes
from weft.capture.replacement.reruns import has_checks, may_refuse_data, reporter, written_inputs
from weft.capture.replacement.resumption import Resumption
from weft.capture.skips import are_builtins_replaced, is_skipped_code, may_hold_tensors
from weft.capture.source import FrameState
from weft.capture.state import no_saved_tensor_hooks
from weft.capture.stops import BreakHere
from weft.capture.values.numbers.data_numbers import note_checks
from weft.capture.values.numbers.symbolic_numbers import number_node
from weft.capture.values.tensors.input_tests import add_input_tests
from weft.capture.values.tensors.known_data import rely_on
from weft.compiling import compiling
from weft.config import CompileOptions, config
from weft.diagnostics import checks, events
from weft.diagnostics.failures import handle
from weft.diagnostics.trace_files import traced
from weft.dims import Declarations
from weft.errors import GraphBreakError, RecompileError, UserError
from weft.interrupts import checkpoint
from weft.runtime.restoring import restored_on_error
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake import FakeContext
from weft.shapes.policy import DynamicPolicy
from weft.stances import breaks_are_errors, current_stance

_S = TypeVar("_S", bound=Signal)
Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]

_MAX_SKIPS: Final = 3
"""A code object is left to Python after this many failed captures (the program raised, ...)."""

_MAX_RAISING_VARIANTS: Final = 3
"""How many calls that raise become variants of their code."""
_MAX_RAISES: Final = 24
"""How many calls that raise are captured at most."""

_MAX_HANDLERS: Final = 12
"""How many exception handlers of a replacement may be nested (Python allows 20 blocks)."""


def _may_rerun(graph: fx.Graph, code: types.CodeType) -> bool:
    """Whether the frame can be run eagerly from its start if its graph raises.

    A continuation is not, unless its graph could raise because of its inputs' data: it should free
    its arguments early.
    """
    unchanged = has_checks(graph) or written_inputs(graph) == ()
    return unchanged and (not is_continuation(code) or may_refuse_data(graph))


@final
class FrameCompiler:
    """Compiles frames for one `weft.compile` call: its options, its backend, its code copies."""

    def __init__(self, options: CompileOptions, backend: Backend, *, every_frame: bool = False,
                 is_skipped: Callable[[types.CodeType], bool] = is_skipped_code,
                 on_error: Callable[..., None] = handle) -> None:
        self.options = options
        self.backend = backend
        self.every_frame = every_frame
        """For tests of capture: also compiles nested frames that have nothing to compile in them,
        and does not warn of limits."""
        self.is_skipped = is_skipped
        self.on_error = on_error
        self._codes: PerCode[types.CodeType] = PerCode()
        self._skips: PerCode[int] = PerCode()
        self._raises: PerCode[int] = PerCode()
        self._policies: PerCode[DynamicPolicy] = PerCode()
        self._n_recompiles = 0
        self._declared = Declarations()
        self._root: types.CodeType | None = None

    # -- entry points -----------------------------------------------------------------------------

    def root(self, function: types.FunctionType) -> Any:
        """The compiled form of the function that the user gave to `weft.compile`."""
        self._root = function.__code__
        return self.compiled(function)

    def compiled(self, function: types.FunctionType) -> Any:
        """The compiled form of a function; its first call captures it."""
        return _frame.CompiledFunction(function, self.on_miss)

    def on_miss(
        self, compiled: Any, function: types.FunctionType, code: types.CodeType,
        locals: list[Any], cells: tuple[Any, ...], globals: dict[str, Any],
    ) -> Any:
        """Return an entry for this frame, or None to run it eagerly.

        `compiled` is the compiled function that was called, or None for a frame that it called.
        """
        state = FrameState(code, locals, cells, globals)
        if are_builtins_replaced():
            return None
        if current_stance() != "default":
            return self._refuse(compiled, state)
        if compiled is None and runs_checkpoint(code):
            return eager_entry()
        if compiled is None and self.is_skipped(code):
            _frame.skip(code)
            return None
        if compiled is None and not self.every_frame and not may_hold_tensors(state):
            self._note_skip(code, always=False)
            return None
        with compiling(), self.options.scope():
            made_by_another_thread = fitting_entry(state)
            if made_by_another_thread is not None or _frame.is_settled(code):
                return made_by_another_thread
            if self._reaches_limit(state):
                return None
            entry = self._compile_or_skip(state, outermost=compiled is not None)
            if entry is not None:  # under the lock: the next thread looks for it at once
                _frame.add_entry(code, entry)
            return entry

    def _compile_or_skip(self, state: FrameState, *, outermost: bool) -> Any:
        """Return the new entry; if the frame cannot be compiled, record why and return None."""
        code = state.code
        try:
            with traced(), events.stage("capture"), no_saved_tensor_hooks():
                return self._compile(state, outermost=outermost)
        except SkipFrame as skip:
            events.record("skip", code=code, reason=skip.reason)
            if skip.counts:
                self._note_skip(code, always=skip.always)
        except ObservedException as error:
            events.record("skip", code=code, reason=str(error), stack=error.stack)
            self._note_skip(code, always=False)
        except RecursionError:  # the interpreter multiplies the program's nesting
            events.record("skip", code=code, reason="nested too deeply to be captured")
            self._note_skip(code, always=False)
        except Exception as error:  # noqa: BLE001  the documented boundary: eager instead
            checkpoint()  # what failed may be a compiler process that was interrupted too
            self.on_error(error, during="capture", what=code.co_qualname)
            self._note_skip(code, always=False)
        return None

    def _refuse(self, compiled: Any, state: FrameState) -> None:
        """A stance forbids compiling: let the call run eagerly, or raise RecompileError."""
        known = _frame.entries(state.code)
        if current_stance() == "fail_on_recompile" and (known or compiled is not None):
            raise RecompileError(state.code.co_qualname, recompile_reasons(known, state))

    def compiled_copy(self, function: types.FunctionType) -> Any:
        """The compiled form of a function of the program, with this compilation's copy of its
        code."""
        copy = types.FunctionType(self.own_code(function.__code__), function.__globals__,
                                  function.__name__, function.__defaults__, function.__closure__)
        copy.__kwdefaults__ = function.__kwdefaults__
        return self.compiled(copy)

    def own_code(self, code: types.CodeType) -> types.CodeType:
        """This compilation's copy of a code object: the entries of its continuations belong to the
        copy."""
        if is_continuation(code):
            return code
        found = self._codes.get(code)
        if found is None:
            found = self._codes[code] = code.replace()
        return found

    def policy(self, code: types.CodeType) -> DynamicPolicy:
        """Which sizes of the code are symbolic, as earlier captures taught."""
        found = self._policies.get(code)
        if found is None:
            found = self._policies[code] = DynamicPolicy(
                self.options.dynamic, automatic=config.automatic_dynamic,
                outermost=code is self._root, declared=self._declared)
        return found

    def expect_symbolic(self, code: types.CodeType, name: str, dims: list[int]) -> None:
        """Make some dimensions of a continuation's argument symbolic, as they are in its caller."""
        if dims:
            self.policy(code).expected.setdefault(name, set()).update(dims)

    # -- limits -----------------------------------------------------------------------------------

    def _note_skip(self, code: types.CodeType, *, always: bool) -> None:
        skips = (self._skips.get(code) or 0) + 1
        self._skips[code] = skips
        if always or skips >= _MAX_SKIPS:
            _frame.freeze(code)  # until `weft.reset()`

    def _note_raise(self, code: types.CodeType, raised: ObservedException) -> None:
        """Count a captured call that raises; raise SkipFrame once enough of them became
        variants."""
        count = self._raises[code] = (self._raises.get(code) or 0) + 1
        events.record("skip", code=code, reason=str(raised), stack=raised.stack)
        if count >= _MAX_RAISES:
            _frame.freeze(code)
        if count > _MAX_RAISING_VARIANTS:
            raise SkipFrame(str(raised), counts=False)

    def _reaches_limit(self, state: FrameState) -> bool:
        """Whether the code has too many variants for one more; records why none of them fits."""
        code = state.code
        known = _frame.entries(code)
        if not known:
            return False
        changes = changes_since(known, state)
        limit = self._reached_limit(len(known))
        if limit is not None:
            stop_compiling(code, changes, limit, warn=not self.every_frame)
            return True
        self._n_recompiles += 1
        self.policy(code).must_share = len(known) + 1 == config.cache_size_limit
        note_recompile(code, changes)
        return False

    def _reached_limit(self, n_known: int) -> str | None:
        """The name of the setting that forbids another variant of code with `n_known` variants, or
        None."""
        if n_known >= config.cache_size_limit:
            return "cache_size_limit"
        return "recompile_limit" if self._n_recompiles >= config.recompile_limit else None

    # -- one frame --------------------------------------------------------------------------------

    def _compile(self, state: FrameState, *, outermost: bool) -> Any:
        """Return a new entry for the frame.

        A first attempt may keep values that depend on tensors' data in the graph; if it fails
        because of them, a second one breaks the graph there.
        """
        code = state.code
        if not only_devices() or are_functorch_transforms_active():
            raise SkipFrame("called under a torch function mode or transform")
        if forward_ad_level() >= 0:
            raise SkipFrame("called inside a level of forward-mode AD")
        if dispatch_mode_depth():  # the mode must see every operator
            raise SkipFrame("called under a torch dispatch mode")
        if needs_frame(code):
            raise SkipFrame("looks into its own frame", always=True)
        if self.options.dynamic_shapes is not None and code is self._root:
            self._declared.read(self.options.dynamic_shapes, code, state.locals)
        if config.data_dependent and not self.policy(code).breaks_on_data:
            attempt = Attempt(self, state, data_dependent=True)
            try:
                return self._entry_of(attempt, outermost=outermost)
            except (UserError, GraphBreakError):
                raise
            except Exception as error:  # if its cause is another, the second attempt raises it too
                if not attempt.met_data:
                    raise
                self.policy(code).breaks_on_data = True
                events.record("perf", text=f"{code.co_qualname}: captured again with breaks at "
                              f"what depends on data: {type(error).__name__}: {error}")
        attempt = Attempt(self, state, data_dependent=False)
        return self._entry_of(attempt, outermost=outermost)

    def _entry_of(self, attempt: Attempt, *, outermost: bool) -> Any:
        """Run an attempt and return its entry."""
        modes = _frame.global_state()
        with modes_set_aside() as attempt.devices:
            try:
                return self._build_entry(attempt, modes, outermost=outermost)
            finally:
                attempt.forget()

    def _build_entry(self, attempt: Attempt, modes: Any, *, outermost: bool) -> Any:
        """The steps of a capture: interpret, compile the graph, write the replacement and guards.

        `modes` is PyTorch's global state when the frame was entered.
        """
        code, globals = attempt.state.code, attempt.state.globals
        tx, emit, signal = attempt.interpret()
        raised = attempt.raised
        if raised is not None:
            self._note_raise(code, raised)
        if not (outermost or self.every_frame or tx.builder.n_calls):
            raise SkipFrame("nothing to compile", always=raised is None, counts=raised is None)
        graph, inputs = self._graph(tx, emit, code)
        if graph is not None and _may_rerun(tx.builder.graph, code):
            emit.on_error = reporter(code, self.policy(code))
        if graph is not None and attempt.devices:
            graph = without_modes(graph)
        replacement, text = emit.finish(graph, inputs, code)
        with events.stage("guards"):
            tx.identities.finish()
            tx.outside.guard_aliases(tx.effects)
            add_shape_guards(tx)
            add_input_tests(tx)
            nodes, tree_checks, n_slots = tx.guards.lower(modes)
            tree = _frame.GuardTree(nodes, tree_checks, n_slots)
        needs_hook = signal is not None or raised is not None
        entry = _frame.Entry(tree, replacement, globals, needs_hook, emit.on_error is not None,
                             any_size=bool(tx.shapes.sources))
        Variant.attach(replacement, tx.guards)
        if events.watched():
            events.record("guards", code=code, guards=[str(g) for g in tx.guards.all])
        events.record("bytecode", code=code, source=text)
        return entry

    def _graph(self, tx: Interpreter, emit: Emitter, code: types.CodeType
               ) -> tuple[Callable[..., Any] | None, list[GraphInput]]:
        """The backend's callable for the captured graph and the graph's inputs; None for the
        callable if the graph has nothing to run."""
        if not tx.builder.n_calls and not emit.outputs:
            return None, []
        module, inputs = tx.builder.finish(emit.outputs)
        calls = any(n.op in ("call_function", "call_method") for n in module.graph.nodes)
        if not calls and not emit.outputs:
            return None, []
        events.record("graph", code=code, gm=module, nodes=len(module.graph.nodes),
                      guards=len(tx.guards))
        if tx.shapes.unbacked_symbols.exist:
            module.meta["shapes"] = tx.shapes
        written = written_inputs(module.graph) if has_checks(module.graph) else ()
        if written:
            module.meta["restored"] = written
        examples = [item.example for item in inputs]
        if tx.early_ends.all_in_inference:
            with inference_mode():
                compiled = inference_mode()(self._compiled(module, examples))
        else:
            compiled = self._compiled(module, examples)
        events.count("graphs")
        return restored_on_error(compiled, module), inputs

    def _compiled(self, module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        """The backend's callable for a graph, checked against eager if the settings ask for it."""
        if not checks.wanted("capture"):
            return self.backend(module, examples)
        source = checks.copy_of(module)
        return checks.checked(
            "capture", lambda: self.backend(module, examples), lambda _: source, lambda: examples,
            self.backend, getattr(self.backend, "__name__", "inductor"))


@final
class Attempt:
    """Interprets one frame, again and again, until its graph ends where it can end."""

    def __init__(self, compiler: FrameCompiler, state: FrameState, *, data_dependent: bool
                 ) -> None:
        self.compiler = compiler
        self.state = state
        self.data_dependent = data_dependent
        self._shapes: ShapeContext | None = None
        self._tried: list[Interpreter] = []
        self.raised: ObservedException | None = None
        """The exception with which the program left the frame, if it did."""
        self._raises_at = -1
        self.devices: tuple[str, ...] = ()
        """The default devices that were set when the frame was called."""

    def interpret(self) -> tuple[Interpreter, Emitter, GraphBreak | None]:
        """The interpreter at its end, the emitted replacement, and the graph break if there was
        one."""
        break_at = -1
        reason: GraphBreak | None = None
        while True:
            code = self.state.code
            policy = self.compiler.policy(code)
            for earlier in self._tried[-1:]:
                earlier.classes.hide_models()
            tx = Interpreter(code, self.state.globals, FakeContext(), policy, self.compiler,
                             break_at=break_at, data_dependent=self.data_dependent)
            self._shapes = tx.shapes
            self._tried.append(tx)
            enter_devices(tx, self.devices)
            frame = tx.root_frame(self.state.locals, self.state.cells)
            emit = Emitter(tx)
            try:
                self._finish(tx, emit, frame)
                return tx, emit, reason
            except StartOver:
                continue
            except Restart as restart:
                if self._can_avoid(tx, restart.reason):
                    break_at, reason, self.raised = -1, None, None
                    continue
                reason = _without_traceback(restart.reason)
                self._report(reason)
                break_at = restart.step
            except ObservedException as error:
                if self.raised is not None:
                    raise
                self.raised, reason = _without_traceback(error), None
                break_at = self._raises_at = tx.raised_at(error)
            except BreakHere as here:
                outer = self._break(tx, emit, here, reason)
                if outer is None:
                    return tx, emit, reason
                break_at = outer

    def forget(self) -> None:
        """Drop the references to the program's objects."""
        for tx in self._tried:
            tx.forget()

    @property
    def met_data(self) -> bool:
        """Whether the last interpretation put something into the graph that depends on data."""
        return self._shapes is not None and bool(self._shapes.unbacked_symbols.exist)

    def _finish(self, tx: Interpreter, emit: Emitter, frame: Any) -> None:
        """End the replacement of a frame that was captured to its end: return its value."""
        value = tx.run_root(frame)
        try:
            restore_modes(emit, tx)
            text = emit.value(value)
            tx.effects.replay(emit)
            emit.line(f"return {text}")
        except GraphBreak as signal:
            if signal.step < 0:
                raise SkipFrame("the result or an effect cannot be rebuilt") from None
            raise Restart(signal.step, signal) from None
        if _has_unrecoverable_checks(tx):
            raise Restart(tx.data.checked_at[0], graph_break(
                "data-dependent-branch",
                "a branch that may raise, in a graph whose writes autograd sees"))
        earlier = tx.early_ends.restart(tx, emit)
        if earlier is not None:
            raise earlier

    def _can_avoid(self, tx: Interpreter, reason: GraphBreak) -> bool:
        """Whether another interpretation can get past the break; prepares `tx.policy` for it.

        It can if the contents of small inputs are guarded, or (with `fullgraph`) if numbers that
        keep changing are fixed.
        """
        forbidden = breaks_are_errors(reason.error_mode, self.compiler.options.fullgraph)
        if forbidden and reason.kind.id == "varying-argument":
            tx.policy.fixes_all = True
            return True
        if not config.data_dependent:
            return False
        return rely_on(tx, reason, always=forbidden)

    def _report(self, reason: GraphBreak) -> None:
        if breaks_are_errors(reason.error_mode, self.compiler.options.fullgraph):
            raise GraphBreakError(reason.reason, id=reason.kind.id, stack=reason.stack,
                                  hint=reason.kind.hint)

    def _break(self, tx: Interpreter, emit: Emitter, here: BreakHere, reason: GraphBreak | None
               ) -> int | None:
        """Emit the break and its continuations, and return None.

        If the graph cannot end at this instruction, return the step where to try next, in a caller.
        """
        frame = here.frame
        if _has_unrecoverable_checks(tx):
            return tx.data.checked_at[0]
        deep = _frame_over_handler_limit(frame)
        if deep is not None:
            return _outward(deep, graph_break("recursion", "too many nested handlers"))
        try:
            if tx.end.state_changed:
                raise graph_break("state", "a break inside of a transform")
            raises = tx.step == self._raises_at or (reason is not None and reason.rest_is_eager)
            whole = frame.caller is None and tx.builder.n_calls
            if not (whole or raises) and not can_translate(frame.current.name):
                raise graph_break("unknown-opcode", f"a break at {frame.current.name}")
            restore_modes(emit, tx)
            Resumption(tx, emit, self.compiler.compiled).write(frame, raises=raises)
            earlier = tx.early_ends.restart(tx, emit)
            if earlier is not None:
                return earlier.step
        except (GraphBreak, CannotResumeError) as failure:
            return _outward(frame, failure)
        if reason is not None:
            events.count("graph_breaks")
            events.record("graph_break", id=reason.kind.id, reason=reason.reason,
                          stack=reason.stack, hint=reason.kind.hint)
        return None


def _has_unrecoverable_checks(tx: Interpreter) -> bool:
    """Whether the graph checks assumptions about data but changes what cannot be restored: if a
    check fails, the frame cannot be run eagerly from its start any more."""
    note_checks(tx, partial(number_node, tx))
    return bool(tx.data.checked_at) and written_inputs(tx.builder.graph) is None


def _without_traceback(error: _S) -> _S:
    """The signal without its traceback, whose frames refer to the interpreter and so would keep the
    program's objects alive until the next garbage collection."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _frame_over_handler_limit(frame: Frame) -> Frame | None:
    """The outermost frame that, with its callers, lies inside more than `_MAX_HANDLERS` exception
    handlers, or None: the replacement would need a `try` block for each.

    In a recursion, it is the first frame whose code also runs further out: a break there gives
    continuations that serve all levels.
    """
    chain = [frame]
    while (caller := chain[-1].caller) is not None:
        chain.append(caller)
    n_handlers = 0
    codes: set[types.CodeType] = set()
    recursive: Frame | None = None
    for place in reversed(chain):
        n_handlers += place.program.handler_of(place.current.index) is not None
        if recursive is None and place.code in codes:
            recursive = place
        if n_handlers > _MAX_HANDLERS:
            return recursive or place
        codes.add(place.code)
    return None


def _outward(frame: Any, failure: Exception) -> int:
    """The step of the nearest caller where the graph can end instead.

    Raises SkipFrame if there is none.
    """
    while frame.caller is not None:
        inner_resumable = frame.resumable
        frame = frame.caller
        if can_translate(frame.current.name) or inner_resumable:
            return frame.step  # type: ignore[no-any-return]
    raise SkipFrame(f"no way to end the graph: {failure}", always=True)
