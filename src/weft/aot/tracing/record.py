"""The recorder: a dispatch mode below autograd that records ATen operators, functionalised.

Place in the pipeline: `trace.py` runs the captured graph on fake tensors inside it. The recorder
never computes: it appends each operator to a graph (through the `Functionalizer`) and returns a
fake tensor with the result's metadata. Autograd, autocast and composite operators act above it::

    with Recorder(functionalizer):
        y = torch.nn.functional.linear(x, w, b)      # records aten.t, aten.addmm

Operators with special treatment have a handler in `HANDLERS`; others are recorded as their schema
says (`operators.facts`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, final

import torch
from torch.autograd.graph import increment_version
from torch.fx import Node

from weft._torch import DispatchMode, FakeTensor, OpOverload
from weft.aot.evaluate import is_plain
from weft.aot.functional_form import is_of_torch
from weft.aot.operators import Kind, OpFacts, facts
from weft.aot.tracing.collectives import record_collective
from weft.aot.tracing.functionalize import Functionalizer, require_fake
from weft.aot.tracing.shared_memory import share_written_memory, write_memory
from weft.aot.views import IDENTITIES, Unsupported, ViewStep
from weft.shapes.fakes.schemas import schema_arguments
from weft.shapes.fakes.wrappers import is_wrapper
from weft.shapes.symnode import certainly_equal

aten = torch.ops.aten

Handler = Callable[..., Any]
HANDLERS: Final[dict[OpOverload, Handler]] = {}
"""Handlers of operators with special treatment; filled by `record_special.py`."""


@final
class Recorder(DispatchMode):
    """Records every ATen operator that runs inside it.

    `lift(tensor)` is called for a real tensor; it returns the fake that stands for it.
    """

    def __init__(
        self, functionalizer: Functionalizer, lift: Callable[[torch.Tensor], FakeTensor]
    ) -> None:
        super().__init__()
        self.tensors = functionalizer
        self.evaluator = functionalizer.evaluator
        self.lift = lift
        self.locate: Callable[[], None] | None = None

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Record one operator; the result is fake."""
        kwargs = kwargs or {}
        symbols = self.evaluator.mode.symbols
        if symbols is not None and symbols.floats.carried:
            args, kwargs = symbols.restored((args, kwargs))
        if any(kind is not FakeTensor and is_wrapper(kind) for kind in types):
            return NotImplemented  # the wrapper's class computes with its parts
        if self.locate is not None:
            self.locate()
        handler = HANDLERS.get(func)
        if handler is not None:
            return handler(self, func, *args, **kwargs)
        known = facts(func)
        return _BY_KIND[known.kind](self, known, args, kwargs)

    # -- arguments and results ---------------------------------------------------------------------

    def node(self, tensor: torch.Tensor) -> Node:
        """The node with the current value of a tensor."""
        return self.tensors.read(self.live(tensor))

    def live(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor`, or the fake that stands for a real one."""
        if self.tensors.knows(tensor):
            return tensor
        if isinstance(tensor, FakeTensor):
            raise Unsupported("a fake tensor that no recorded operator made")
        return self.lift(tensor)

    def nodes(self, value: Any) -> Any:
        """Arguments with tensors replaced by their nodes."""
        if isinstance(value, torch.Tensor):
            return self.node(value)
        kind = type(value)
        if kind is list or kind is tuple:
            return kind(self.nodes(v) for v in value)
        return value

    def fresh(self, node: Node) -> Any:
        """New fake tensors for the results of a functional operator's node, in its structure."""
        value = node.meta["val"]
        if isinstance(value, FakeTensor):
            tensor = self.evaluator.like(value)
            self.tensors.add_base(tensor, node)
            return tensor
        if isinstance(value, (tuple, list)):
            return type(value)(self._plain(item) for item in self.items(node))
        return value

    def items(self, node: Node) -> list[Any]:
        """The results of a node with several: nodes for tensors, constants for others."""
        return [
            self.tensors.append_known(operator.getitem, (node, i), {}, item)
            if isinstance(item, FakeTensor)
            else _Constant(item)
            for i, item in enumerate(node.meta["val"])
        ]

    def emit(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        """Append an operator on nodes."""
        return self.tensors.emit(op, *args, **kwargs)

    # -- by kind -----------------------------------------------------------------------------------

    def functional(
        self, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> Any:
        """New results, nothing written."""
        node_args = tuple(self.nodes(a) for a in args)
        node_kwargs = {k: self.nodes(v) for k, v in kwargs.items()}
        node, _ = self.tensors.append(known.op, node_args, node_kwargs)
        return self.fresh(node)

    def view(self, known: OpFacts, args: Sequence[Any], kwargs: Mapping[str, object]) -> Any:
        """One result that aliases the first argument."""
        if isinstance(args[0], complex):  # derivatives conjugate Python numbers of the forward
            args = (torch.scalar_tensor(args[0], dtype=torch.complex128, device="cpu"), *args[1:])
        step = ViewStep(known.op, _positional(known.op, args, kwargs))
        return self.view_step(args[0], step)

    def view_step(self, tensor: torch.Tensor, step: ViewStep) -> Any:
        """The view `step` of a tensor."""
        tensor = self.live(tensor)
        viewed = self.tensors.alias(tensor)
        node, result = self._view_node(self.node(tensor), step)
        if not isinstance(result.value, FakeTensor):
            raise Unsupported(f"{step.op} with several results")
        if is_plain(result.value):
            view = self.evaluator.alias(require_fake(tensor), result.value, result.offset)
        else:  # conjugate and negative views have flags, too
            view = self.evaluator.mode.dispatch(step.op, (FakeTensor,), (tensor, *step.args), {})
        self.tensors.add_view(view, viewed, step, node)
        return view

    def _view_node(self, viewed: Node, step: ViewStep) -> tuple[Node, Any]:
        return self.tensors.append(step.op, (viewed, *step.args), {})

    def identity(self, tensor: torch.Tensor) -> Any:
        """A new tensor object that aliases all of `tensor`; nothing is recorded."""
        tensor = self.live(tensor)
        node = self.node(tensor)
        twin = self.evaluator.alias(require_fake(tensor), node.meta["val"], 0)
        self.tensors.add_view(twin, self.tensors.alias(tensor), None, node)
        return twin

    def mutation(
        self, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """Record the functional variant and write its results to the mutated arguments."""
        if share_written_memory(self, known, args, kwargs):
            return self.shared_mutation(known, args, kwargs)
        assert known.functional is not None
        targets = [args[i] if i < len(args) else kwargs[name] for i, name in known.mutated]
        if known.is_out:
            self._resize_out(known, targets, args, kwargs)
            taken = {a.name for a in known.functional._schema.arguments}  # by a form of weft's own
            names = {name for _, name in known.mutated} - taken
            kwargs = {k: v for k, v in kwargs.items() if k not in names}
        kwargs = {**known.defaults_from(len(args)), **kwargs}
        node, _ = self.tensors.append(
            known.functional,
            tuple(self.nodes(a) for a in args),
            {k: self.nodes(v) for k, v in kwargs.items()},
        )
        several = isinstance(node.meta["val"], (tuple, list))
        results = self.items(node) if several else [node]
        if known.functional._schema.returns and _returns_one_list(known.functional):
            results = [results]
        plain, new = results[: known.plain_returns], results[known.plain_returns :]
        for target, value in zip(targets, new, strict=True):
            self._write(target, value)
        return self._result_of_write(known, [self._plain(p) for p in plain], targets)

    def shared_mutation(
        self, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """Record a write to lists, or to arguments that share memory."""
        fresh, targets = write_memory(self, known, args, kwargs)
        if is_of_torch(known.op):
            for target in targets:
                if isinstance(target, (list, tuple)):
                    increment_version(target)
        return self._result_of_write(known, [self._plain(p) for p in fresh], targets)

    def _plain(self, item: Any) -> Any:
        return item.value if isinstance(item, _Constant) else self.fresh(item)

    def _write(self, target: Any, value: Any) -> None:
        if target is None:
            return
        if isinstance(target, torch.Tensor):
            self.tensors.write(self.live(target), value)
            return
        for t, v in zip(target, value, strict=True):
            self._write(t, v)
        increment_version(target)  # an operator of lists leaves it to its kernel

    def _result_of_write(
        self, known: OpFacts, plain: Sequence[object], targets: Sequence[object]
    ) -> object:
        """What the mutating operator returns: new results and the arguments themselves."""
        returns = known.op._schema.returns
        fresh, written = iter(plain), iter(targets)
        values = [next(fresh) if r.alias_info is None else next(written) for r in returns]
        if not values:
            return None
        return values[0] if len(values) == 1 else tuple(values)

    def _resize_out(
        self, known: OpFacts, targets: Sequence[object], args: Sequence[object],
        kwargs: Mapping[str, object]
    ) -> None:
        """Resize empty `out=` tensors to the result's sizes, as eager does; of others it makes new
        views of memory that others see, and warns."""
        filled = [t for t in targets if isinstance(t, torch.Tensor)
                  and (self.tensors.alias(self.live(t)).steps or not certainly_equal(t.numel(), 0))]
        sizes = [t.size() for t in filled]
        self.evaluator.mode.dispatch(known.op, (FakeTensor,), args, kwargs)
        if not all(certainly_equal(t.size(), n) for t, n in zip(filled, sizes, strict=True)):
            raise Unsupported("an output of another size, which eager resizes")

    def metadata(self, known: OpFacts, args: Sequence[Any], kwargs: Mapping[str, object]) -> object:
        """`x.t_()`: the tensor itself becomes a view of its old self."""
        assert known.functional is not None
        live = self.live(args[0])
        step = ViewStep(known.functional, _positional(known.op, args, kwargs))
        node, _ = self._view_node(self.node(live), step)
        alias = self.tensors.alias(live)
        self.evaluator.mode.dispatch(known.op, (FakeTensor,), (live, *args[1:]), kwargs)
        self.tensors.add_view(live, alias, step, node)
        return args[0]

    def composite(
        self, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """Decompose a composite operator, which inference mode does not do."""
        with self:
            return known.op.decompose(*args, **kwargs)

    def opaque(
        self, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """An operator without a functional form of its own."""
        if known.mutated and not is_of_torch(known.op):
            return self.shared_mutation(known, args, kwargs)
        raise Unsupported(f"{known.op} has no functional form")


@final
class _Constant:
    """A result that is not a tensor."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def _returns_one_list(op: OpOverload) -> bool:
    returns = op._schema.returns
    return len(returns) == 1 and str(returns[0].type) == "List[Tensor]"


def _positional(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> tuple[object, ...]:
    """All arguments after the first by position, with defaults where others follow.

    What must be named is left out: that is `implicit` of expand, which does not matter.
    """
    if not kwargs:
        return tuple(args[1:])
    values = schema_arguments(op, args, kwargs)
    return tuple(values[a.name] for a in op._schema.arguments[1:] if not a.kwarg_only)


_BY_KIND: Final[dict[Kind, Callable[..., Any]]] = {
    Kind.FUNCTIONAL: Recorder.functional,
    Kind.VIEW: Recorder.view,
    Kind.MUTATION: Recorder.mutation,
    Kind.METADATA: Recorder.metadata,
    Kind.COMPOSITE: Recorder.composite,
    Kind.COLLECTIVE: record_collective,
    Kind.OPAQUE: Recorder.opaque,
}


def _record_identity(recorder: Recorder, op: OpOverload, x: Any, *args: object) -> object:
    return recorder.identity(x)


HANDLERS.update(dict.fromkeys(IDENTITIES, _record_identity))
