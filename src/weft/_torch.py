"""Every non-public torch symbol that weft uses, imported here and nowhere else.

Place in the pipeline: the bottom. A new PyTorch version that moves or renames one of these is this
file's work alone. Public torch API is imported directly where it is used.

Keep entries sorted by module, one comment each: who uses it, and for what.
Never here: torch._dynamo, torch._inductor, AOTAutograd, proxy_tensor, the ShapeEnv engine.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from inspect import signature
from types import BuiltinFunctionType, NoneType
from typing import Any

import torch

# capture: functions of torch that are recognised by identity, and modes read or set.
from torch import _assert_async as assert_async
from torch import _check as check
from torch import _check_index as check_index
from torch import _check_is_size as check_is_size
from torch import _check_tensor_all as check_tensor_all
from torch import _check_type as check_type
from torch import _check_value as check_value
from torch import _check_with as check_with

# shapes.fake_mode: the module whose decorator keeps functions out of torch.compile.
from torch import _compile as compile_markers

# aot: writes to inputs, all in one call.
from torch import _foreach_copy_ as foreach_copy_

# runtime.watched_storages: shows where a storage has its hook for writes.
from torch import _lazy_clone as lazy_clone

# capture: packed sequences, whose lengths are data.
from torch import _pack_padded_sequence as pack_padded_sequence
from torch import _pad_packed_sequence as pad_packed_sequence

# aot, capture: regions in which no `__torch_function__` is asked.
from torch._C import DisableTorchFunction, DisableTorchFunctionSubclass
from torch._C import _are_functorch_transforms_active as are_functorch_transforms_active

# aot.recurrent: an operator's kernel calls another operator, without autograd.
from torch._C import _AutoDispatchBelowAutograd as below_autograd

# aot: which forward operator a backward operator belongs to.
from torch._C import _current_autograd_node as current_autograd_node

# aot.layers: tells one run of the autograd engine from the next.
from torch._C import _current_graph_task_id as current_graph_task

# aot: a region in which no operator is cast, whatever autocast says.
from torch._C import _DisableAutocast as DisableAutocast
from torch._C import _disabled_torch_function_impl as disabled_torch_function

# shapes: a region in which operators meet neither modes nor fake tensors' own Python code.
from torch._C import _DisableTorchDispatch as no_dispatch
from torch._C import _enter_dual_level as enter_dual_level
from torch._C import _exit_dual_level as exit_dual_level

# capture.core.state, capture.library: the module of torch.func's C functions.
from torch._C import _functorch as functorch

# shapes.fakes: the node of a known bool, which nodes of ragged sizes give.
from torch._C import _get_constant_bool_symnode as constant_bool_node
from torch._C import _get_deterministic_algorithms as get_deterministic_algorithms

# store: whether new memory is filled, a flag that stored entries depend on.
from torch._C import _get_deterministic_fill_uninitialized_memory as fill_uninitialized_memory
from torch._C import _get_fp32_precision_getter as fp32_precision
from torch._C import _get_privateuse1_backend_name as get_privateuse1_backend_name
from torch._C import _get_tracing_state as get_tracing_state
from torch._C import _group_tensors_by_device_and_dtype as group_tensors_by_device_and_dtype
from torch._C import _infer_size as infer_size

# capture.compiler: whether the caller runs under a mode that sees every operator.
from torch._C import _InferenceMode as InferenceMode
from torch._C import _is_any_autocast_enabled as is_any_autocast_enabled
from torch._C import _is_fwd_grad_enabled as is_forward_grad_enabled
from torch._C import _is_torch_function_all_disabled as is_torch_function_all_disabled
from torch._C import _is_torch_function_enabled as is_torch_function_enabled
from torch._C import _is_torch_function_mode_enabled as is_torch_function_mode_enabled
from torch._C import _len_torch_dispatch_stack as dispatch_mode_depth
from torch._C import _log_api_usage_once as log_api_usage_once
from torch._C import _nn as nn_functions
from torch._C import _set_fwd_grad_enabled as set_forward_grad_enabled
from torch._C import _set_grad_enabled as set_grad_enabled

# shapes.make_fake: whoever asks a fake tensor for its data gets an error.
from torch._C import _set_throw_on_mutable_data_ptr as forbid_data_access
from torch._C import (
    _VariableFunctions as VariableFunctions,
)

# aot: why autograd refuses writes to a view.
from torch._C._autograd import CreationMeta, _get_creation_meta
from torch._C._autograd import _get_current_graph_task_keep_graph as keeps_graph
from torch._C._autograd import _get_sequence_nr as autograd_sequence

# capture.state: hooks on what autograd saves.
from torch._C._autograd import (
    _pop_saved_tensors_default_hooks as pop_saved_tensors_default_hooks,
)
from torch._C._autograd import (
    _push_saved_tensors_default_hooks as push_saved_tensors_default_hooks,
)
from torch._C._autograd import _set_creation_meta as forbid_writes_to_view
from torch._C._autograd import (
    _top_saved_tensors_default_hooks as top_saved_tensors_default_hooks,
)

# aot.layers: the counts of writes to tensors.
from torch._C._autograd import _unsafe_set_version_counter as set_versions

# shapes.fake: tells the wrappers of torch.func transforms from plain tensors.
from torch._C._functorch import (
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    peek_interpreter_stack,
)

# diagnostics: blocks of memory among the profiler's events.
from torch._C._profiler import _EventType as ProfilerEventType

# aot: PyTorch's table of operators written by simpler ones.
from torch._decomp import decomposition_table, meta_table

# shapes.fake_mode, aot: runs C++ operators by their Python forms, which take symbolic sizes.
from torch._dispatch.python import enable_python_dispatcher as python_dispatcher

# capture: what torch.func calls before vmap; it has no effect on results.
from torch._functorch.eager_transforms import _autograd_grad as functorch_autograd_grad

# shapes.fake: tensors made while a transform is being captured, but outside of it.
from torch._functorch.pyfunctorch import (
    temporarily_clear_interpreter_stack as without_functorch_levels,
)
from torch._functorch.vmap import lazy_load_decompositions  # type: ignore[attr-defined]

# backends.torch_context: where PyTorch's own tracers look up the fakes of tensors.
from torch._guards import TracingContext, tracing

# capture, aot, passes, codegen: the types of `torch.ops.aten.add.Tensor` and `torch.ops.aten.add`.
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

# shapes.fake_mode: PyTorch's special rules for single operators on fakes.
from torch._subclasses.fake_impls import (
    has_meta,
    op_implementations_checks,
    stride_incorrect_op,
)

# capture: an operator's result depends on data; shapes.fake, aot: runs an operator's meta kernel on
# tensors that have sizes but no data.
# shapes.fake_mode: within it, an operator on fakes runs the meta kernel itself.
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    should_allow_numbers_as_tensors,
    torch_decomp_decompositions,
)
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as in_kernel_invocation
from torch._subclasses.fake_tensor import init_gpu_context as make_context_of_device

# capture: what a distribution's lazy property is when it is read from the class.
from torch._tensor_str import PRINT_OPTS as print_options
from torch.distributions.utils import _lazy_property_and_property as lazy_property_of_class

# aot: a GraphModule that generates its Python code only when asked for it.
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraphModule

# shapes.fakes: the size of a nested tensor's ragged dimension, and a nested tensor that PyTorch
# makes at its first use of one.
from torch.nested._internal.nested_int import NestedIntNode
from torch.nested._internal.nested_tensor import _nt_view_dummy as nested_dummy

# module, capture: whether nn.Module calls run hooks registered for all modules.
from torch.nn.modules.module import _has_any_global_hook

# capture.library: pytree's functions and registries, recognised and run by capture.
from torch.utils import _pytree as pytree

# aot: per-operator dispatch beneath autograd; a region without any such mode.
# capture.device_modes: the mode of torch.set_default_device, and the functions it is about.
from torch.utils._device import DeviceContext
from torch.utils._device import _device_constructors as device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as no_modes

# capture, aot: flatten and rebuild nested containers.
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

# capture: what a checkpoint raises in its function once all that the backward needs is there.
from torch.utils.checkpoint import _StopRecomputationError as StopRecomputation
from torch.utils.hooks import BackwardHook

fused_attention_choice: Callable[..., int] = torch._fused_sdp_choice
"""aot: which attention kernel eager would take for given tensors (its stub lacks the tensors)."""

# shapes.make_fake: a tensor object of a subclass on given memory.
make_subclass: Callable[..., Any] = torch.Tensor._make_subclass

# shapes.make_fake: a tensor gets another one's storage, whatever its sizes.
set_storage: Callable[[torch.Tensor, torch.Tensor], None] = torch._functionalize_unsafe_set

has_global_module_hooks: Callable[[], bool] = _has_any_global_hook

# module: what `nn.Module.compile` compiles.
module_call: Callable[..., Any] = torch.nn.Module._call_impl

_apply = vars(torch.autograd.Function)["apply"]
function_apply: Any = _apply.__func__ if isinstance(_apply, classmethod) else _apply
"""capture: what `apply` of a `torch.autograd.Function` calls with the class: a Python function;
from PyTorch 2.14 on, a class method in C."""

function_base: Any = torch._C._FunctionBase
"""capture: the class in C of the contexts that autograd gives to a function's `forward`."""


