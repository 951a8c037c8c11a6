"""Traces a captured (torch-level) graph to a functional ATen graph.

Place in the pipeline: the first step of aot. The captured graph runs, node by node, on fake tensors
inside the `Recorder`. The result is one flat graph of ATen operators and a description of what else
the caller must see: which inputs were mutated, which outputs alias what::

    tracer, traced = trace(gm, example_inputs)
    traced.graph        # torch.fx.Graph of ATen operators: outputs = mutated inputs, then values
    traced.outputs      # one OutputSpec per output of the captured function
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, final

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import (
    FakeTensor,
    autograd_sequence,
    is_functorch_wrapped_tensor,
    noting_absent_gradients,
    tree_flatten,
    view_forbids_writes,
)
from weft.aot.autograd_graph import nodes_behind
from weft.aot.check_accounts import CheckAccounts
from weft.aot.control_flow import check_node
from weft.aot.data_dependent import bound_names, with_positions
from weft.aot.evaluate import Evaluator
from weft.aot.global_state import default_dtype, preserve_levels
from weft.aot.symbols import names_in, symbolic_leaves
from weft.aot.tracing import record_special  # noqa: F401  (registers its rules)
from weft.aot.tracing.arrivals import marked_hook
from weft.aot.tracing.attention import FUNCTIONS
from weft.aot.tracing.functionalize import Base, Functionalizer, require_fake
from weft.aot.tracing.record import Recorder
from weft.aot.views import Unsupported, ViewStep, restride
from weft.config import config
from weft.runtime.data_checks import is_check
from weft.shapes.fakes.fake import FakeContext, connected_non_leaf, is_leaf
from weft.shapes.fakes.without_sympy import python_kernels
from weft.shapes.fakes.wrappers import is_wrapper
from weft.shapes.graph_facts import BACKWARD, aten_facts, captured_facts, note, program_function
from weft.shapes.graph_nodes import call_target
from weft.shapes.guard import ShapeGuard
from weft.shapes.symnode import certainly_equal, expr_of
from weft.shapes.tensor_layouts import may_overlap

aten = torch.ops.aten
Layout = tuple[Sequence[Any], Sequence[Any]]


@final
@dataclass(frozen=True, slots=True)
class OutputSpec:
    """How one output of the captured function is made from the ATen graph's inputs and outputs."""

    kind: str
    """Where it starts: "value" (the graph's output `index`), "input" (the input object `index`
    itself), or "constant" (`value`)."""
    index: int = -1
    steps: tuple[ViewStep, ...] = ()
    """The views of that, or of output `of`, that lead to it."""
    value: Any = None
    detached: bool = False
    """Whether autograd does not know of the views."""
    mode: str = ""
    """The gradient mode under which the views must be made, if it matters."""
    forbids_writes: Any = None
    """Why autograd forbids writes to the view: `chunk` or the like made it, or `no_grad` of a
    tensor with a gradient."""
    of: int | None = None
    """The output that `steps` begin at, instead of a value or input."""


