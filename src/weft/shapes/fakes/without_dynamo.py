"""Makes PyTorch's fake tensors without loading torch._dynamo, half a second of a process's start.

Place in the pipeline: `fake_mode` calls it for every mode that it makes.
"""

from __future__ import annotations

import sys
from functools import cache
from types import CellType, FunctionType
from typing import Final

from weft._torch import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    TorchDispatchMode,
    compile_markers,
    decomposition_table,
    meta_table,
)

_DYNAMO_MEMO: Final = "__dynamo_disable"
_EMPTY_CELL: Final = CellType()


def initialise(mode: FakeTensorMode) -> None:
    """What ``FakeTensorMode.__init__`` does, without loading torch._dynamo."""
    _run_meta_kernels_without_dynamo()
    TorchDispatchMode.__init__(mode)
    mode.allow_fallback_kernels = True
    mode.propagate_real_tensors = False
    mode.fake_tensor_converter = FakeTensorConverter()
    mode.static_shapes = True
    mode.allow_scalar_outputs = False
    mode._allow_unsafe_data_ptr_access = True
    mode.allow_meta = True
    mode.cache_crosscheck_enabled = False
    mode.allow_non_fake_inputs = True
    mode.in_kernel_invocation = False
    mode.enter_stack = []
    mode.shape_env = None
    mode._stack_trace = None  # type: ignore[assignment]
    mode._stack = ""
    mode._mode_key = FakeTensor._mode_key
    mode.nt_tensor_id_initial_count = mode.nt_tensor_id_counter = 0


@cache
def _run_meta_kernels_without_dynamo() -> None:
    """Keep the first meta kernel from loading torch._dynamo.

    PyTorch wraps Python meta kernels so that torch.compile leaves them alone: the wrapper looks for
    a memo on the function and, if there is none, loads torch._dynamo to make one. Unless that is
    loaded already, the memo is set to the function itself.
    """
    if "torch._dynamo" in sys.modules:
        return
    modules = [sys.modules[name] for name in sys.modules if name.startswith("torch._refs")]
    references = [value for module in modules for value in vars(module).values()]
    pending = [*meta_table.values(), *decomposition_table.values(), *references]
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        if isinstance(function, FunctionType) and id(function) not in seen:
            seen.add(id(function))
            wrapped = _wrapped_functions(function)
            pending += wrapped
            if function.__code__.co_filename == compile_markers.__file__:
                for target in wrapped:
                    target.__dict__.setdefault(_DYNAMO_MEMO, target)


def _wrapped_functions(function: FunctionType) -> list[FunctionType]:
    """The functions that a wrapper calls, found in its closure."""
    cells = function.__closure__ or ()
    held = [cell.cell_contents for cell in cells if cell != _EMPTY_CELL]
    return [value for value in held if isinstance(value, FunctionType)]
