"""Every non-public torch symbol that weft uses, imported here and nowhere else.

Place in the pipeline: the bottom. A new PyTorch version that moves or renames one of these is this
file's work alone. Public torch API is imported directly where it is used.

Keep entries sorted by module, one comment each: who uses it, and for what.
Never here: torch._dynamo, torch._inductor, AOTAutograd, proxy_tensor, the ShapeEnv engine.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

# aot: which dispatch keys an operator has kernels for.
from torch._C import DispatchKey

# aot: which forward operator a backward operator belongs to.
from torch._C import _current_autograd_node as current_autograd_node
from torch._C._autograd import _get_sequence_nr as autograd_sequence

# shapes.fake: tells the wrappers of torch.func transforms from plain tensors.
from torch._C._functorch import is_functorch_wrapped_tensor

# aot: PyTorch's table of operators written by simpler ones.
from torch._decomp import decomposition_table, meta_table

# shapes.fake_mode, aot: runs C++ operators by their Python forms, which take symbolic sizes.
from torch._dispatch.python import enable_python_dispatcher as python_dispatcher

# aot, passes, codegen: the type of `torch.ops.aten.add.Tensor`.
from torch._ops import OpOverload

# shapes.fake_mode: PyTorch's special rules for single operators on fakes.
from torch._subclasses.fake_impls import (
    has_meta,
    op_implementations_checks,
    stride_incorrect_op,
)

# aot: a GraphModule that generates its Python code only when asked for it.
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule

# capture: an operator's result depends on data; shapes.fake, aot: runs an operator's meta kernel on
# tensors that have sizes but no data.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)

# shapes.fake_mode: within it, an operator on fakes runs the meta kernel itself.
from torch._subclasses.fake_tensor import (
    FakeTensorConverter,
    should_allow_numbers_as_tensors,
    torch_decomp_decompositions,
)
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as in_kernel_invocation

# module, capture: whether nn.Module calls run hooks registered for all modules.
from torch.nn.modules.module import _has_any_global_hook

# aot: per-operator dispatch beneath autograd.
from torch.utils._python_dispatch import TorchDispatchMode

# capture, aot: flatten and rebuild nested containers.
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

__all__ = [
    "DataDependentOutputException",
    "DispatchKey",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorConverter",
    "FakeTensorMode",
    "LazyGraphModule",
    "OpOverload",
    "TorchDispatchMode",
    "autograd_sequence",
    "current_autograd_node",
    "decomposition_table",
    "has_dispatch_kernel",
    "has_global_module_hooks",
    "has_meta",
    "in_kernel_invocation",
    "is_functorch_wrapped_tensor",
    "meta_table",
    "op_implementations_checks",
    "python_dispatcher",
    "should_allow_numbers_as_tensors",
    "storage_use_count",
    "stride_incorrect_op",
    "torch_decomp_decompositions",
    "tree_flatten",
    "tree_map",
    "tree_unflatten",
]

has_global_module_hooks: Callable[[], bool] = _has_any_global_hook


def has_dispatch_kernel(name: str, key: str) -> bool:
    """Whether the operator has a kernel of its own for the dispatch key of this name."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def storage_use_count(tensor: torch.Tensor) -> int:
    """How many owners the tensor's storage has (tensors and views sharing it)."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count