@final
@dataclass(slots=True)
class Traced:
    """A traced graph and what the runtime wrapper needs to know about it."""

    graph: Graph
    """Its outputs: the new values of written inputs (`mutated`), then other values."""
    n_inputs: int
    lifted: list[torch.Tensor]
    """Real tensors of the program that follow the inputs."""
    lifted_late: set[int]
    """Those of them, by position, that only the backward reads: as they are then."""
    mutated: list[int] = field(default_factory=list)
    detached_mutations: set[int] = field(default_factory=set)
    """The written inputs whose writes autograd does not see."""
    counts: dict[int, int] = field(default_factory=dict)
    """By how much eager raises the versions of the written inputs, and of others that operators
    have changed in place and back."""
    outputs: list[OutputSpec] = field(default_factory=list)
    spec: Any = None
    """The pytree structure of the outputs."""
    values: list[Any] = field(default_factory=list)
    """The nodes that the graph returns."""
    differentiable: dict[int, torch.Tensor] = field(default_factory=dict)
    """The fakes of those values that have a gradient, by index."""
    views: dict[int, torch.Tensor] = field(default_factory=dict)
    """The fakes of views with gradients that the wrapper makes, by output."""
    numbers: dict[str, int] = field(default_factory=dict)
    """Data-dependent symbols that the wrapper computes with, and the values that are their
    numbers."""
    asserts: list[ShapeGuard] = field(default_factory=list)
    """Conditions on data that the graph checks; later stages may add some."""
    n_handed: int = 0
    """How many of them the compiler has got."""
    runs_below_autograd: bool = False
    """Whether gradients are on, but no value has one."""

    def hand_asserts(self) -> Sequence[ShapeGuard]:
        """The conditions that the compiler is to check: it gets them now."""
        self.n_handed = len(self.asserts)
        return self.asserts

    @property
    def assumes(self) -> bool:
        """Whether the graph checks conditions on data."""
        return bool(self.asserts)

    def add(self, node: object, live: torch.Tensor | None) -> int:
        """Add a value and return its index; `live` is the tensor by which autograd knows it, if it
        has a gradient."""
        if live is not None and live.requires_grad:
            self.differentiable[len(self.values)] = live
        self.values.append(node)
        return len(self.values) - 1

    def close(self) -> None:
        """Append the output node."""
        self.graph.output(tuple(self.values))


def trace(gm: GraphModule, example_inputs: Sequence[object]) -> tuple[Tracer, Traced]:
    """The functional ATen graph of a captured graph for the given inputs, not yet closed."""
    tracer = Tracer(gm, example_inputs)
    tracer.add_inputs()
    tracer.add_state()
    tracer.run()
    return tracer, tracer.finish()


@final
@dataclass(frozen=True, slots=True)
class TracedInput:
    """An input of the traced graph, as it was before the graph ran."""

    value: Any
    """What the graph runs on: a fake or a number."""
    primal: Any = None
    """The leaf that its gradient is taken for; None for a number."""
    version: int = 0
    grad_fn: Any = None
    place: tuple[Any, ...] = ()
    """Sizes, strides and offset."""


