"""The miss path: a frame that no compiled variant fits becomes a new variant.

Place in the pipeline: the top of capture, called by the C extension. `FrameCompiler.on_miss` lists
the steps::

    limit → interpret (restarting at graph breaks) → graph → backend → replacement → guards → Entry

None as its answer means: run this call eagerly.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, Final, final

import torch
from torch import fx, inference_mode

from weft import _frame
from weft._torch import (
    are_functorch_transforms_active,
    dispatch_mode_depth,
    forward_ad_level,
    get_tracing_state,
)
from weft.backends import is_own
from weft.capture.attempt import Attempt
from weft.capture.bytecode import PerCode
from weft.capture.bytecode.continuation import is_continuation
from weft.capture.bytecode.liveness import needs_frame, stops_in_debugger
from weft.capture.core.breaks import ObservedException, SkipFrame, graph_break
from weft.capture.core.graph import GraphInput
from weft.capture.core.graph_writes import may_refuse_data, writes_of
from weft.capture.core.skips import (
    are_builtins_replaced,
    is_skipped_code,
    may_hold_tensors,
    runs_script,
)
from weft.capture.core.source import FrameState
from weft.capture.core.state import no_saved_tensor_hooks
from weft.capture.core.wrappers import is_between_wrappers, is_wrapper_code
from weft.capture.guards.recompiles import (
    Variant,
    changes_since,
    fitting_entry,
    note_recompile,
    policy_of_equal_code,
    recompile_reasons,
    report_limit,
)
from weft.capture.guards.self_check import fits, require_fit
from weft.capture.guards.shape_guards import add_shape_guards
from weft.capture.interpreter import SymbolicInterpreter
from weft.capture.library.optimizers.early_state import take_back_states
from weft.capture.library.tensors.device_modes import modes_set_aside, only_devices, without_modes
from weft.capture.library.tensors.input_tests import add_input_tests
from weft.capture.replacement.checkpointing import runs_checkpoint
from weft.capture.replacement.emitter import ReplacementEmitter
from weft.capture.replacement.reruns import reporter
from weft.capture.sharing import Subject, settings_of
from weft.capture.stored.record import Record
from weft.compiling import compiling
from weft.config import CompileOptions, config
from weft.diagnostics import checks, events
from weft.diagnostics.failures import handle
from weft.diagnostics.regions import graph_region
from weft.diagnostics.trace_files import traced
from weft.dims import Declarations
from weft.errors import BackendError, GraphBreakError, InternalError, RecompileError, UserError
from weft.graph_call import GraphCall, graph_call
from weft.interrupts import surface
from weft.runtime.restoring import restored_on_error
from weft.shapes.graph_facts import GraphFacts, note_graph
from weft.shapes.policy import DynamicPolicy, no_user
from weft.stances import REFUSING, WAITING, current_stance
from weft.torch_marks import disabled_text, is_disabled, is_disabled_deeply, unmarked
from weft.torch_version import IS_TESTED

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]

_frame.tensor_access()  # measured here: later, a transform may hide where tensors keep their data

_MAX_SKIPS: Final = 3
"""A code object is left to Python after this many failed captures (the program raised, ...)."""

_MOST_SHARED: Final = 64
"""How many variants of one code object are kept for others than those that have used them."""

_MAX_RAISING_VARIANTS: Final = 3
"""How many calls that raise become variants of their code."""
_MAX_RAISES: Final = 24
"""How many calls that raise are captured at most."""


def _watcher() -> str | None:
    """What must see each operator of the program, so that calls run eagerly as long as it is
    there."""
    if not only_devices() or are_functorch_transforms_active():
        return "a torch function mode or transform"
    if forward_ad_level() >= 0:
        return "a level of forward-mode AD"
    if dispatch_mode_depth():
        return "a torch dispatch mode"
    if get_tracing_state() is not None:
        return "torch.jit.trace"
    return None


@final
class FrameCompiler:
    """Compiles frames for one `weft.compile` call: its options, its backend, its limits, what it
    has learned of sizes. The entries are shared with equal calls (`sharing.py`)."""

    def __init__(self, options: CompileOptions, backend: Backend, *, every_frame: bool = False,
                 is_skipped: Callable[[types.CodeType], bool] = is_skipped_code,
                 on_error: Callable[..., None] = handle) -> None:
        self.options = options
        self.backend = backend
        self.settings = settings_of(options, backend)
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
        self._n_graphs = 0
        self._declared = Declarations()
        self._root: types.CodeType | None = None
        self._wrapper: Callable[[], Any] = no_user
        self._waited: PerCode[bool] = PerCode()
        self._others: dict[Any, Any] = {}
        self._record: Record | None = None
        self._is_other = False

    # -- entry points -----------------------------------------------------------------------------

    def root(self, function: types.FunctionType, subject: Subject) -> Any:
        """The compiled form of the function that the user gave to `weft.compile`; `subject`: what
        it runs, if many callables have its code."""
        self._root = self.settings.code(function, subject)
        own = with_code(function, self._root)
        functools.update_wrapper(own, function)  # with the marks of what it is
        compiled = self.compiled(own)
        self._wrapper = weakref.ref(compiled)
        self.settings.note_user(self._root, compiled)
        return compiled

    def compiled(self, function: types.FunctionType) -> Any:
        """The compiled form of a function; its first call captures it."""
        return _frame.CompiledFunction(function, _frame.OnMiss(self.on_miss, self.settings))

    def other(self, compiled: Any, name: object, resolve: Callable[[Any], Backend]) -> Any:
        """The form of a compiled function that a backend which is forced upon it has compiled; None
        if it is one, or goes on in the middle of a call."""
        function: types.FunctionType = compiled.__wrapped__
        if self._is_other or function.__code__ is not self._root:
            return None
        if name not in self._others:
            compiler = FrameCompiler(self.options, resolve(name))
            compiler._is_other = True
            self._others[name] = compiler.root(function, self._root)
        return self._others[name]

    def on_miss(
        self, compiled: object, function: types.FunctionType, code: types.CodeType,
        locals: list[Any], cells: tuple[Any, ...], globals: dict[str, Any],
    ) -> Any:
        """Return an entry for this frame, or None to run it eagerly.

        `compiled` is the compiled function that was called, or None for a frame that it called.
        """
        state = FrameState(code, locals, cells, globals)
        if are_builtins_replaced():
            return None
        if is_disabled(function):
            return self._leave_disabled(compiled, function)
        stance = current_stance()
        if stance in REFUSING:
            return self._refuse(compiled, state)
        if stance in WAITING and not self._waited.get(code):
            self._waited[code] = True
            return None
        if compiled is None and runs_checkpoint(code):
            _frame.skip_deeply(code)
            return None
        if compiled is None and self.is_skipped(code):
            _frame.skip(code)
            return None
        if is_wrapper_code(code):
            _frame.skip(code)
            return None
        if is_between_wrappers(state) or (compiled is None and runs_script(state)):
            return None
        if compiled is None and not self.every_frame and not may_hold_tensors(state):
            self._note_skip(code, always=False)
            return None
        watcher = _watcher()
        if watcher is not None:
            events.record("skip", code=code, reason=f"called under {watcher}")
            return None
        with compiling(), self.options.scope():
            made_by_another_thread = fitting_entry(state, self.settings)
            if made_by_another_thread is not None or _frame.is_settled(code, self.settings):
                return made_by_another_thread
            if self._reaches_limit(state):
                return None
            entry = self._loaded_or_compiled(state, outermost=compiled is not None)
            if entry is not None:  # under the lock: the next thread looks for it at once
                _frame.add_entry(code, entry, _MOST_SHARED)
            return entry

    def _entries(self, code: types.CodeType) -> list[Any]:
        """The variants of the code that count as this call's: those of the root that its compiled
        function has used."""
        compiled = self._wrapper() if code is self._root else None
        return _frame.entries(code, self.settings) if compiled is None else compiled.used_entries

    def _freeze(self, code: types.CodeType) -> None:
        """Compile no more variants of the code, until `weft.reset()`."""
        compiled = self._wrapper() if code is self._root else None
        if compiled is None:
            _frame.freeze(code, self.settings)
        else:
            compiled.freeze_entries()

    def _loaded_or_compiled(self, state: FrameState, *, outermost: bool) -> Any:
        """A further entry, of an earlier process or new; None if the frame cannot be compiled."""
        store = _store()
        if store is None:
            return self._compile_or_skip(state, outermost=outermost)
        stored = store.stored_entry(self, state, outermost=outermost)
        if stored is not None and not config.verify_entries:
            return stored
        with store.OneRankCompiles(self, state, outermost=outermost) as entry:
            if entry is None:
                entry = self._compile_or_skip(state, outermost=outermost)
        if stored is not None and (entry is None or store.differs(stored, entry)):
            store.report_difference(state)
        return entry

    def _compile_or_skip(self, state: FrameState, *, outermost: bool) -> Any:
        """Return the new entry; if the frame cannot be compiled, record why and return None."""
        code = state.code
        try:
            with traced(), events.stage("capture"), no_saved_tensor_hooks():
                entry = self._compile(state, outermost=outermost)
                if not fits(entry, state):  # capturing has imported a module, say (`numpy.fft`)
                    entry = self._compile(state, outermost=outermost)
                    require_fit(entry, state)
            store = _store()
            if store is not None and self._record is not None:
                store.keep(self, self._record, outermost=outermost)
            return entry
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
            self.on_error(error, during="capture", what=code.co_qualname)
            self._note_skip(code, always=False)
        finally:
            self._record = None
        take_back_states()
        return None

    def _leave_disabled(self, compiled: object, function: types.FunctionType) -> None:
        """Leave a function that is marked as disabled to Python, and what it calls if the mark says
        so."""
        if compiled is not None and self.options.fullgraph:
            raise graph_break("disabled", disabled_text(function)).error()
        if is_disabled_deeply(function):
            _frame.skip_deeply(function.__code__)
        else:  # PyTorch's wrapper, whose code others share, or the function itself
            _frame.skip(getattr(unmarked(function), "__code__", function.__code__))

    def _refuse(self, compiled: object, state: FrameState) -> None:
        """A stance forbids compiling: let the call run eagerly, or raise RecompileError."""
        known = self._entries(state.code)
        if current_stance() == "fail_on_recompile" and (known or compiled is not None):
            raise RecompileError(state.code.co_qualname, recompile_reasons(known, state))

    def compiled_copy(self, function: types.FunctionType) -> object:
        """The compiled form of a function of the program, with this compilation's copy of its
        code."""
        return self.compiled(with_code(function, self.own_code(function.__code__)))

    def own_code(self, code: types.CodeType) -> types.CodeType:
        """This compilation's copy of a code object: the entries of its continuations belong to the
        copy."""
        if is_continuation(code):
            return code
        own = self._codes.get(code)
        if own is None:
            own = self._codes[code] = code.replace()
        return own

    def policy(self, code: types.CodeType) -> DynamicPolicy:
        """Which sizes of the code are symbolic, as earlier captures taught."""
        of_this_call = code is self._root or is_continuation(code)
        policies = self._policies if of_this_call else self.settings.policies
        policy = policies.get(code)
        if policy is None:
            policy = policies[code] = DynamicPolicy(
                self.options.dynamic, automatic=config.automatic_dynamic,
                outermost=code is self._root, declared=self._declared, user=self._wrapper)
        return policy

    def expect_symbolic(self, code: types.CodeType, name: str, dims: list[int]) -> None:
        """Make some dimensions of a continuation's argument symbolic, as they are in its caller."""
        if dims:
            self.policy(code).expected.setdefault(name, set()).update(dims)

    # -- limits -----------------------------------------------------------------------------------

    def _note_skip(self, code: types.CodeType, *, always: bool) -> None:
        skips = (self._skips.get(code) or 0) + 1
        self._skips[code] = skips
        if always or skips >= _MAX_SKIPS:
            self._freeze(code)

    def _note_raise(self, code: types.CodeType, raised: ObservedException) -> None:
        """Count a captured call that raises; raise SkipFrame once enough of them became
        variants."""
        count = self._raises[code] = (self._raises.get(code) or 0) + 1
        events.record("skip", code=code, reason=str(raised), stack=raised.stack)
        if count >= _MAX_RAISES:
            self._freeze(code)
        if count > _MAX_RAISING_VARIANTS:
            raise SkipFrame(str(raised), counts=False)

    def _reaches_limit(self, state: FrameState) -> bool:
        """Whether the code has too many variants for one more; records why none of them fits."""
        code = state.code
        known = self._entries(code)
        self._learn_from_equal_code(state, known)
        if not known:
            return False
        changes = changes_since(known, state)
        most = self._most_variants(code)
        limit = self._reached_limit(len(known), most)
        if limit is not None:
            self._freeze(code)
            report_limit(state, changes, limit, warn=not self.every_frame)
            return True
        self._n_recompiles += 1
        self.policy(code).must_share = len(known) + 1 == most
        note_recompile(code, changes)
        return False

    def _learn_from_equal_code(self, state: FrameState, used: list[Any]) -> None:
        """Before the first variant of the function that was compiled: if equal code was compiled,
        begin with what it has learned; also of sizes, if its variants were `used`."""
        code = state.code
        if code is not self._root or self._policies.get(code) is not None:
            return
        known = policy_of_equal_code(used or _frame.entries(code, self.settings), state)
        if known is not None:
            self._policies[code] = known.for_equal_code(
                self._declared, self._wrapper, sizes=bool(used))

    def _most_variants(self, code: types.CodeType) -> int:
        """How many variants of the code are compiled: those that share an entry of the root share
        its continuations too, and may need one each of what is theirs alone."""
        n_users = self.settings.n_users(self._root) if self._root and is_continuation(code) else 1
        return config.cache_size_limit * max(n_users, 1)

    def _reached_limit(self, n_known: int, most: int) -> str | None:
        """The name of the setting that forbids another variant of code with `n_known` variants, or
        None."""
        if n_known >= most:
            return "cache_size_limit"
        return "recompile_limit" if self._n_recompiles >= config.recompile_limit else None

    # -- one frame --------------------------------------------------------------------------------

    def _compile(self, state: FrameState, *, outermost: bool) -> object:
        """Return a new entry for the frame.

        A first attempt may keep values that depend on tensors' data in the graph; if it fails
        because of them, a second one breaks the graph there.
        """
        code = state.code
        if needs_frame(code):
            raise SkipFrame("looks into its own frame", always=True)
        if stops_in_debugger(code):
            if self.options.fullgraph:
                raise graph_break("debugger", f"{code.co_name} stops in a debugger").error()
            raise SkipFrame("stops in a debugger", always=True)
        if self.options.dynamic_shapes is not None and code is self._root:
            self._declared.read(self.options.dynamic_shapes, code, state.locals)
        if config.data_dependent and not self.policy(code).breaks_on_data:
            attempt = Attempt(self, state, data_dependent=True)
            try:
                return self._entry_of(attempt, outermost=outermost)
            except (UserError, GraphBreakError):
                raise
            except Exception as error:  # if its cause is another, the second attempt raises it too
                surface(error)
                if not attempt.met_data:
                    raise
                self.policy(code).breaks_on_data = True
                events.record("perf", text=f"{code.co_qualname}: captured again with breaks at "
                              f"what depends on data: {type(error).__name__}: {error}")
        attempt = Attempt(self, state, data_dependent=False)
        return self._entry_of(attempt, outermost=outermost)

    def _entry_of(self, attempt: Attempt, *, outermost: bool) -> object:
        """Run an attempt and return its entry."""
        modes = _frame.global_state()
        policy = self.policy(attempt.state.code)
        with modes_set_aside() as attempt.devices:
            try:
                return self._build_entry(attempt, modes, outermost=outermost)
            except IrreversibleGraph:
                if policy.ends_before_refusals:  # and it did not help
                    raise SkipFrame("a graph that may fail writes what cannot be undone") from None
                policy.ends_before_refusals = True
            except BackendError:
                if policy.all_static or not attempt.symbolic:
                    raise
                policy.all_static = True  # PyTorch's code generator wants its own symbols, say
            finally:
                attempt.forget()
        again = Attempt(self, attempt.state, data_dependent=(
            attempt.data_dependent and not policy.all_static))
        return self._entry_of(again, outermost=outermost)

    def _build_entry(self, attempt: Attempt, modes: object, *, outermost: bool) -> object:
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
        caught = tx.data.catches_refusals
        if _may_rerun(tx, graph, code):
            emit.graph_call.on_error = reporter(code, self.policy(code), caught=caught)
        if tx.data.early_checks:
            emit.graph_call.on_unexpected = reporter(code, self.policy(code), caught=caught)
        if graph is not None and attempt.devices:
            graph = without_modes(graph)
        replacement, text = emit.finish(graph, inputs, code)
        with events.stage("guards"):
            tx.class_guards.finish()
            tx.identities.finish()
            tx.outside.guard_aliases(tx.effects)
            add_shape_guards(tx)
            add_input_tests(tx)
            again = emit.graph_call.guards_under_lock
            if again is not None:
                again.collect(tx.tree)
            nodes, tree_checks, n_slots = tx.guards.lower(modes)
            tree = _frame.GuardTree(nodes, tree_checks, n_slots)
            if again is not None:
                again.bind(tree, globals)
        needs_hook = signal is not None or raised is not None
        entry = _frame.Entry(tree, replacement, globals, needs_hook, emit.graph_call.may_rerun,
                             any_size=bool(tx.shapes.sources), owner=self.settings)
        Variant.attach(replacement, tx.guards, tx.policy)
        if config.store_entries and emit.parts is not None:
            self._record = Record(
                attempt.state, nodes, tree_checks, n_slots, tx.guards.all, emit.parts, graph,
                needs_hook, emit.graph_call.may_rerun, bool(tx.shapes.sources),
                dict(tx.guards.interpreted), list(tx.guards.signatures.values()),
                tx.guards.orders, _not_storable(tx, emit, attempt))
        if events.watched():
            events.record("guards", code=code, guards=[str(g) for g in tx.guards.all])
        events.record("bytecode", code=code, source=text)
        attempt.final = tx
        return entry

    def _graph(self, tx: SymbolicInterpreter, emit: ReplacementEmitter, code: types.CodeType
               ) -> tuple[GraphCall | None, list[GraphInput]]:
        """The backend's callable for the captured graph and the graph's inputs; None for the
        callable if the graph has nothing to run."""
        if tx.data.n_checked < len(tx.shapes.asserts):
            raise InternalError("something was assumed of data when the graph was complete")
        if not tx.builder.n_calls and not emit.outputs:
            return None, []
        module, inputs = tx.builder.finish(emit.outputs)
        calls = any(n.op in ("call_function", "call_method") for n in module.graph.nodes)
        if not calls and not emit.outputs:
            return None, []
        events.record("graph", code=code, gm=module, nodes=len(module.graph.nodes),
                      guards=len(tx.guards))
        emit.graph_call.region = graph_region(code, self._n_graphs)
        self._n_graphs += 1
        writes = writes_of(module.graph)
        note_graph(module, GraphFacts(
            shapes=tx.shapes if tx.shapes.unbacked_symbols.exist else None,
            is_irreversible=not writes.can_undo,
            restored=writes.early if writes.can_undo else (),
            region=emit.graph_call.region,
        ))
        examples = [item.example for item in inputs]
        if tx.early_ends.all_in_inference:
            with inference_mode():
                compiled = self._compiled(module, examples)
            compiled = replace(compiled, call=inference_mode()(compiled.call))
        else:
            compiled = self._compiled(module, examples)
        if not writes.can_undo and not compiled.restores:
            raise IrreversibleGraph
        if writes.late and not compiled.restores:
            emit.graph_call.irreversible_errors = (torch.OutOfMemoryError,)
        events.count("graphs")
        return restored_on_error(compiled, module), inputs

    def _compiled(self, module: fx.GraphModule, examples: list[Any]) -> GraphCall:
        """The backend's callable for a graph, checked against eager if the settings ask for it, and
        once where PyTorch may have changed."""
        is_tried = not IS_TESTED and is_own(self.backend)
        if not (checks.wanted("capture") or is_tried):
            return graph_call(self.backend(module, examples))
        source = checks.copy_of(module)
        if not checks.wanted("capture"):
            return checks.tried(graph_call(self.backend(module, examples)), source)
        return checks.checked(
            "capture", lambda: self.backend(module, examples), lambda _: source, lambda: examples,
            self.backend, getattr(self.backend, "__name__", "inductor"))


