"""Complex tensors become pairs of real ones, which kernels can compute with.

Place in the pipeline: after decomposition. Complex numbers stay in memory only if
they are an input, an output, or an operand of a library call (a matrix product, an FFT)::

    z = view_as_complex(x); w = z * f; y = view_as_real(w)        # f: an input, complex
    →   a = select(x, -1, 0); b = select(x, -1, 1)
        f' = view_as_real(f); c = select(f', -1, 0); d = select(f', -1, 1)
        y = stack([a * c - b * d, a * d + b * c], -1)             # one kernel

`complex_rules.py` has the operators.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft._torch import FakeTensor, OpOverload
from weft.aot.evaluate import Evaluator
from weft.aot.rewrites.complex_rules import RULES, VIEWS, Context, Parts, Real
from weft.aot.tracing.functionalize import Functionalizer
from weft.aot.views import restride
from weft.shapes.symnode import certainly_equal

aten = torch.ops.aten

REAL_DTYPE: Final = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_IN_PLACE: Final = frozenset({*VIEWS, aten._conj.default})
"""Views, which need no copy of a complex tensor in memory."""


def split_complex(gm: GraphModule) -> bool:
    """Compute with real numbers where the graph has complex ones; leaves dead code behind."""
    graph = gm.graph
    if not any(_is_complex(node) for node in graph.nodes):
        return False
    splitter = _Splitter(graph)
    for node in list(graph.nodes):
        with graph.inserting_before(node):
            splitter.visit(node)
    return True


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, FakeTensor) and value.dtype in REAL_DTYPE


def _complex_dtype(node: Node) -> torch.dtype:
    """The complex dtype in which an operator computes: its result's, or its widest operand's."""
    nodes = [node] if _is_complex(node) else filter(_is_complex, node.all_input_nodes)
    dtypes: Iterable[torch.dtype] = (n.meta["val"].dtype for n in nodes)
    return max(dtypes, key=lambda dtype: dtype.itemsize)


@final
class _Splitter:
    """Rewrites the complex nodes of a graph one by one."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = Functionalizer(graph, Evaluator.current())
        self.parts: dict[Node, Parts] = {}
        self.joined: dict[Node, Node] = {}
        """Complex tensors in memory: the node itself, or the one assembled from its parts."""
        self.origin: Node
        """The node that is being visited."""

    def emit(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        """Append an operator before the node that is being visited."""
        node = self.tensors.emit(op, *args, **kwargs)
        node.meta = {**self.origin.meta, "val": node.meta["val"]}
        return node

    # -- nodes -------------------------------------------------------------------------------------

    def visit(self, node: Node) -> None:
        """Replace a node that reads or computes complex tensors."""
        self.origin = node
        if not (_is_complex(node) or any(map(_is_complex, node.all_input_nodes))):
            return
        if node.op == "output":
            node.args = map_arg(node.args, self._in_memory)
        elif node.op == "call_function" and not self._applies(node):
            self._keep(node)
        elif node.op != "call_function" or self._stays(node):
            self.joined[node] = node
        else:
            self._replace(node, self._apply(node))

    def _applies(self, node: Node) -> bool:
        """Whether there is a rule, and all operands are tensors that kernels can read."""
        tensors = [n.meta.get("val") for n in (node, *node.all_input_nodes)]
        known = all(isinstance(t, (FakeTensor, list, tuple)) for t in tensors)
        return known and node.target in RULES and not any(
            isinstance(t, FakeTensor) and (t.dtype == torch.complex32 or t.is_sparse)
            for t in tensors
        )

    def _stays(self, node: Node) -> bool:
        """Whether this is a view of complex numbers in memory; as an output it must stay one."""
        first = node.args[0]
        in_memory = isinstance(first, Node) and self.joined.get(first) is first
        if in_memory and node.target is aten.view_as_real.default:
            return True
        return in_memory and node.target in _IN_PLACE and _is_complex(node)

    def _keep(self, node: Node) -> None:
        """Keep a node that works on complex tensors in memory."""
        node.args = map_arg(node.args, self._in_memory)
        node.kwargs = map_arg(node.kwargs, self._in_memory)
        if _is_complex(node):
            self.joined[node] = node

    def _replace(self, node: Node, result: Any) -> None:
        if isinstance(result, Parts):
            self.parts[node] = Parts(*(self._whole(part, node) for part in result))
        else:
            node.replace_all_uses_with(self._lay_out(result.value, node))

    def _whole(self, part: Real, node: Node) -> Real:
        """A part with the sizes of the result; of one operand alone, or a number, it may have
        others."""
        result = node.meta["val"]
        size = list(result.size())
        value = part.value
        if not isinstance(value, Node):
            value = self.emit(aten.full.default, [], value, dtype=REAL_DTYPE[result.dtype],
                              device=result.device, pin_memory=False)
        if not certainly_equal(value.meta["val"].size(), size):
            value = self.emit(aten.expand.default, value, size)
        return Real(self.emit, value)

    def _lay_out(self, result: Node, node: Node) -> Node:
        """A result with the strides that the graph promises."""
        return restride(self.emit, result, node.meta["val"].stride())

    # -- arguments ---------------------------------------------------------------------------------

    def _apply(self, node: Node) -> Any:
        """Apply a node's rule to its arguments' parts."""
        assert isinstance(node.target, OpOverload)
        cx = Context(self.emit, node.target, REAL_DTYPE[_complex_dtype(node)], node.meta["val"])
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(v) for k, v in node.kwargs.items()}
        return RULES[node.target](cx, *args, **kwargs)

    def _argument(self, value: object) -> object:
        if isinstance(value, Node):
            if _is_complex(value):
                return self._parts_of(value)
            is_tensor = isinstance(value.meta.get("val"), FakeTensor)
            return Real(self.emit, value) if is_tensor else value
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        return value

    def _parts_of(self, node: Node) -> Parts:
        """The parts of a complex node; one in memory is read as pairs."""
        parts = self.parts.get(node)
        if parts is None:
            parts = self._apply(node) if node.target in _IN_PLACE else self._read(node)
            self.parts[node] = parts
        return parts

    def _read(self, node: Node) -> Parts:
        conjugate = node.meta["val"].is_conj()
        plain = self.emit(aten._conj.default, node) if conjugate else node
        pairs = self.emit(aten.view_as_real.default, plain)
        real, imag = (Real(self.emit, self.emit(aten.select.int, pairs, -1, k)) for k in (0, 1))
        return Parts(real, -imag if conjugate else imag)

    def _in_memory(self, node: Node) -> Node:
        """A node as a complex tensor in memory, if it is complex."""
        if not _is_complex(node):
            return node
        whole = self.joined.get(node)
        if whole is None:
            parts = self.parts[node]
            pairs = self.emit(aten.stack.default, [parts.real.value, parts.imag.value], -1)
            strides = [2 if certainly_equal(step, 0) else 2 * step  # of an expanded tensor
                       for step in node.meta["val"].stride()]
            pairs = restride(self.emit, pairs, (*strides, 1))
            whole = self.joined[node] = self.emit(aten.view_as_complex.default, pairs)
        return whole
