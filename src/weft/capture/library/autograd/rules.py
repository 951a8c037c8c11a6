"""Rules for gradients: backward passes within the graph, `.grad`, leaves, parameters.

Place in the pipeline: see `weft.capture.library`. `loss.backward()` is one node, a call of
`torch.autograd.grad` for the leaves that the fakes' autograd graph ends in; what it would leave in
their `.grad` becomes an attribute that the replacement sets behind the graph::

    loss.backward()      ->  g0, g1 = torch.autograd.grad([loss], [w, b], allow_unused=True)
    optimizer.step()     ->  w.add_(g0, alpha=-lr), ...
                             w.grad = g0          (in the replacement)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from weft._torch import are_functorch_transforms_active
from weft.aot.autograd_graph import nodes_behind
from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.constant import FALSE, NONE, TRUE, boolean, constant, is_none
from weft.capture.core.graph import version_of
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.rules import passed
from weft.capture.library.autograd.gradients import as_parameter, set_data, spent
from weft.capture.library.classes.classes import constructor
from weft.capture.library.classes.unknown import is_plain_method
from weft.capture.library.containers.sequences import ListValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.subgraphs.late_code import check_unchanged
from weft.capture.library.tensors.tensor import (
    GETTERS,
    SETTERS,
    WRITERS,
    TensorValue,
    rebuild_tensor,
    record,
    tensor_method,
)
from weft.capture.library.torch_functions.library_flags import check_anomaly_mode
from weft.errors import SourceLine
from weft.shapes.fakes.fake import was_computed

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


# -- backward -------------------------------------------------------------------------------------


@tensor_method("backward")
def _tensor_backward(tx: Interpreter, tensor: TensorValue, gradient: SymbolicValue = NONE,
                     retain_graph: SymbolicValue = NONE, create_graph: SymbolicValue = FALSE,
                     inputs: SymbolicValue = NONE) -> SymbolicValue:
    return _backward(tx, [tensor], [gradient], retain_graph, create_graph, inputs)


@rule(torch.autograd.backward)
def _autograd_backward(
    tx: Interpreter, tensors: SymbolicValue, grad_tensors: SymbolicValue = NONE,
    retain_graph: SymbolicValue = NONE, create_graph: SymbolicValue = FALSE,
    grad_variables: SymbolicValue = NONE, inputs: SymbolicValue = NONE,
) -> SymbolicValue:
    outputs = _as_list(tx, tensors)
    gradients = _as_list(tx, grad_tensors) or [NONE] * len(outputs)
    return _backward(tx, outputs, gradients, retain_graph, create_graph, inputs)


def _as_list(tx: Interpreter, value: SymbolicValue) -> list[SymbolicValue]:
    """A tensor, or a sequence of them, as a list; [] for None."""
    value = tx.force(value)
    if is_none(value):
        return []
    return [value] if isinstance(value, TensorValue) else tx.unpack(value)


def _backward(
    tx: Interpreter, outputs: list[SymbolicValue], gradients: list[SymbolicValue],
    retain_graph: SymbolicValue, create_graph: SymbolicValue, inputs: SymbolicValue,
) -> SymbolicValue:
    """Record the gradients of the leaves as one node, then what happens to the leaves."""
    if are_functorch_transforms_active():
        raise graph_break("unknown-operation", "backward under a transform")
    check_anomaly_mode(tx)
    check_unchanged(tx)
    nodes = _autograd_nodes(outputs)
    wanted = [_plain_leaf(tx, leaf) for leaf in _as_list(tx, inputs)] or _leaves(tx, outputs, nodes)
    leaves = tx.autograd.leaves.values()
    retained = [v for v in leaves if v not in wanted and id(v.example.grad_fn) in nodes]
    create = create_graph.truth(tx)
    keep = create if retain_graph is NONE else retain_graph.truth(tx)
    place = tx.breaking_step(), tx.stack()
    result = record(tx, torch.autograd.grad,
                 [ListValue(list(outputs)), ListValue([*wanted, *retained])],
                 {"grad_outputs": ListValue(list(gradients)), "retain_graph": boolean(keep),
                  "create_graph": create_graph, "allow_unused": TRUE})
    if not keep:
        _free(tx, nodes, place)
    leaf_gradients = tx.unpack(result)
    for leaf, gradient in zip([*wanted, *retained], leaf_gradients, strict=True):
        if isinstance(gradient, TensorValue):
            _accumulate(tx, leaf, gradient, create, [*leaf_gradients, *gradients])
    return NONE


def _autograd_nodes(outputs: Sequence[SymbolicValue]) -> dict[int, object]:
    """The nodes of the fakes' autograd graph behind the outputs, by id."""
    starts = []
    for output in outputs:
        if not isinstance(output, TensorValue) or not output.example.requires_grad:
            raise graph_break("operator-failed", "backward of something without a gradient")
        starts.append(output.example.grad_fn)
    return {id(node): node for node in nodes_behind(starts)}