@dataclass(frozen=True, slots=True)
class AutogradFormula:
    """Python code that computes the gradients of an operator."""

    name: str
    operator: Any
    registration: Any
    """What holds `_setup_context_fn` and `_backward_fn`; None if a kernel of the program's own does
    it all."""


def autograd_formula(result: torch.Tensor) -> AutogradFormula | None:
    """capture: the formula that gave an operator's result its autograd node; None if it is in C++,
    or PyTorch's own."""
    cls = getattr(result.grad_fn, "_forward_cls", None)
    if cls is None:
        return None
    scope = inspect.getclosurevars(cls.forward).nonlocals
    if "orig_forward" in scope:  # of lists of tensors
        scope = inspect.getclosurevars(scope["orig_forward"]).nonlocals
    code = scope["info"]._backward_fn if "info" in scope else cls.backward
    if getattr(code, "__module__", "").split(".")[0] in ("torch", "weft"):
        return None
    return AutogradFormula(cls.__name__, scope.get("op"), scope.get("info"))


# capture: what gives tensors the nodes that backward hooks of modules hang on.
module_backward_nodes: Callable[..., Any] = BackwardHook._apply_on_tensors


# store: what PyTorch's functions that pybind11 has made belong to, which has no name elsewhere.
FunctionRecord: type = next((
    type(f.__self__) for f in vars(torch._C).values() if isinstance(f, BuiltinFunctionType)
    and type(f.__self__).__module__ == "pybind11_builtins"), NoneType)
