"""Saved-tensor hooks that the program installs around a part of the function.

Place in the pipeline: see `weft.capture.library`. Installing and removing them are nodes of the
graph: while aot traces the nodes between, autograd hands what it saves to the program's functions,
whose operators become part of forward and backward. Before, both are interpreted once, apart from
the graph: any effect besides computing breaks the graph::

    with saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        y = x.sin()                  ->  forward: half(x);  backward: cos(float(...)) * tangent
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from weft._torch import pop_saved_tensors_default_hooks, push_saved_tensors_default_hooks
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE
from weft.capture.library.functions.functions import rule
from weft.capture.library.subgraphs.held_objects import held_object
from weft.capture.library.subgraphs.late_code import Read, late_reads
from weft.capture.library.subgraphs.subgraphs import rehearsal
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.shapes.graph_facts import ProgramFunction

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_EXAMPLES: Final = (((2, 2), torch.float32), ((1 << 10, 1 << 10), torch.float32),
                    ((2,), torch.int64))
"""Sizes and types of the tensors on which hooks are tried: they may treat large ones otherwise."""


@rule(push_saved_tensors_default_hooks)
def _push(tx: Interpreter, pack_hook: SymbolicValue, unpack_hook: SymbolicValue, /
          ) -> SymbolicValue:
    pack, unpack = tx.force(pack_hook), tx.force(unpack_hook)
    with rehearsal(tx, "a saved-tensor hook", []) as read:
        by_pack = _rehearse(tx, pack, unpack, read)
    hooks = [held_object(tx, hook, "saved_tensors_hooks", copies=False) for hook in (pack, unpack)]
    _try_on_fake(tx, *hooks)
    reads = late_reads(tx, "a saved-tensor hook", read, by_pack)
    push_hooks = tx.state.install_hooks((hooks[0], hooks[1]))
    tx.mode_node(ProgramFunction("push_hooks", push_hooks, late_reads=reads))
    return NONE


def _rehearse(tx: Interpreter, pack: SymbolicValue, unpack: SymbolicValue, read: Read) -> Read:
    """Interpret the hooks; in `read` is what `unpack` reads, the result is what `pack` reads."""
    tensors = [record(tx, torch.zeros, [tx.wrap_new(sizes)], {"dtype": tx.wrap_new(dtype)})
               for sizes, dtype in _EXAMPLES]
    packed = [pack.call(tx, [tensor], {}) for tensor in tensors]
    by_pack = dict(read)
    read.clear()
    for tensor, stored in zip(tensors, packed, strict=True):
        again = tx.force(unpack.call(tx, [stored], {}))
        changed = not isinstance(again, TensorValue) or _form(again) != _form(tensor)
        if changed and tensor.fake(tx).is_floating_point():
            raise graph_break("state", f"the saved-tensor hook {unpack!r} changes tensors' forms")
    return by_pack


def _try_on_fake(tx: Interpreter, pack: Any, unpack: Any) -> None:
    """Break the graph if the functions cannot run on tensors without data, as aot runs them."""
    try:
        tensor, _ = tx.fakes.mode.run(torch.zeros, [(2, 2)], {})
        tx.fakes.mode.run(lambda: unpack(pack(tensor)), [], {})
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise graph_break("state", f"a saved-tensor hook that needs data: {error}") from error


def _form(tensor: Any) -> tuple[object, ...]:
    return tuple(tensor.example.shape), tensor.example.dtype, tensor.example.device


@rule(pop_saved_tensors_default_hooks)
def _pop(tx: Interpreter) -> SymbolicValue:
    if not tx.state.saved_tensor_hooks:
        raise graph_break("state", "the end of saved-tensor hooks from before this graph")
    tx.state.saved_tensor_hooks.pop()
    tx.mode_node(pop_saved_tensors_default_hooks)
    return NONE