def _leaves(tx: Interpreter, outputs: list[SymbolicValue], nodes: Mapping[int, object]
            ) -> list[TensorValue]:
    """The leaves where the autograd graph ends, in the order of their first use."""
    ends = {id(node.variable) for node in nodes.values() if hasattr(node, "variable")}
    ends |= {id(v.fake(tx)) for v in outputs if v.fake(tx).grad_fn is None}
    leaves = [value for key, value in tx.autograd.leaves.items() if key in ends]
    if len(leaves) != len(ends):
        raise graph_break("unknown-operation",
                          "backward through what was computed before this graph")
    leaves = [leaf for leaf in leaves if leaf.example.requires_grad]  # the others were frozen since
    if any(id(leaf.example) not in ends for leaf in leaves):
        raise graph_break("unknown-operation", "backward to what a tensor was before it changed")
    return [_plain_leaf(tx, leaf) for leaf in leaves]


def _plain_leaf(tx: Interpreter, leaf: SymbolicValue) -> TensorValue:
    """The leaf; breaks the graph if autograd does more with its gradient than add it up."""
    leaf = tx.force(leaf)
    if not isinstance(leaf, TensorValue) or leaf.example.layout is not torch.strided:
        raise graph_break("unknown-operation", f"backward to {leaf!r}")
    if leaf.source is not None:
        if not leaf.original.is_leaf:
            raise graph_break("unknown-operation", f"backward to {leaf!r}, which is no leaf")
        _check_hooks(tx, leaf)
    return leaf


def _check_hooks(tx: Interpreter, leaf: TensorValue) -> None:
    for name in _HOOKS:
        hooks = getattr(leaf.original, name)
        assert leaf.source is not None
        source = leaf.source.attribute(name)
        if hooks:
            raise graph_break("unknown-operation", f"hooks on the gradient of {leaf!r}")
        tx.guards.add(source, *(("is", None) if hooks is None else ("len", 0)))


def _accumulate(tx: Interpreter, leaf: TensorValue, gradient: TensorValue, create: bool,
                others: list[SymbolicValue]) -> None:
    """Do what autograd does with a gradient that arrives at a leaf."""
    old = leaf.getattr(tx, "grad")
    if not isinstance(old, TensorValue):
        leaf.write(tx, "grad", gradient if create else _in_own_memory(tx, leaf, gradient, others))
    elif create or leaf.example.grad_fn is not None:
        leaf.write(tx, "grad", record(tx, "add", [old, gradient]))
    elif old.example.requires_grad:
        raise graph_break("unknown-operation", "adding to a gradient that has a gradient")
    else:
        record(tx, "add_", [old, gradient])


def _in_own_memory(tx: Interpreter, leaf: TensorValue, gradient: TensorValue,
                   others: list[SymbolicValue]) -> SymbolicValue:
    """The gradient in its own memory, laid out as the leaf."""
    fake = gradient.example
    if fake.layout is not torch.strided:
        raise graph_break("unknown-operation", "a gradient that is not strided")
    storage = fake.untyped_storage()._cdata
    shared = sum(isinstance(o, TensorValue) and o.example.untyped_storage()._cdata == storage
                 for o in others) > 1
    if not shared and fake.stride() == leaf.example.stride():
        return gradient
    like = record(tx, torch.empty_like, [leaf], {"requires_grad": FALSE})
    return record(tx, "copy_", [like, gradient])


