"""The `torch.autograd.Function` around a compiled forward and backward.

Place in the pipeline: made once per compiled training graph. Its `apply` runs at every call, so
whatever can be decided before is decided before::

    function = make_function(spec)       # boxed: list of inputs -> values
    values = function([x, w])            # values have one grad_fn, whose backward is compiled

With `create_graph=True` the backward differentiates the captured graph instead, through autograd,
so that gradients of gradients exist (`double_backward`, `forward_inputs`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch

from weft._torch import (
    are_functorch_transforms_active,
    is_any_autocast_enabled,
    is_data_parallel_active,
    is_legacy_batchedtensor,
    keeps_graph,
    name_autograd_function,
    on_register_hook,
    run_backward_directly,
)
from weft.aot.global_state import Boxed, RandomState, no_autocast
from weft.aot.late_reads import all_hold
from weft.aot.runtime_wrapper import bases
from weft.aot.training.backward_code import backward_of
from weft.aot.training.backward_stages import Gradients, is_linked, join_stages, linked_call
from weft.aot.training.backwards import Indices
from weft.aot.training.forward_code import forward_of
from weft.aot.training.forward_inputs import DoubleBackwardError
from weft.aot.training.function_spec import FunctionSpec
from weft.aot.training.layers import Layer, Layers, Watch, is_cut_now, layering, note_hook
from weft.aot.training.node_forms import LINKED, PART, WHOLE, NodeForm
from weft.aot.training.replaced_inputs import Reads, fits_kernels
from weft.aot.training.saved_values import drop
from weft.aot.training.tangents import TangentLayout
from weft.diagnostics.regions import node_names
from weft.shapes.fakes.wrappers import is_wrapper
from weft.storable import made_by


def make_function(spec: FunctionSpec) -> Boxed:
    """A boxed callable that computes the values, differentiably."""
    call = _at_once(spec)
    if spec.nodes.parts:
        call = _in_parts(spec, call)
    elif spec.nodes.watched is not None:
        call = _linking(spec, call, spec.nodes.watched)
    return made_by(call, make_function, spec)


def make_layers(spec: FunctionSpec) -> Layers:
    """The further autograd nodes, between values that depend on each other."""
    return layering(spec.nodes.inner, partial(_contributions, spec))


def _at_once(spec: FunctionSpec) -> Boxed:
    """The callable with one autograd node."""
    function = _function_class(spec, WHOLE)
    general = function.apply
    # `apply` without the part for torch.func, which takes a microsecond.
    plain = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def call(inputs: list[Any]) -> Sequence[Any]:
        for i in spec.detached_inputs:  # else the engine goes on there, into freed graphs
            inputs[i] = inputs[i].detach()
        apply = general if are_functorch_transforms_active() else plain
        values: Sequence[Any] = apply(*inputs)
        return values

    return call


def _in_parts(spec: FunctionSpec, at_once: Boxed) -> Boxed:
    """`at_once`, but with a node for each part."""
    functions = [_function_class(part, PART) for part in spec.nodes.parts]
    steps = [(part, super(torch.autograd.Function, function).apply)  # type: ignore[misc]
             for part, function in zip(spec.nodes.parts, functions, strict=True)]

    def call(inputs: list[Any]) -> Sequence[Any]:
        if are_functorch_transforms_active():
            return at_once(inputs)
        random = RandomState.of(spec.random_devices) if spec.random_devices else None
        with torch.no_grad():
            outputs = bases(spec.forward(list(inputs)), spec.outputs.views)
        values = list(outputs)
        for part, apply in steps:
            own = [x.detach() if i in part.detached_inputs else x for i, x in enumerate(inputs)]
            for k, value in zip(part.layouts, apply((random, outputs, inputs), *own), strict=True):
                values[k] = value
        return values

    return call


def _linking(spec: FunctionSpec, at_once: Boxed, watched: int) -> Boxed:
    """`at_once`, but with a node for each stage if gradients are added up anyway, or if DDP sends
    those that it has while others are computed."""
    function = _function_class(spec, LINKED)
    first = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    gradients = spec.gradients
    stages = [[gradients.inputs[k] for k in stage] for stage in gradients.backwards.stages]

    def call(inputs: list[Any]) -> Sequence[Any]:
        leaf = inputs[watched]
        if not leaf.is_leaf or are_functorch_transforms_active():
            return at_once(inputs)
        if (leaf.grad is None and not leaf._post_accumulate_grad_hooks
                and not is_data_parallel_active()):
            return at_once(inputs)
        return linked_call(first, stages, inputs)

    return call


def _function_class(spec: FunctionSpec, form: NodeForm) -> type[torch.autograd.Function]:
    """A subclass of `torch.autograd.Function` for one compiled graph."""

    class CompiledFunction(torch.autograd.Function):
        """Compiled forward and backward."""

        forward = staticmethod(forward_of(spec, form))
        backward = staticmethod(backward_of(spec, form, partial(_backward, spec, form)))

    run_backward_directly(CompiledFunction)
    if spec.region:
        in_forward, in_backward = node_names(spec.region)
        name_autograd_function(CompiledFunction, in_forward, in_backward)
    if len(spec.layouts) > 1:
        on_register_hook(CompiledFunction, note_hook)
    return CompiledFunction


def _backward(spec: FunctionSpec, form: NodeForm, ctx: Any, own: Sequence[object]) -> object:
    """The gradients of a function's inputs, for any run of the autograd engine."""
    grads = form.tangents(spec, own)
    present = _present(grads, spec.layouts)
    gradients: Gradients | Iterator[Gradients]
    if spec.nodes.inner.layers and is_cut_now(ctx, partial(spec.gradients.is_plain, ctx)):
        present = None if present is None else present | ctx.watch.present
        gradients = _last_gradients(spec, ctx, grads, present)
    else:
        gradients = _gradients(spec, ctx, grads, present, form.is_linked)
    return form.returned(spec, ctx, gradients, present)


