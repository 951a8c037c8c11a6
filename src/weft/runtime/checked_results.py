"""Results that nothing uses, of operators that may raise.

Place in the pipeline: capture adds a call of `checked` behind such an operator; the call does
nothing, and keeps the operator in the graph through all stages, so that it raises as in eager::

    table[places]          # nobody looks at the result, but an index may be out of range
"""

from __future__ import annotations

from typing import Final

import torch

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
_LIBRARY.define("checked(Tensor result) -> ()")


@torch.library.impl(_LIBRARY, "checked", "CompositeExplicitAutograd")
def _checked(result: torch.Tensor) -> None:
    """Does nothing: what it is called with has been computed."""


checked: Final = torch.ops.weft.checked.default