push_torch_function_mode = torch._C._push_on_torch_function_stack
pop_torch_function_mode = torch._C._pop_torch_function_stack
torch_function_modes = torch._C._len_torch_function_stack
torch_function_mode_at = torch._C._get_function_stack_at
"""capture: the stack of modes that see every torch call."""


def engine_gradients(
    values: Sequence[object], tangents: Sequence[object], inputs: Sequence[object],
    keep_graph: bool = False,
) -> tuple[Any, ...]:
    """aot: `torch.autograd.grad` without its checks in Python, which load sympy (0.5 s)."""
    return torch.autograd.Variable._execution_engine.run_backward(
        tuple(values), tuple(tangents), keep_graph, False, tuple(inputs),
        allow_unreachable=True, accumulate_grad=False,
    )


def view_forbids_writes(tensor: torch.Tensor) -> object:
    """Why autograd refuses writes to a view (the function that made it made several, say), or
    None."""
    reason = _get_creation_meta(tensor) if tensor._is_view() else CreationMeta.DEFAULT
    return None if reason == CreationMeta.DEFAULT else reason


def forward_ad_level() -> int:
    """The level of `torch.autograd.forward_ad` that is active; -1 for none."""
    return torch.autograd.forward_ad._current_level


def is_executed(node: Any) -> bool | None:
    """aot: whether the running backward executes an autograd node.

    None: outside of a backward, and for the node of a leaf whose gradient `torch.autograd.grad`
    returns.
    """
    if node is None:
        return False
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:
        return None


