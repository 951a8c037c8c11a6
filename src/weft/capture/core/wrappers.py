"""Wrappers of torch.distributed: Python that synchronises processes around a module's forward.

Place in the pipeline: used by the compiler at a miss, and by the values of modules and functions.
`DistributedDataParallel` and `FullyShardedDataParallel` are modules around the program's, whose
`forward` belongs to PyTorch; `fully_shard` and `replicate` leave the module where it is and give it
hooks. What they do cannot be in a graph (buckets, storages that are resized, futures), and it would
be repeated nowhere. So wrappers run as plain Python, and the module inside is compiled::

    weft.compile(DDP(model))(x)   # DDP.forward: plain; model.forward: one graph; no break
    fully_shard(model.block)      # hooks: plain; block.forward: one graph

Inside of another compiled function a call of a wrapper is a graph break.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import torch

from weft.capture.core.skips import folders_of_torch
from weft.capture.core.source import FrameState
from weft.module import has_hooks

_WRAPPERS: Final = folders_of_torch("nn/parallel", "distributed/fsdp", "distributed/_composable")
_MODULE_CALLS: Final = str(Path(torch.__file__).parent.joinpath("nn", "modules", "module.py"))
_OWN_CALLS: Final = str(Path(__file__).parents[2] / "api.py")


def is_wrapper_code(code: CodeType) -> bool:
    """Whether the code belongs to a wrapper."""
    return code.co_filename.startswith(_WRAPPERS)


def is_wrapping_forward(function: object) -> bool:
    """Whether a function is the `forward` of a wrapper that is a module."""
    return (isinstance(function, FunctionType) and function.__name__ == "forward"
            and is_wrapper_code(function.__code__))


def has_wrapping_hooks(module: torch.nn.Module) -> bool:
    """Whether hooks of a wrapper run around the module's calls."""
    state = vars(module)
    return any(_is_of_wrapper(hook) for name in ("_forward_pre_hooks", "_forward_hooks")
               for hook in state.get(name, {}).values())


def _is_of_wrapper(hook: object) -> bool:
    function = hook.__func__ if isinstance(hook, MethodType) else hook
    return isinstance(function, FunctionType) and is_wrapper_code(function.__code__)


def is_between_wrappers(state: FrameState) -> bool:
    """Whether a frame only leads from a wrapper to a module's forward, or to a wrapper: it runs as
    plain Python, and what it calls is compiled."""
    file = state.code.co_filename
    if file != _MODULE_CALLS and file != _OWN_CALLS:
        return False
    module = _called_module(state)
    if module is None:
        return False
    if has_wrapping_hooks(module) or is_wrapping_forward(
            getattr(type(module), "forward", None)):
        return True
    return not has_hooks(module) and _is_called_by_wrapper()


def _called_module(state: FrameState) -> torch.nn.Module | None:
    """The module that a frame of `nn.Module.__call__` calls."""
    for value in (*state.locals[:1], *map(_contents, state.cells)):
        if issubclass(type(value), torch.nn.Module):
            return value  # type: ignore[no-any-return]
    return None


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_called_by_wrapper() -> bool:
    """Whether the frame that is about to run was called by a wrapper, through `nn.Module.__call__`
    alone."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in _PASSED_OVER:
        frame = frame.f_back
    return is_wrapper_code(frame.f_code)


_PASSED_OVER: Final = (__file__, str(Path(__file__).parents[1] / "compiler.py"), _MODULE_CALLS)