@rule(torch.autograd.grad)
def _autograd_grad(
    tx: Interpreter, outputs: SymbolicValue, inputs: SymbolicValue,
    grad_outputs: SymbolicValue | None = None, retain_graph: SymbolicValue | None = None,
    create_graph: SymbolicValue | None = None, only_inputs: SymbolicValue | None = None,
    allow_unused: SymbolicValue | None = None, is_grads_batched: SymbolicValue | None = None,
    materialize_grads: SymbolicValue | None = None,
) -> SymbolicValue:
    check_anomaly_mode(tx)
    check_unchanged(tx)
    targets, sources = _as_list(tx, outputs), _as_list(tx, inputs)  # may be `d.values()`
    for value in sources:
        if isinstance(value, TensorValue) and value.source is not None:
            _check_hooks(tx, value)
    differentiable = [o for o in targets
                      if isinstance(o, TensorValue) and o.example.requires_grad]
    nodes = _autograd_nodes(differentiable)  # before they are freed
    place = tx.breaking_step(), tx.stack()
    result = record(tx, torch.autograd.grad, [], passed(
        outputs=ListValue(targets), inputs=ListValue(sources), grad_outputs=grad_outputs,
        retain_graph=retain_graph, create_graph=create_graph, only_inputs=only_inputs,
        allow_unused=allow_unused, is_grads_batched=is_grads_batched,
        materialize_grads=materialize_grads))
    create = create_graph is not None and create_graph.truth(tx)
    if not (create if retain_graph in (None, NONE) else retain_graph.truth(tx)):
        _free(tx, nodes, place)
    return result


# -- tensors that left a graph that is freed ------------------------------------------------------


def _free(tx: Interpreter, nodes: Mapping[int, object], place: tuple[int, tuple[SourceLine, ...]]
          ) -> None:
    for key, node in nodes.items():
        if not hasattr(node, "variable"):  # leaves save nothing
            tx.autograd.freed[key] = node, place


@rebuild_tensor.define
def _rebuild(emit: Emitter, value: TensorValue, node: fx.Node) -> str:
    tx = emit.tx
    if tx.autograd.replaced:
        _refuse_replaced(tx, value)
    if tx.autograd.freed and _is_spent(tx, value):
        example = value.example.detach()
        detached = tx.builder.call("detach", (node,), {}, example, ())
        behind = "".join(f", {emit.value(leaf)}" for leaf in _outside_leaves(tx, value))
        return f"{emit.constant(spent)}({emit.output(detached)}{behind})"
    text = emit.output(node)
    if value.python_type() is torch.nn.Parameter and value.source is None:
        return f"{emit.constant(as_parameter)}({text})"
    return text


def _outside_leaves(tx: Interpreter, value: TensorValue) -> list[TensorValue]:
    """The leaves from outside that the value was computed from."""
    ends = {id(node.variable) for node in _autograd_nodes([value]).values()
            if hasattr(node, "variable")}
    return [leaf for key, leaf in tx.autograd.leaves.items()
            if key in ends and leaf.source is not None]


def _refuse_replaced(tx: Interpreter, value: TensorValue) -> None:
    """Break the graph where an outside leaf's data was set, if the result needs gradients: in the
    graph the leaf has a stand-in, which would get the gradient."""
    if not value.example.requires_grad or value.example.grad_fn is None:
        return
    nodes = _autograd_nodes([value]).values()
    ends = [node.variable for node in nodes if hasattr(node, "variable")]
    places = [tx.autograd.replaced[id(end)] for end in ends if id(end) in tx.autograd.replaced]
    if places:
        raise _break_at(max(places, key=lambda place: place[0]),
                        "a gradient to a tensor that became a leaf here")


def _break_at(place: tuple[int, tuple[SourceLine, ...]], what: str) -> GraphBreak:
    """A break at an earlier step of the program."""
    signal = graph_break("unknown-operation", what)
    signal.step, signal.stack = place
    return signal


def _is_spent(tx: Interpreter, value: TensorValue) -> bool:
    """Whether a backward pass from the tensor fails because an earlier one freed its graph.

    Where it would reach leaves before it fails, as eager's does, or fail for another reason that
    fakes do not know (a user's backward that looks at data), the graph breaks at the earlier one:
    the nodes behind it are autograd's own then.
    """
    example = value.example
    if not example.requires_grad or example.grad_fn is None:
        return False
    nodes = _autograd_nodes([value])
    places = [tx.autograd.freed[key][1] for key in nodes if key in tx.autograd.freed]
    if not places:
        return False
    ends = [node.variable for node in nodes.values() if hasattr(node, "variable")]
    reached: list[Any] = []
    hooks = [end.register_hook(reached.append) for end in ends]
    try:
        tx.fakes.mode.run(torch.autograd.grad, [[example], ends], {
            "grad_outputs": [torch.empty_like(example)], "retain_graph": True,
            "allow_unused": True})
    except RuntimeError as error:
        if reached or "through the graph a second time" not in str(error):
            raise _break_at(min(places, key=lambda place: place[0]),
                            "a backward that frees a part of what leaves the graph") from None
        return True
    finally:
        for hook in hooks:
            hook.remove()
    return False


