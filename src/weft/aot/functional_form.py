"""A functional operator for one that only exists in place: it works on copies and returns them.

Place in the pipeline: used by `operators.py` if PyTorch has no functional variant, as for custom
operators with `mutates_args`::

    op = torch.ops.mylib.add_one_.default             # add_one_(Tensor(a!) x, float k) -> ()
    functional_form(op)                               # (Tensor x, float k) -> Tensor

For arguments that are lists, or that share memory, there is a form on that memory instead::

    form_on_memory(op, {"x": (0, 1)}, 1)  # (Tensor[] memory, SymInt[] layouts, float k) -> Tensor
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

import torch

from weft._torch import OpOverload
from weft.aot.views import Unsupported

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
_ALIAS: Final = re.compile(r"Tensor\([^)]*\)")
_NUMBERS: Final = count(1)
_ON_MEMORY: Final[dict[Any, OpOverload]] = {}


def is_of_torch(op: OpOverload) -> bool:
    """Whether torch itself defines the operator, so that its name and its kind say what it does."""
    return op.namespace in ("aten", "prims", "prim", "c10d", "_c10d_functional")


def functional_form(op: OpOverload) -> OpOverload | None:
    """The functional operator, defined when first needed; None if `op` does more than write to
    tensors.

    It returns the fresh results of `op`, then the new values of what `op` writes to.
    """
    schema = op._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if torch.Tag.inplace_view in op.tags or any(str(a.type) != "Tensor" for a in written):
        return None
    if any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments):
        return None
    fresh = [i for i, r in enumerate(schema.returns) if r.alias_info is None]
    if any(str(schema.returns[i].type) != "Tensor" for i in fresh):
        return None
    arguments = _ALIAS.sub("Tensor", str(op._schema).partition("(")[2].rpartition(") -> ")[0])
    run = _kernel(op, [a.name for a in written], fresh)
    return _defined(op, "functional", arguments, len(fresh) + len(written), run)


def _defined(
    op: OpOverload, form: str, arguments: str, n_results: int, run: Callable[..., object]
) -> OpOverload:
    """A new operator that returns tensors, with `run` as its kernel and its fake kernel."""
    name = f"{op.namespace}_{op._schema.name.partition('::')[2]}_{op._overloadname}_{form}"
    if hasattr(torch.ops.weft, name):  # of an operator that was destroyed, and defined again
        name = f"{name}_{next(_NUMBERS)}"
    returns = ", ".join(["Tensor"] * n_results)
    _LIBRARY.define(f"{name}({arguments}) -> ({returns})", tags=_kept_tags(op))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{name}", run, lib=_LIBRARY)
    functional: OpOverload = getattr(torch.ops.weft, name).default
    return functional


def _kept_tags(op: OpOverload) -> tuple[torch.Tag, ...]:
    random = torch.Tag.nondeterministic_seeded
    return (random,) if random in op.tags else ()


def _kernel(op: OpOverload, written: Sequence[str], fresh: Sequence[int]) -> Callable[..., object]:
    """A kernel that runs `op` on copies of what it writes to."""
    names = [a.name for a in op._schema.arguments]
    single = len(op._schema.returns) == 1

    def run(*args: Any, **kwargs: Any) -> Any:
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in written:
            named[name] = named[name].clone()
        result = op(**named)
        results = [result] if single else result
        values = [*(results[i] for i in fresh), *(named[name] for name in written)]
        return values[0] if len(values) == 1 else tuple(values)

    return run


# -- on memory -------------------------------------------------------------------------------------


def form_on_memory(op: OpOverload, places: Mapping[str, object], n_memories: int) -> OpOverload:
    """A functional operator that runs `op` on views of copies of `n_memories` tensors.

    `places`: for arguments that are made of such views, (number of the memory, rank) in place of
    each tensor. Takes the memories, the sizes, strides and offsets of all views in the order of
    `op`'s arguments, and its other arguments by name. Returns the fresh results of `op`, then the
    new content of the memories.
    """
    order = [a.name for a in op._schema.arguments if a.name in places]
    key = (op, tuple((name, places[name]) for name in order), n_memories)
    form = _ON_MEMORY.get(key)
    if form is None:
        form = _ON_MEMORY[key] = _define_on_memory(op, {n: places[n] for n in order}, n_memories)
    return form


def _define_on_memory(op: OpOverload, places: Mapping[str, object], n_memories: int) -> OpOverload:
    schema = op._schema
    fresh = [i for i, r in enumerate(schema.returns) if r.alias_info is None]
    if any(str(schema.returns[i].type) != "Tensor" for i in fresh):
        raise Unsupported(f"{op} returns more than tensors")
    if torch.Tag.inplace_view in op.tags:
        raise Unsupported(f"{op} changes sizes or strides")
    declared = _ALIAS.sub("Tensor", str(schema))
    rest = [re.findall(rf"[^\s(]+ {a.name}(?=[=,)])", declared)[0]
            for a in schema.arguments if a.name not in places]
    named = ["*", *rest] if rest else []
    arguments = ", ".join(["Tensor[] memory", "SymInt[] layouts", *named])
    run = _kernel_on_memory(op, places, fresh)
    return _defined(op, f"on_memory_{len(_ON_MEMORY)}", arguments, len(fresh) + n_memories, run)


def _kernel_on_memory(
    op: OpOverload, places: Mapping[str, object], fresh: Sequence[int]
) -> Callable[..., object]:
    """A kernel that runs `op` on views of copies."""
    single = len(op._schema.returns) == 1

    def run(memory: Sequence[torch.Tensor], layouts: Sequence[object], **rest: object) -> Any:
        copies = [m.clone(memory_format=torch.contiguous_format) for m in memory]
        numbers = iter(layouts)
        views = {name: _views(place, copies, numbers) for name, place in places.items()}
        result = op(**views, **rest)
        results = [result] if single else result
        values = [*(results[i] for i in fresh), *copies]
        return values[0] if len(values) == 1 else tuple(values)

    return run


def _views(place: Any, memory: Sequence[torch.Tensor], layouts: Iterator[Any]) -> object:
    """An argument: `(number of a memory, rank)` becomes a view; tuples of them become lists."""
    if place is None:
        return None
    if not place or not isinstance(place[0], int):
        return [_views(p, memory, layouts) for p in place]
    number, rank = place
    size, stride = ([next(layouts) for _ in range(rank)] for _ in range(2))
    return memory[number].as_strided(size, stride, next(layouts))