def _gradients(
    spec: FunctionSpec, ctx: object, grads: Sequence[object], present: Indices | None, linked: bool
) -> Gradients | Iterator[Gradients]:
    """All gradients by position or, if linked, stage by stage as they are needed."""
    if present is not None and not present:  # a run of the engine that ends at inner values
        return [None] * len(spec.gradients.inputs)
    batched = _are_batched(grads, spec.layouts)
    saved = _saved(spec, ctx, present)
    wanted = None if batched else spec.gradients.wanted(ctx, linked)
    if torch.is_grad_enabled() or batched:  # kernels do not batch
        try:
            return _differentiably(spec, ctx, saved, grads, wanted)
        except DoubleBackwardError:
            if not spec.differentiable or spec.late or spec.inputs.replaced(ctx):
                raise
        return _by_autograd(spec, ctx, saved, grads, present, wanted)
    return _computed(spec, ctx, saved, grads, present, wanted)


def _by_autograd(
    spec: FunctionSpec, ctx: Any, saved: list[Any], grads: Sequence[object],
    present: Indices | None,
    wanted: Indices | None,
) -> Gradients:
    """The gradients by the backward's own operators, which autograd differentiates."""
    run = spec.gradients.backwards.by_aten(present, wanted)
    if run.is_other or (run.with_zeros and present is not None and _mixes(spec, present)):
        raise DoubleBackwardError("create_graph=True for a part of the compiled graph's results "
                                  "needs an input that no longer exists")
    arguments = [*saved, *(ctx.symbols if spec.outputs.symbols else ())]
    arguments += _tangents(spec, ctx, list(grads), run.present)
    with no_autocast():
        results: Any = run.call(arguments)
        return join_stages(spec.gradients.backwards.stages, results) if run.in_stages else results


def _contributions(
    spec: FunctionSpec, watch: Watch, layer: Layer, tangents: Sequence[Any]
) -> Sequence[Any]:
    """The tangents of a layer's values. If somebody sees the gradients of the values that the layer
    reads, also what the layer contributes to these; gradients of inputs are then computed here
    too."""
    ctx = watch.owner()
    present = {k for k, tangent in zip(layer.own, tangents, strict=True) if tangent is not None}
    if not present or not watch.decide(partial(spec.gradients.is_plain, ctx)):
        return [*tangents, *([None] * len(layer.reads))]
    grads: list[Any] = [None] * spec.outputs.n_values
    for i, k in enumerate(layer.own):
        if k in present:
            grads[k] = spec.layouts[k].fit_own(tangents, i)
    watch.present |= present
    inner, first = spec.nodes.inner, len(spec.gradients.inputs)
    at = [inner.results.index(k) for k in layer.reads]
    read = [None if inner.readers[i].isdisjoint(present) else first + i for i in at]
    saved = _kept_saved(spec, ctx, present)
    results = _cut_gradients(spec, ctx, saved, grads, [k for k in read if k is not None])
    watch.gradients = _added(watch.gradients, results[:first])
    return [*([None] * len(layer.own)), *(None if k is None else results[k] for k in read)]


