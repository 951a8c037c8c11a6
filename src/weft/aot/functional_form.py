"""A functional operator for one that only exists in place: it works on copies and returns them.

Place in the pipeline: used by `operators.py` if PyTorch has no functional variant, as for custom
operators with `mutates_args`::

    op = torch.ops.mylib.add_one_.default             # add_one_(Tensor(a!) x, float k) -> ()
    functional_form(op)                               # (Tensor x, float k) -> Tensor
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from weft._torch import OpOverload

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
_ALIAS: Final = re.compile(r"Tensor\([^)]*\)")


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
    name = f"{op.namespace}_{schema.name.partition('::')[2]}_{op._overloadname}_functional"
    if not hasattr(torch.ops.weft, name):
        _define(op, name, [a.name for a in written], fresh)
    made: OpOverload = getattr(torch.ops.weft, name).default
    return made


def _define(op: OpOverload, name: str, written: list[str], fresh: list[int]) -> None:
    """Register the operator: schema, kernel and fake kernel."""
    arguments = _ALIAS.sub("Tensor", str(op._schema).partition("(")[2].rpartition(" -> ")[0])
    returns = ", ".join(["Tensor"] * (len(fresh) + len(written)))
    _LIBRARY.define(f"{name}({arguments} -> ({returns})", tags=_kept_tags(op))
    run = _kernel(op, written, fresh)
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"weft::{name}", run, lib=_LIBRARY)


def _kept_tags(op: OpOverload) -> tuple[torch.Tag, ...]:
    random = torch.Tag.nondeterministic_seeded
    return (random,) if random in op.tags else ()


def _kernel(op: OpOverload, written: Sequence[str], fresh: Sequence[int]) -> Callable[..., Any]:
    """A kernel that runs `op` on copies of what it writes to."""
    names = [a.name for a in op._schema.arguments]
    single = len(op._schema.returns) == 1

    def run(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for name in written:
            given[name] = given[name].clone()
        result = op(**given)
        results = [result] if single else result
        values = [*(results[i] for i in fresh), *(given[name] for name in written)]
        return values[0] if len(values) == 1 else tuple(values)

    return run
