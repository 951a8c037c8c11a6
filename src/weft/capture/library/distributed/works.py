"""What collectives with `async_op=True` return: handles to wait for.

Place in the pipeline: see `weft.capture.library`. A graph waits at the call, which is no later than
the program does. So for the program everything is done as soon as the call returns::

    work = dist.all_reduce(x, async_op=True)   # nodes as without async_op
    y = other(z)
    work.wait()                                # nothing, True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import torch
from torch import distributed as dist

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.constant import constant
from weft.capture.core.methods import BoundBuiltin
from weft.capture.library.containers.sequences import TupleValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_ANSWERS: Final[dict[str, bool | None]] = {
    "wait": True, "is_completed": True, "synchronize": None, "block_current_stream": None,
}
"""Methods of a handle whose work is done, and what they return."""


if dist.is_available():

    @final
    class CompletedWork(dist.Work):
        """A handle of work that is done, for the program to keep."""

        def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
            super().__init__()
            self._tensors = tensors

        def wait(self, timeout: object = None) -> bool:
            """True, at once."""
            return True

        def is_completed(self) -> bool:
            """True."""
            return True

        def synchronize(self) -> None:
            """Nothing."""

        def block_current_stream(self) -> None:
            """Nothing."""

        def result(self) -> list[torch.Tensor]:
            """What was written."""
            return list(self._tensors)

        def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
            """A future of what was written."""
            future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
            future.set_result(self.result())
            return future


@final
class WorkValue(SymbolicValue):
    """A handle that a collective in the graph returned."""

    __slots__ = ("tensors",)

    def __init__(self, tensors: list[SymbolicValue]) -> None:
        super().__init__()
        self.tensors = tensors

    def python_type(self) -> type:
        return dist.Work

    def __repr__(self) -> str:
        return "handle of a collective"

    def truth(self, tx: Interpreter) -> bool:
        return True

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        return BoundBuiltin(self, name) if name in _ANSWERS else super().getattr(tx, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if name in _ANSWERS:
            return constant(_ANSWERS[name])
        return super().method(tx, name, args, kwargs)

    def rebuild(self, emit: Emitter) -> str:
        tensors = emit.value(TupleValue(self.tensors))
        return emit.bind(self, f"{emit.constant(CompletedWork)}({tensors})")