def _last_gradients(
    spec: FunctionSpec, ctx: Any, grads: Sequence[object], present: Indices | None
) -> Gradients | Iterator[Gradients]:
    """The gradients of inputs, after layers have computed their part."""
    saved = _saved(spec, ctx, present)
    gradients = _cut_gradients(spec, ctx, saved, grads, ())
    return _added(ctx.watch.taken(), gradients[: len(spec.gradients.inputs)])


def _added(left: Gradients, right: Gradients) -> Gradients:
    """The sums of gradients, some of which are absent."""
    if not left:
        return right
    return [b if a is None else a if b is None else a + b
            for a, b in zip(left, right, strict=True)]


def _cut_gradients(
    spec: FunctionSpec, ctx: object, saved: list[Any], grads: Sequence[Any], read: Iterable[int]
) -> Gradients:
    """The gradients of inputs, and at the positions `read` of inner values, where gradients end at
    inner values."""
    wanted = spec.gradients.wanted(ctx, is_linked(ctx))
    inputs = range(len(spec.gradients.inputs)) if wanted is None else wanted
    wanted = frozenset((*inputs, *read))
    present = frozenset(k for k in spec.layouts if grads[k] is not None)
    if not present:
        return [None] * (len(spec.gradients.inputs) + len(spec.nodes.inner.results))
    if torch.is_grad_enabled() or _are_batched(grads, spec.layouts):
        return _differentiably(spec, ctx, saved, grads, wanted, is_cut=True)
    return _computed(  # type: ignore[return-value]  # at once, not in stages
        spec, ctx, saved, grads, present, wanted, is_cut=True
    )


def _computed(
    spec: FunctionSpec, ctx: Any, saved: list[Any], grads: Sequence[Any], present: Indices | None,
    wanted: Indices | None, *, is_cut: bool = False,
) -> Gradients | Iterator[Gradients]:
    """The gradients by a compiled backward."""
    replaced = spec.inputs.replaced(ctx)
    if (spec.late and not all_hold(spec.late)) or any(
            spec.inputs.reads[k] is Reads.BOTH for k in replaced):
        return _differentiably(spec, ctx, saved, grads, wanted, is_cut=is_cut)
    if spec.droppable and hasattr(ctx, "dropped"):
        saved = _recomputed(spec, ctx, saved)
    backwards = spec.gradients.cut() if is_cut else spec.gradients.backwards
    by_aten = _take_replaced(spec, saved, replaced)
    by_aten |= any(is_wrapper(type(grads[k])) for k in spec.layouts)
    run = (backwards.by_aten if by_aten else backwards.of)(present, wanted)
    if spec.nodes.groups:
        _check_versions(ctx, saved, run.reads)
    if run.is_other:
        return _differentiably(spec, ctx, saved, grads, wanted, is_cut=is_cut)
    if present is not None and run.with_zeros and _mixes(spec, present):
        with suppress(DoubleBackwardError):
            return _differentiably(spec, ctx, saved, grads, wanted, is_cut=is_cut)
    if not is_cut:
        ctx.maybe_clear_saved_tensors()
        if spec.inputs.held:
            spec.inputs.release(ctx)
        if spec.inputs.watched and not keeps_graph():
            ctx.watched.release()
    if spec.outputs.symbols:
        saved += ctx.symbols
    saved += _tangents(spec, ctx, grads, run.present)
    if isinstance(grads, list):  # a layer's: they die as the backward uses them
        grads.clear()
    if run.in_stages or not is_any_autocast_enabled():
        return run.call(saved)
    with no_autocast():
        return run.call(saved)


def _take_replaced(spec: FunctionSpec, saved: list[Any], replaced: dict[int, torch.Tensor]
                   ) -> bool:
    """Put what inputs were into `saved` where the backward reads that; returns whether it reads
    others now that do not suit kernels."""
    by_aten = False
    for k, old in replaced.items():
        if spec.inputs.reads[k] is Reads.AS_IT_WAS:
            saved[k] = old
        else:
            by_aten |= not fits_kernels(saved[k], old)
    return by_aten


def _are_batched(grads: Sequence[Any], layouts: Iterable[int]) -> bool:
    """Whether `torch.autograd.grad(is_grads_batched=True)` runs the backward, or torch.func."""
    if are_functorch_transforms_active():
        return True
    for k in layouts:  # noqa: SIM110  at every backward: `any` takes three times as long
        if grads[k] is not None and is_legacy_batchedtensor(grads[k]):
            return True
    return False


