"""Rules for torch: global state that is constant while capturing, and changes of it.

Place in the pipeline: see `weft.capture.library`. Graph operations need no rule
(`library/tensors/torch_names.py`).
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch
from torch.nn.modules import module as torch_module

from weft._torch import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    InferenceMode,
    VariableFunctions,
    assert_async,
    check_tensor_all,
    dispatch_mode_depth,
    get_deterministic_algorithms,
    get_privateuse1_backend_name,
    get_tracing_state,
    is_forward_grad_enabled,
    is_torch_function_mode_enabled,
    is_tracing,
    is_tracing_in_c,
    lazy_property_of_class,
    log_api_usage_once,
    module_backward_nodes,
    pop_torch_function_mode,
    push_torch_function_mode,
    saved_tensors_hooks_switches,
    set_grad_enabled,
    torch_function_mode_at,
    torch_function_modes,
)
from weft.capture.core.base import MISSING, Kwargs, SymbolicValue
from weft.capture.core.breaks import SkipFrame, graph_break
from weft.capture.core.constant import (
    FALSE,
    NONE,
    TRUE,
    ZERO,
    ConstantValue,
    boolean,
    constant,
    evaluate,
    evaluate_call,
    known_objects,
)
from weft.capture.core.rules import breaking, passed
from weft.capture.library.classes.classes import constructor
from weft.capture.library.containers.sequences import ListValue, SizeValue, TupleValue
from weft.capture.library.functions.functions import rule, rule_of
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.tensors import context_polyfills
from weft.capture.library.tensors.device_modes import with_default_device
from weft.capture.library.tensors.print_state import check_texts
from weft.capture.library.tensors.tensor import (
    TensorValue,
    own_class,
    record,
    tensor_method,
)

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@rule(torch.compiler.is_exporting, is_tracing, is_tracing_in_c)
def _false(tx: Interpreter) -> SymbolicValue:
    return FALSE


@rule(get_tracing_state, log_api_usage_once, *saved_tensors_hooks_switches)
def _none(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
    return NONE


def _state(function: Any) -> None:
    """The rule of a function that reads guarded global state: its current value."""

    @rule(function)
    def handler(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        value = evaluate_call(tx, function, args, kwargs)
        if value is MISSING:
            raise graph_break("state", f"{function.__name__} of values that are no constants")
        return tx.wrap_new(value)


@rule(torch.is_grad_enabled)
def _is_grad_enabled(tx: Interpreter) -> SymbolicValue:
    if getattr(tx.builder, "hides_grad_mode", False):  # off in the forward, on in the backward
        raise graph_break("checkpoint", "is_grad_enabled() in one with use_reentrant=True")
    return tx.wrap_new(torch.is_grad_enabled())


for _name in ("is_inference_mode_enabled", "get_default_dtype",
              "is_autocast_enabled", "is_autocast_cpu_enabled",
              "are_deterministic_algorithms_enabled", "promote_types", "can_cast"):
    if hasattr(torch, _name):
        _state(getattr(torch, _name))

for _function in (torch.cuda.is_available, torch.backends.mps.is_available, torch.xpu.is_available,
                  torch.accelerator.current_accelerator, torch.accelerator.is_available,
                  torch.accelerator.device_count, torch.distributed.is_available,
                  torch.amp.autocast_mode.is_autocast_available,
                  get_deterministic_algorithms, is_forward_grad_enabled,
                  torch.cuda.device_count, torch.cuda.is_initialized, torch.cuda.get_device_name,
                  torch.cuda.get_device_capability, torch.cuda.is_bf16_supported):
    _state(_function)


@rule(torch.cuda.get_device_properties)
def _device_properties(tx: Interpreter, device: SymbolicValue = NONE) -> SymbolicValue:
    """Properties of a device, which stay the same as long as the process runs."""
    properties = evaluate_call(tx, torch.cuda.get_device_properties, [device], {})
    if properties is MISSING:
        raise graph_break("state", f"properties of {device!r}")
    return tx.wrap_fixed(properties, "device properties")


@rule(get_privateuse1_backend_name)
def _privateuse(tx: Interpreter) -> SymbolicValue:
    return constant(get_privateuse1_backend_name())


def _state_change(function: Any) -> None:
    """The rule of a function that changes global state: it takes effect now and is recorded as a
    node."""

    @rule(function)
    def handler(tx: Interpreter, *args: SymbolicValue) -> SymbolicValue:
        objects = known_objects(tx, args, function)
        if function is torch.set_default_dtype:
            check_texts(tx)
        result = evaluate(tx, lambda: function(*objects))
        tx.mode_node(function, *objects)
        return tx.wrap_new(result)


_CHANGES: list[Any] = [
    set_grad_enabled, torch.set_default_dtype, torch.set_autocast_enabled, torch.set_autocast_dtype,
    torch.set_autocast_cache_enabled, torch.autocast_increment_nesting,
    torch.autocast_decrement_nesting, torch.clear_autocast_cache]

for _function in _CHANGES:
    _state_change(_function)


def _recorded_as_one_call(function: object) -> None:
    """The rule of a Python function of torch that is recorded as one call."""

    @rule(function)
    def handler(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        return record(tx, function, [*args], kwargs)


def _under_another_name(name: str, function: Any) -> None:
    """A C function under another name: the Python function `torch.<name>` calls it with other
    arguments, and a graph that showed that name would run the Python one."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"c_{name}"
    globals()[call.__name__] = call  # where the text of a graph module finds it
    rule(function)(lambda tx, /, *args, **kwargs: record(tx, call, [*args], kwargs))


