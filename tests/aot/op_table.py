"""Every operator of PyTorch's operator database through a backend, forward and gradients.

    python tests/aot/op_table.py [--backend aot_eager] [--dtype float32] [--only add,mul]
    [--samples 3]

prints one line per operator that is not equal to eager, and the counts. Each sample is one graph
whose inputs are the sample's tensors. `compare(op, dtype, backend, samples)` is what the tests use.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Graph, GraphModule
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

import weft
from weft.backends import resolve
from weft.diagnostics import events

Outcome = str  # "equal", "fallback" (runs without aot), "eager fails", or what differs


def make_graph(
    function: Callable[..., Any], args: Any, kwargs: Any
) -> tuple[GraphModule, list[Any]]:
    """A graph that calls `function` once; its tensors are the inputs."""
    flat, spec = tree_flatten((args, kwargs))
    graph = Graph()
    inputs, places = [], []
    for i, value in enumerate(flat):
        if isinstance(value, torch.Tensor):
            places.append(i)
            inputs.append(value)
    nodes = [graph.placeholder(f"x{k}") for k in range(len(inputs))]

    def call(*tensors: torch.Tensor) -> Any:
        given = list(flat)
        for i, tensor in zip(places, tensors, strict=True):
            given[i] = tensor
        a, k = tree_unflatten(given, spec)
        return tuple(tree_flatten(function(*a, **k))[0])

    graph.output(graph.call_function(call, tuple(nodes)))
    return GraphModule(torch.nn.Module(), graph), inputs


def _copies(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [i.detach().clone().requires_grad_(i.requires_grad) for i in inputs]


def _run(call: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients."""
    torch.manual_seed(42)  # what the database's wrapper_set_seed uses, at trace time for us
    outputs = [o for o in call(*inputs) if isinstance(o, torch.Tensor)]
    wanted = [i for i in inputs if i.requires_grad]
    roots = [o for o in outputs if o.requires_grad and o.grad_fn is not None]
    if not roots or not wanted:
        return outputs, []
    torch.manual_seed(1)
    tangents = [torch.randn_like(o) for o in roots]
    return outputs, list(torch.autograd.grad(roots, wanted, tangents, allow_unused=True))


def _compare_lists(found: list[Any], wanted: list[Any], what: str) -> str | None:
    if len(found) != len(wanted):
        return f"{what}: {len(found)} for {len(wanted)}"
    for i, (f, w) in enumerate(zip(found, wanted, strict=True)):
        if (f is None) != (w is None):
            return f"{what} {i}: {type(f).__name__} for {type(w).__name__}"
        if f is None:
            continue
        if f.dtype != w.dtype or f.size() != w.size():
            return f"{what} {i}: {f.dtype} {tuple(f.size())} for {w.dtype} {tuple(w.size())}"
        if what == "output" and _strides(f) != _strides(w):
            return f"{what} {i}: strides {f.stride()} for {w.stride()}"
        try:
            torch.testing.assert_close(f, w, equal_nan=True)
        except AssertionError as error:
            return f"{what} {i}: {str(error).splitlines()[0]}"
    return None


def _strides(t: torch.Tensor) -> Any:
    """The strides that matter."""
    if t.layout != torch.strided or t.numel() == 0:
        return None
    return [s for s, n in zip(t.stride(), t.size(), strict=True) if n != 1]


def compare_sample(op: Any, sample: Any, backend: str) -> Outcome:
    """One sample of one operator."""
    gm, inputs = make_graph(op.op, (sample.input, *sample.args), sample.kwargs)
    eager_inputs, given = _copies(inputs), _copies(inputs)
    try:
        wanted = _run(gm.forward, eager_inputs)
    except Exception as error:
        return f"eager fails: {type(error).__name__}"
    with events.collect() as seen:
        compiled = resolve(backend)(gm, given)
    if not getattr(compiled, "boxed", False):
        texts = [e.text for e in seen if e.kind == "perf"]
        return f"fallback: {texts[-1] if texts else ''}"
    try:
        found = _run(lambda *i: compiled(list(i)), given)
    except Exception as error:
        return f"raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if _is_random(op):
        return "equal" if len(found[0]) == len(wanted[0]) else "random: number of outputs"
    return (_compare_lists(found[0], wanted[0], "output")
            or _compare_lists(found[1], wanted[1], "gradient")
            or _compare_lists(given, eager_inputs, "input") or "equal")  # fmt: skip


def _is_random(op: Any) -> bool:
    return op.name in {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
                       "empty_permuted"}  # fmt: skip


def compare(op: Any, dtype: torch.dtype, backend: str, samples: int) -> Iterator[Outcome]:
    """The outcomes of an operator's first samples."""
    if dtype not in op.dtypes:
        return
    floating = dtype.is_floating_point or dtype.is_complex
    gradient = floating and op.supports_autograd and dtype in op.backward_dtypes
    for i, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=gradient)):
        if i >= samples:
            return
        try:
            yield compare_sample(op, sample, backend)
        except Exception as error:
            first = str(error).splitlines()[0] if str(error) else ""
            yield f"compile raises {type(error).__name__}: {first}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    only = set(options.only.split(",")) - {""}
    counts: Counter[str] = Counter()
    with weft.config.patch(strict=True):
        for op in op_db[:: options.every]:
            name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
            if only and op.name not in only:
                continue
            outcomes = list(compare(op, getattr(torch, options.dtype), options.backend,
                                    options.samples))  # fmt: skip
            kinds = {o.partition(":")[0].split(" ")[0] for o in outcomes}
            worst = next((k for k in sorted(kinds) if k not in ("equal",)), "equal")
            counts[worst if outcomes else "no samples"] += 1
            bad = [o for o in outcomes if o != "equal"]
            if bad:
                print(f"{name}: {bad[0]} ({len(bad)}/{len(outcomes)})", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    main()
