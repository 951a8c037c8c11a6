"""One call of a function, compiled and in eager: what differs, in a line.

The tables (`op_table.py`, `module_table.py`) and the tests share this. A *runner* compiles a
function for given inputs:

    compare(torch.add, (x, y), {}, RUNNERS["graph"]("inductor"))        # "equal"

`graph` gives the backend a graph of one call; `compile` goes through `weft.compile`, capture
included; `dynamic` the same with `dynamic=True`; `peer` through `torch.compile`.

Where values differ, eager's own error is the yardstick: eager runs once more in float64, and what
is as near to that as eager's result is equal.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_flatten, tree_unflatten

import weft
from weft.backends import resolve
from weft.diagnostics import events

Outcome = str
"""`equal`, `fallback: why` (runs without aot), `eager fails: …`, or what differs."""

Runner = Callable[[Callable[..., Any], list[torch.Tensor]], tuple[Callable[..., Any], Outcome]]


def flat_call(
    function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """`function` as a function of the tensors among its arguments, with a flat tuple of results."""
    flat, spec = tree_flatten((args, kwargs))
    places = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        given = list(flat)
        for i, tensor in zip(places, tensors, strict=True):
            given[i] = tensor
        a, k = tree_unflatten(given, spec)
        return tuple(tree_flatten(function(*a, **k))[0])

    return call, [flat[i] for i in places]


def as_graph(call: Callable[..., Any], n_inputs: int) -> GraphModule:
    """A graph that calls `call`, a function or a module, once."""
    graph = Graph()
    nodes = tuple(graph.placeholder(f"x{k}") for k in range(n_inputs))
    root = torch.nn.Module()
    if isinstance(call, torch.nn.Module):
        root.call = call
        graph.output(graph.call_module("call", nodes))
    else:
        graph.output(graph.call_function(call, nodes))
    return GraphModule(root, graph)


def make_graph(
    function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[GraphModule, list[torch.Tensor]]:
    """A graph that calls `function` once; its tensors are the inputs."""
    call, inputs = flat_call(function, args, kwargs)
    return as_graph(call, len(inputs)), inputs


# -- runners ---------------------------------------------------------------------------------------


def graph_runner(backend: str) -> Runner:
    """The backend alone, on a graph of one call."""

    def run(call: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
        with events.collect() as seen:
            compiled = resolve(backend)(as_graph(call, len(inputs)), inputs)
        if getattr(compiled, "boxed", False):
            return lambda *given: compiled(list(given)), "equal"
        return compiled, f"fallback: {_last_text(seen)}"

    return run


def compile_runner(backend: str, dynamic: bool = False) -> Runner:
    """`weft.compile`, capture included."""

    def run(call: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
        return weft.compile(call, backend=backend, dynamic=dynamic), "equal"

    return run


def dynamic_runner(backend: str) -> Runner:
    """`weft.compile` with symbolic sizes."""
    return compile_runner(backend, dynamic=True)


def peer_runner(backend: str) -> Runner:
    """`torch.compile`."""

    def run(call: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
        torch._dynamo.reset()
        return torch.compile(call, backend=backend, dynamic=False), "equal"

    return run


RUNNERS: Final[dict[str, Callable[[str], Runner]]] = {
    "graph": graph_runner,
    "compile": compile_runner,
    "dynamic": dynamic_runner,
    "peer": peer_runner,
}


def _last_text(seen: Any) -> str:
    texts = [str(e.reason) for e in seen if e.kind == "uncompiled"]
    return texts[-1] if texts else ""


# -- running ---------------------------------------------------------------------------------------


def copies(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """New leaves with the same values, strides, offsets and room around them."""
    return [_copy(i) for i in inputs]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.detach().clone().requires_grad_(tensor.requires_grad)
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    storage = tensor.untyped_storage().clone()
    made.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
    return made.requires_grad_(tensor.requires_grad)


def outputs_and_gradients(
    call: Callable[..., Any], inputs: list[torch.Tensor], parameters: Sequence[torch.Tensor] = ()
) -> tuple[list[Any], list[Any]]:
    """The results that are tensors, and the gradients of all inputs that need one."""
    torch.manual_seed(42)  # what the database's wrapper_set_seed uses, at trace time for us
    outputs = [o for o in call(*inputs) if isinstance(o, torch.Tensor)]
    wanted = [i for i in [*inputs, *parameters] if i.requires_grad]
    roots = [o for o in outputs if o.requires_grad and o.grad_fn is not None]
    if not roots or not wanted:
        return outputs, []
    torch.manual_seed(1)
    tangents = [_tangent(o) for o in roots]
    return outputs, list(torch.autograd.grad(roots, wanted, tangents, allow_unused=True))


def _tangent(output: torch.Tensor) -> torch.Tensor:
    """Random numbers, the same whatever precision they are rounded to."""
    dtype = torch.complex128 if output.dtype.is_complex else torch.float64
    made = torch.empty_like(output)  # its memory order
    made.copy_(torch.randn(output.shape, dtype=dtype))
    return made


def compare(
    function: Callable[..., Any], args: Any, kwargs: Any, runner: Runner, *,
    random: bool = False, change: Callable[[list[Any]], list[Any]] = copies,
) -> Outcome:
    """`function` through `runner` and in eager; `change` makes the inputs of a run.

    `random`: only the number of results is compared.
    """
    call, inputs = flat_call(function, args, kwargs)
    return compare_calls(call, call, inputs, runner, random=random, change=change)


def compare_calls(
    eager: Callable[..., Any], ours: Callable[..., Any], inputs: list[torch.Tensor],
    runner: Runner, *, random: bool = False, change: Callable[[list[Any]], list[Any]] = copies,
) -> Outcome:
    """`eager` run as it is, `ours` (the same, or an equal module) through `runner`."""
    eager_inputs, given = change(inputs), change(inputs)
    try:
        wanted = outputs_and_gradients(eager, eager_inputs, _state(eager))
    except Exception as error:
        return f"eager fails: {type(error).__name__}"
    try:
        compiled, outcome = runner(ours, given)
        if outcome != "equal":
            return outcome
        found = outputs_and_gradients(compiled, given, _state(ours))
    except Exception as error:
        return f"raises {type(error).__name__}: {_first_line(error)}"
    if random:
        return "equal" if len(found[0]) == len(wanted[0]) else "random: number of outputs"
    all_found = Seen(*found, given + _state(ours))
    all_wanted = Seen(*wanted, eager_inputs + _state(eager))
    return all_found.differs_from(all_wanted, Yardstick(eager, change(inputs))) or "equal"


class Seen(NamedTuple):
    """What a caller sees of a call."""

    outputs: list[Any]
    gradients: list[Any]
    inputs: list[Any]

    def differs_from(self, wanted: Seen, yardstick: Yardstick | None = None) -> str | None:
        """What differs, or None."""
        for k, name in enumerate(("output", "gradient", "input")):
            exact = partial(yardstick.get, k) if yardstick is not None else _no_yardstick
            found = _compare_lists(self[k], wanted[k], name, exact)
            if found:
                return found
        return None


class Yardstick:
    """Eager's results in float64, computed where something differs from eager."""

    def __init__(self, call: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
        self.call, self.inputs = call, inputs
        self.seen: Seen | None = None

    def get(self, kind: int, i: int) -> torch.Tensor | None:
        """The i-th output, gradient or input; None if float64 tells nothing."""
        if not any(
            t.dtype.is_floating_point or t.dtype.is_complex for t in self.inputs
        ):
            return None
        if self.seen is None:
            wide = [_widened(t) for t in self.inputs]
            call = self.call
            if isinstance(call, torch.nn.Module):
                call = copy.deepcopy(call).double()
            try:
                found = outputs_and_gradients(call, wide, _state(call))
                self.seen = Seen(*found, wide + _state(call))
            except Exception:
                self.seen = Seen([], [], [])
        values = self.seen[kind]
        return values[i] if i < len(values) else None


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return _wide(tensor.detach()).requires_grad_(tensor.requires_grad)
    return tensor


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def _no_yardstick(i: int) -> None:
    return None


def _state(call: Any) -> list[torch.Tensor]:
    """Parameters and buffers, if `call` is a module."""
    if not isinstance(call, torch.nn.Module):
        return []
    return [*call.parameters(), *call.buffers()]


def _compare_lists(
    found: list[Any], wanted: list[Any], what: str, exact: Callable[[int], torch.Tensor | None]
) -> str | None:
    if len(found) != len(wanted):
        return f"{what}: {len(found)} for {len(wanted)}"
    for i, (f, w) in enumerate(zip(found, wanted, strict=True)):
        different = _compare(f, w, what, partial(exact, i))
        if different:
            return f"{what} {i}: {different}"
    return None


def _compare(
    found: Any, wanted: Any, what: str, exact: Callable[[], torch.Tensor | None]
) -> str | None:
    """What differs between two tensors."""
    if found is None or wanted is None:
        same = found is None and wanted is None
        return None if same else f"{type(found).__name__} for {type(wanted).__name__}"
    if found.dtype != wanted.dtype or found.size() != wanted.size():
        return f"{found.dtype} {tuple(found.size())} for {wanted.dtype} {tuple(wanted.size())}"
    if found.device != wanted.device:
        return f"on {found.device} for {wanted.device}"
    if what == "output" and _layout(found, wanted) != _layout(wanted, wanted):
        return f"strides {found.stride()} for {wanted.stride()}"
    try:
        torch.testing.assert_close(found, wanted, equal_nan=True)
    except AssertionError as error:
        if _as_good(found, wanted, exact):
            return None
        return " ".join(str(error).split())[:160]
    return None


def _as_good(
    found: torch.Tensor, wanted: torch.Tensor, exact: Callable[[], torch.Tensor | None]
) -> bool:
    """Whether `found` is as near to the value in float64 as eager's `wanted` is."""
    if not (wanted.dtype.is_floating_point or wanted.dtype.is_complex):
        return False
    reference = exact()
    if reference is None or reference.size() != wanted.size():
        return False
    finite = reference.isfinite() & wanted.isfinite()
    if not finite.any():
        return False
    rounded = reference.detach().to(wanted.dtype)
    others = any(  # where eager's intermediate results are too large for the type, ours may not be
        torch.allclose(found[~finite], t[~finite], rtol=1e-2, equal_nan=True)
        for t in (wanted, rounded)
    )
    f, w, r = (_wide(t.detach()[finite]) for t in (found, wanted, reference))
    error, allowed, scale = (f - r).abs().max(), (w - r).abs().max(), r.abs().max()
    unit = torch.finfo(wanted.dtype).eps * scale
    useful = bool(allowed <= max(0.2 * scale, 8 * unit))  # else float64 computes something else
    near = bool(error <= allowed) or (useful and bool(error <= 2 * allowed + 4 * unit))
    return others and near


def _layout(t: torch.Tensor, wanted: torch.Tensor) -> Any:
    """The strides that matter: all if eager's result has no gaps, else only their order."""
    if wanted.layout != torch.strided or wanted.numel() == 0:
        return None
    steps = [(s, d) for d, (s, n) in enumerate(zip(t.stride(), t.size(), strict=True)) if n != 1]
    if _is_dense(wanted):
        return steps
    return [d for _, d in sorted(steps, key=lambda step: -step[0])]


def _is_dense(t: torch.Tensor) -> bool:
    """Whether elements fill their memory, each its own."""
    reach = 1
    for step, n in sorted(zip(t.stride(), t.size(), strict=True)):
        if n != 1 and step != reach:
            return False
        reach *= n
    return True


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:160] if str(error) else ""


def kind_of(outcome: Outcome) -> str:
    """The first word: what the tables count."""
    return outcome.partition(":")[0].split(" ")[0]


__all__ = ["RUNNERS", "compare", "compare_calls", "copies", "make_graph", "outputs_and_gradients"]
