"""The forms that a compiled graph's autograd node has: the whole, a part, the first of linked ones.

Place in the pipeline: chosen by `autograd_function.py` as the plan of nodes says
(`function_spec.py: NodePlan`). What a form means stands here alone: how its forward is written
(`forward_code.py`), and what its backward takes and returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import GeneratorType
from typing import Any, ClassVar, Final, final

from weft.aot.global_state import no_autocast
from weft.aot.training.backward_stages import Gradients, join_stages
from weft.aot.training.backwards import Indices
from weft.aot.training.function_spec import FunctionSpec


class NodeForm:
    """One node for all values and all gradients."""

    arguments: ClassVar[str] = "*inputs"
    """The parameters of its forward behind `ctx`."""
    inputs: ClassVar[str] = "inputs"
    """The inputs as the call got them."""
    is_linked: ClassVar[bool] = False
    """Whether the gradients of later stages belong to further nodes."""

    def run(self, spec: FunctionSpec) -> list[str]:
        """The lines that compute `outputs`; empty ones do not count."""
        return [
            "ctx.random = random_state(spec.random_devices)" if spec.random_devices else "",
            *spec.inputs.copy_lines(),
            "outputs = run(list(inputs))",
            # autograd forbids writes to views that a function makes
            f"outputs = bases(outputs, {spec.outputs.views})" if spec.outputs.views else "",
        ]

    def values(self, spec: FunctionSpec) -> Sequence[int]:
        """The values that it returns."""
        return range(spec.outputs.n_values)

    def saved(self, spec: FunctionSpec, k: int) -> str:
        """The expression of an output that it saves."""
        return f"outputs[{k}]"

    def tangents(self, spec: FunctionSpec, own: Sequence[object]) -> Sequence[object]:
        """The tangents of all values, given those of its own."""
        return own

    def returned(
        self, spec: FunctionSpec, ctx: Any, gradients: Gradients | Iterator[Gradients],
        present: Indices | None,
    ) -> tuple[object, ...]:
        """What its backward returns: a gradient for each argument of the forward. `gradients` may
        still have to be computed, stage by stage."""
        if isinstance(gradients, GeneratorType):  # `Iterator` takes five times as long
            with no_autocast():
                gradients = join_stages(spec.gradients.backwards.stages, gradients)
        return spec.gradients.placed(gradients, present)  # type: ignore[arg-type]


@final
class Linked(NodeForm):
    """The first of a chain of nodes, a stage each (`backward_stages.py`)."""

    arguments = "inputs, pieces, *edges"
    is_linked = True

    def run(self, spec: FunctionSpec) -> list[str]:
        link = "ctx.pieces, ctx.link = pieces, link_tensor(edges[-1].device)"
        return [link, *super().run(spec)]

    def returned(
        self, spec: FunctionSpec, ctx: Any, gradients: Gradients | Iterator[Gradients],
        present: Indices | None,
    ) -> tuple[object, ...]:
        ctx.pieces.begin(spec.gradients.by_stage(gradients, present))
        return (None, None, *ctx.pieces.next(), ctx.link)


@final
class Part(NodeForm):
    """One of several nodes side by side, each for one group of independent values; the graph has
    run before."""

    arguments = "made, *inputs"
    inputs = "given"  # its own may be detached, and held by nobody

    def run(self, spec: FunctionSpec) -> list[str]:
        return ["ctx.random, outputs, given = made"]

    def values(self, spec: FunctionSpec) -> Sequence[int]:
        return [*spec.layouts]

    def saved(self, spec: FunctionSpec, k: int) -> str:
        """A value that another part returns gets a node that this part must not hold."""
        if k < 0:
            return "None"
        is_own = k in spec.layouts or k >= spec.outputs.n_values
        return f"outputs[{k}]" if is_own else f"outputs[{k}].detach()"

    def tangents(self, spec: FunctionSpec, own: Sequence[object]) -> Sequence[object]:
        tangents = dict(zip(spec.layouts, own, strict=True))
        return tuple([tangents.get(k) for k in range(spec.outputs.n_values)])

    def returned(
        self, spec: FunctionSpec, ctx: Any, gradients: Gradients | Iterator[Gradients],
        present: Indices | None,
    ) -> tuple[object, ...]:
        return (None, *super().returned(spec, ctx, gradients, present))


WHOLE: Final = NodeForm()
LINKED: Final = Linked()
PART: Final = Part()
