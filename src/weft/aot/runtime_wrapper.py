"""What a compiled graph needs around it at every call: mutations and aliasing outputs.

Place in the pipeline: the last step of aot. The wrapper is Python source generated for one graph,
so a graph without mutation and aliasing costs one call and nothing else::

    def call(inputs):
        x = inputs[0]
        outputs = artifact(inputs)
        x.copy_(outputs[0])
        return (outputs[1], x, x_select(x, 0, 0))
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import increment_version

from weft._frame import distinct_storages
from weft._torch import forbid_writes_to_view, foreach_copy_, tree_unflatten
from weft.aot.global_state import Boxed, RandomState
from weft.aot.operators import random_devices
from weft.aot.symbols import SYMBOLIC, input_symbols, names_in, size_text, symbolic_leaves
from weft.aot.tracing.trace import OutputSpec, Traced
from weft.aot.training.layers import Layers, watch_results, watched
from weft.aot.views import ViewStep
from weft.graph_call import GraphCall
from weft.runtime.data_checks import AssumptionError
from weft.runtime.generated_code import load
from weft.runtime.strided_views import CALLS


def wrap(
    traced: Traced, artifact: Boxed, captured: Callable[..., object], hidden: Collection[int] = (),
    layers: Layers | None = None,
) -> GraphCall:
    """A boxed callable that runs `artifact` and has all effects that eager has.

    `captured` runs instead if a written input shares memory with another one: then a write is
    visible elsewhere too, which the functional graph does not know. `artifact` may write to the
    inputs `hidden` without changing their versions. `layers`: autograd nodes between the results.
    """
    return _Source(traced, artifact, captured, hidden, layers).compiled()


def store(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """Write values to inputs; a compiler may have written some in place and returned the inputs."""
    apart, written = [], []
    for target, value in zip(targets, values, strict=True):
        if _is_in(target, value):
            written.append(target)
        else:
            apart.append((target, value))
    if written:
        increment_version(written)
    if apart:
        with torch.no_grad():
            foreach_copy_([t for t, _ in apart], [v for _, v in apart])


def store_silently(targets: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    """As `store`, for writes that eager does not count in the tensors' versions."""
    apart = [(t.data, v) for t, v in zip(targets, values, strict=True) if not _is_in(t, v)]
    if apart:
        foreach_copy_([t for t, _ in apart], [v for _, v in apart])