@contextmanager
def noting_absent_gradients() -> Iterator[None]:
    """aot: tells by `gets_none` of an autograd node whether a user's function gets `None` for an
    absent gradient, not zeros: autograd knows, but does not say."""
    context: Any = torch.autograd.function.FunctionCtx
    original = context.set_materialize_grads

    def note(ctx: Any, value: bool) -> None:
        ctx.gets_none = not value
        original(ctx, value)

    context.set_materialize_grads = note
    try:
        yield
    finally:
        context.set_materialize_grads = original


def when_backward_ends(call: Callable[[], None]) -> None:
    """aot: `call()` at the end of the running backward."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def on_register_hook(
    function: type[torch.autograd.Function], call: Callable[[Any, torch.Tensor], None]
) -> None:
    """aot: `call(ctx, tensor)` whenever the first hook is registered on a result of `function`.

    The hooks are called for gradients only, not if a backward of other results passes by.
    """

    node: Any = function._backward_cls
    of_autograd = node._register_hook_dict

    def register(ctx: Any, tensor: Any) -> None:
        tensor._backward_hooks = _GradientHooks()
        of_autograd(ctx, tensor)
        call(ctx, tensor)

    node._register_hook_dict = register


class _GradientHooks(OrderedDict[int, Callable[[Any], Any]]):
    """Hooks of a tensor that are not called without a gradient."""

    def __setitem__(self, key: int, hook: Callable[[Any], object]) -> None:
        super().__setitem__(key, _GradientHook(hook))


class _GradientHook:
    """A hook that is not called without a gradient, unless it is autograd's own, which counts the
    calls (`register_multi_grad_hook`)."""

    def __init__(self, hook: Callable[[Any], Any]) -> None:
        self.hook = hook
        self.counts = getattr(hook, "__module__", "") == torch.autograd.graph.__name__

    def __call__(self, grad: object) -> object:
        return None if grad is None and not self.counts else self.hook(grad)


def call_hooks_for_gradients(leaf: torch.Tensor) -> None:
    """aot: never call the hooks that a leaf has without a gradient."""
    hooks: Any = leaf._backward_hooks or {}
    for key, hook in hooks.items():
        if not isinstance(hook, _GradientHook):
            hooks[key] = _GradientHook(hook)


def _setting_pairs(*names: str) -> list[tuple[Callable[..., object], Callable[..., object]]]:
    """Pairs of functions that read and write settings, by the common ends of their names ("a/b":
    they differ).

    Not every PyTorch version has all of them; some exist only in builds for GPUs.
    """
    ends = [name.partition("/") for name in names]
    pairs = [(f"{prefix}_get_{get}", f"{prefix}_set_{put or get}")
             for get, _, put in ends for prefix in ("", "_cuda")]
    return [(getattr(torch._C, get), getattr(torch._C, put)) for get, put in pairs
            if hasattr(torch._C, get) and hasattr(torch._C, put)]


kernel_choices = _setting_pairs(
    "cudnn_enabled", "cudnn_benchmark", "cudnn_benchmark_limit", "cudnn_deterministic",
    "cudnn_depthwise_kernel",
    "mkldnn_enabled", "mkldnn_deterministic", "nnpack_enabled", "sdp_priority_order",
    "flash_sdp_enabled/sdp_use_flash", "mem_efficient_sdp_enabled/sdp_use_mem_efficient",
    "math_sdp_enabled/sdp_use_math", "cudnn_sdp_enabled/sdp_use_cudnn",
    "overrideable_sdp_enabled/sdp_use_overrideable", "fa3_sdp_enabled/sdp_use_fa3")
"""capture: settings of the libraries below torch that choose a kernel, not what it computes."""

precision_settings = _setting_pairs(
    "cudnn_allow_tf32", "cublas_allow_tf32", "onednn_allow_tf32",
    "float32_matmul_precision", "cublas_allow_fp16_reduced_precision_reduction",
    "cublas_allow_bf16_reduced_precision_reduction", "cublas_allow_fp16_accumulation",
    "math_sdp_allow_fp16_bf16_reduction",
    "fp32_precision_getter/fp32_precision_setter")
"""capture: those that change results."""

cond_operator = torch.ops.higher_order.cond
while_loop_operator = torch.ops.higher_order.while_loop
flex_attention_operator = torch.ops.higher_order.flex_attention
"""capture: the nodes of torch.cond and while_loop; what `flex_attention` calls."""

region_call = import_module("torch._higher_order_ops.invoke_subgraph").invoke_subgraph_placeholder
"""capture: what `torch.compiler.nested_compile_region` calls the marked function through."""

_call_scripted = vars(torch._C.ScriptFunction)["__call__"]
call_scripted = getattr(_call_scripted, "__func__", _call_scripted)
"""capture: how functions that a program gave to the script compiler are called (PyTorch's testing
package puts a plain function there)."""

_call_script_method = vars(torch._C.ScriptMethod)["__call__"]
call_script_method = getattr(_call_script_method, "__func__", _call_script_method)
"""capture: how methods of modules that a program gave to the script compiler are called."""

ScriptModule: type = import_module("torch.jit").ScriptModule
"""capture: modules that a program gave to the script compiler."""

InstanceMethod = type(vars(torch._C.ScriptFunction)["save"])
"""capture: the type of methods that C++ gives to its classes."""

_associative_scan = import_module("torch._higher_order_ops.associative_scan")
associative_scan_function = _associative_scan.associative_scan
map_function = import_module("torch._higher_order_ops.map").map
scan_function = import_module("torch._higher_order_ops.scan").scan
while_loop = import_module("torch._higher_order_ops.while_loop").while_loop
"""capture: what programs call to loop over tensors."""

amp_unscale = torch._amp_foreach_non_finite_check_and_unscale_
foreach_scaled = (torch._foreach_addcdiv_, torch._foreach_addcmul_)
"""capture: operators of gradient scaling and optimizers that read numbers from tensors."""

optimizer_number = vars(import_module("torch.optim.optimizer"))["_get_value"]
"""capture: what optimizers read the count of their steps with."""

is_scripting: Callable[[], bool] = vars(import_module("torch.jit"))["is_scripting"]
is_tracing: Callable[[], bool] = vars(import_module("torch.jit"))["is_tracing"]
is_tracing_in_c: Callable[[], bool] = torch._C._is_tracing
"""capture: what modules and libraries ask to tell eager programs from scripted and traced ones."""

saved_tensors_hooks_switches = (
    torch._C._autograd._saved_tensors_hooks_enable,
    torch._C._autograd._saved_tensors_hooks_disable,
    torch._C._autograd._saved_tensors_hooks_get_disabled_error_message,
)
"""capture: forbid and allow saved-tensor hooks; nothing while capturing."""


def apply_function(function: type[torch.autograd.Function], *args: object) -> Any:
    """`function.apply(*args)`, which torch leaves without types."""
    return function.apply(*args)


class DispatchMode(TorchDispatchMode):
    """aot, shapes: the base class of weft's modes that see operators below autograd."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False, or PyTorch would wrap `__torch_dispatch__` in a function that imports
        torch._dynamo."""
        return False


@cache
def torch_numpy() -> Any:
    """capture: NumPy's functions on tensors, imported when a program first uses NumPy.

    Its default types are set here: it would read them from torch._dynamo's settings.
    """
    module = import_module("torch._numpy")
    types = import_module("torch._numpy._dtypes_impl")
    types._default_dtypes = types.DefaultDTypes(  # type: ignore[attr-defined]
        torch.float64, torch.complex128, torch.int64)
    return module


def has_dispatch_kernel(name: str, key: str) -> bool:
    """Whether the operator has a kernel of its own for the dispatch key of this name."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def is_collective(op: object) -> bool:
    """Whether an operator talks to other processes."""
    return isinstance(op, OpOverload) and op.namespace in _COLLECTIVES


