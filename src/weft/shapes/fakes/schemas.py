"""Arguments of a call of an ATen operator, by the names of its schema.

Place in the pipeline: beside the fakes; whoever looks at one argument of any operator asks here::

    schema_arguments(torch.ops.aten.squeeze.dim, (x, 0), {})    # {"self": x, "dim": 0}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft._torch import OpOverload


def schema_arguments(
    op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, Any]:
    """All arguments in the schema's order, with the defaults that PyTorch omits."""
    parameters = op._schema.arguments
    defaults = {parameter.name: parameter.default_value for parameter in parameters}
    return {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}
