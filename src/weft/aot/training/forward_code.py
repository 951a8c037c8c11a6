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
from typing import Any, Final

from weft.aot.global_state import RandomState
from weft.aot.runtime_wrapper import bases
from weft.aot.training.backward_stages import link_tensor
from weft.aot.training.function_spec import FunctionSpec
from weft.runtime.generated_code import load
from weft.runtime.held_tensors import hold


def forward_of(spec: FunctionSpec, form: str = "") -> Callable[..., object]:
    """The function's forward.

    form "linked": it has further nodes behind it (`linked_call`); "part": it is one of several for
    one graph, which has run, and returns only the values of `spec.layouts`.
    """
    scope: dict[str, Any] = {
        "run": spec.forward, "spec": spec, "hold_others": spec.inputs.hold_others,
        "link_tensor": link_tensor, "hold": hold, "bases": bases, "random_state": RandomState.of,
    }
    return load(_forward_text(spec, form), "<weft autograd forward>", scope, "forward")


_ARGUMENTS: Final = {"": "*inputs", "linked": "inputs, pieces, *edges", "part": "made, *inputs"}


def _forward_text(spec: FunctionSpec, form: str) -> str:
    """Only what this graph needs: random state, saved values, sizes, weak references."""
    saved = [f"inputs[{i}]" for i in spec.inputs.saved]
    saved += [_saved_value(spec, k, form == "part") for k in spec.outputs.saved]
    values = [f"outputs[{k}]" for k in range(spec.outputs.n_values)]
    numbers = spec.layouts.keys() | spec.outputs.numbers
    plain = [values[k] for k in range(spec.outputs.n_values) if k not in numbers]
    sizes = [f"{k}: {values[k]}.size()" for k, layout in spec.layouts.items()
             if layout.size is None]
    symbols = [
        s.text(f"{'outputs' if s.of_output else 'inputs'}[{s.input}]") for s in spec.outputs.symbols
    ]
    run = [
        "ctx.random = random_state(spec.random_devices)" if spec.random_devices else "",
        *spec.inputs.copy_lines(),
        "outputs = run(list(inputs))",
        # autograd forbids writes to views that a function makes
        f"outputs = bases(outputs, {spec.outputs.views})" if spec.outputs.views else "",
    ]
    held = "inputs"
    if form == "part":
        run, plain = ["ctx.random, outputs, given = made"], []
        values = [values[k] for k in spec.layouts]
        held = "given"  # its own may be detached, and held by nobody
    lines = [
        f"def forward(ctx, {_ARGUMENTS[form]}):",
        "ctx.pieces, ctx.link = pieces, link_tensor(edges[-1].device)" if form == "linked" else "",
        *run,
        f"ctx.save_for_backward({', '.join(saved)})" if saved else "",
        f"ctx.symbols = [{', '.join(symbols)}]" if symbols else "",
        f"ctx.sizes = {{{', '.join(sizes)}}}" if sizes else "",
        *spec.inputs.forward_lines(held),
        "ctx.set_materialize_grads(False)",
        f"ctx.mark_non_differentiable({', '.join(plain)})" if plain else "",
        f"return ({', '.join(values)},)",
    ]
    return "\n    ".join(line for line in lines if line)


def _saved_value(spec: FunctionSpec, k: int, is_part: bool) -> str:
    """A value to save; one that another part returns gets a node that this part must not hold."""
    if k < 0:
        return "None"
    is_own = k in spec.layouts or k >= spec.outputs.n_values
    return f"outputs[{k}].detach()" if is_part and not is_own else f"outputs[{k}]"
