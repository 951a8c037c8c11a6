"""One capture's symbols, what is known about them, and the guards that were needed.

Place in the pipeline: capture makes a `ShapeContext` per frame, asks it for symbolic sizes (`size`)
and numbers (`integer`, `number`), runs operators on fake tensors that have them, and reads
``guards`` at the end. PyTorch uses the context as the ``shape_env`` of its nodes; the methods that
it calls are marked "torch:"::

    context = ShapeContext()
    n = context.size(128, source)          # a torch.SymInt with hint 128; 0 and 1 stay ints
    fake = FakeTensor(mode, torch.empty(n, 8, device="meta"), torch.device("cpu"))
    if fake.shape[0] > 100: ...            # records the guard ``s0 >= 101`` with the user's line
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final, final

import torch

from weft.dims import Dim
from weft.errors import SourceLine
from weft.shapes.algebra.expr import Expr, IntExpr, symbol, symbol_of
from weft.shapes.algebra.facts import Facts
from weft.shapes.algebra.floats import (
    FloatRelation,
    FloatSymbol,
    FloatValue,
    compare,
    is_nonnegative,
    negation,
    symbol_name,
)
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.layout import is_non_overlapping_and_dense
from weft.shapes.algebra.relation import (
    EQ,
    GE,
    Condition,
    Relation,
    condition_symbols,
    not_,
    relation,
    rewrite,
)
from weft.shapes.context_state import DataQuestions, FloatQuestions, NodeMemo
from weft.shapes.guard import AnyCondition, ShapeGuard, opposite, symbols_of
from weft.shapes.hints import Hints
from weft.shapes.named import NamedSizes
from weft.shapes.symnode import SymNode, UndecidedValue, expr_of
from weft.shapes.unbacked import Unbacked, is_difference

COMMON_LIMIT: Final = 2**31 - 1
"""A size that does not exceed this in the first call is guarded not to."""


@final
class ShapeContext:
    """Makes symbols, decides conditions on them by facts or hints, and records guards."""

    def __init__(
        self, *, specialize_zero_one: bool = True, share_equal_hints: bool = True,
        data_dependent: bool = False, line: Callable[[], SourceLine | None] = lambda: None,
    ) -> None:
        """``line`` returns the user's current line; ``data_dependent`` allows symbols for values
        that depend on data (``nonzero``, ``item``)."""
        self.specialize_zero_one = specialize_zero_one
        self.share_equal_hints = share_equal_hints
        self.data_dependent = data_dependent
        self.line = line
        # What is known.
        self.facts = Facts()
        self.hints: Hints = Hints(self.facts)
        self.unbacked_symbols = Unbacked()
        self.dims = NamedSizes()
        self._float_answers: dict[FloatRelation, bool] = {}
        self._learned: list[tuple[AnyCondition, bool]] = []
        """What was learned, in order, and whether the graph has to check it."""
        self.epoch = 0
        """How often assumptions were forgotten: earlier results of operators may rely on them."""
        # What a later call must fulfil.
        self.guards: list[ShapeGuard] = []
        self.asserts: list[ShapeGuard] = []
        """Conditions on data, which running code checks."""
        self.bindings: list[tuple[Hashable, IntExpr]] = []
        """Strides, and the expressions of sizes that they must equal."""
        self.fixed: list[int | float] = []
        """Numbers that were used as plain ones: guards fix them."""
        # The symbols.
        self.sources: dict[Expr | FloatSymbol, list[Hashable]] = {}
        """Where each symbol's value is read."""
        self.marked: set[Expr] = set()
        """Sizes that the user marked as changing."""
        self._shared: dict[Hashable, Expr] = {}
        self._counts: dict[str, int] = {}
        self._parts: dict[FloatSymbol, Callable[[], tuple[Expr, Expr] | None]] = {}
        # How operators are answered.
        self.data = DataQuestions()
        self.floats = FloatQuestions()
        self.memo = NodeMemo()
        self.in_operator = 0
        """How many nested operators are running on fakes."""

    # -------------------------------------------------------------------- making symbols

    def size(
        self, hint: int, source: Hashable, *, lo: int | None = None, hi: int = INF,
        group: Hashable = None, marked: bool = False, dim: Dim | None = None,
    ) -> int | torch.SymInt:
        """A symbolic size that is ``hint`` in this call; an int for 0 and 1 if those are
        specialised.

        Sizes with equal hints, limits and ``group`` share a symbol; so do those of one ``dim``.
        """
        if hi == INF and hint <= COMMON_LIMIT:
            hi = COMMON_LIMIT  # kernels compare positions in 32 bits
        root = hint if dim is None else self.dims.check(dim, hint, str(source))
        if min(root, hint) < 2 and self.specialize_zero_one:
            return hint
        key = (hint, lo, hi, dim or group)
        size = self._shared.get(key) if self.share_equal_hints else None
        if size is None:
            least = (2 if self.specialize_zero_one else 0) if lo is None else lo
            size = self._shared[key] = self._symbol("s", "size", least, hi, hint)
            if dim is not None:
                self._relate(dim, size)
        self.sources.setdefault(size, []).append(source)
        if marked:
            self.marked.add(size)
        return self.sym_int(size)

    def _relate(self, dim: Dim, size: Expr) -> None:
        """Learn the relations between sizes of one name."""
        for condition in self.dims.relations(dim, size):
            if self.facts.decide(condition) is None:
                self.guard(condition, True)

    def bind(self, value: IntExpr, source: Hashable) -> None:
        """Require that ``source`` (a stride) equals an expression of sizes."""
        self.bindings.append((source, value))

    def integer(self, hint: int, source: Hashable, *, lo: int = -INF, hi: int = INF,
                dim: Dim | None = None) -> torch.SymInt:
        """A Python int that changes between calls: any value in the limits; symbols are never
        shared."""
        variable = self._symbol("z", "int", lo, hi, hint)
        self.sources[variable] = [source]
        if dim is not None:
            self.dims.check(dim, hint, str(source))
            self._relate(dim, variable)
        return self.sym_int(variable)

    def number(self, hint: float, source: Hashable,
               parts: Callable[[], tuple[Expr, Expr] | None] = lambda: None) -> torch.SymFloat:
        """A Python float that changes between calls; `parts`: see `rounding.Parts`."""
        variable = FloatSymbol(f"r{self._next('r')}")
        self.hints.known[variable] = hint
        self._parts[variable] = parts
        self.sources[variable] = [source]
        return torch.SymFloat(self.float_node(variable))

    def parts_of(self, number: FloatSymbol) -> tuple[Expr, Expr] | None:
        """The float's mantissa and exponent as symbols, if they can be read."""
        parts = self._parts.get(number)
        return None if parts is None else parts()

    def unbacked_size(self, example: int, source: Hashable, *, lo: int, hi: int) -> torch.SymInt:
        """The size of an input whose value in this call, ``example``, must not decide anything."""
        variable = self._symbol("u", "unbacked", lo, hi, None)
        self.unbacked_symbols.exist = True
        self.sources[variable] = [source]
        self.hints.undeciding[variable] = example
        return self.sym_int(variable)

    def drawn_number(self, example: float, source: Hashable) -> torch.SymFloat:
        """A float that no guard can check; its value in this call, `example`, decides nothing."""
        variable = FloatSymbol(f"r{self._next('r')}")
        self.unbacked_symbols.exist = True
        self.sources[variable] = [source]
        self.hints.undeciding[variable] = example
        return torch.SymFloat(self.float_node(variable))

    def unbacked(self, what: str = "data", *, lo: int = 0, hi: int = INF) -> torch.SymInt:
        """An integer that depends on data (`what` names it); it has no hint."""
        variable = self._symbol("u", "unbacked", lo, hi, None)
        self.unbacked_symbols.add(variable, symbol_of(variable).name, what, self.line())
        return self.sym_int(variable)

    def unbacked_float(self, what: str) -> torch.SymFloat:
        """A float that depends on data."""
        variable = FloatSymbol(f"v{self._next('v')}")
        self.unbacked_symbols.add(variable, variable.name, what, self.line())
        return torch.SymFloat(self.float_node(variable))

    def unbacked_bool(self, what: str) -> torch.SymBool:
        """A bool that depends on data, as the condition that an integer symbol of 0 or 1 is 1."""
        return torch.SymBool(
            self.bool_node(relation(EQ, expr_of(self.unbacked(what, hi=1)) - 1))
        )

    def _symbol(self, prefix: str, kind: str, lo: int, hi: int, hint: int | None) -> Expr:
        variable = symbol(f"{prefix}{self._next(prefix)}", lo, hi, kind)
        if hint is not None:
            self.hints.known[variable] = hint
        return variable

    def _next(self, prefix: str) -> int:
        number = self._counts.get(prefix, 0)
        self._counts[prefix] = number + 1
        return number

    def from_known_data(self, data: torch.Tensor, compute: Callable[[torch.Tensor], object]) -> Any:
        """What an operator needs from the data of a fake, or None if the data is not known."""
        if self.data.earlier_answers is not None:
            answer = next(self.data.earlier_answers, None)
        else:
            real = self.data.known_content(data)
            answer = None if real is None else compute(real)
            self.data.answers.append(answer)
        self.data.n_known_answers += answer is not None
        return answer

    # -------------------------------------------------------------------- nodes

    def sym_int(self, value: Expr) -> torch.SymInt:
        return torch.SymInt(self.int_node(value))

    def as_int(self, value: IntExpr) -> int | torch.SymInt:
        """The value as PyTorch's operators take it."""
        return value if isinstance(value, int) else torch.SymInt(self.int_node(value))

    def int_node(self, value: IntExpr) -> SymNode:
        key = value if isinstance(value, Expr) else (int, value)
        node = self.memo.nodes.get(key)
        if node is None:
            node = self.memo.nodes[key] = SymNode(self, value, int)
        return node

    def bool_node(self, value: AnyCondition) -> SymNode:
        known = value
        if not isinstance(value, bool | FloatRelation):
            decided = self.facts.decide(value)
            known = value if decided is None else decided
        key = (bool, known) if isinstance(known, bool) else known
        node = self.memo.nodes.get(key)
        if node is None:
            node = self.memo.nodes[key] = SymNode(self, known, bool)
        return node

    def float_node(self, value: FloatValue) -> SymNode:
        self.floats.has_floats = True
        return SymNode(self, value, float)

    def dense_node(self, sizes: tuple[IntExpr, ...], strides: tuple[IntExpr, ...]) -> SymNode:
        """Whether a tensor of these sizes and strides has neither gaps nor overlaps."""
        condition = is_non_overlapping_and_dense(sizes, strides, self._rank)
        return self.bool_node(self._for_large_sizes(condition))

    def _for_large_sizes(self, condition: Condition) -> Condition:
        """A layout condition on data-dependent sizes, for sizes of at least two: for smaller ones
        strides do not matter."""
        if not self.unbacked_symbols.exist or self.decide(condition) is not None:
            return condition
        if self.hints.condition(condition) is not None:
            return condition
        large = self.unbacked_symbols.as_large
        answer = self.facts.decide(rewrite(condition, lambda value: large(self.facts.view(value))))
        return bool(answer)

    def _rank(self, value: IntExpr) -> int:
        hint = self.hints.integer(value)
        return INF if hint is None else hint

    def unbacked_number(self, name: str) -> torch.SymInt | torch.SymFloat:
        """The unbacked symbol of that name, as a torch number."""
        variable = self.unbacked_symbols.names[name]
        if isinstance(variable, FloatSymbol):
            return torch.SymFloat(self.float_node(variable))
        return self.sym_int(variable)

    # -------------------------------------------------------------------- decisions

    def decide(self, condition: AnyCondition) -> bool | None:
        """The truth that follows from the facts, without a guard, or None."""
        if isinstance(condition, FloatRelation):
            return self._decide_float(condition)
        answer = self.facts.decide(condition)
        if answer is None:  # one of the two may allow to cancel common factors: not a*b > a*b*c
            opposite = self.facts.decide(not_(condition))
            answer = None if opposite is None else not opposite
        return answer

    def _decide_float(self, condition: FloatRelation) -> bool | None:
        if condition.op in ("ge", "lt") and condition.right == 0 and is_nonnegative(condition.left):
            return (condition.op == "ge") is not condition.negated
        return self._float_answers.get(condition)

    def evaluate(self, condition: AnyCondition) -> bool:
        """The truth in this call; becomes a guard unless it follows from the facts."""
        answer = self.truth(condition)
        if answer is None and self.data.expects:
            answer = self.expect(condition)
        if answer is None:
            raise UndecidedValue(condition, self.line())
        return answer

    def truth(self, condition: AnyCondition) -> bool | None:
        """As `evaluate`, or None if the truth depends on data."""
        decided = self.decide(condition)
        if decided is not None:
            return decided
        answer = self.hints.condition(condition)
        if answer is None:
            return None
        if not isinstance(condition, FloatRelation) and not (
                condition_symbols(condition) <= self.hints.known.keys()):
            return self._settled_by_sizes(condition, answer)
        self.guard(condition, answer)
        return answer

    def _settled_by_sizes(self, condition: Condition, answer: bool) -> bool | None:
        """The truth of a condition with data-dependent symbols, if this call's sizes decide it for
        all data.

        A guard cannot compute that, so running code checks it.
        """
        if not (self.data.may_expect or self.data.assuming):
            return None
        self._assert(condition if answer else not_(condition), assumed=True)
        self.data.note_expectation()
        return answer

    def guard(self, condition: AnyCondition, answer: bool) -> None:
        """Record that the artifact is only valid for calls in which the condition has this
        truth."""
        if isinstance(condition, bool):
            return
        self.learn(condition, answer)
        held = condition if answer else opposite(condition)
        self.guards.append(ShapeGuard(held, self.line()))

    def learn(self, condition: AnyCondition, answer: bool, *, assumed: bool = False) -> None:
        """Assume this truth from now on; the caller makes sure of it. `assumed`: by a check in the
        graph, before which it is unknown."""
        held = condition if answer else opposite(condition)
        self._know(held)
        self._learned.append((held, assumed))

    def _know(self, held: AnyCondition) -> None:
        if isinstance(held, FloatRelation):
            self._float_answers[held] = True
            self._float_answers[negation(held)] = False
        else:
            self.facts.learn(held)

    def is_of_results(self, condition: AnyCondition) -> bool:
        """Whether the condition depends on operators' results: only a graph can check it, or what
        runs behind it. Others depend on inputs alone."""
        names = self.unbacked_symbols.names
        return any(symbol_name(s) in names for s in symbols_of(condition))

    def facts_learned(self) -> list[AnyCondition]:
        """All that was learned, in order."""
        return [held for held, _ in self._learned]

    def n_learned(self) -> int:
        """How much has been learned so far (see `forget_assumptions`)."""
        return len(self._learned)

    def without_assumptions(self) -> ShapeContext:
        """Another context that knows only what no check of data has to make sure of."""
        context = ShapeContext()
        for held, assumed in self._learned:
            if not assumed:
                context.learn(held, True)
        return context

    def forget_assumptions(self, since: int = 0) -> None:
        """Forget what only checks in a graph make sure of, if it was learned from `since` on.

        The code that writes such checks must not take them for granted; nor may the program behind
        a body that does not always run, and in which they are.
        """
        kept = [(held, assumed) for i, (held, assumed) in enumerate(self._learned)
                if i < since or not assumed]
        if len(kept) == len(self._learned):
            return
        self.facts, self._learned, self._float_answers = Facts(), kept, {}
        for held, _ in kept:
            self._know(held)
        self.hints.rely_on(self.facts)
        self.memo.forget_hints()
        self.epoch += 1

    def specialize(self, value: IntExpr) -> int:
        """The value in this call, fixed by a guard."""
        known = self.facts.view(value)
        if isinstance(known, int):
            return known
        hint = self.hints.integer(value)
        if hint is None:
            likely = self.unbacked_symbols.as_expected(known)
            if isinstance(likely, int) and self.expect(relation(EQ, value - likely)):
                return likely
            raise UndecidedValue(value, self.line())
        asked = relation(EQ, value - hint)
        if self.decide(asked) is not True:
            self._fix(asked, hint)
        return hint

    def specialize_float(self, value: FloatValue) -> float:
        """The float in this call, fixed by a guard (compared by its Python text)."""
        if isinstance(value, float):
            return value
        hint = self.hints.floating(value)
        if hint is None:
            raise UndecidedValue(value, self.line())
        self._fix(compare("same", value, hint), hint)
        return hint

    def plain_float(self, value: FloatValue) -> float:
        """A plain float for C++: the mark of the symbolic one if that is carried, else the float of
        this call, fixed."""
        hint = self.hints.floating(value)
        if hint is None or self.decide(compare("same", value, hint)) is True:
            return self.specialize_float(value)
        if self.floats.tried is not None:
            self.floats.tried.append(value)
            return self.floats.carried.mark(value, hint)
        carried = self.floats.carried.carried(value) if self.floats.carrying else None
        return self.specialize_float(value) if carried is None else carried

    def restored(self, value: object) -> Any:
        """Arguments from C++ with marks replaced by the symbolic floats that they stand for."""
        if type(value) is float:
            meaning = self.floats.carried.meaning(value)
            return value if meaning is None else torch.SymFloat(self.float_node(meaning))
        if isinstance(value, list | tuple):
            return type(value)([self.restored(item) for item in value])
        if isinstance(value, dict):
            return {name: self.restored(item) for name, item in value.items()}
        return value

    def _fix(self, condition: AnyCondition, number: float) -> None:
        self.fixed.append(number)
        self.guard(condition, True)

    def require(self, condition: AnyCondition) -> bool:
        """``torch._check``: a guard on sizes, a check at run time on data."""
        answer = self.truth(condition)
        if answer is None:
            self._assert(condition)
            return True
        return bool(answer)

    def _assert(self, condition: AnyCondition, *, assumed: bool = False) -> None:
        """Assume the condition on data from now on; running code checks it."""
        if not self.data.may_check:
            raise UndecidedValue(condition, self.line())
        self.learn(condition, True, assumed=self.data.assuming or self.is_of_results(condition))
        self.asserts.append(ShapeGuard(condition, self.line(), assumed))

    def expect(self, condition: AnyCondition) -> bool | None:
        """Assume a likely truth for a condition on data, or None.

        Sizes have their likely values or are neither 0 nor 1, compared sizes are equal, and numbers
        are not negative. Running code checks it and falls back if it is wrong. None: that decides
        nothing, or assumptions are not allowed.
        """
        if isinstance(condition, FloatRelation):
            return None
        if isinstance(condition, Relation) and any(
                symbol_of(variable).hi == 1 for variable in condition_symbols(condition)):
            return self._assumed_bool(condition)
        if not self.data.may_expect:
            return None
        expected = self.unbacked_symbols.as_expected
        view = self.facts.view
        if isinstance(condition, Relation) and condition.kind != GE and (
                is_difference(view(condition.expr))):
            answer: bool | None = condition.kind == EQ  # sizes that are compared are equal
        else:
            answer = self.facts.decide(rewrite(condition, lambda value: expected(view(value))))
        if answer is not None:
            self._assert(condition if answer else not_(condition), assumed=True)
            self.data.note_expectation()
        return answer

    def _assumed_bool(self, condition: Relation) -> bool | None:
        """The truth with which an operator goes on. For the other one it raises itself; ATen graphs
        have no such operator and check the condition."""
        if self.data.earlier_answers is None:
            if self.data.bool_answer is not None:
                self.data.answers.append(self.data.bool_answer)
            return self.data.bool_answer
        answer: bool | None = next(self.data.earlier_answers, None)
        if answer is not None:
            self._assert(condition if answer else not_(condition), assumed=True)
        return answer

    # -------------------------------------------------------------------- torch's own calls

    unbacked_renamings: Final[Mapping[object, object]] = MappingProxyType({})
    """torch: symbols that got other names; there are none."""

    def evaluate_sym_node(
        self, node: SymNode, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> bool | int | float:
        """torch: the node's value; ``fallback_value`` where it depends on data."""
        if fallback_value is not None and node.pytype is bool:
            answer = self.truth(node.value)
            return fallback_value if answer is None else answer
        return node.concrete()

    def _maybe_evaluate_static(
        self, node: object, *, compute_hint: bool = False
    ) -> bool | int | float | None:
        """torch: the value of a node if the facts determine it (`SymNode.expr` is the node
        itself)."""
        if not isinstance(node, SymNode):
            return None
        if node.pytype is bool:
            return self.decide(node.value)
        known = self.facts.view(node.value) if node.pytype is int else node.value
        return known if isinstance(known, int | float) else None