def runs_as_written(op: OpOverload) -> bool:
    """Whether each call of an operator runs once, and in order: those that draw random numbers, and
    those that talk to other processes."""
    return torch.Tag.nondeterministic_seeded in op.tags or op.namespace in _COLLECTIVES


@cache
def functional_collectives() -> object:
    """aot: torch's collectives without mutation, whose metadata comes with this module."""
    import_module("torch.distributed._functional_collectives")
    return torch.ops._c10d_functional


def is_data_parallel_active() -> bool:
    """aot: whether the forward of a DistributedDataParallel is running."""
    return torch.nn.parallel.DistributedDataParallel._active_ddp_module is not None


@cache
def distributed_tensor() -> Any:
    """capture: the class DTensor, which only programs that use it should load."""
    return import_module("torch.distributed.tensor").DTensor


@cache
def shards_are_copies() -> bool:
    """capture: whether `distribute_tensor` without communication copies this process' part."""
    placements = import_module("torch.distributed.tensor.placement_types")
    return "clone" in signature(placements.Shard._select_split_tensor).parameters


process_group_of_name: Any = getattr(
    torch._C, "_distributed_c10d", torch._C).__dict__.get("_resolve_process_group")
"""capture: the function that finds a process group by name."""


def default_group_store() -> Any:
    """capture: the store on which the processes of the default group have met."""
    return import_module("torch.distributed.distributed_c10d")._get_default_store()