@final
class Tracer:
    """One tracing run: the graph under construction and the fakes it runs on."""

    def __init__(self, gm: GraphModule, example_inputs: Sequence[Any]) -> None:
        # What is traced, and what with.
        self.gm = gm
        self.examples = list(example_inputs)
        self.evaluator = Evaluator.current()
        self.context = FakeContext(self.evaluator.mode)
        self.tensors = Functionalizer(Graph(), self.evaluator)
        self.recorder = Recorder(self.tensors, self._lift)
        self.last_placeholder: Node | None = None
        self.inputs: list[TracedInput] = []
        """Those of the captured graph, and behind them lifted tensors."""
        self.lifted: list[torch.Tensor] = []
        self.lifted_late: set[int] = set()
        self.state: list[tuple[Any, str, torch.Tensor, FakeTensor]] = []
        """Parameters and buffers of the graph's module: table, name, tensor, fake."""
        # What the run leaves.
        self.sequence: list[tuple[int, Any]] = []
        """After each node: autograd's next number, and the node's source lines."""
        self.result: Any = None
        self.accounts = CheckAccounts()

    @property
    def primals(self) -> list[Any]:
        """The leaf that the gradient of each input is taken for; None for a number."""
        return [source.primal for source in self.inputs]

    # -- inputs ------------------------------------------------------------------------------------

    def add_inputs(self) -> None:
        """Add placeholders and fakes for all inputs of the captured graph."""
        nodes = [n for n in self.gm.graph.nodes if n.op == "placeholder"]
        for node, example in zip(nodes, self.examples, strict=True):
            value = node.meta.get("example_value")
            if isinstance(example, torch.Tensor):
                layout = captured_facts(node).layout or _layout(value)
                self._add_tensor(node.name, self._fake_input(example, layout))
            else:
                value = example if value is None else value
                self.last_placeholder = self.tensors.placeholder(node.name, value)
                self.inputs.append(TracedInput(value))

    def add_state(self) -> None:
        """Lift parameters and buffers of a graph module that has its own (`compile_fx`)."""
        if not any(n.op in ("get_attr", "call_module") for n in self.gm.graph.nodes):
            return
        tables = [table for m in self.gm.modules() for table in (m._parameters, m._buffers)]
        for table in tables:
            for name, tensor in table.items():
                if tensor is not None:
                    self.state.append((table, name, tensor, self._lift(tensor)))

    @contextmanager
    def _fake_state(self) -> Iterator[None]:
        """Replace the module's parameters and buffers by their fakes inside the block."""
        try:
            for table, name, _, fake in self.state:
                table[name] = fake
            yield
        finally:
            for table, name, tensor, _ in self.state:
                table[name] = tensor

    def _fake_input(self, example: torch.Tensor, layout: Layout | None) -> FakeTensor:
        """A fake of the layout that capture knows it to have. Sizes that capture found to be fixed
        numbers are plain ones here: many rewrites are for those alone."""
        if layout is not None and any(type(n) is not int for part in layout for n in part):
            sizes, strides = ([_settled(n) for n in part] for part in layout)
            return self.context.fake(example, sizes=sizes, strides=strides)
        return self.context.fake(example)

    def _add_tensor(self, name: str, fake: FakeTensor) -> object:
        if fake.layout is not torch.strided:
            raise Unsupported(f"a {fake.layout} input")
        index = len(self.inputs)
        self.last_placeholder = self.tensors.placeholder(name, self.evaluator.intern(fake))
        primal = fake
        if fake.requires_grad and not fake.is_leaf:
            primal = require_fake(fake.detach().requires_grad_())
        alias = self.tensors.add_base(primal, self.last_placeholder, source=index)
        seen = fake
        if primal is not fake:  # the captured graph may write to it, which a leaf forbids
            seen = connected_non_leaf(primal)
            self.tensors.rename(seen, alias)
        place = (*fake.size(), *fake.stride(), fake.storage_offset())
        self.inputs.append(TracedInput(seen, primal, _version(seen), seen.grad_fn, place))
        return seen

    def _lift(self, tensor: torch.Tensor) -> FakeTensor:
        """Make a real tensor of the program one more input."""
        fake = self.context.fake(tensor)
        if not self.tensors.knows(fake):
            assert isinstance(fake, FakeTensor)
            with self.at_inputs():
                self._add_tensor(f"lifted_{len(self.lifted)}", fake)
            if self._is_backward():
                assert self.last_placeholder is not None
                note(self.last_placeholder,
                     replace(aten_facts(self.last_placeholder), read_late=True))
                self.lifted_late.add(len(self.lifted))
            self.lifted.append(tensor)
        return fake

    def at_inputs(self) -> Any:
        """A context in which nodes are appended after the placeholders."""
        graph = self.tensors.graph
        if self.last_placeholder is None:
            first = next(iter(graph.nodes), None)
            return nullcontext() if first is None else graph.inserting_before(first)
        return graph.inserting_after(self.last_placeholder)

    # -- running -----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the captured graph inside the recorder; leaves its outputs in `result`."""
        grad_mode = torch.is_grad_enabled()
        try:
            with (default_dtype(torch.get_default_dtype()), self._fake_state(), preserve_levels(),
                  noting_absent_gradients(), self.recorder):
                self._run_nodes(count_autograd=grad_mode)
        except RuntimeError as error:
            if "data is not allocated" in str(error):  # C++ code that reads values
                raise Unsupported("an operator reads a tensor's value") from error
            raise
        finally:
            torch.set_grad_enabled(grad_mode)

    def _run_nodes(self, count_autograd: bool) -> None:
        env: dict[Node, Any] = {}
        inputs = (source.value for source in self.inputs)
        for node in self.gm.graph.nodes:
            self.tensors.stack = node.meta.get("stack", ())
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "output":
                self.result = _resolve(node.args[0], env)
            else:
                if config.strict and is_check(node.target):
                    self.accounts.note(node, env)
                env[node] = self._call(node, env)
                if count_autograd:
                    self.sequence.append((autograd_sequence(), self.tensors.stack))
        symbols = self.evaluator.mode.symbols
        if symbols is not None:
            symbols.floats.carrying = True  # later stages compute metadata of recorded operators

    def _call(self, node: Node, env: dict[Node, Any]) -> Any:
        """The value of one node."""
        symbols, facts = self.evaluator.mode.symbols, captured_facts(node)
        if symbols is not None:
            symbols.data.earlier_answers = iter(facts.answers)
            symbols.floats.carrying = facts.carries_floats
        try:
            if facts.by_python:
                with python_kernels():
                    return self._call_target(node, env)
            return self._call_target(node, env)
        except (RuntimeError, TypeError) as error:  # of a class that expects sizes to be numbers
            if not any(map(_is_symbolic_wrapper, map(env.get, node.all_input_nodes))):
                raise
            raise Unsupported(f"wrapped tensors of symbolic sizes: {error}") from error

    def _call_target(self, node: Node, env: dict[Node, Any]) -> Any:
        if node.op == "get_attr":
            return _attribute(self.gm, str(node.target))
        args = _resolve(node.args, env)
        kwargs = _resolve(node.kwargs, env)
        if node.op == "call_function":
            check_node(node)
            if node.target is operator.setitem:
                args = with_positions(args)
            function = program_function(node)
            if function is not None and function.gradient_hook is not None:
                hook = function.gradient_hook(*args[1:])
                return args[0].register_hook(marked_hook(hook, self._is_backward))
            own = FUNCTIONS.get(node.target)
            if own is not None:
                return own(node, *args, **kwargs)
            return call_target(node, args, kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        return self.gm.get_submodule(str(node.target))(*args, **kwargs)

    def _is_backward(self) -> bool:
        return self.tensors.side is BACKWARD

    # -- outputs -----------------------------------------------------------------------------------

    def finish(self) -> Traced:
        """Describe the outputs; the graph gets its output node from `close`."""
        traced = Traced(self.tensors.graph, len(self.examples), self.lifted, self.lifted_late)
        self._check_metadata()
        written = [i for i, p in enumerate(self.primals)
                   if p is not None and self.tensors.alias(p).base.version]
        self._check_shared(written)
        for i in written:
            self._add_mutation(traced, i)
        self._count_writes(traced)
        flat, traced.spec = tree_flatten(self.result)
        traced.outputs = _Outputs(self, traced).specs(flat)
        self._add_numbers(traced)
        return traced

    def _add_numbers(self, traced: Traced) -> None:
        """Let the graph return the data-dependent numbers that the wrapper computes with."""
        symbols = self.evaluator.mode.symbols
        if symbols is None or not symbols.unbacked_symbols.names:
            return
        bound = bound_names(traced.graph)
        for name in sorted(set(_names_in_specs(traced.outputs)) & bound.keys()):
            traced.numbers[name] = traced.add(symbols.unbacked_number(name), None)

    def _add_mutation(self, traced: Traced, i: int) -> None:
        """Return the new value of input `i`, with a gradient if autograd saw the write."""
        seen = self.inputs[i].value
        traced.mutated.append(i)
        differentiable = seen.requires_grad and seen.grad_fn is not self.inputs[i].grad_fn
        if not differentiable:
            traced.detached_mutations.add(i)
        traced.add(self.tensors.alias(seen).base.node, seen if differentiable else None)

    def _count_writes(self, traced: Traced) -> None:
        """How often autograd counts writes to each input: `x.t_().t_()` leaves the data alone."""
        for i, source in enumerate(self.inputs):
            count = 0 if source.primal is None else _version(source.value) - source.version
            if count or i in traced.mutated:
                traced.counts[i] = count

    def _check_metadata(self) -> None:
        """Check that inputs keep their sizes and strides: such changes are not replayed."""
        for source in self.inputs:
            if source.primal is None:
                continue
            seen = source.value
            now = (*seen.size(), *seen.stride(), seen.storage_offset())
            if not certainly_equal(now, source.place):
                raise Unsupported("an input's sizes or strides are changed in place")

    def _check_shared(self, written: list[int]) -> None:
        """Check that a written input is the only input on its storage."""
        if not written:
            return
        primals = self.primals
        storages = [None if p is None else p.untyped_storage()._cdata for p in primals]
        owners = Counter(storages)
        if any(owners[storages[i]] > 1 for i in written):
            raise Unsupported("an input that shares memory with another is written")
        if any(may_overlap(primals[i]) for i in written):
            raise Unsupported("an input whose elements share memory is written")


@final
class _Outputs:
    """Classifies the outputs of the captured function."""

    def __init__(self, tracer: Tracer, traced: Traced) -> None:
        self.tracer = tracer
        self.tensors = tracer.tensors
        self.traced = traced
        self.by_object: dict[int, OutputSpec] = {}
        self.base_index: dict[int, int] = {}  # id(base) -> graph output with its value

    def specs(self, flat: Sequence[object]) -> list[OutputSpec]:
        """One spec per output; appends to the graph's outputs."""
        self.flat = [self._live(x) for x in flat]
        self.shared = self._shared_bases()
        specs = [self._spec(x) for x in self.flat]
        first = {id(x): k for k, x in reversed(list(enumerate(self.flat)))}
        self.traced.views = {
            k: self.flat[k] for k in sorted(first.values()) if specs[k].mode == "enable_grad"
        }
        return [
            self._from_view(specs, k) if k in self.traced.views
            else replace(spec, of=first[id(x)], steps=()) if first[id(x)] in self.traced.views
            else spec
            for k, (x, spec) in enumerate(zip(self.flat, specs, strict=True))
        ]

    def _from_view(self, specs: list[OutputSpec], k: int) -> OutputSpec:
        """View `k` as a view of another one, if its gradient goes through that."""
        spec, output = specs[k], self.flat[k]
        n, of = 0, None
        for i, view in self.traced.views.items():
            steps = specs[i].steps
            same = specs[i].index == spec.index and specs[i].kind == spec.kind
            same = same and i != k and steps == spec.steps[: len(steps)]
            if same and n <= len(steps) and _is_behind(view, output):
                n, of = len(steps), i
        return spec if of is None else replace(spec, of=of, steps=spec.steps[n:] or (_ALIAS,))

    def _live(self, output: object) -> Any:
        if not isinstance(output, torch.Tensor):
            return output
        if is_functorch_wrapped_tensor(output):  # results of `vjp` refer to such tensors
            raise Unsupported("a result that belongs to a torch.func transform")
        return self.tracer.recorder.live(output)

    def _shared_bases(self) -> set[int]:
        """Storages that several output tensors share."""
        seen: dict[int, int] = {}
        shared = set()
        for output in self.flat:
            if isinstance(output, torch.Tensor):
                base = id(self.tensors.alias(output).base)
                if seen.setdefault(base, id(output)) != id(output):
                    shared.add(base)
        return shared

    def _spec(self, output: object) -> OutputSpec:
        if not isinstance(output, torch.Tensor):
            return OutputSpec("constant", value=output)
        spec = self.by_object.get(id(output))
        if spec is None:
            spec = self.by_object[id(output)] = self._tensor_spec(output)
        return spec

    def _tensor_spec(self, output: torch.Tensor) -> OutputSpec:
        alias = self.tensors.alias(output)
        source = alias.base.source
        seen = None if source is None else self.tracer.inputs[source].value
        known = output is seen or not output.requires_grad or _has_no_history(output)
        if not known and output.is_leaf:
            raise Unsupported("an output that the graph makes a leaf")
        if output._backward_hooks:  # the caller sees the gradient that they give
            raise Unsupported("a hook on the gradient of an output")
        if source is not None and seen is not None:
            self._check_gradient(output, seen)
            return self._view_spec("input", source, output, seen)
        if id(alias.base) in self.shared:
            self._check_gradient(output, alias.base.live)
            index = self._base_output(alias.base)
            return self._view_spec("value", index, output, alias.base.live)
        node = restride(self.tensors.emit, self.tensors.read(output), output.stride())
        return OutputSpec("value", self.traced.add(node, output))

    def _view_spec(
        self, kind: str, index: int, output: torch.Tensor, owner: torch.Tensor
    ) -> OutputSpec:
        """`output` as the views that lead to it from `owner`, whose memory it shares."""
        steps = self.tensors.alias(output).steps
        if output is owner and not steps:
            return OutputSpec(kind, index)
        mode = ""
        if output.requires_grad:
            mode = "no_grad" if _has_no_history(output) else "enable_grad"
        if mode == "enable_grad" and not _comes_from(output, owner):
            raise Unsupported("a view that does not get its gradient from what it views")
        connected = owner.requires_grad if kind == "input" else index in self.traced.differentiable
        known = output.requires_grad or (output._is_view() and not connected)
        steps = steps or (_ALIAS,)
        forbids = view_forbids_writes(output) if known and torch.is_grad_enabled() else None
        return OutputSpec(kind, index, steps, detached=not known, mode=mode,
                          forbids_writes=forbids)

    def _check_gradient(self, output: torch.Tensor, owner: torch.Tensor) -> None:
        """Check that a view made at run time can get its gradient from what it views."""
        if output.requires_grad and not owner.requires_grad:
            raise Unsupported("an output with a gradient on the memory of one without")

    def _base_output(self, base: Base) -> int:
        if id(base) not in self.base_index:
            live = base.live if self._has_gradient(base) else None
            self.base_index[id(base)] = self.traced.add(base.node, live)
        return self.base_index[id(base)]

    def _has_gradient(self, base: Base) -> bool:
        """Whether an output on that memory requires a gradient: the others are detached, perhaps
        because a backward in the graph has freed what led to them."""
        return any(isinstance(output, torch.Tensor) and output.requires_grad
                   and self.tensors.alias(output).base is base for output in self.flat)


_ALIAS = ViewStep(aten.alias.default, ())


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _has_no_history(view: torch.Tensor) -> bool:
    """Whether `no_grad` made a view of a tensor that has a gradient."""
    return view.requires_grad and view._is_view() and is_leaf(view)


def _comes_from(output: torch.Tensor, owner: torch.Tensor) -> bool:
    """Whether a view's own gradient reaches its owner: not through a view that `no_grad` made, and
    not through a user's function, which may pass on another one."""
    between = nodes_behind([output.grad_fn], end=torch.autograd.function.BackwardCFunction)
    return any(node is owner.grad_fn or getattr(node, "variable", None) is owner
               for node in between)


def _is_behind(view: torch.Tensor, of: torch.Tensor) -> bool:
    """Whether gradients of a view reach another view of the same memory."""
    node, nr = of.grad_fn, of.output_nr
    while node is not None and len(node.next_functions) == 1:
        node, nr = node.next_functions[0]
        if node is view.grad_fn and nr == view.output_nr:
            return True
    return False


def _names_in_specs(specs: Sequence[OutputSpec]) -> Iterator[str]:
    """The symbols that the wrapper needs to make the outputs."""
    for spec in specs:
        for value in (spec.value, *(step.args for step in spec.steps)):
            for number in symbolic_leaves(value):
                yield from names_in(number)


def _layout(value: torch.Tensor | None) -> Layout | None:
    """The sizes and strides of the fake that stands for an input."""
    if value is None or value.layout is not torch.strided:
        return None
    return value.size(), value.stride()


def _settled(size: int | torch.SymInt) -> int | torch.SymInt:
    """A size as a plain number if the guards so far fix it."""
    number = expr_of(size)
    return number if isinstance(number, int) else size


def _resolve(value: Any, env: dict[Node, Any]) -> Any:
    """The arguments with nodes replaced by their values."""
    kind = type(value)
    if kind is Node:
        return env[value]
    if isinstance(value, tuple):
        items = [_resolve(v, env) for v in value]
        return kind(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_resolve(v, env) for v in value]
    if isinstance(value, dict):
        return {k: _resolve(v, env) for k, v in value.items()}
    if kind is slice:
        return slice(*(_resolve(v, env) for v in (value.start, value.stop, value.step)))
    return value


def _attribute(root: object, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name)
    return root


def _is_symbolic_wrapper(value: Any) -> bool:
    return is_wrapper(type(value)) and any(type(size) is not int for size in value.size())
