"""Functionalisation while recording: mutation and aliasing become pure operators on current values.

Place in the pipeline: the recorder (`record.py`) informs the `Functionalizer` about every
operator's tensors. For each storage there is a `Base`: a graph node with the storage's current
value, and a version. For each tensor there is an `Alias`: its base, the view steps that lead from
the base to it, and a node with its value at some version. Reading a stale alias replays its steps
on the base's current node; writing to an alias undoes them::

    y = x[0]            # Alias(base=x, steps=(select 0 0,))
    y.add_(1)           # n1 = add(select(x), 1);  base x := select_scatter(x, n1, 0, 0)
    return x            # the node select_scatter(...)
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, Final, final

import torch
from torch.fx import Graph, Node

from weft._torch import FakeTensor, OpOverload
from weft.aot.evaluate import Evaluator, Result
from weft.aot.global_state import default_dtype
from weft.aot.operators import draws_numbers
from weft.aot.tracing.recomputed_random import bernoulli_again, generator_state, saves_memory
from weft.aot.views import Unsupported, ViewStep, restride
from weft.shapes.graph_facts import BACKWARD, FORWARD, AtenFacts, aten_facts, marked, note
from weft.shapes.graph_nodes import add_node
from weft.shapes.symnode import certainly_equal

aten = torch.ops.aten

_AGAIN: Final = AtenFacts("backward", runs_again=True)


@final
class Base:
    """A storage: its current value as a node, how often it was written, and who owns it."""

    __slots__ = ("live", "node", "source", "start", "version")

    def __init__(
        self, live: torch.Tensor, node: Node, source: int | None = None, start: Any = 0
    ) -> None:
        self.live = live  # the tensor that the storage was made for
        self.node = node
        self.version = 0
        self.source = source  # index of the graph input that it belongs to, if any
        self.start = start  # that input's storage offset


@final
class Alias:
    """A tensor: the view `steps` of `base`, and its value `node` as of `version`."""

    __slots__ = ("base", "live", "node", "steps", "version")

    def __init__(
        self, live: torch.Tensor, base: Base, steps: tuple[ViewStep, ...], node: Node
    ) -> None:
        self.live = live  # keeps the tensor, and so its id, alive
        self.base = base
        self.steps = steps
        self.node = node
        self.version = base.version


def _dtypes(value: object) -> list[object]:
    """The dtypes of an operator's results."""
    items = value if isinstance(value, (tuple, list)) else (value,)
    return [getattr(item, "dtype", None) for item in items]