for _name in torch.functional.__all__:
    _function = getattr(torch.functional, _name)
    if rule_of(_function) is None:
        _recorded_as_one_call(_function)
    if getattr(VariableFunctions, _name, _function) is not _function:
        _under_another_name(_name, getattr(VariableFunctions, _name))


@rule(torch.is_tensor)
def _is_tensor(tx: Interpreter, obj: SymbolicValue, /) -> SymbolicValue:
    return boolean(isinstance(obj, TensorValue))


def _metadata(name: str) -> None:
    @rule(getattr(torch, name))
    def handler(tx: Interpreter, tensor: SymbolicValue, /, *args: SymbolicValue,
                **kwargs: SymbolicValue) -> SymbolicValue:
        if isinstance(tensor, TensorValue):
            return tensor.method(tx, name, [*args], kwargs)
        raise tx.error(TypeError, f"{name}(): argument must be Tensor")


for _name in ("is_floating_point", "is_complex", "is_signed", "numel", "get_device", "is_conj",
              "is_neg", "is_inference"):
    _metadata(_name)


@rule(module_backward_nodes)
def _module_backward_hooks(tx: Interpreter, hook: SymbolicValue, function: SymbolicValue,
                           inputs: SymbolicValue, /) -> SymbolicValue:
    """They add their own nodes to autograd's graph and look for them there, so Python calls the
    module; its `forward` is captured by itself."""
    tensors = [value for value in inputs.iterate(tx) if isinstance(value, TensorValue)]
    if not (torch.is_grad_enabled() and any(t.example.requires_grad for t in tensors)):
        return TupleValue([inputs, NONE])
    if tx.root is not None and tx.root.code.co_filename == torch_module.__file__:
        raise SkipFrame("backward hooks of a module", counts=False)
    raise graph_break("gradient-hook", "the call of a module with backward hooks")


@rule(torch.result_type)
def _result_type(tx: Interpreter, tensor: SymbolicValue, other: SymbolicValue) -> SymbolicValue:
    return tx.wrap_new(evaluate(tx, lambda: torch.result_type(tensor.fake(tx), other.fake(tx))))



_NUMPY_TYPES: Final = {
    numpy.bool_: torch.bool, numpy.uint8: torch.uint8, numpy.int8: torch.int8,
    numpy.int16: torch.int16, numpy.int32: torch.int32, numpy.int64: torch.int64,
    numpy.float16: torch.float16, numpy.float32: torch.float32, numpy.float64: torch.float64,
    numpy.complex64: torch.complex64, numpy.complex128: torch.complex128,
}


