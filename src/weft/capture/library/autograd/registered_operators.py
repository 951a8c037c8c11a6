"""Operators of the program with an autograd formula in Python (`torch.library.custom_op`,
`register_autograd`, `triton_op`).

Place in the pipeline: see `weft.capture.library`. The operator is one node, and its kernel runs at
every call. But its formula (`setup_context` and `backward`) runs when the graph is compiled. So it
is interpreted once, apart from the graph, as that of a `torch.autograd.Function`: what it reads is
guarded, again when the backward runs, and any effect besides computing breaks the graph::

    operator.register_autograd(lambda ctx, g: g * settings["scale"])
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from weft._torch import AutogradFormula, autograd_formula
from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import boolean, constant, is_none
from weft.capture.library.autograd.polyfills import Context, gradients_like
from weft.capture.library.containers.mapping import dictionary_of
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.functions.builtins import call_operator
from weft.capture.library.subgraphs.late_code import Kept, Read, kept_containers, late_reads
from weft.capture.library.subgraphs.subgraphs import rehearsal
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.capture.library.tensors.torch_names import is_operator
from weft.shapes.fakes.schemas import schema_arguments
from weft.shapes.graph_facts import captured_facts, note

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_LISTS: Final = (ListValue, TupleValue)


@call_operator.define
def _call_operator(tx: Interpreter, operator: object, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Record a call of an operator, and guard what its formula reads."""
    result = record(tx, operator, args, kwargs)
    for tensor in _tensors(tx, result):
        formula = autograd_formula(tensor.example)
        if formula is not None:
            _guard(tx, formula, args, kwargs, result)
            break
    return result


def _tensors(tx: Interpreter, value: SymbolicValue) -> Iterator[TensorValue]:
    value = tx.force(value)
    if isinstance(value, TensorValue):
        yield value
    elif isinstance(value, _LISTS):
        for item in value.all(tx):
            yield from _tensors(tx, item)


def _guard(tx: Interpreter, formula: AutogradFormula, args: Args, kwargs: Kwargs,
           result: SymbolicValue) -> None:
    if formula.registration is None:
        raise graph_break("unknown-operation", f"gradients of {formula.name}, a kernel in Python")
    inputs, keywords = _filled(formula, args, kwargs)
    with rehearsal(tx, formula.name, [*inputs, *keywords.values()]) as read:
        by_forward, kept = _rehearse(tx, formula, inputs, keywords, result, read)
    node = next(n for n in reversed(tx.builder.graph.nodes) if "example_value" in n.meta
                and is_operator(n.target))
    reads = late_reads(tx, formula.name, read, by_forward, kept)
    note(node, replace(captured_facts(node), late_reads=reads))


def _filled(formula: AutogradFormula, args: Args, kwargs: Kwargs
            ) -> tuple[list[SymbolicValue], Kwargs]:
    """All arguments, as the formula gets them: those by position, those by name only."""
    by_name = {argument.name for argument in formula.operator._schema.arguments
               if argument.kwarg_only}
    values = {name: value if isinstance(value, SymbolicValue) else constant(value) for name, value
              in schema_arguments(formula.operator, args, kwargs).items()}
    return ([value for name, value in values.items() if name not in by_name],
            {name: value for name, value in values.items() if name in by_name})


def _rehearse(tx: Interpreter, formula: AutogradFormula, inputs: list[SymbolicValue],
              keywords: Kwargs, result: SymbolicValue, read: Read) -> tuple[Read, Kept]:
    """Interpret the formula; in `read` is what its backward reads, the result is what the rest
    reads, and what the backward gets from it."""
    registration = tx.wrap_fixed(formula.registration, formula.name)
    context = tx.call_python(Context, [TupleValue([_need(tx, value) for value in inputs])])
    setup = registration.getattr(tx, "_setup_context_fn")
    backward = registration.getattr(tx, "_backward_fn")
    if not is_none(setup):
        named = {"ctx": context, "inputs": TupleValue(inputs), "output": result}
        if keywords:
            named["keyword_only_inputs"] = dictionary_of(tx, keywords)
        setup.call(tx, [], named)
    by_forward = dict(read)
    read.clear()
    kept = kept_containers(tx, context)
    if not is_none(backward):
        gradients = tx.unpack(tx.call_python(gradients_like, [context, result]))
        backward.call(tx, [context, *gradients], {})
    return by_forward, kept


def _need(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """What `ctx.needs_input_grad` says of an input: of each tensor in a list."""
    value = tx.force(value)
    if isinstance(value, _LISTS):
        return ListValue([_need(tx, item) for item in value.all(tx)])
    return boolean(isinstance(value, TensorValue) and value.example.requires_grad)