def unboxed_group(group: Any) -> tuple[str, int]:
    """aot: the name and the size of the process group that a collective's operator gets."""
    bound = torch.distributed.ProcessGroup.unbox(group)
    return bound.group_name, bound.size()


def boxed_done_work() -> object:
    """aot: what an operator of a collective returns to wait for, when all is done."""
    return import_module("torch._C._distributed_c10d").FakeWork().boxed()


def reduction_name(operation: Any) -> str:
    """aot: the name of the reduction that a collective's operator gets: sum, max, ..."""
    kind = torch.distributed.ReduceOp.RedOpType(operation.op())
    return str(kind.name).lower()


def storage_use_count(tensor: torch.Tensor) -> int:
    """How many owners the tensor's storage has (tensors and views sharing it)."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


def function_spaces() -> list[object]:
    """The C modules that hold torch's functions: torch, nn.functional, fft, linalg, …"""
    more = ("_fft", "_linalg", "_special", "_nested", "_sparse")
    return [VariableFunctions, nn_functions,
            *(getattr(torch._C, name) for name in more if hasattr(torch._C, name))]


def watch_profiler(changed: Callable[[bool], None]) -> bool:
    """Call `changed` with True when a profiler of PyTorch starts in this process, and with False
    when it stops; returns whether one runs now. (diagnostics.regions)"""
    functions = vars(torch.autograd.profiler)
    for name, on in (("_run_on_profiler_start", True), ("_run_on_profiler_stop", False)):
        theirs = functions.get(name)
        if theirs is None:
            return False  # a PyTorch that does it otherwise: profiles have no regions of weft's

        def ours(theirs: Callable[[], None] = theirs, on: bool = on) -> None:
            theirs()
            changed(on)

        functions[name] = ours
    return bool(functions.get("_is_profiler_enabled"))


def run_backward_directly(function: type[torch.autograd.Function]) -> None:
    """aot: let the engine call the function's `backward`, not a method that looks for it."""
    node: Any = vars(function)["_backward_cls"]
    node.apply = function.backward


def name_autograd_function(
    function: type[torch.autograd.Function], in_forward: str, in_backward: str
) -> None:
    """Set the names under which profilers and anomaly mode show an autograd function; those that
    its nodes print stay. (aot)"""
    function.__name__ = in_forward
    vars(function)["_backward_cls"].__name__ = in_backward