# -- attributes -----------------------------------------------------------------------------------


def _get_grad(tx: Interpreter, value: TensorValue) -> SymbolicValue:
    if value.source is None:
        return NONE
    return tx.wrap(value.original.grad, value.source.attribute("grad"))


def _set_grad(tx: Interpreter, value: TensorValue, new: SymbolicValue) -> None:
    new = tx.force(new)
    if isinstance(new, TensorValue):
        mine, theirs = value.example, new.example
        if (mine.shape, mine.dtype, mine.device) != (theirs.shape, theirs.dtype, theirs.device):
            raise graph_break("operator-failed", "a gradient of another shape, dtype or device")
    elif not is_none(new):
        raise graph_break("operator-failed", f"{new!r} as a gradient")
    elif value.source is not None and "grad" not in value.written:
        old = value.original.grad
        if old is None or tx.outside.value_of(old) is None:
            tx.effects.forget_gradient(value)
    value.write(tx, "grad", new)


def _get_grad_fn(tx: Interpreter, value: TensorValue) -> SymbolicValue:
    node = value.example.grad_fn
    if value.source is not None and (node is None or was_computed(value.example)):
        return tx.wrap(value.original.grad_fn, value.source.attribute("grad_fn"))
    if node is None:
        return NONE
    node_value: SymbolicValue = tx.autograd.functions.setdefault(id(node), GradFnValue(value))
    return node_value


def _get_is_leaf(tx: Interpreter, value: TensorValue) -> SymbolicValue:
    if value.source is None or value.example.grad_fn is not None:
        return boolean(value.example.is_leaf)
    return tx.wrap(value.original.is_leaf, value.source.attribute("is_leaf"))


def _set_requires_grad(tx: Interpreter, value: TensorValue, wanted: SymbolicValue) -> None:
    value.method(tx, "requires_grad_", [wanted], {})


def _set_data(tx: Interpreter, value: TensorValue, new: SymbolicValue) -> None:
    """`tensor.data = new`: from now on the object is a leaf of its own in the graph."""
    new = tx.force(new)
    if new is value:
        return
    if not isinstance(new, TensorValue) or value.source is None or not value.original.is_leaf or (
            new.example.device != value.example.device):
        raise graph_break("unknown-operation", "assignment to .data")
    count = _writes_since(value, value.written[_DATA]) if _DATA in value.written else 0
    alias = record(tx, getattr, [new, constant("data")])  # writes to it do not count as new's
    if value.example.requires_grad:
        _become_leaf(tx, value, alias)
    else:
        value.become(alias.fake(tx), alias.proxy(tx))
    value.write(tx, _DATA, constant(count))


def _writes_since(value: TensorValue, count: SymbolicValue) -> int:
    """How often an outside tensor was written behind the first assignment to its `data`: `count`
    times before the last one."""
    return int(count.constant()) + version_of(value.example)


def _write_data(emit: Emitter, value: TensorValue, count: SymbolicValue) -> str:
    tx = emit.tx
    node = tx.builder.call("detach", (value.proxy(tx),), {}, value.example.detach(), ())
    n_writes = _writes_since(value, count)
    return f"{emit.constant(set_data)}({emit.value(value)}, {emit.output(node)}, {n_writes})"


_DATA: Final = "<data>"
WRITERS[_DATA] = _write_data


GETTERS.update(grad=_get_grad, grad_fn=_get_grad_fn, is_leaf=_get_is_leaf)
SETTERS.update(grad=_set_grad, requires_grad=_set_requires_grad, data=_set_data)


class GradFnValue(SymbolicValue):
    """The `grad_fn` of a tensor made in the graph; only its existence and name are known."""

    __slots__ = ("node", "tensor")

    def __init__(self, tensor: TensorValue) -> None:
        super().__init__()
        self.tensor = tensor
        self.node = tensor.example.grad_fn

    def python_type(self) -> type:
        return type(self.node)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if is_plain_method(self.node, name):
            return BoundBuiltin(self, name)
        return super().getattr(tx, name)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if name == "name" and not args and not kwargs:
            assert self.node is not None
            return constant(self.node.name())
        if "hook" in name:
            raise graph_break("gradient-hook", f"{name} of a {type(self.node).__name__}")
        raise graph_break("unknown-c-function", f"{name} of a {type(self.node).__name__}")

    def rebuild(self, emit: Emitter) -> str:
        if self.tensor.example.grad_fn is not self.node:  # the tensor was written since
            return super().rebuild(emit)
        return f"{emit.value(self.tensor)}.grad_fn"


