"""What two kernels have in common if they have one text: their form.

Place in the pipeline: between the loop IR and a target, which writes a kernel of each form once.
The layers of a model give the same few kernels again and again, on other buffers::

    form(add_of_layer_1) == form(add_of_layer_2)      # buffers and operands are positions
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from weft.codegen.ir.loop_ir import (
    Const,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    Node,
    Op,
    Reduce,
    Store,
    operands,
)

Form = Hashable


def form(kernel: Kernel) -> Form:
    """Equal for kernels that differ in the names of their buffers and origins only."""
    buffers = {buffer.name: n for n, buffer in enumerate(kernel.buffers)}
    places = {id(node): n for n, node in enumerate(kernel.nodes)}

    def node_form(node: Node) -> Form:
        return (type(node), node.dtype, node.inner, _CONTENTS[type(node)](node, buffers),
                *(places[id(operand)] for operand in operands(node)))

    def store_form(store: Store) -> Form:
        return (buffers[store.buffer], store.index, len(store.indirect), store.inner, store.mode,
                *(places[id(operand)] for operand in store.operands()))

    return (kernel.outer, kernel.inner, kernel.sizes,
            tuple((buffer.dtype, buffer.mode) for buffer in kernel.buffers),
            tuple(map(node_form, kernel.nodes)), tuple(map(store_form, kernel.stores)))


_CONTENTS: Final[dict[type, Callable[[Any, Mapping[str, int]], Form]]] = {
    Const: lambda n, _: repr(n.value),  # -0.0 is not 0.0
    IndexValue: lambda n, _: n.expr,
    Indirect: lambda n, _: (n.symbol, n.size, n.wrap, n.check, n.mask is None),
    Load: lambda n, buffers: (
        buffers[n.buffer], n.index, len(n.indirect), n.mask is None, repr(n.other)),
    Op: lambda n, _: n.name,
    Reduce: lambda n, _: n.kind,
}
"""What a node says besides its type and its operands."""
