"""The forward of a compiled function's autograd node, as source written for one graph.

Place in the pipeline: made by `autograd_function.py` once per graph. It runs at every call, so it
has only what this graph needs: random state, saved values, sizes, inputs for double backward::

    def forward(ctx, *inputs):
        outputs = run(list(inputs))
        ctx.save_for_backward(inputs[0], outputs[1])
        ctx.set_materialize_grads(False)
        return (outputs[0],)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.aot.global_state import RandomState
from weft.aot.runtime_wrapper import bases
from weft.aot.training.backward_stages import link_tensor
from weft.aot.training.function_spec import FunctionSpec
from weft.aot.training.node_forms import NodeForm
from weft.runtime.generated_code import load
from weft.runtime.held_tensors import hold


def forward_of(spec: FunctionSpec, form: NodeForm) -> Callable[..., object]:
    """The function's forward."""
    scope: dict[str, Any] = {
        "run": spec.forward, "spec": spec, "hold_others": spec.inputs.hold_others,
        "link_tensor": link_tensor, "hold": hold, "bases": bases, "random_state": RandomState.of,
    }
    return load(_forward_text(spec, form), "<weft autograd forward>", scope, "forward")


def _forward_text(spec: FunctionSpec, form: NodeForm) -> str:
    """Only what this graph needs: random state, saved values, sizes, weak references."""
    saved = [f"inputs[{i}]" for i in spec.inputs.saved]
    saved += [form.saved(spec, k) for k in spec.outputs.saved]
    others = spec.layouts.keys() | spec.outputs.numbers
    plain = [f"outputs[{k}]" for k in form.values(spec) if k not in others]
    sizes = [f"{k}: outputs[{k}].size()" for k, layout in spec.layouts.items()
             if layout.size is None]
    symbols = [
        s.text(f"{'outputs' if s.of_output else 'inputs'}[{s.input}]") for s in spec.outputs.symbols
    ]
    lines = [
        f"def forward(ctx, {form.arguments}):",
        *form.run(spec),
        f"ctx.save_for_backward({', '.join(saved)})" if saved else "",
        f"ctx.symbols = [{', '.join(symbols)}]" if symbols else "",
        f"ctx.sizes = {{{', '.join(sizes)}}}" if sizes else "",
        *spec.inputs.forward_lines(form.inputs),
        "ctx.set_materialize_grads(False)",
        f"ctx.mark_non_differentiable({', '.join(plain)})" if plain else "",
        f"return ({''.join(f'outputs[{k}], ' for k in form.values(spec))})",
    ]
    return "\n    ".join(line for line in lines if line)