def _store() -> types.ModuleType | None:
    """The entries on disk; None if they are not wanted: nothing of them is loaded then."""
    return import_module("weft.capture.stored.entries") if config.store_entries else None


def _not_storable(tx: SymbolicInterpreter, emit: ReplacementEmitter, attempt: Attempt
                  ) -> tuple[str, ...]:
    """Why the entry must not outlive the process."""
    reasons = [*tx.guards.bound_to_process]
    if emit.graph_call.guards_under_lock is not None:
        reasons.append("it holds locks of the program")
    if attempt.devices:
        reasons.append("a default device was set")
    if attempt.raised is not None:
        reasons.append("the program raises")
    return tuple(reasons)


def with_code(function: types.FunctionType, code: types.CodeType) -> types.FunctionType:
    """The same function with another, equal code object, which has entries of its own."""
    copy = types.FunctionType(code, function.__globals__, function.__name__, function.__defaults__,
                              function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _may_rerun(
    tx: SymbolicInterpreter, graph: Callable[..., object] | None, code: types.CodeType
) -> bool:
    """Whether the frame is run eagerly from its start if its draws or its graph raise.

    A continuation is not, unless its graph could raise because of its inputs' data: it should free
    its arguments early.
    """
    if graph is None or is_continuation(code):
        return bool(tx.numbers.draws) or (graph is not None and may_refuse_data(tx.builder.graph))
    return True


@final
class IrreversibleGraph(Exception):
    """A graph that may raise after a write that cannot be undone, and whose backend does not store
    the new values at its end."""