def _is_in(target: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a value is in the target's memory: its strides may differ where a size is 1."""
    if target is value:
        return True
    if target.data_ptr() != value.data_ptr() or target.shape != value.shape:
        return False
    steps = zip(target.shape, target.stride(), value.stride(), strict=True)
    return all(n == 1 or s == t for n, s, t in steps)


def bases(outputs: Sequence[Any], views: Sequence[int]) -> Sequence[Any]:
    """The outputs, of which `views` are views of nothing."""
    outputs = list(outputs)
    for k in views:
        view = outputs[k]
        if view._is_view() and not (view.is_conj() or view.is_neg()):
            empty = torch.empty(0, dtype=view.dtype, device=view.device)
            memory = view.untyped_storage()
            outputs[k] = empty.set_(memory, view.storage_offset(), view.size(), view.stride())
    return outputs


class _Source:
    """Writes the wrapper's source; the objects that it needs are globals of the function."""

    def __init__(
        self, traced: Traced, artifact: Boxed, captured: Callable[..., Any],
        hidden: Collection[int], layers: Layers | None,
    ) -> None:
        self.traced = traced
        self.layers = layers
        self.made: set[int] = set()  # results that have a name
        self.hidden = hidden
        self.scope: dict[str, Any] = {
            "artifact": artifact,
            "captured": captured,
            "no_grad": torch.no_grad,
            "enable_grad": torch.enable_grad,
            "distinct": distinct_storages,
            "store": store,
            "store_silently": store_silently,
            "increment_version": increment_version,
            "bases": bases,
            "forbid_writes": forbid_writes_to_view,
            "watched": watched,
            "watch_results": watch_results,
            "math": math,
            "AssumptionError": AssumptionError,
        }

    def compiled(self) -> GraphCall:
        """The wrapper."""
        text = self.text()
        call = load(text, "<weft runtime wrapper>", self.scope)
        # (It stores what it has computed when nothing can raise any more.)
        return GraphCall(call, boxed=True, restores=True, source=text)

    def text(self) -> str:
        """The wrapper's source."""
        return "\n    ".join(
            [
                "def call(inputs):",
                *self._lift(),
                *self._check(),
                *self._keep(),
                *self._hide(),
                *self._symbols(),
                *self._run(),
                *self._add_layers(),
                *self._mutate(),
                *self._return(),
            ]
        )

    def _run(self) -> list[str]:
        """Call the artifact. Autograd is off if the graph has lost its `detach` and `no_grad`."""
        lines = ["outputs = artifact(inputs)"]
        if self.traced.runs_below_autograd:
            lines = ["with no_grad():", f"    {lines[0]}"]
        if self.traced.assumes:
            own = f"kept[:{self.traced.n_inputs}]" if self.traced.lifted else "kept"
            lines = ["kept = list(inputs)", "try:", *(f"    {line}" for line in lines),
                     "except AssumptionError:", f"    return captured(*{own})"]
            devices = random_devices(self.traced.graph)
            if devices:  # the captured graph draws the same numbers
                self.scope["random_state"] = partial(RandomState.of, devices)
                lines.insert(0, "random = random_state()")
                lines.insert(-1, "    random.restore()")
        viewed = self._viewed_results()
        if viewed and not self.traced.differentiable:  # the others' are bases already
            lines.append(f"outputs = bases(outputs, {viewed})")
        return lines + [f"{name} = outputs[{k}]" for name, k in self.traced.numbers.items()]

    def _add_layers(self) -> list[str]:
        """Autograd nodes of results that depend on others, and the views that these read."""
        if self.layers is None or not self.layers.steps:
            return []
        inner = self.layers.inner
        lines = [f"watch = watched(outputs[{inner.top}])"]
        for n, (layer, enter) in enumerate(self.layers.steps):
            self.scope[f"enter{n}"] = enter
            read = self._named(layer.reads, lines)
            lines.append(f"enter{n}(watch, {self._named(layer.own, lines)}, {read})")
        results = self._named(inner.results, lines)
        return [*lines, f"watch_results(watch, {inner.results}, {results})"]

    def _named(self, results: Sequence[int], lines: list[str]) -> str:
        """A tuple of results (numbered as in `JointGraph.inner`); `lines` make the views."""
        for k in results:
            if k < 0:
                lines += self._result(~k)
        return f"({''.join(f'outputs[{k}], ' if k >= 0 else f'result{~k}, ' for k in results)})"

    def _viewed_results(self) -> tuple[int, ...]:
        """The values that the caller gets and that other results are views of."""
        values = [spec for spec in self.traced.outputs if spec.kind == "value"]
        viewed = {spec.index for spec in values if spec.steps}
        return tuple(sorted({spec.index for spec in values if not spec.steps} & viewed))

    def _lift(self) -> list[str]:
        """Append lifted tensors to the inputs."""
        names = [f"lifted{i}" for i in range(len(self.traced.lifted))]
        self.scope.update(zip(names, self.traced.lifted, strict=True))
        for i in self.traced.lifted_late:  # autograd does not mind if the program writes to it
            names[i] += ".data"
        return [f"inputs = [*inputs, {', '.join(names)}]"] if names else []

    def _check(self) -> list[str]:
        """Written inputs must not share memory with others."""
        written = tuple(self.traced.mutated)
        if not written:
            return []
        own = f"inputs[:{self.traced.n_inputs}]" if self.traced.lifted else "inputs"
        return [f"if not distinct(inputs, {written}): return captured(*{own})"]

    def _keep(self) -> list[str]:
        """Keep inputs that are needed after the artifact has run (it may clear the list)."""
        used = {s.index for s in self.traced.outputs if s.kind == "input"}
        used.update(self.traced.mutated, self.traced.counts)
        return [f"in{i} = inputs[{i}]" for i in sorted(used)]

    def _hide(self) -> list[str]:
        """Pass `.data` of inputs whose writes must not be counted."""
        return [f"data{i} = inputs[{i}] = in{i}.data" for i in self.traced.mutated
                if i in self.hidden]

    def _symbols(self) -> list[str]:
        """Read the symbols in view arguments and returned sizes."""
        sizes = [
            size
            for spec in self.traced.outputs
            for value in (spec.value, *(step.args for step in spec.steps))
            for size in symbolic_leaves(value)
        ]
        if not sizes:
            return []
        wanted = {name for size in sizes for name in names_in(size)}
        values = [n.meta["val"] for n in self.traced.graph.nodes if n.op == "placeholder"]
        sources = input_symbols(values)
        return [f"{name} = {sources[name].text(f'inputs[{sources[name].input}]')}"
                for name in sorted(wanted - self.traced.numbers.keys())]

    def _mutate(self) -> list[str]:
        detached = self.traced.detached_mutations
        written = list(enumerate(self.traced.mutated))
        lines = [f"in{i}.copy_(outputs[{k}])" for k, i in written if i not in detached]
        counts = self.traced.counts
        examples = [n.meta["val"] for n in self.traced.graph.nodes if n.op == "placeholder"]
        alike: dict[Any, list[tuple[int, int]]] = defaultdict(list)
        for k, i in written:
            if i in detached:  # one kernel copies tensors of one type on one GPU
                alike[not counts[i], examples[i].dtype, examples[i].device].append((k, i))
        for (silently, *_), pairs in alike.items():
            targets, values = (
                ", ".join(f"{'data' if i in self.hidden else 'in'}{i}" for _, i in pairs),
                ", ".join(f"outputs[{k}]" for k, _ in pairs))
            lines.append(f"store{'_silently' * silently}([{targets}], [{values}])")
        stored = set(self.traced.mutated)  # which counts once
        more = [f"in{i}" for i, count in counts.items() for _ in range(count - (i in stored))]
        return [*lines, f"increment_version([{', '.join(more)}])"] if more else lines

    def _return(self) -> list[str]:
        lines: list[str] = []
        items = []
        for k, output in enumerate(self.traced.outputs):
            if output.mode or output.forbids_writes is not None:
                lines += self._result(k)
                items.append(f"result{k}")
            else:
                items.append(self._output(k, output))
        flat = f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        spec = self.traced.spec
        if spec.type is tuple and all(c.is_leaf() for c in spec.children()):
            return [*lines, f"return {flat}"]
        if spec.type is list and all(c.is_leaf() for c in spec.children()):
            return [*lines, f"return list({flat})"]
        self.scope["unflatten"], self.scope["spec"] = tree_unflatten, spec
        return [*lines, f"return unflatten({flat}, spec)"]

    def _result(self, k: int) -> list[str]:
        """Make a view, `result{k}`, unless it exists."""
        if k in self.made:
            return []
        self.made.add(k)
        output = self.traced.outputs[k]
        lines = [f"result{k} = {self._output(k, output)}"]
        if output.mode == "no_grad" or (output.mode and not torch.is_grad_enabled()):
            lines = [f"with {output.mode}(): {lines[0]}"]  # as the graph did
        if output.forbids_writes is not None:
            self.scope[f"why{k}"] = output.forbids_writes
            lines.append(f"forbid_writes(result{k}, why{k})")
        return lines if output.of is None else self._result(output.of) + lines

    def _output(self, k: int, spec: OutputSpec) -> str:
        if spec.kind == "constant" and isinstance(spec.value, SYMBOLIC):
            return size_text(spec.value)
        if spec.kind == "constant":
            self.scope[f"constant{k}"] = spec.value
            return f"constant{k}"
        text = f"in{spec.index}" if spec.kind == "input" else f"outputs[{spec.index}]"
        text = text if spec.of is None else f"result{spec.of}"
        for j, step in enumerate(spec.steps):
            text = self._view(f"view{k}_{j}", step, text)
        return f"{text}.detach()" if spec.detached else text

    def _view(self, name: str, step: ViewStep, of: str) -> str:
        self.scope[name] = CALLS.get(step.op, step.op)
        arguments = [self._argument(f"{name}_{i}", a) for i, a in enumerate(step.args)]
        return f"{name}({', '.join([of, *arguments])})"

    def _argument(self, name: str, value: object) -> str:
        """A view's argument as text; an object without a text becomes a global."""
        if isinstance(value, SYMBOLIC):
            return size_text(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(self._argument(f'{name}_{i}', v) for i, v in enumerate(value))}]"
        if value is None or type(value) in (int, float, bool):
            return repr(value)
        self.scope[name] = value
        return name
