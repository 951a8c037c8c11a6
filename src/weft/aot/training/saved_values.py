"""Frees values that a compiled forward saved for its backward while the graph is retained.

Place in the pipeline: used by `autograd_function.py`. After `create_graph=True` autograd keeps the
activations of the captured graph, which ran again (`double_backward.py`). What the compiled forward
saved besides would be memory that eager does not need; a later plain backward recomputes it::

    saved = [*ctx.saved_tensors]
    drop(saved, [2, 3])     # in the backward that is differentiated; later ones find them empty
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache

import torch

from weft.aot.training.reference_counts import seen_in_backward


def drop(saved: Sequence[torch.Tensor], which: Iterable[int]) -> None:
    """Free tensors that autograd saved, unless a saved-tensor hook of the program holds them."""
    for k in which:
        if _holders(saved, k) <= _holders_of_ours():
            saved[k].data = saved[k].new_empty(0)


def _holders(saved: Sequence[torch.Tensor], k: int) -> int:
    return sys.getrefcount(saved[k])


@cache
def _holders_of_ours() -> int:
    """The same counts for a tensor that only autograd holds, measured in a backward."""
    return seen_in_backward(lambda ctx, _: _holders([*ctx.saved_tensors], 0), torch.exp)
