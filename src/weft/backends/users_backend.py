"""A backend that a user brings, with its mistakes as `BackendError`.

Place in the pipeline: what `weft.compile(backend=callable)` hands to capture::

    UsersBackend(my_backend)(gm, example_inputs)    # my_backend sees symbols, stack traces, ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any, final

from torch.fx import GraphModule

from weft.backends.node_metadata import add_origins
from weft.backends.torch_context import symbolic_examples
from weft.errors import BackendError, WeftError
from weft.graph_call import GraphCall, graph_call
from weft.interrupts import surface


@final
class UsersBackend:
    """Calls the backend with what it expects of torch.compile's graphs, and checks what it gives.

    It is pickled with the backend; copies of compiled modules share it.
    """

    def __init__(self, chosen: Callable[..., Any]) -> None:
        self.chosen = chosen
        self.__name__: str = getattr(chosen, "__name__", type(chosen).__name__)

    def __call__(self, gm: GraphModule, example_inputs: Sequence[object]) -> GraphCall:
        try:
            add_origins(gm.graph)
            with symbolic_examples(gm, example_inputs) as inputs:
                call = self.chosen(gm, inputs)
        except WeftError:
            raise
        except Exception as error:
            surface(error)
            raise BackendError(
                f"the backend {self.__name__} raised {type(error).__name__}: {error}",
                do="fix the backend, or compile with another one") from error
        if not callable(call):
            raise BackendError(f"the backend {self.__name__} returned {type(call).__name__}",
                               do="return a callable that takes the graph's inputs")
        return graph_call(call)

    def __eq__(self, other: object) -> bool:
        """Whether it is the same backend: equal `weft.compile` calls share compiled code."""
        return isinstance(other, UsersBackend) and (
            self.chosen is other.chosen
            or (isinstance(self.chosen, MethodType) and self.chosen == other.chosen))

    def __hash__(self) -> int:
        bound = self.chosen
        return id(bound.__self__) if isinstance(bound, MethodType) else id(bound)

    def __deepcopy__(self, memo: Mapping[int, object]) -> UsersBackend:
        return self
