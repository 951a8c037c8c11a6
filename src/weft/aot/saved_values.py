"""What a compiled forward computed for its backward only, freed while the graph is retained.

Place in the pipeline: used by `autograd_function.py`. After `create_graph=True` autograd keeps the
activations of the captured graph, which ran again (`redo.py`). What the compiled forward saved
beside them would be memory that eager does not need; a later plain backward has it computed anew::

    saved = [*ctx.saved_tensors]
    drop(saved, [2, 3])     # in the backward that is differentiated; later ones find them empty
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import cache

import torch

from weft.aot.holders import seen_in_backward


def drop(saved: Sequence[torch.Tensor], which: Iterable[int]) -> None:
    """Frees tensors that autograd saved, if no saved-tensor hook of the program holds them."""
    for k in which:
        if _holders(saved, k) <= _holders_of_ours():
            saved[k].data = saved[k].new_empty(0)


def _holders(saved: Sequence[torch.Tensor], k: int) -> int:
    return sys.getrefcount(saved[k])


@cache
def _holders_of_ours() -> int:
    """The same for a tensor that only autograd holds: seen in a backward, as no rule says it."""
    return seen_in_backward(lambda ctx, _: _holders([*ctx.saved_tensors], 0), torch.exp)