@final
class Functionalizer:
    """Knows the current value of every recorded tensor, and appends operators to the graph."""

    def __init__(self, graph: Graph, evaluator: Evaluator) -> None:
        self.graph = graph
        self.evaluator = evaluator
        self.default_dtype = torch.get_default_dtype()
        self.stack: Any = ()  # source lines for the nodes appended now
        self.side = FORWARD  # what is said of them
        self._aliases: dict[int, Alias] = {}
        self._once: dict[Any, Node] = {}
        self._draws: dict[tuple[OpOverload, bytes], Node] = {}
        self._states: dict[Node, Node] = {}

    # -- the graph ---------------------------------------------------------------------------------

    def emit(self, op: OpOverload, *args: object, **kwargs: object) -> Node:
        """Append `op` and return its node."""
        return self.append(op, args, kwargs)[0]

    def append(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Node, Result]:
        """Append `op`; returns its node and result."""
        if torch.get_default_dtype() is not self.default_dtype:
            kwargs = self._with_dtype(op, args, kwargs)
        result = self.evaluator.run(op, args, kwargs)
        make = self._draw if draws_numbers(op, args, kwargs) else self.append_known
        node = make(op, args, kwargs, result.value)
        if result.binds:
            note(node, replace(aten_facts(node), binds=result.binds))
        return node, result

    def _with_dtype(self, op: OpOverload, args: Any, kwargs: dict[str, Any]) -> dict[str, object]:
        """The arguments of `op` with an explicit dtype, if that depends on a default dtype that the
        program set: the graph runs under another one."""
        meant = self.evaluator.run(op, args, kwargs).value
        with default_dtype(self.default_dtype):
            actual = self.evaluator.run(op, args, kwargs).value
        if _dtypes(actual) == _dtypes(meant):
            return kwargs
        if not any(a.name == "dtype" and a.kwarg_only for a in op._schema.arguments):
            raise Unsupported(f"{op} under a default dtype that the program sets")
        return {**kwargs, "dtype": meant.dtype}

    def _draw(self, op: OpOverload, args: object, kwargs: dict[str, Any], value: object) -> Node:
        """A random operator; when the forward runs again, it gives the numbers that it drew before.

        Equal draws are recognised by the state of the generator: activation checkpointing resets
        it, and each draw advances it here (`preserve_generator` undoes that).
        """
        draw = (op, torch.get_rng_state().numpy().tobytes())
        torch.rand(1, device="cpu")  # whatever the default device
        node = self._draws.get(draw)  # also in a backward inside the captured graph
        if node is None:
            node = self._draws[draw] = self.append_known(op, args, kwargs, value)
        elif self.runs_again() and saves_memory(node):
            size = list(node.meta["val"].size())
            return self.emit(bernoulli_again, self._state_before(node), size, node.args[1])
        return node

    def _state_before(self, drawn: Node) -> Node:
        """The node of the generator's state before a draw of the forward."""
        if drawn not in self._states:
            args = drawn.args[:1]
            meta = {**drawn.meta, "val": self.evaluator.run(generator_state, args, {}).value}
            with self.graph.inserting_before(drawn):
                self._states[drawn] = add_node(self.graph, generator_state, args, {}, meta)
        return self._states[drawn]

    def runs_again(self) -> bool:
        """Whether activation checkpointing is running the forward again."""
        return self.side is BACKWARD and torch.is_grad_enabled()

    def once(self, op: OpOverload, *args: object) -> Node:
        """Append `op`, which introduces symbols; for the same arguments return the same node and
        symbols."""
        key = (op, *args)
        node = self._once.get(key)
        if node is None:
            node = self._once[key] = self.emit(op, *args)
        return node

    def append_known(self, op: Any, args: Any, kwargs: dict[str, Any], value: object) -> Node:
        """Append an operator whose result's metadata is known."""
        facts = self.side
        if self.runs_again() and not (
                op is operator.getitem and not aten_facts(args[0]).runs_again):
            facts = _AGAIN  # unless it is a part of what the forward drew
        meta = {"val": value, "stack": self.stack, **marked(facts)}
        return add_node(self.graph, op, args, kwargs, meta)

    def placeholder(self, name: str, value: object) -> Node:
        """Append a graph input."""
        node = self.graph.create_node("placeholder", name)
        node.meta.update(val=value, stack=(), **marked(FORWARD))
        return node

    # -- tensors -----------------------------------------------------------------------------------

    def knows(self, live: torch.Tensor) -> bool:
        """Whether the tensor was recorded."""
        return id(live) in self._aliases

    def alias(self, live: torch.Tensor) -> Alias:
        """The alias of a recorded tensor."""
        return self._aliases[id(live)]

    def add_base(self, live: torch.Tensor, node: Node, source: int | None = None) -> Alias:
        """Record `live`, a new tensor with its own storage and the value `node`."""
        start = 0 if source is None else live.storage_offset()
        alias = self._aliases[id(live)] = Alias(live, Base(live, node, source, start), (), node)
        return alias

    def add_base_view(
        self, live: torch.Tensor, base: Base, steps: tuple[ViewStep, ...], node: Node
    ) -> None:
        """Record `live`, the view `steps` of a whole storage, whatever it was made from."""
        self._aliases[id(live)] = Alias(live, base, steps, node)

    def add_view(self, live: torch.Tensor, of: Alias, step: ViewStep | None, node: Node) -> None:
        """Record `live`, the view `step` of `of` (None: the same tensor again), with the value
        `node`."""
        steps = of.steps if step is None else (*of.steps, step)
        self._aliases[id(live)] = Alias(live, of.base, steps, node)

    def rename(self, live: torch.Tensor, to: Alias) -> None:
        """Let `live` stand for the same tensor as `to`."""
        self._aliases[id(live)] = Alias(live, to.base, to.steps, to.node)

    def read(self, live: torch.Tensor) -> Node:
        """The node with the current value of a tensor."""
        alias = self._aliases[id(live)]
        if alias.version != alias.base.version:
            node = alias.base.node
            for step in alias.steps:
                node = step.apply(self.emit, node)
            alias.node, alias.version = node, alias.base.version
        return alias.node

    def write(self, live: torch.Tensor, value: Node) -> None:
        """Make `value` the new content of a tensor, and so of whatever it views."""
        alias = self._aliases[id(live)]
        value = self._fit(value, live)
        base = alias.base
        parents = [base.node]
        for step in alias.steps[:-1]:
            parents.append(step.apply(self.emit, parents[-1]))
        for step, parent in zip(reversed(alias.steps), reversed(parents), strict=False):
            value = step.undo(self.emit, parent, value)
        if alias.steps:
            value = restride(self.emit, value, base.node.meta["val"].stride())
        self.replace(base, value)
        if not alias.steps:
            alias.node, alias.version = value, base.version

    def replace(self, base: Base, value: Node) -> None:
        """Make `value` the new content of a storage."""
        base.node = value
        base.version += 1

    def _fit(self, value: Node, live: torch.Tensor) -> Node:
        """`value` with the dtype, sizes and memory order of the tensor that it is written to."""
        have = value.meta["val"]
        if have.dtype != live.dtype or have.device != live.device:
            value = self.emit(
                aten._to_copy.default, value, dtype=live.dtype, device=live.device
            )
        if not certainly_equal(have.size(), live.size()):
            value = self.emit(aten.expand.default, value, list(live.size()))
        return restride(self.emit, value, live.stride())


def require_fake(tensor: torch.Tensor) -> FakeTensor:
    """Return `tensor`, which must be fake; otherwise raise Unsupported."""
    if not isinstance(tensor, FakeTensor):
        raise Unsupported(f"a {type(tensor).__name__} in the captured graph")
    return tensor
