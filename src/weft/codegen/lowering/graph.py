"""Walks an ATen graph and lowers it node by node.

Place in the pipeline: first step of `compile_graph`. The result is a list of definitions (formulas
over domains, and ATen calls) in an order that respects data flow only approximately:
`scheduling/schedule.py` sorts.

    lowered = GraphLowering.of(gm)
    lowered.definitions, lowered.outputs, lowered.inputs
"""

from __future__ import annotations

import itertools
import operator
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, final

import torch
from torch.fx import GraphModule, Node

from weft.codegen.ir.dtypes import is_supported
from weft.codegen.lowering.convolution import prefers_channels_last
from weft.codegen.lowering.due_formulas import DueFormulas
from weft.codegen.lowering.epilogues import absorbed
from weft.codegen.lowering.extern import call_aten
from weft.codegen.lowering.large_formulas import is_too_large
from weft.codegen.lowering.materialization import should_realize
from weft.codegen.lowering.partial_reads import PartialReads
from weft.codegen.lowering.registry import (
    LOWERINGS,
    NUMBER_OPERATORS,
    LoweringContext,
    NotLowered,
    strided_of,
)
from weft.codegen.lowering.views import VIEWS
from weft.codegen.values import (
    Buffer,
    Computed,
    Definition,
    ExternCall,
    Lazy,
    Origin,
    Strided,
    Value,
    strided_index,
)
from weft.runtime.strided_views import laid_out
from weft.shapes.algebra.bounds import lower_bound
from weft.shapes.algebra.expr import Expr, IntExpr, symbol, symbols
from weft.shapes.algebra.facts import Facts
from weft.shapes.algebra.floats import SYMBOLIC_FLOATS, FloatSymbol, FloatValue, number_symbols
from weft.shapes.algebra.layout import has_strides, permuted_row_major, row_major
from weft.shapes.algebra.views import Shape
from weft.shapes.asserts import binds
from weft.shapes.graph_facts import aten_facts, graph_facts
from weft.shapes.guard import ShapeGuard
from weft.shapes.symnode import expr_of, extents, factored_expr_of, float_of, input_expr

_TORCH = os.path.dirname(torch.__file__)
KERNEL_DEVICES = frozenset({"cpu", "cuda"})


