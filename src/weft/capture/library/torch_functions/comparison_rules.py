"""Rules for comparisons of whole tensors, which give a Python bool.

Place in the pipeline: see `weft.capture.library`. What depends on the inputs alone becomes a guard,
with a variant for each answer (`library/tensors/input_tests.py`); anything else breaks the graph::

    if not torch.equal(self.train_inputs, x):      # (self.train_inputs == x).all()
        raise RuntimeError("you must train on the training inputs")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import fx

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.constant import FALSE, boolean, evaluate
from weft.capture.library.functions.functions import rule
from weft.capture.library.tensors.input_tests import outcome
from weft.capture.library.tensors.tensor import TensorValue, record

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@rule(torch.equal)
def _equal(tx: Interpreter, input: SymbolicValue, other: SymbolicValue) -> SymbolicValue:
    left, right = _pair(tx, input, other)
    if not evaluate(tx, lambda: left.example.shape == right.example.shape):
        return FALSE
    return _all(tx, record(tx, torch.eq, [left, right]))


@rule(torch.allclose)
def _allclose(tx: Interpreter, input: SymbolicValue, other: SymbolicValue, *rest: SymbolicValue,
              **named: SymbolicValue) -> SymbolicValue:
    left, right = _pair(tx, input, other)
    return _all(tx, record(tx, torch.isclose, [left, right, *rest], named))


@rule(torch.is_nonzero)
def _is_nonzero(tx: Interpreter, input: SymbolicValue) -> SymbolicValue:
    tensor = tx.force(input)
    if not isinstance(tensor, TensorValue) or tensor.example.numel() != 1:
        raise _breaks(input)
    return boolean(tensor.truth(tx))


def _pair(tx: Interpreter, left: SymbolicValue, right: SymbolicValue
          ) -> tuple[TensorValue, TensorValue]:
    """The operands; operators that refuse them do so between the graphs."""
    left, right = tx.force(left), tx.force(right)
    if not isinstance(left, TensorValue) or not isinstance(right, TensorValue):
        raise _breaks(left, right)
    if left.example.dtype is not right.example.dtype or (
            left.example.device != right.example.device):
        raise _breaks(left, right)
    return left, right


def _all(tx: Interpreter, same: SymbolicValue) -> SymbolicValue:
    """Whether all elements of a result are true, as far as the inputs tell."""
    flag = same.method(tx, "all", [], {})
    if not isinstance(flag, TensorValue):
        raise _breaks(flag)
    known = flag.known_data(tx)
    answer = outcome(tx, flag.proxy(tx), compares=True) if known is None else bool(known)
    if answer is None:
        raise _breaks(flag, about=flag.proxy(tx))
    tx.builder.n_calls -= 2  # nothing reads them
    return boolean(answer)


def _breaks(*values: SymbolicValue, about: fx.Node | None = None) -> GraphBreak:
    text = f"a comparison of tensors that gives a Python bool, of {values[0]!r}"
    return graph_break("data-dependent-value", text, *([] if about is None else [about]))