def _with_numpy_type(tx: Interpreter, data: SymbolicValue, options: Kwargs
                     ) -> tuple[SymbolicValue, Kwargs]:
    """The data with plain numbers for NumPy's, of whose dtype the tensor will be."""
    kinds = set() if "dtype" in options else _number_types(tx, data)
    if kinds.isdisjoint(_NUMPY_TYPES) or not kinds <= {int, float, bool, *_NUMPY_TYPES}:
        return data, options
    plain = {int: torch.int64, float: torch.get_default_dtype(), bool: torch.bool}
    types = [(_NUMPY_TYPES | plain)[kind] for kind in kinds]
    dtype = constant(functools.reduce(torch.promote_types, types))
    return _plain_numbers(tx, data), options | {"dtype": dtype}


def _plain_numbers(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    value = tx.force(value)
    if isinstance(value, (ListValue, TupleValue)):
        return ListValue([_plain_numbers(tx, item) for item in value.all(tx)])
    known = value.constant() if isinstance(value, ConstantValue) else None
    return constant(known.item()) if isinstance(known, numpy.generic) else value


def _number_types(tx: Interpreter, value: SymbolicValue) -> set[type]:
    """The types of the numbers in nested lists."""
    value = tx.force(value)
    if isinstance(value, (ListValue, TupleValue)):
        return set().union(*(_number_types(tx, item) for item in value.all(tx)))
    known = isinstance(value, (ConstantValue, SymbolicNumberValue))
    return {value.python_type() if known else object}


@rule(torch.as_tensor)
def _as_tensor(tx: Interpreter, data: SymbolicValue, *, dtype: SymbolicValue | None = None,
               device: SymbolicValue | None = None) -> SymbolicValue:
    plain, options = _with_numpy_type(tx, data, passed(dtype=dtype, device=device))
    if not isinstance(plain, TensorValue) and (
            _holds(tx, plain, SymbolicNumberValue) or _holds(tx, plain, TensorValue)):
        return _tensor(tx, plain, **options)
    return record(tx, torch.as_tensor, [plain], options)


@rule(torch.asarray)
def _asarray(tx: Interpreter, obj: SymbolicValue, *, dtype: SymbolicValue | None = None,
             device: SymbolicValue | None = None, copy: SymbolicValue | None = None,
             requires_grad: SymbolicValue | None = None) -> SymbolicValue:
    plain, options = _with_numpy_type(tx, obj, passed(
        dtype=dtype, device=device, copy=copy, requires_grad=requires_grad))
    return record(tx, torch.asarray, [plain], options)


@rule(torch.tensor)
def _tensor(tx: Interpreter, data: SymbolicValue, *, dtype: SymbolicValue | None = None,
            device: SymbolicValue | None = None, requires_grad: SymbolicValue | None = None,
            pin_memory: SymbolicValue | None = None) -> SymbolicValue:
    plain, options = _with_numpy_type(tx, data, passed(
        dtype=dtype, device=device, requires_grad=requires_grad, pin_memory=pin_memory))
    of_tensors = _holds(tx, plain, TensorValue)
    others = set(options) - {"dtype", "device"}
    if of_tensors and others:
        raise graph_break("data-dependent-value", f"torch.tensor of {plain!r} with {others}")
    if isinstance(plain, TensorValue):
        return _copied_tensor(tx, plain, options)
    if others or not (of_tensors or _holds(tx, plain, SymbolicNumberValue)):
        return record(tx, torch.tensor, [plain], options)
    defaults = with_default_device(tx, torch.tensor, options)
    wanted = {name: value for name, value in defaults.items() if value is not NONE}
    stacked = _stack(tx, plain, wanted.get("dtype"))
    assert isinstance(stacked, TensorValue)
    return record(tx, "to", [stacked], wanted) if wanted else stacked


@functools.cache
def _warning_of_copies() -> str:
    """What PyTorch says where `torch.tensor` is called with a tensor."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        torch.tensor(torch.empty(0))
    return str(shown[0].message)


def _copied_tensor(tx: Interpreter, value: TensorValue, kwargs: Kwargs) -> SymbolicValue:
    """`torch.tensor(t)`: a copy without gradient, and a warning."""
    if own_class(value) or tx.modes.functions:
        raise graph_break("unknown-operation", f"torch.tensor of {value!r}")
    tx.wrap_fixed(warnings.warn, "warnings.warn").call(tx, [constant(_warning_of_copies())], {})
    kwargs = with_default_device(tx, torch.tensor, kwargs)
    wanted = {name: option for name, option in kwargs.items() if option is not NONE}
    copied = record(tx, "detach", [value], {})
    return record(tx, "to", [copied], {
        "dtype": constant(value.example.dtype), "copy": constant(True), **wanted})


def _stack(tx: Interpreter, value: SymbolicValue, dtype: SymbolicValue | None) -> SymbolicValue:
    """A tensor of nested lists of numbers, symbolic numbers, and tensors of one element."""
    value = tx.force(value)
    if isinstance(value, (ListValue, TupleValue)):
        parts = [_stack(tx, item, dtype) for item in value.all(tx)]
        common = functools.reduce(torch.promote_types, (p.fake(tx).dtype for p in parts))
        same = [record(tx, "to", [p, constant(common)]) for p in parts]
        return record(tx, torch.stack, [ListValue(same)])
    if isinstance(value, TensorValue):
        if any(type(n) is not int or n != 1 for n in value.example.shape):
            raise graph_break("operator-failed", "torch.tensor of a list with large tensors")
        flat = record(tx, "detach", [value])
        return record(tx, "reshape", [flat, TupleValue([])])
    named = {} if dtype is None else {"dtype": dtype}
    if not isinstance(value, SymbolicNumberValue):
        return record(tx, torch.tensor, [value], named)
    if dtype is None and value.python_type() is not float:
        named = {"dtype": constant(torch.int64 if value.python_type() is int else torch.bool)}
    return record(tx, torch.scalar_tensor, [value], named)


def _holds(tx: Interpreter, value: SymbolicValue, kind: type[SymbolicValue]) -> bool:
    """Whether the value, or an item of nested lists, is of that kind."""
    value = tx.force(value)
    if isinstance(value, (ListValue, TupleValue)):
        return any(_holds(tx, item, kind) for item in value.all(tx))
    return isinstance(value, kind)


rule(torch.manual_seed, torch.seed, torch.random.manual_seed, torch.get_rng_state,
     torch.set_rng_state, torch.save, torch.load, torch.cuda.synchronize,
     torch.set_printoptions, torch.set_flush_denormal)(breaking(
         "state", "a function that changes state outside of graphs"))


def _setting(change: object, *reads: Callable[[], object]) -> None:
    """The rule of a setting: setting the current value, which is guarded, changes nothing."""

    @rule(change)
    def handler(tx: Interpreter, *values: SymbolicValue) -> SymbolicValue:
        wanted = tx.constants(values)
        now = [tx.wrap_fixed(read, read.__name__).call(tx, [], {}).constant() for read in reads]
        if wanted is not None and wanted == now:
            return NONE
        raise graph_break("state", "a function that changes state outside of graphs")


_setting(torch.set_num_threads, torch.get_num_threads)
_setting(torch.use_deterministic_algorithms, torch.are_deterministic_algorithms_enabled)
_setting(torch.set_anomaly_enabled, torch.is_anomaly_enabled, torch.is_anomaly_check_nan_enabled)


@rule(torch.compiler.cudagraph_mark_step_begin)
def _mark_step(tx: Interpreter) -> SymbolicValue:
    """weft's CUDA graphs never overwrite what a program holds: there are no steps to mark."""
    return NONE


_TYPED: Final = [kind for kind in vars(torch).values() if type(kind) is type(torch.LongTensor)]


@constructor(torch.Tensor, *_TYPED)
def _make_tensor(tx: Interpreter, cls: type, *args: SymbolicValue) -> SymbolicValue:
    """`torch.FloatTensor([1, 2])` takes numbers, `torch.FloatTensor(2, 3)` sizes."""
    dtype = torch.get_default_dtype() if cls is torch.Tensor else cls.dtype  # type: ignore[attr-defined]
    named: Kwargs = {"dtype": constant(dtype), "device": constant(torch.device("cpu"))}
    data = args[0] if len(args) == 1 else None
    sizes = data.all(tx) if isinstance(data, SizeValue) else [*args] or [ZERO]
    if all(value.python_type() is int for value in sizes):
        return record(tx, torch.empty, [TupleValue(sizes)], named)
    if data is not None and data.python_type() is numpy.ndarray:
        return tx.call_python(torch.as_tensor, [data], named)
    if data is None or data.python_type() not in (list, tuple, range):
        raise graph_break("unknown-operation", f"making a {cls.__name__}")
    return _tensor(tx, data, **named)


@constructor(lazy_property_of_class)
def _lazy_property(tx: Interpreter, cls: type, wrapped: SymbolicValue) -> SymbolicValue:
    """Programs only read its type (`Distribution.__init__`)."""
    function = wrapped.real()
    if function is MISSING:
        raise graph_break("unknown-operation", f"making a {cls.__name__}")
    return tx.wrap_fixed(lazy_property_of_class(function), function.__name__)


# -- tensor methods with a rule of their own ------------------------------------------------------


@tensor_method("type")
def _tensor_type(tx: Interpreter, value: TensorValue, dtype: SymbolicValue | None = None,
                 non_blocking: SymbolicValue | None = None) -> SymbolicValue:
    """`x.type(torch.DoubleTensor)`: graphs hold dtypes, not these classes."""
    first = NONE if dtype is None else tx.force(dtype)
    wanted: Any = first.constant() if first.is_constant else None
    if hasattr(wanted, "dtype") and hasattr(wanted, "is_cuda"):
        if wanted.is_cuda:
            raise graph_break("unknown-operation", f"a tensor as {wanted!r}")
        target = [constant(torch.device("cpu")), constant(wanted.dtype)]
        return record(tx, "to", [value, *target])
    return value.metadata(tx, "type", [] if dtype is None else [dtype],
                          passed(non_blocking=non_blocking))


@tensor_method("__len__")
def _tensor_len(tx: Interpreter, value: TensorValue) -> SymbolicValue:
    return value.rows(tx)


@tensor_method("new")
def _tensor_new(tx: Interpreter, value: TensorValue, *args: SymbolicValue, **kwargs: SymbolicValue
                ) -> SymbolicValue:
    """A torch.Size is a size, any other sequence is data; graphs know only tuples."""
    first = tx.force(args[0]) if args else None
    if first is None or isinstance(first, SizeValue) or first.python_type() is int:
        size = first if isinstance(first, SizeValue) else TupleValue(args)
        return record(tx, "new_empty", [value, size], kwargs)
    if isinstance(first, TensorValue):
        return record(tx, "new", [value, *args], kwargs)
    return record(tx, "new_tensor", [value, *args], kwargs)


@rule(check_tensor_all)
def _check_all(tx: Interpreter, cond: SymbolicValue, message: SymbolicValue | None = None
               ) -> SymbolicValue:
    """The same check at the graph's run time, with the same error and message."""
    if message is not None:
        raise graph_break("data-dependent-value", "torch._check_tensor_all with a message")
    truth = cond.method(tx, "all", [], {})
    text = ("Expected cond to be True, but got False. (Could this error message be improved? If "
            "so, please report an enhancement request to PyTorch.)")
    record(tx, assert_async, [truth, constant(text)])
    return NONE


@rule(assert_async)
def _assert_async(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                  ) -> SymbolicValue:
    record(tx, assert_async, [*args], kwargs)
    return NONE


@rule(push_torch_function_mode)
def _push_mode(tx: Interpreter, mode: SymbolicValue, /) -> SymbolicValue:
    tx.modes.functions.append(mode)
    return NONE


@rule(pop_torch_function_mode)
def _pop_mode(tx: Interpreter) -> SymbolicValue:
    return tx.modes.functions.pop()


@rule(is_torch_function_mode_enabled)
def _mode_enabled(tx: Interpreter) -> SymbolicValue:
    return boolean(tx.modes.functions)


@rule(dispatch_mode_depth)
def _count_dispatch_modes(tx: Interpreter) -> SymbolicValue:
    """Always 0: frames are not captured under dispatch modes."""
    return constant(0)


@rule(torch_function_modes)
def _count_modes(tx: Interpreter) -> SymbolicValue:
    return constant(len(tx.modes.functions))


@rule(torch_function_mode_at)
def _mode_at(tx: Interpreter, index: SymbolicValue, /) -> SymbolicValue:
    mode: SymbolicValue = tx.modes.functions[index.constant()]
    return mode


def _scaled(name: str, polyfill: object) -> None:
    """addcdiv_ and addcmul_ read `value`; when that is a tensor it stays one."""

    @tensor_method(name)
    def handler(tx: Interpreter, tensor: TensorValue, /, *args: SymbolicValue,
                value: SymbolicValue | None = None) -> SymbolicValue:
        if isinstance(value, TensorValue):
            return tx.call_python(polyfill, [tensor, *args, value])
        return record(tx, name, [tensor, *args], passed(value=value))


_scaled("addcdiv_", context_polyfills.addcdiv_)
_scaled("addcmul_", context_polyfills.addcmul_)


_SWITCHES: list[Any] = [torch.autograd.profiler.record_function, torch.profiler.record_function]


_SUBCLASS_SWITCH: Any = DisableTorchFunctionSubclass
_FUNCTION_SWITCH: Any = DisableTorchFunction


@constructor(_SUBCLASS_SWITCH)
def _plain_tensors(tx: Interpreter, cls: type) -> SymbolicValue:
    return tx.call_python(context_polyfills.PlainTensors, [])


@constructor(_FUNCTION_SWITCH)
def _plain_functions(tx: Interpreter, cls: type) -> SymbolicValue:
    return tx.call_python(context_polyfills.PlainFunctions, [])


_INFERENCE: Any = InferenceMode


@constructor(_INFERENCE)
def _inference_region(tx: Interpreter, cls: type, mode: SymbolicValue = TRUE) -> SymbolicValue:
    return tx.call_python(context_polyfills.InferenceRegion, [mode])


@rule(context_polyfills.switch_inference)
def _switch_inference(tx: Interpreter, wanted: SymbolicValue, /) -> SymbolicValue:
    """Unless the whole graph runs in that mode (`EarlyEnds`), tensors made there stay inside it,
    where it only means that nothing has a gradient."""
    mode = wanted.constant()
    if mode is None:
        tx.state.leave_inference()
        tx.early_ends.note_inference_end(tx)
    else:
        tx.early_ends.note_inference(tx)
        tx.state.enter_inference(mode)
    tx.mode_node(set_grad_enabled, torch.is_grad_enabled())
    return NONE


@constructor(*_SWITCHES)
def _null_context(tx: Interpreter, cls: type, name: SymbolicValue, args: SymbolicValue = NONE
                  ) -> SymbolicValue:
    return tx.call_python(context_polyfills.NullContext, [])


@rule(torch.autograd.profiler.record_function.__enter__)
def _enter_range(tx: Interpreter, region: SymbolicValue, /) -> SymbolicValue:
    """A range that was made outside, such as a function's decorator."""
    return region


@rule(torch.autograd.profiler.record_function.__exit__)
def _leave_range(tx: Interpreter, region: SymbolicValue, exc_type: SymbolicValue,
                 exc_value: SymbolicValue, traceback: SymbolicValue) -> SymbolicValue:
    return NONE