@final
@dataclass
class GraphLowering:
    """The state of lowering one graph, and its result."""

    inputs: list[Buffer | IntExpr | FloatValue | None] = field(default_factory=list)
    given: dict[str, tuple[Shape, Shape]] = field(default_factory=dict)
    """Sizes and strides of inputs in the symbols of the graph, which calls bind."""
    numbers: dict[Any, Value] = field(default_factory=dict)
    outputs: list[Any] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    extern_ops: list[str] = field(default_factory=list)
    written: dict[str, Buffer] = field(default_factory=dict)
    rewritten: frozenset[int] = frozenset()
    """Inputs (by number) whose new values the caller gets."""
    held: set[str] = field(default_factory=set)
    """Inputs that stay in memory when the graph has read them."""
    stages: Sequence[Sequence[int]] = ()
    """Outputs (by number) that the caller takes stage by stage; empty: all at the end."""
    channels_last: bool = False
    asserts: Sequence[ShapeGuard] = ()
    facts: Facts | None = None
    floats: dict[Expr, FloatValue] = field(default_factory=dict)
    """Floats that kernels receive, by the symbols of their bits."""
    _returned: set[Buffer] = field(default_factory=set)
    """The memory of outputs that are not inputs."""
    _due: DueFormulas = field(default_factory=DueFormulas)
    _partial: PartialReads = field(default_factory=PartialReads)
    _count: int = 0

    @staticmethod
    def of(gm: GraphModule) -> GraphLowering:
        """Lower all of `gm`."""
        lowered = GraphLowering(channels_last=prefers_channels_last(gm))
        facts = graph_facts(gm)
        lowered.asserts, lowered.facts = facts.asserts, _facts_of(gm)
        lowered.stages = facts.stages
        lowered.rewritten = frozenset(i for _, i in facts.written)
        environment: dict[Node, Any] = {}
        behind: dict[Node, int] = {}
        for node in gm.graph.nodes:
            if node.op == "output":
                lowered._return(node.args[0], environment, behind)
            else:
                environment[node] = _STEPS[node.op](lowered, node, environment, gm)
                behind[node] = len(lowered.definitions)
        lowered._find_written(facts.written)
        return lowered

    def _find_written(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Find outputs that are new values of inputs; `written[name]` is the input that they may
        overwrite."""
        for k, i in pairs:
            value, target = self.outputs[k], self.inputs[i]
            if not isinstance(value, Value) or not isinstance(target, Buffer):
                continue
            if _has_layout(value.realize(), target):
                buffer = value.realize().buffer
                names = {buffer.name, *_steps_to(buffer, target)}
                self.written.update(dict.fromkeys(names, target))

    def is_rewritten(self, value: Value) -> bool:
        """Whether it is an input that gets a new value, or a step on the way to that value, by
        calls that may overwrite the input."""
        inputs = [self.inputs[i] for i in self.rewritten if i < len(self.inputs)]
        placed = value.buffer()
        return placed is not None and any(
            placed is b or _steps_to(placed, b) for b in inputs if isinstance(b, Buffer)
        )

    # -- nodes -----------------------------------------------------------------------------------

    def _placeholder(
        self, node: Node, environment: Mapping[Node, object], gm: GraphModule
    ) -> object:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            number = to_number(value)
            self.inputs.append(input_expr(value) if isinstance(value, torch.SymInt) else number)
            return number if number is not None else value
        buffer = self._input_buffer(value)
        self.inputs.append(buffer)
        facts = aten_facts(node)
        buffer.is_state = facts.is_state
        if not facts.dies:
            self.held.add(buffer.name)
        stored = self._in_memory(buffer)
        if facts.strides is not None:
            lazy = Lazy(stored.at, reads=1)
            return Value(stored.shape, stored.dtype, lazy, stored.device, self, facts.strides)
        return stored

    def _input_buffer(self, tensor: torch.Tensor) -> Buffer:
        name = f"in{len(self.inputs)}"
        self.given[name] = tuple(map(expr_of, tensor.shape)), tuple(map(expr_of, tensor.stride()))
        sizes, strides = to_shape(tensor.shape), to_shape(tensor.stride())
        return Buffer(name, tensor.dtype, sizes, strides, tensor.device)

    def _in_memory(self, buffer: Buffer) -> Value:
        return Value(buffer.shape, buffer.dtype, strided_of(buffer), buffer.device, self)

    def _attribute(self, node: Node, environment: Mapping[Node, object], gm: GraphModule) -> Value:
        tensor = operator.attrgetter(str(node.target))(gm)
        name = f"const{len(self.constants)}"
        self.constants[name] = tensor
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return self._in_memory(Buffer(name, tensor.dtype, shape, strides, tensor.device))

    def _call(self, node: Node, environment: Mapping[Node, object], gm: GraphModule) -> Any:
        if node.target is operator.getitem:
            source, index = node.args
            assert isinstance(source, Node)
            results: Any = environment[source]
            return results[index]
        value = node.meta["val"]
        args = _lookup(node.args, environment)
        keywords = _lookup(node.kwargs, environment)
        if isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool)):
            self._bind_number(node, args, keywords)
            return to_number(value)
        self._due.read_by(node)
        if aten_facts(node).must_run:
            self._run_for_errors(node, args, keywords)
            if not node.users:
                return None
        whole = self._partial.hides_errors(node)
        result = None if whole else absorbed(node, args, keywords, _origins(node)[0])
        if result is None:
            result = self._lower(node, value, args, keywords, by_aten=whole)
        strides = aten_facts(node).strides
        if strides is not None and isinstance(result, Value) and _is_formula(result):
            result.layout = strides
        if isinstance(result, Value):
            lone = _is_lone_copy(node)
            if lone or should_realize(result, node) or is_too_large(result):
                result.realize()
            if lone and isinstance(definition := result.realize().buffer.definition, Computed):
                definition.alone = result.device.type != "cpu"
            self._due.add(node, result, environment)
        return result

    def _run_for_errors(self, node: Node, args: Any, keywords: Any) -> None:
        """Call an operator whose result nothing reads, because it may raise."""
        call_aten(_context(self, node, []), args, keywords, [None], False)

    def _bind_number(self, node: Node, args: Any, keywords: Any) -> None:
        """Record a call whose result is a data-dependent number."""
        if binds(node):
            call_aten(_context(self, node, []), args, keywords, [], False, binds(node))

    def _lower(
        self, node: Node, value: object, args: Any, keywords: Any, *, by_aten: bool
    ) -> Any:
        results = list(value) if isinstance(value, (list, tuple)) else [value]
        tensors = [v for v in results if isinstance(v, torch.Tensor)]
        cx = _context(self, node, tensors)
        function = LOWERINGS.get(node.target)
        if node.target is torch.ops.aten.as_strided.default:  # shows memory: it must lie as traced
            source = node.args[0].meta["val"]  # type: ignore[union-attr]
            args = (self._lay_out(args[0], source), *args[1:])
        if by_aten or binds(node):
            function = None  # only the operator itself knows its result's sizes
        if function is not None and _has_formula(node, tensors) and _takes(node, args, keywords):
            try:
                return function(cx, *args, **keywords)
            except NotLowered:
                pass
        if function in VIEWS and not binds(node) and _is_bare(node, tensors):
            outputs = function(cx, *args, **keywords)
            items = outputs if isinstance(outputs, list) else [outputs]
            if all(isinstance(v.impl, Strided) for v in items):
                return outputs
        op: Any = node.target
        self.extern_ops.append(op.__name__ if isinstance(op, FunctionType) else str(op))
        is_tuple = isinstance(value, (list, tuple))
        wanted = _tensor_numbers(node, results)
        outputs = call_aten(cx, args, keywords, wanted, is_tuple, binds(node), must_run=by_aten)
        return outputs if is_tuple else outputs[0]

    def _return(
        self, items: Sequence[Any], environment: dict[Node, Any], behind: dict[Node, int]
    ) -> None:
        """Realise the outputs. Their definitions are placed where the graph computes them and not
        last; otherwise their operands would be kept until then.

        `behind`: the number of definitions behind each node.
        """
        delayed: dict[int, list[Definition]] = defaultdict(list)
        known = len(self.definitions)
        for item in items:
            output = self._output(item, environment)
            self.outputs.append(output)
            if isinstance(output, Value) and isinstance(output.impl, Strided):
                buffer = output.impl.buffer
                self._returned |= {buffer} if buffer.definition is not None else set()
            new = self.definitions[known:]
            del self.definitions[known:]
            if new:
                delayed[behind[item]] += new
        for position in sorted(delayed, reverse=True):
            self.definitions[position:position] = delayed[position]

    def _output(self, item: object, environment: Mapping[Node, object]) -> object:
        """An output: a strided value, a number or a constant."""
        if not isinstance(item, Node):
            return to_number(item) if isinstance(item, (torch.SymInt, torch.SymFloat)) else item
        output = environment[item]
        if not isinstance(output, Value):
            return output
        return self._lay_out(output, item.meta["val"])

    def _lay_out(self, value: Value, promised: torch.Tensor) -> Value:
        """The value in memory with the strides that the graph promises."""
        strides = to_shape(promised.stride())
        repeated = self._expanded_result(value, strides)
        if repeated is not None:
            return repeated
        if _is_formula(value):
            value.layout = dense_layout(value.shape, strides)
        placed = value.realize()
        taken = placed.buffer in self._returned  # two outputs never share memory
        if not taken and has_strides(placed.shape, placed.strides, strides):
            if placed.strides == strides:
                return value
            same = Strided(placed.buffer, value.shape, strides, placed.offset)
            return Value(value.shape, value.dtype, same, value.device, self)
        if not is_supported(value.dtype) or dense_layout(value.shape, strides) is None:
            return self._lay_out_by_aten(value, strides)
        copy = Value(value.shape, value.dtype, Lazy(value.at), value.device, self)
        copy.layout = dense_layout(value.shape, strides)
        copy.realize()
        return copy

    def _expanded_result(self, value: Value, strides: Shape) -> Value | None:
        """A result whose elements share memory along some dimensions (the gradient of a sum): the
        distinct elements, expanded. None if it is not one, or if kernels cannot compute it."""
        shape = tuple(  # of none, there is not even one to compute
            1 if step == 0 and lower_bound(n) > 0 else n
            for n, step in zip(value.shape, strides, strict=True)
        )
        layout = dense_layout(shape, strides)
        if shape == value.shape or layout is None or not is_supported(value.dtype):
            return None
        once = Value(shape, value.dtype, Lazy(value.at), value.device, self, layout, value.origins)
        expanded = Strided(once.realize().buffer, value.shape, strides, 0)
        return Value(value.shape, value.dtype, expanded, value.device, self)

    def _lay_out_by_aten(self, value: Value, strides: Shape) -> Value:
        """As `_lay_out`, by ATen, where kernels cannot do it: complex numbers, memory with
        gaps."""
        cx = LoweringContext(
            self, laid_out, [value.shape], [value.dtype], [strides], value.device, value.origins
        )
        (copy,) = call_aten(cx, (value, list(strides)), {}, [0], False)
        assert copy is not None
        return copy

    # -- buffers ---------------------------------------------------------------------------------

    def new_buffer(
        self, dtype: torch.dtype, shape: Shape, strides: Shape, device: torch.device
    ) -> Buffer:
        """Memory with a new name; its definition follows."""
        self._count += 1
        return Buffer(f"buf{self._count - 1}", dtype, shape, strides, device)

    def new_extern_buffer(self, cx: LoweringContext, position: int, call: ExternCall) -> Buffer:
        """Memory that an ATen call returns."""
        shape = cx.shapes[position]
        strides = cx.layouts[position] or row_major(shape)
        buffer = self.new_buffer(cx.dtypes[position], shape, strides, cx.device)
        buffer.definition = call
        return buffer

    def scalar(self, cx: LoweringContext, number: FloatValue) -> Value:
        """A symbolic float as the double that eager's kernels receive: an argument of kernels, or
        in memory if it depends on data."""
        if set(map(str, number_symbols(number))) <= self._bound_names():
            bits = symbol(f"f{len(self.floats)}")
            self.floats[bits] = number
            formula = Lazy(lambda em, index: em.op("double_of", em.index(bits)))
            return Value((), torch.float64, formula, cx.device, self)
        double = LoweringContext(
            self, torch.scalar_tensor, [()], [torch.float64], [()], cx.device, cx.origins
        )
        keywords = {"dtype": torch.float64, "device": cx.device}
        (value,) = call_aten(double, (number,), keywords, [0], False)
        assert value is not None
        return value

    def _bound_names(self) -> set[str]:
        """The symbols that are known before the first step: numbers among the inputs, sizes and
        strides."""
        numbers: list[Any] = [n for n in self.inputs if isinstance(n, (Expr, FloatSymbol))]
        numbers += [n for form in self.given.values() for part in form for n in part]
        return {str(n) for n in numbers if isinstance(n, FloatSymbol) or symbols(n) == {n}}

    def record(self, definition: Definition) -> None:
        """Add a library call, which its buffers already refer to."""
        self._due.before_call()
        self.definitions.append(definition)

    def define(self, definition: Computed) -> Value:
        """Add a definition; returns its buffer as a value."""
        definition.buffer.definition = definition
        self.definitions.append(definition)
        return self._in_memory(definition.buffer)

    def materialize(self, value: Value) -> Strided:
        """A buffer defined by a value's formula."""
        shape = value.shape
        strides = value.layout or row_major(shape)
        buffer = self.new_buffer(value.dtype, shape, strides, value.device)
        definition = Computed(
            buffer, shape, value.impl.at, _affine_store(strides), origins=value.origins
        )
        buffer.definition = definition
        self.definitions.append(definition)
        return strided_of(buffer)


def _is_lone_copy(node: Node) -> bool:
    """Whether it is a copy into another layout that `aot/rewrites/image_layout.py` wants in its own
    kernel."""
    return aten_facts(node).alone and node.target is torch.ops.aten.clone.default


def _steps_to(end: Buffer, start: Buffer) -> list[str]:
    """The buffers on the way from `start` to a new value of it through calls that could each
    overwrite the previous one; () if there is no such way."""
    names: list[str] = []
    at: Buffer | None = end
    while at is not None and at is not start:
        names.append(at.name)
        at = at.definition.overwritten() if isinstance(at.definition, ExternCall) else None
    return names if at is start else []


def _facts_of(gm: GraphModule) -> Facts | None:
    """The facts about the symbols of the graph's inputs and of nodes that bind symbols, or None."""
    for node in gm.graph.nodes:
        if node.op != "placeholder" and not binds(node):
            continue
        for number in _numbers_in(node.meta["val"]):
            if isinstance(number, (torch.SymInt, torch.SymFloat)):
                facts: Facts = number.node.shape_env.facts
                return facts
    return None


def _numbers_in(value: object) -> Iterator[object]:
    """The sizes and strides of the tensors in a node's value, and its numbers."""
    for item in value if isinstance(value, (list, tuple)) else (value,):
        yield from extents(item) if isinstance(item, torch.Tensor) else (item,)


_STEPS = {
    "placeholder": GraphLowering._placeholder,
    "get_attr": GraphLowering._attribute,
    "call_function": GraphLowering._call,
}


def _is_formula(value: Value) -> bool:
    """Whether it is neither memory nor a view of memory."""
    return isinstance(value.impl, Lazy) and value.impl.view is None


def _affine_store(strides: Shape) -> Any:
    return lambda em, index: strided_index(index, strides)


def _context(
    graph: GraphLowering, node: Node, tensors: list[torch.Tensor]
) -> LoweringContext:
    shapes = [to_shape(t.shape) for t in tensors]
    layouts = [
        dense_layout(s, to_shape(t.stride())) if t.layout == torch.strided else None
        for s, t in zip(shapes, tensors, strict=True)
    ]
    device = tensors[0].device if tensors else torch.device("cpu")
    dtypes = [t.dtype for t in tensors]
    is_result = all(user.op == "output" for user in node.users)
    return LoweringContext(
        graph, node.target, shapes, dtypes, layouts, device, _origins(node), is_result)


def _origins(node: Node) -> tuple[Origin, ...]:
    stack = node.meta.get("stack")
    name = getattr(node.target, "__name__", str(node.target)).split(".")[0]
    if not stack:
        return (Origin(name, None),)
    own = (line for line in reversed(stack) if not line.file.startswith(_TORCH))
    return (Origin(name, next(own, stack[-1])),)  # the user's line, not torch.nn.functional's


def _tensor_numbers(node: Node, results: Sequence[object]) -> list[int | None]:
    """For each result its number among the tensors; None if it is no tensor or is never read.

    An operator may return nothing where its schema promises a tensor that only a backward pass
    would read (attention's row statistics).
    """
    picks = [u for u in node.users if u.target is operator.getitem]
    read = {u.args[1] for u in picks} if len(picks) == len(node.users) else set(range(len(results)))
    read |= {b.path[0] for b in binds(node) if b.path}
    numbers = itertools.count()
    return [
        number if isinstance(v, torch.Tensor) and i in read else None
        for i, (v, number) in enumerate(
            (v, next(numbers) if isinstance(v, torch.Tensor) else None) for v in results
        )
    ]


def _has_formula(node: Node, results: list[torch.Tensor]) -> bool:
    """Whether all tensors of this call are plain ones that kernels can handle."""
    if not all(_is_plain(t) or t.numel() == 0 for t in results[1:]):
        return False
    tensors = list(results[:1])
    for argument in node.all_input_nodes:
        value = argument.meta.get("val")
        values = value if isinstance(value, (list, tuple)) else [value]
        tensors += [v for v in values if isinstance(v, torch.Tensor)]
    return all(_is_plain(t) for t in tensors) and len({t.device for t in tensors}) <= 1


def _is_bare(node: Node, results: list[torch.Tensor]) -> bool:
    """Whether these tensors show their memory as it is, even if kernels do not know their
    elements."""
    tensors = [n.meta.get("val") for n in node.all_input_nodes] + results
    return all(
        isinstance(t, torch.Tensor) and t.layout == torch.strided and not is_supported(t.dtype)
        and not (t.is_conj() or t.is_neg())
        for t in tensors
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and is_supported(tensor.dtype)
        and tensor.device.type in KERNEL_DEVICES
        and not (tensor.is_conj() or tensor.is_neg())
        and not any(isinstance(n, int) and n == 0 for n in tensor.shape)
    )


def _lookup(item: object, environment: Mapping[Node, object]) -> Any:
    """The arguments with nodes replaced by their values and symbolic numbers by expressions."""
    if isinstance(item, Node):
        return environment[item]
    if isinstance(item, (list, tuple)):
        items = [_lookup(i, environment) for i in item]
        return items if isinstance(item, list) else tuple(items)
    if isinstance(item, dict):
        return {k: _lookup(v, environment) for k, v in item.items()}
    if isinstance(item, (torch.SymInt, torch.SymFloat)):
        return to_number(item)
    return item


def _takes(node: Node, args: Any, keywords: Any) -> bool:
    """Whether a formula accepts these arguments: few take symbolic floats."""
    numbers = any(isinstance(a, SYMBOLIC_FLOATS) for a in (*args, *keywords.values()))
    return node.target in NUMBER_OPERATORS or not numbers


def to_number(value: object) -> IntExpr | FloatValue | None:
    """A Python or symbolic number as an expression; None for anything else."""
    if isinstance(value, (int, torch.SymInt)):
        return to_expr(value)
    return float_of(value) if isinstance(value, (float, torch.SymFloat)) else None


def to_expr(value: Any) -> IntExpr:
    """A size as an expression."""
    return factored_expr_of(value) if isinstance(value, torch.SymInt) else int(value)


def to_shape(sizes: Sequence[object]) -> Shape:
    """Sizes as expressions."""
    return tuple(to_expr(n) if type(n) is not int else n for n in sizes)


def dense_layout(shape: Shape, strides: Shape) -> Shape | None:
    """`strides` if they are a permutation of row-major ones (no gaps, no overlap), else None."""
    return strides if permuted_row_major(shape, strides) else None


def _has_layout(placed: Strided, target: Buffer) -> bool:
    """Whether a value is all of its own buffer, with the layout of `target`."""
    buffer = placed.buffer
    return (
        buffer.definition is not None
        and placed.offset == 0
        and (placed.shape, buffer.shape) == (target.shape, target.shape)
        and (buffer.dtype, buffer.device) == (target.dtype, target.device)
        and has_strides(buffer.shape, placed.strides, buffer.strides)
        and has_strides(buffer.shape, buffer.strides, target.strides)
    )
