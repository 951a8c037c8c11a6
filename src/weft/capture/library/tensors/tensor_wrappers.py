"""Tensors made of tensors: quantised weights, pairs, nested tensors (jagged).

Place in the pipeline: wraps for the tensor family. A class with `__torch_dispatch__` that also
defines `__tensor_flatten__` and `__tensor_unflatten__` computes with its inner tensors only. An
operation on such a tensor is one graph node, as on others. While capturing it runs on a wrapper of
fakes, so the class itself says what the result is; aot replaces the wrappers by their parts
(`aot/wrappers.py`)::

    y = x @ quantised.t()    # nodes: t, matmul; guards: the parts, what else it is made of
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from weft.capture.core.base import SymbolicValue
from weft.capture.core.source import Source
from weft.capture.guards.guard_set import tensor_guard
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.tensors.ragged_sizes import is_ragged
from weft.capture.library.tensors.tensor import OTHER_TENSORS, TensorValue
from weft.shapes.fakes.wrappers import (
    is_wrapper,
    keep_nested_dummy_real,
    parts,
    ragged_size,
    rebuilt,
)

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def _wrap_wrapper(tx: Interpreter, obj: torch.Tensor, source: Source | None) -> SymbolicValue:
    if source is None:
        source = tx.tree.object(obj, type(obj).__name__)
    if obj.is_nested:
        fake = _fake_nested(tx, obj, source)
    elif _guard_parts(tx, obj, source):
        fake = rebuilt(obj, tx.fakes.fake)
    else:
        return unknown(tx, obj, source)
    fake.requires_grad_(obj.requires_grad)
    if getattr(obj, "_is_param", False):
        fake._is_param = True
    value = TensorValue(fake, None, source, obj)
    if obj.requires_grad:
        tx.autograd.leaves[id(fake)] = value
    return value


def _fake_nested(tx: Interpreter, obj: Any, source: Source) -> Any:
    """A fake of a nested tensor, whose sizes follow from its parts: those may be symbolic.

    Its ragged size is a number that equals only itself and belongs to the offsets (or lengths).
    """
    keep_nested_dummy_real()
    names, context = parts(obj)
    tx.guards.add(source, "type_is", type(obj))
    tx.guards.add(source, "py", partial(_has_form, (names, context)))
    inner = {name: tx.force(tx.wrap(getattr(obj, name), source.attribute(name))) for name in names}
    ragged = inner["_lengths" if "_lengths" in inner else "_offsets"]
    tx.identities.key(ragged, ragged.real())
    sizes = [ragged_size(n) if is_ragged(n) else n for n in obj.size()]
    return type(obj).__tensor_unflatten__(
        {name: value.fake(tx) for name, value in inner.items()}, context, sizes, obj.stride())


def _guard_parts(tx: Interpreter, obj: object, source: Source) -> bool:
    """Guard all parts of the tensor; False if one of them cannot be compared."""
    if not isinstance(obj, torch.Tensor):
        tx.guards.add(source, "is", obj)
        return True
    tx.guards.add(source, "tensor", *tensor_guard(obj))
    if not is_wrapper(type(obj)):
        return True
    form = parts(obj)
    same_form = partial(_has_form, form)
    tx.guards.add(source, "py", same_form)
    return same_form(obj) and all(
        _guard_parts(tx, getattr(obj, name), source.attribute(name)) for name in form[0])


def _has_form(form: tuple[Sequence[str], object], obj: torch.Tensor) -> bool:
    try:
        return bool(parts(obj) == form)
    except (RuntimeError, ValueError):  # of tensors in it
        return False


OTHER_TENSORS.append((is_wrapper, _wrap_wrapper))
