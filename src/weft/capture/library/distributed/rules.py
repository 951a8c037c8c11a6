"""Rules of torch.distributed: process groups, and collectives that a graph can hold.

Place in the pipeline: see `weft.capture.library`. A collective that writes to a tensor is recorded
in functional form, which names its group: so graphs hold no process groups, and aot need not look
for writes::

    dist.all_reduce(x)    # nodes: all_reduce(x, "sum", "0"), wait_tensor, x.copy_
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Final, final

import torch.distributed as dist

from weft._torch import functional_collectives, process_group_of_name
from weft.capture.core.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import constant, is_none
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.registry import wraps
from weft.capture.core.rules import RuleFunction, breaking
from weft.capture.core.source import Source
from weft.capture.core.wrappers import is_wrapping_forward
from weft.capture.library.containers.sequences import SequenceValue
from weft.capture.library.distributed import polyfills
from weft.capture.library.distributed.works import WorkValue
from weft.capture.library.functions.functions import MARKED, python_rule, rule

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

def rank_in(group: dist.ProcessGroup) -> int:
    """The rank of this process in the group."""
    return group.rank()


_ASKED: Final = frozenset({"size", "rank", "name"})
"""Methods of process groups whose results never change in a process."""


@final
class ProcessGroupValue(OutsideObject):
    """A process group from outside."""

    __slots__ = ()

    def dict_key(self, tx: Interpreter) -> object:
        return tx.identities.key(self, self.object)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in _ASKED:
            return BoundBuiltin(self, name)
        if name in ("group_name", "group_desc"):
            return constant(getattr(self.object, name))
        return super().getattr(tx, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if name in _ASKED and not args and not kwargs:
            if name == "rank" and self.source is not None:  # another process has another one
                tx.guards.add(self.source.call(rank_in, f"{self.source}.rank()"), "eq",
                              self.object.rank())
            return constant(getattr(self.object, name)())
        return super().method(tx, name, args, kwargs)


def _register(original: Any, polyfill: Any) -> None:
    interpret, parameters = python_rule(polyfill), signature(original)

    @rule(original)
    def call(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        home = tx.frame and tx.frame.globals.original.get("__name__")
        if home == "torch.distributed.fsdp._flat_param":
            raise graph_break("state", f"{original.__name__} into memory that was allocated anew")
        arguments = parameters.bind(*args, **kwargs).arguments
        is_asynchronous = arguments.pop("async_op", constant(False)).constant()
        if "op" in arguments:
            arguments["op"] = constant(_reduction(tx, arguments["op"]))
        if "group" in arguments and is_none(arguments["group"]):
            del arguments["group"]
        functional_collectives()
        result = interpret(tx, **arguments)
        return _work(tx, next(iter(arguments.values()))) if is_asynchronous else result


def _work(tx: Interpreter, written: SymbolicValue) -> WorkValue:
    """The handle of a collective that writes to a tensor, or to those of a list."""
    items = tx.force(written)
    return WorkValue(list(items.items) if isinstance(items, SequenceValue) else [items])


def _reduction(tx: Interpreter, operation: SymbolicValue) -> str:
    obj = tx.force(operation).real()
    name = str(getattr(obj, "name", "")).lower()
    if obj is MISSING or name not in polyfills.REDUCTIONS:
        raise graph_break("unknown-operation", f"a collective that reduces by {operation!r}")
    tx.guards.identity(operation.source, obj)
    return name


def _wrapping_forward(function: Any) -> RuleFunction | None:
    """The rule of the `forward` of a wrapper: between the graphs."""
    if not is_wrapping_forward(function):
        return None
    return breaking("distributed-wrapper", f"a call of {function.__qualname__}")


MARKED.append(_wrapping_forward)

if dist.is_available():
    @wraps(dist.ProcessGroup)
    def _wrap_group(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
        tx.guards.identity(source, obj)
        return ProcessGroupValue(obj, source)

    @rule(process_group_of_name)
    def _group_of_name(tx: Interpreter, name: SymbolicValue, /) -> SymbolicValue:
        group = process_group_of_name(name.constant())
        return tx.wrap_fixed(group, f"the process group {name.constant()}")

    for _name, _polyfill in polyfills.FORMS.items():
        if hasattr(dist, _name):
            _register(getattr(dist, _name), _polyfill)