def _tangents(
    spec: FunctionSpec, ctx: Any, grads: Sequence[Any], present: Indices | None
) -> list[torch.Tensor]:
    """The tangents of the values `present` (None: all), as the backward takes them."""
    tangents = []
    for k, layout in spec.layouts.items():
        if grads[k] is not None:
            tangents.append(layout.fit_own(grads, k))
        elif present is None or k in present:
            size = ctx.sizes[k] if layout.size is None else layout.size
            tangents.append(layout.zeros(size))
    return tangents


def _present(grads: Sequence[object], layouts: dict[int, TangentLayout]) -> Indices | None:
    """The values that have a tangent; None if all have."""
    for k in layouts:
        if grads[k] is None:
            return frozenset(k for k in layouts if grads[k] is not None)
    return None


def _saved(spec: FunctionSpec, ctx: Any, present: Indices | None) -> list[Any]:
    """The saved tensors, for a backward with tangents of the values `present` (None: all)."""
    if spec.nodes.groups:
        return _still_saved(spec, ctx, present)
    return [*ctx.saved_tensors] if spec.nodes.freeing else [None] * spec.n_saved


def _still_saved(spec: FunctionSpec, ctx: Any, present: Indices | None) -> list[Any]:
    """The saved tensors, kept until all groups of values have had their backward.

    The autograd engine frees them after the first one, unless the graph is retained; eager frees
    only those of that group, and a group that saves nothing has any number of backwards.
    """
    freeing = [g for g in spec.nodes.groups if g & spec.nodes.freeing]
    walked = {g for g in freeing if present is None or g & present}
    saved, done = getattr(ctx, "kept_saved", (None, set()))
    try:
        saved, done = ctx.saved_tensors, set()  # the graph was retained until now
        ctx.saved_versions = [None if t is None else t._version for t in saved]
    except RuntimeError:
        if walked & done or (walked and saved is None):
            raise
    done |= walked
    ctx.kept_saved = (saved, done) if len(done) < len(freeing) else (None, done)
    return [None] * spec.n_saved if saved is None else list(saved)


def _check_versions(ctx: object, saved: Sequence[Any], read: Iterable[int]) -> None:
    """Check that the program has not written to the saved tensors. Autograd did that itself in the
    backward of another group, and may have freed them since."""
    versions = getattr(ctx, "saved_versions", ())
    for i in sorted(read):
        if i < len(versions) and saved[i] is not None and saved[i]._version != versions[i]:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{saved[i].type()} {[*saved[i].size()]}] is at version "
                f"{saved[i]._version}; expected version {versions[i]} instead.")


def _kept_saved(spec: FunctionSpec, ctx: Any, present: Set[int]) -> list[Any]:
    """The saved tensors while a layer's backward runs, which does not free them."""
    try:
        return [*ctx.saved_tensors]
    except RuntimeError:
        saved = getattr(ctx, "kept_saved", (None,))[0]
        if saved is None and present & spec.nodes.freeing:
            raise
        return [None] * spec.n_saved if saved is None else [*saved]


def _mixes(spec: FunctionSpec, present: Indices) -> bool:
    """Whether a gradient is a sum over groups of values, some of which have no tangent.

    Zeros instead of an absent tangent do not stay zeros behind an infinite derivative.
    """
    return bool(spec.nodes.groups) and any(
        v & present and v - present for v in spec.gradients.depends_on)


def _differentiably(
    spec: FunctionSpec, ctx: Any, saved: list[Any], grads: Sequence[Any], wanted: Indices | None,
    *, is_cut: bool = False,
) -> Gradients:
    """The gradients computed through autograd, for the original inputs."""
    if spec.nodes.groups:
        _check_versions(ctx, saved, range(len(spec.inputs.saved)))
    inputs = spec.inputs.found_again(ctx, saved)
    by_value = {k: layout.fit(grads[k]) for k, layout in spec.layouts.items()
                if grads[k] is not None}
    random = ctx.random if spec.random_devices else None
    if spec.droppable and torch.is_grad_enabled():
        drop(saved, spec.droppable)
        ctx.dropped = True
    replaced = {spec.inputs.saved[k]: old for k, old in spec.inputs.replaced(ctx).items()}
    cuts = ctx.watch.cuts() if is_cut else None
    return spec.redo(inputs, by_value, random, wanted, cuts, replaced)


def _recomputed(spec: FunctionSpec, ctx: Any, saved: Sequence[object]) -> list[object]:
    """All saved values, by running the forward again."""
    random = ctx.random.replayed() if spec.random_devices else nullcontext()
    with random:
        outputs = spec.forward(spec.inputs.found_again(ctx, saved))
    return [*saved[: len(spec.inputs.saved)], *(outputs[k] for k in spec.outputs.saved)]