# -- leaves ---------------------------------------------------------------------------------------


@tensor_method("requires_grad_")
def _requires_grad_(tx: Interpreter, value: TensorValue, requires_grad: SymbolicValue = TRUE
                    ) -> SymbolicValue:
    wanted = requires_grad.truth(tx)
    if wanted == value.example.requires_grad:
        return value
    if value.source is None and value.example.grad_fn is None:
        record(tx, "requires_grad_", [value, boolean(wanted)])
        tx.autograd.leaves[id(value.example)] = value
        return value
    if not value.original.is_leaf:
        raise graph_break("state", "requires_grad_ that changes a tensor")
    (_thaw if wanted else _freeze)(tx, value)
    if wanted == value.original.requires_grad:
        value.written.pop("requires_grad", None)
    else:
        value.write(tx, "requires_grad", boolean(wanted))
    return value


def _freeze(tx: Interpreter, leaf: TensorValue) -> None:
    """No gradient comes to an outside leaf through what uses it from now on."""
    kept = leaf.example, leaf.proxy(tx)
    detached = record(tx, "detach", [leaf])
    leaf.become(detached.fake(tx), detached.proxy(tx))
    tx.autograd.frozen[id(leaf)] = (leaf.example, kept)


def _thaw(tx: Interpreter, leaf: TensorValue) -> None:
    """Gradients come to an outside leaf: as before it was frozen here, or to an alias of it."""
    frozen, kept = tx.autograd.frozen.pop(id(leaf), (None, ()))
    if frozen is leaf.example:
        leaf.become(*kept)
    else:
        _become_leaf(tx, leaf, record(tx, "detach", [leaf]))


def _become_leaf(tx: Interpreter, leaf: TensorValue, detached: SymbolicValue) -> None:
    """`detached` stands for the outside leaf in the graph, and gets its gradients."""
    record(tx, "requires_grad_", [detached])
    tx.autograd.leaves[id(detached.fake(tx))] = leaf
    tx.autograd.replaced[id(detached.fake(tx))] = (tx.breaking_step(), tx.stack())
    leaf.become(detached.fake(tx), detached.proxy(tx))


@tensor_method("retain_grad")
def _retain_grad(tx: Interpreter, value: TensorValue) -> SymbolicValue:
    """The next backward pass through the tensor stores its gradient there."""
    if value.source is not None and value.original.is_leaf:
        return NONE
    if value.source is not None or not value.example.requires_grad:
        raise graph_break("unknown-operation", f"retain_grad of {value!r}")
    if value.example.grad_fn is not None:
        tx.autograd.leaves[id(value.example)] = value
        value.write(tx, "retains_grad", TRUE)
        tx.early_ends.retained.append((value, tx.breaking_step()))
    return NONE


@tensor_method("detach_")
def _detach_(tx: Interpreter, value: TensorValue) -> SymbolicValue:
    """`detach_` of an outside tensor: the object itself leaves its autograd graph."""
    if value.source is not None and value.example.requires_grad:
        raise graph_break("state", "detach_ of a tensor from outside")
    return record(tx, "detach_", [value])


def _write_retains_grad(emit: Emitter, value: TensorValue, flag: SymbolicValue) -> str:
    return f"{emit.value(value)}.retain_grad()"


WRITERS["retains_grad"] = _write_retains_grad


@constructor(torch.nn.Parameter)
def _make_parameter(tx: Interpreter, cls: type, data: SymbolicValue = NONE,
                    requires_grad: SymbolicValue = TRUE) -> SymbolicValue:
    if not isinstance(data, TensorValue) or data.python_type() not in _PLAIN:
        raise graph_break("unknown-operation", "a Parameter of something that is no tensor")
    parameter = record(tx, torch.nn.Parameter, [data, requires_grad])
    assert isinstance(parameter, TensorValue)
    if parameter.example.requires_grad:
        tx.autograd.leaves[id(parameter.example)] = parameter
    return parameter


_PLAIN = (torch.Tensor, torch.nn.Parameter)
