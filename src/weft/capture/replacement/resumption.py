"""What follows a graph break: the operation in plain Python, then the continuations.

Place in the pipeline: called by the compiler when an interpretation ends at a break. The
replacement runs the operation of the frame that broke; then that frame and each of its callers
continue in a continuation, innermost first::

    t0 = print(v[0])                       # the operation
    t1 = f_inner_resumed(t0, x)            # the rest of the inner frame
    return tail_call(f_resumed, t1)        # the rest of the outer one

The replacement does not call the last one: it returns it, for its caller to call. So a loop that
breaks in each iteration needs no more stack than one that does not, and its tensors are freed on
the way.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import torch

from weft import _frame
from weft.capture.bytecode.continuation import NULL as NULL_ITEM
from weft.capture.bytecode.continuation import own_copy, resume_function, run_handling
from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import NullValue, SymbolicValue, stack_arguments, stack_kinds
from weft.capture.core.breaks import graph_break
from weft.capture.core.cell import CellValue
from weft.capture.core.frame import Frame, frame_places
from weft.capture.core.lifetimes import frame_variables
from weft.capture.core.tracebacks import caught, hide
from weft.capture.library.tensors.tensor import TensorValue
from weft.capture.replacement.break_operations import TRANSLATORS, Branch, Operation, can_translate
from weft.capture.replacement.emitter import ReplacementEmitter
from weft.capture.replacement.user_lines import call_in_frames, operation_in_frames

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

MakeContinuation = Callable[[types.FunctionType], Any]


hide(run_handling.__code__)


@final
@dataclass(slots=True)
class Step:
    """What one frame still does. `attempt` emits statements that may raise into the frame's
    exception handler, and returns the name of their result; `resume` emits what follows with that
    result."""

    attempt: Callable[[], str]
    resume: Callable[[str], str]


@final
class Resumption:
    """Emits everything that follows a break."""

    def __init__(self, tx: Interpreter, emit: ReplacementEmitter, make: MakeContinuation) -> None:
        self.tx = tx
        self.emit = emit
        self.make = make

    def write(self, frame: Frame, *, raises: bool = False) -> None:
        """Emit the operation of `frame`, then the rest of it and of its callers.

        raises: the operation is known to raise; the rest of the frame is left to Python, whose
        tracebacks have the right lines.
        """
        self.emit.graph_call.goes_on = True
        eager = raises or not can_translate(frame.current.name)
        step = self._eager(frame) if eager else self._operation(frame)
        outer = frame.caller
        while outer is not None:
            step = self._step_in_try(outer, self._link(outer, step))
            outer = outer.caller
        self.tx.effects.replay(self.emit)
        self.emit.line(f"return {step.resume(step.attempt())}")

    def _operation(self, frame: Frame) -> Step:
        """The operation of the frame that broke, then its continuation."""
        ins = frame.current
        operation = TRANSLATORS[ins.name](self.emit, frame, ins)
        stack = frame.stack[: len(frame.stack) - operation.taken]
        if operation.branches is None:
            step = self._plain_step(frame, stack, operation)
        else:
            step = self._branch(frame, stack, operation)
        return self._step_in_try(frame, step)

    def _eager(self, frame: Frame) -> Step:
        """The instruction and the rest of the frame as a continuation that is not compiled: for an
        instruction that raises, or one without a translator."""
        call = self._continuation(frame, frame.current.index, frame.stack, "", eager=True)
        run = self._tail_caller(frame)
        return Step(lambda: "", lambda _: run(call("")))

    def _plain_step(self, frame: Frame, stack: list[SymbolicValue], operation: Operation) -> Step:
        index = frame.current.index + 1
        suffix = "v" * operation.pushes
        if operation.null:
            suffix = f"v{NULL_ITEM}" if TABLE.null_above_callable else f"{NULL_ITEM}v"
        call = self._continuation(frame, index, stack, suffix)
        run = self._tail_caller(frame)

        def resume(result: str) -> str:
            several = operation.pushes > 1
            parts = [f"{result}[{n}]" for n in range(operation.pushes)] if several else [result]
            return run(call(*parts[: operation.pushes]))

        return Step(self._attempt(frame, operation), resume)

    def _attempt(self, frame: Frame, operation: Operation) -> Callable[[], str]:
        """A function that emits the operation and returns the name of its value."""
        text = self._handling(frame)(operation_in_frames(self.emit, frame, operation.text))

        def attempt() -> str:
            if operation.pushes or operation.branches is not None:
                name = self.emit.temporary(text)
                self.emit.stands_for(f"{name} = {text}", frame)
                return name
            self.emit.line(text)
            self.emit.stands_for(text, frame)
            return ""

        return attempt

    def _handling(self, frame: Frame | None) -> Callable[[str], str]:
        """A function that wraps an expression so that it is evaluated while the frame's current
        exception is being handled: code that it calls may ask for it, and errors that it raises
        refer to it."""
        error = None if frame is None else frame.handled_exception()
        if error is None:
            return lambda text: text
        name = self.emit.value(error)
        return lambda text: f"{self.emit.constant(run_handling)}({name}, {name}, lambda: {text})"

    def _branch(self, frame: Frame, stack: list[SymbolicValue], operation: Operation) -> Step:
        assert operation.branches is not None
        yes, no = (self._side(frame, stack, branch) for branch in operation.branches)
        run = self._tail_caller(frame)

        def resume(value: str) -> str:
            test = operation.test.format(value)
            return run(f"{yes(value)} if {test} else {no(value)}")

        return Step(self._attempt(frame, operation), resume)

    def _side(self, frame: Frame, stack: list[SymbolicValue], branch: Branch
              ) -> Callable[[str], str]:
        kept = frame.stack[-1:] if branch.keeps_top else []
        call = self._continuation(frame, branch.index, [*stack, *kept], "v" * branch.pushes)
        return call if branch.pushes else lambda value: call()

    def _link(self, frame: Frame, inner: Step) -> Step:
        """The step of a caller: all that the inner frame still does, then the rest of the
        caller."""
        call = self._continuation(frame, frame.current.index + 1, frame.stack, "v")
        run = self._tail_caller(frame)
        return Step(lambda: inner.resume(inner.attempt()), lambda result: run(call(result)))

    def _step_in_try(self, frame: Frame, step: Step) -> Step:
        """The step inside a `try` with the frame's exception handler.

        An error is stored, and the handler's continuation runs after the `try`, when the
        replacement itself no longer handles the error.
        """
        row = frame.program.handler_of(frame.current.index)
        if row is None:
            return step
        suffix = "l" * row.lasti + "v"
        handle = self._continuation(frame, row.target, frame.stack[: row.depth], suffix)
        run = self._tail_caller(frame)
        emit = self.emit
        raised = ""

        def attempt() -> str:
            nonlocal raised
            raised = emit.temporary("[]")
            with emit.block("try:"):
                result = step.attempt()
            with emit.block("except BaseException as error:"):
                callers = len(frame_places(frame)) - 1
                emit.line(f"{raised}.append({emit.constant(caught)}(error, {callers}))")
            return result

        def resume(result: str) -> str:
            name = emit.temporary("None")
            with emit.block(f"if {raised}:"):
                emit.line(f"{name} = {run(handle(f'{raised}.pop()'))}")
            with emit.block("else:"):
                emit.line(f"{name} = {step.resume(result)}")
            return name

        return Step(attempt, resume)

    def _continuation(
        self, frame: Frame, index: int, stack: list[SymbolicValue], suffix: str, *,
        eager: bool = False,
    ) -> Callable[..., str]:
        """A function that returns the tail call of the rest of `frame`, given the expressions that
        are pushed on its stack.

        `suffix` has the stack kinds of those: "" for nothing, "v" for a value, "lv" for an
        exception at a handler that needs the offset of the raising instruction.
        """
        if frame.generator is not None:
            raise graph_break("unknown-operation", "a break inside a generator")
        code = self.tx.compiler.own_code(frame.code)
        offset = frame.program.instructions[index].offset
        shape = stack_kinds(stack)
        names = frame_variables(frame, code, offset)
        boxes = [name for name in names if name in frame.cells and name in code.co_cellvars]
        plain = [name for name in names if name not in boxes]
        kept = [v for v in stack if not isinstance(v, NullValue)]
        before = stack_arguments(self.emit, stack)
        after = [self.emit.value(frame.locals[n]) for n in plain]
        after += [self.emit.value(frame.cells[n]) for n in boxes]
        make = None if eager else self.make
        values = [*kept, *([None] * suffix.count("v")), *(frame.locals[n] for n in plain)]
        target = self._callable(frame, code, offset, shape + suffix, plain, boxes, make, values)

        tail = self.emit.constant(_frame.giving_tail_call if eager else _frame.tail_call)

        def call(*pushed: str) -> str:
            return f"{tail}({', '.join([target, *before, *filter(None, pushed), *after])})"

        return call

    def _tail_caller(self, frame: Frame) -> Callable[[str], str]:
        """A function that emits the continuation's tail call: the replacement returns the outermost
        frame's, and runs those of inner frames."""
        caller = frame.caller
        if caller is None:
            return self.emit.temporary
        finish = self.emit.constant(_frame.finish)
        handling = self._handling(caller)

        def run(text: str) -> str:
            finished = handling(call_in_frames(
                self.emit, caller, finish, self.emit.temporary(text)))
            name = self.emit.temporary(finished)
            self.emit.stands_for(f"{name} = {finished}", caller)
            return name

        return run

    def _callable(
        self, frame: Frame, code: types.CodeType, offset: int, shape: str, plain: list[str],
        boxes: list[str], compiled: MakeContinuation | None, values: list[SymbolicValue | None],
    ) -> str:
        globals = frame.globals.original
        closure = tuple(types.CellType() for _ in code.co_freevars)
        function = resume_function(
            code, offset, shape, plain, boxes, globals=globals, closure=closure or None,
            iterated=compiled is None,
        )
        if compiled is None:  # on code of its own: the shared one may have compiled entries
            function.__code__ = own_copy(function.__code__)
            _frame.skip(function.__code__)
        self._expect_sizes(function.__code__, values)
        if not closure:
            return self.emit.constant(compiled(function) if compiled else function)
        if compiled:
            self.emit.constant(compiled(function))  # entries live as long as one function of it
        cells = "".join(f"{self.emit.value(self._cell(frame, n))}, " for n in code.co_freevars)
        make = self.emit.constant(types.FunctionType)
        parts = (
            f"{make}({self.emit.constant(function.__code__)}, {self.emit.constant(globals)}, "
            f"{function.__name__!r}, None, ({cells}))"
        )
        text = f"{self.emit.constant(compiled)}({parts})" if compiled else parts
        return self.emit.temporary(text)

    def _expect_sizes(self, code: types.CodeType, values: list[SymbolicValue | None]) -> None:
        """Make sizes that are symbolic here symbolic in the continuation too."""
        for name, value in zip(code.co_varnames, values, strict=False):
            fake = value.fake(self.tx) if isinstance(value, TensorValue) else None
            if fake is not None:
                dims = [d for d, size in enumerate(fake.shape) if isinstance(size, torch.SymInt)]
                self.tx.compiler.expect_symbolic(code, name, dims)

    def _cell(self, frame: Frame, name: str) -> CellValue:
        return frame.cells[name]
