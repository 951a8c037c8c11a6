"""A `FakeTensorMode` that caches operators' results by metadata, symbolic sizes included.

Place in the pipeline: capture and aot run every operator under this mode. The same operator on the
same metadata is common (the layers of a transformer, a graph run again by aot). PyTorch's own cache
costs as much as a small meta kernel, and is built for sympy sizes. Here a hit costs about 25 µs,
with symbolic as with static sizes::

    mode = MemoFakeMode()
    with mode:
        fake + fake        # computed by PyTorch's meta kernel
        fake + fake        # made from the remembered sizes, strides, dtype and device

Operators are cached if their outputs are new tensors, views of one argument, or an argument itself.
Data-dependent, in-place-view and user-defined operators always run. A result that was computed
under guards of a `ShapeContext` is valid for that context: such entries are stored per mode, those
of static sizes for the whole process.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final, final

import torch

import weft.shapes.fakes.view_rules  # noqa: F401  registers its formulas
from weft._torch import (
    FakeTensor,
    FakeTensorConverter,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    are_functorch_transforms_active,
    compile_markers,
    decomposition_table,
    has_dispatch_kernel,
    has_meta,
    in_kernel_invocation,
    meta_table,
    no_modes,
    op_implementations_checks,
    should_allow_numbers_as_tensors,
    stride_incorrect_op,
    torch_decomp_decompositions,
)
from weft.shapes.fakes.data_dependent import RULES
from weft.shapes.fakes.make_fake import (
    make_fake,
    make_fake_like,
    make_meta,
    make_template,
    meta_of,
    meta_view,
)
from weft.shapes.fakes.meta_corrections import corrected
from weft.shapes.fakes.shape_rules import Result, infer
from weft.shapes.fakes.without_sympy import python_kernels, without_sympy
from weft.shapes.symnode import SizesAskedError, SymNode

if TYPE_CHECKING:
    from weft.shapes.context import ShapeContext

_META: Final = torch.device("meta")
_KNOWN_TORCH: Final = torch.__version__.startswith(("2.11.", "2.12.", "2.13."))
"""Versions whose `FakeTensorMode` was read: its attributes and the order of its rules."""

_LIMIT: Final = 20_000
"""Entries of the process-wide memory; it is emptied when full."""

_SIZE_QUESTIONS: Final = frozenset(
    {torch.ops.aten.size.default, torch.ops.aten.stride.default, torch.ops.aten.numel.default}
)
_DEVICE: Final = torch.ops.prim.device.default
_LIFTS: Final = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_COPY: Final = torch.ops.aten.copy_.default
_DYNAMO_MEMO: Final = "__dynamo_disable"
_EMPTY_CELL: Final = CellType()
_NEVER_TAGS: Final = (
    torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.inplace_view,
)
_PLAIN: Final = frozenset(
    {bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout}
    | {torch.memory_format}
)


class _Unknown(Exception):
    """An argument that cannot be part of a key."""


@final
@dataclass(slots=True)
class _New:
    """A new tensor on a storage of its own, or on that of a tensor argument."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    symbolic: bool
    argument: int | None = None
    template: torch.Tensor | None = None

    def make(self, mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.argument is None and not self.symbolic:
            return make_fake(mode, make_meta(self.size, self.stride, self.dtype), self.device)
        if self.template is None:
            self.template = make_template(self.size, self.stride, self.offset, self.dtype)
            self.template.numel()  # computed once for all copies
        owner = None if self.argument is None else tensors[self.argument]
        return make_fake_like(mode, self.template, owner, self.device)


@dataclass(frozen=True, slots=True)
class _Same:
    """An output that is an argument: the result of an in-place operator."""

    argument: int

    def make(self, mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return tensors[self.argument]


_Output = _New | _Same | None


@dataclass(frozen=True, slots=True)
class _Many:
    """The outputs of an operator that returns a tuple or list of tensors."""

    kind: type[tuple[Any, ...]] | type[list[Any]]
    outputs: tuple[_Output, ...]


_Entry = _Output | _Many

_MISSING: Final[Any] = object()
_static_entries: dict[Hashable, _Entry] = {}
_cacheable: dict[OpOverload, bool] = {}


@final
class _Unlogged(logging.Filter):
    """Drops what PyTorch's fake tensors log while `depth` is not 0."""

    depth = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        return not self.depth


_unlogged: Final = _Unlogged()
logging.getLogger(FakeTensorMode.__module__).addFilter(_unlogged)


@final
class MemoFakeMode(FakeTensorMode):
    """A `FakeTensorMode` with a cache of results; see the module's docstring."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch: False, because otherwise the first operator would load torch._dynamo."""
        return False

    def __init__(self) -> None:
        if _KNOWN_TORCH:
            _initialise(self)
        else:
            super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False
        self.symbols: ShapeContext | None = None
        """Makes symbols for what depends on data; None: such operators raise."""
        self._symbolic_entries: dict[Hashable, _Entry] = {}
        self._refuses_sizes = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.dispatch(func, types, args, kwargs)

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The operator's result on fakes, cached or computed."""
        if torch.is_inference_mode_enabled() and func.is_view and not args[0].is_inference():
            with torch.inference_mode(False), torch.no_grad():  # it is not one, either
                return self.dispatch(func, types, args, kwargs)
        if self._refuses_sizes and func in _SIZE_QUESTIONS:
            raise SizesAskedError(str(func))
        if func is _DEVICE and type(args[0]) is FakeTensor:  # C++ asks it in most operators
            return _META if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        symbols = self.symbols
        if symbols is None:
            return self._plain(func, types, args, kwargs)
        symbols.in_operator += 1
        try:
            rule = RULES.get(func)
            result = NotImplemented if rule is None else rule(self, symbols, args, kwargs or {})
            if result is not NotImplemented:
                return result
            return self._plain(func, types, args, kwargs)
        finally:
            symbols.in_operator -= 1

    def _plain(
        self, func: Any, types: Sequence[type], args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
    ) -> Any:
        """The result of an operator whose metadata depends on its arguments' metadata alone."""
        reader = _KeyReader(self)
        key = reader.key(func, args, kwargs or {})
        if key is None:
            return self._by_pytorch(func, types, args, kwargs or {})
        entries = self._symbolic_entries if reader.symbolic else _static_entries
        entry = entries.get(key, _MISSING)
        if entry is not _MISSING:
            return _rebuild(entry, self, reader.tensors)
        n_known_answers = self.n_known_answers()
        try:
            result = self._compute(func, types, args, kwargs or {}, reader)
        except (RuntimeError, TypeError) as error:
            if not reader.symbolic or not _may_specialize(func, error):
                raise
            result = self._otherwise(func, types, args, kwargs or {}, reader)
        if self.n_known_answers() == n_known_answers:
            self._remember(entries, key, reader, result)
        return result

    def _by_pytorch(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """PyTorch's own result. It logs operators' errors, which the program may expect."""
        if func in _LIFTS and type(args[0]) is torch.Tensor and args[0].layout is torch.strided:
            return self._lifted(args[0])
        _unlogged.depth += 1
        draws = torch.Tag.nondeterministic_seeded in func.tags
        try:
            with without_sympy(), _preserve_generators(args) if draws else nullcontext():
                return super().dispatch(func, types, args, kwargs)
        finally:
            _unlogged.depth -= 1

    def _lifted(self, real: torch.Tensor) -> FakeTensor:
        """The result of `torch.tensor(...)`, which remembers a single number for `.item()`.

        PyTorch's own way to the same result loads torch._dynamo.
        """
        fake = make_fake(self, make_meta(real.size(), real.stride(), real.dtype), real.device)
        if self.may_turn_const(real):
            with no_modes():
                fake.constant = real.clone()
            self.fake_tensor_converter.add_constant_storage_mapping(fake)
        return fake

    def n_known_answers(self) -> int:
        """How often known data has decided a result, which then must not be cached."""
        return 0 if self.symbols is None else self.symbols.data.n_known_answers

    def _compute(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any],
        kwargs: Mapping[str, Any], reader: _KeyReader,
    ) -> Any:
        """The result of a plain operator by PyTorch's rules, in PyTorch's order.

        `FakeTensorMode` does the same with more cases, and loads torch._dynamo on its way.
        """
        if not _KNOWN_TORCH or (not reader.tensors and should_allow_numbers_as_tensors(func)):
            return self._by_pytorch(func, types, args, kwargs)
        with without_sympy():
            for rule in _RULES:
                result = rule(self, func, args, kwargs, reader)
                if result is not NotImplemented:
                    return corrected(func, args, result, self._cast)
        return self._by_pytorch(func, types, args, kwargs)

    def _cast(self, fake: Any, **form: Any) -> Any:
        return self.dispatch(torch.ops.aten._to_copy.default, (), (fake,), form)

    def run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, bool]:
        """``function`` under this mode, and whether it needed PyTorch's Python dispatcher.

        Composite operators in C++ ask for plain sizes. Before symbolic ones are fixed for them,
        the Python dispatcher is tried, which has Python forms of many. A backward frees its graph
        and cannot be tried twice; vmap's rules for it are where C++ asks.
        """
        if (function is torch.autograd.grad and self.symbols is not None and self.symbols.sources
                and are_functorch_transforms_active()):
            with self, python_kernels():
                return function(*args, **kwargs), True
        self._refuses_sizes = SymNode.refuses_ints = True
        try:
            with self:
                return function(*args, **kwargs), False
        except RuntimeError as error:
            if not _wants_plain_sizes(error):
                raise
        finally:
            self._refuses_sizes = SymNode.refuses_ints = False
        if self.symbols is not None:
            self.symbols.data.answers.clear()
        with self, python_kernels():
            return function(*args, **kwargs), True

    def _otherwise(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any],
        kwargs: Mapping[str, Any], reader: _KeyReader,
    ) -> Any:
        """The result of an operator whose C++ kernel takes no symbolic sizes."""
        try:
            with python_kernels():
                return self._compute(func, types, args, kwargs, reader)
        except (RuntimeError, TypeError):
            return self._specialized(func, types, args, kwargs)

    def _specialized(
        self, func: OpOverload, types: Sequence[type], args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The result for the sizes of this call, fixed by guards.

        For operators whose meta kernels take no symbolic sizes. Other errors (sizes that do not
        fit) are raised again.
        """
        with in_kernel_invocation(self):
            plain_args = [_concrete(arg, self) for arg in args]
            plain_kwargs = {name: _concrete(value, self) for name, value in kwargs.items()}
        return self.dispatch(func, types, plain_args, plain_kwargs)

    def _remember(
        self, entries: dict[Hashable, _Entry], key: Hashable, reader: _KeyReader, result: Any
    ) -> None:
        try:
            entry = _describe_result(result, reader)
        except _Unknown:
            return
        if len(entries) >= _LIMIT:
            entries.clear()
        entries[key] = entry


@contextmanager
def _preserve_generators(args: Sequence[Any]) -> Iterator[None]:
    """Restore the generators afterwards: PyTorch runs an operator without a meta kernel on real
    tensors of zeros."""
    devices = {a.fake_device for a in args if isinstance(a, FakeTensor)}
    cuda = [d for d in devices if d.type == "cuda"]
    with no_modes():
        cpu, states = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in cuda]
    try:
        yield
    finally:
        with no_modes():
            torch.set_rng_state(cpu)
            for device, state in zip(cuda, states, strict=True):
                torch.cuda.set_rng_state(state, device)


def _initialise(mode: FakeTensorMode) -> None:
    """What ``FakeTensorMode.__init__`` does, without loading torch._dynamo (half a second)."""
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


def _wants_plain_sizes(error: RuntimeError) -> bool:
    """Whether C++ code refused symbolic sizes (each kind of accessor has its own message)."""
    text = str(error)
    return isinstance(error, SizesAskedError) or any(words in text for words in _REFUSALS)


_REFUSALS: Final = (
    "on tensor with symbolic sizes/strides", "expected to contain only concrete integers",
)


def _may_specialize(func: OpOverload, error: Exception) -> bool:
    has_symbolic_sizes = isinstance(error, SizesAskedError)
    return not (func.is_view or func._schema.is_mutable or has_symbolic_sizes)


def _concrete(value: Any, mode: FakeTensorMode) -> Any:
    """The argument with symbolic numbers replaced by plain ones (guarded)."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, list | tuple):
        return [_concrete(item, mode) for item in value]
    if type(value) is not FakeTensor or not value._has_symbolic_sizes_strides:
        return value
    size, stride = [int(n) for n in value.size()], [int(n) for n in value.stride()]
    meta = make_meta(size, stride, value.dtype)
    return make_fake(mode, meta, value.fake_device)


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


def _by_formula(mode: Any, func: OpOverload, args: Any, kwargs: Any, reader: _KeyReader) -> Any:
    """Plain cases of common operators, by formula."""
    results = infer(func, args, kwargs, reader.context() if reader.symbolic else None)
    if results is None:
        return NotImplemented
    made = [_make(mode, result, reader) for result in results]
    return made[0] if len(func._schema.returns) == 1 else tuple(made)


def _make(mode: FakeTensorMode, result: Result, reader: _KeyReader) -> torch.Tensor:
    size, stride, offset = result.sizes, result.strides, result.offset
    if any(type(n) is not int for n in (*size, *stride, offset)):
        context = reader.context()
        size = tuple([context.as_int(n) for n in size])
        stride = tuple([context.as_int(n) for n in stride])
        offset = context.as_int(offset)
    if result.view:
        meta = meta_view(reader.tensors[0], result.dtype, size, stride, offset)
        return make_fake(mode, meta, result.device)
    return make_fake(mode, make_meta(size, stride, result.dtype), result.device)


def _decomposed(mode: Any, func: OpOverload, args: Any, kwargs: Any, reader: _KeyReader) -> Any:
    """Operators whose meta kernel is missing or takes no symbolic sizes, by decomposition."""
    if func in meta_table or mode.cpp_meta_supports_symint(func):
        return NotImplemented
    if reader.symbolic and func in mode._unbacked_special_fake_handling_ops:
        return NotImplemented
    decomposition = decomposition_table.get(func)
    with mode:
        if decomposition and (reader.symbolic or torch_decomp_decompositions(func)):
            return decomposition(*args, **kwargs)
        return func.decompose(*args, **kwargs)


def _by_prim(mode: Any, func: OpOverload, args: Any, kwargs: Any, reader: _KeyReader) -> Any:
    if func.namespace != "prims" or not hasattr(func, "prim_meta_impl"):
        return NotImplemented
    if stride_incorrect_op(func):
        return NotImplemented
    with mode:
        return func.prim_meta_impl(*args, **kwargs)


def _by_special_rule(
    mode: Any, func: OpOverload, args: Any, kwargs: Any, reader: _KeyReader
) -> Any:
    """PyTorch's special rules for fakes: factories, device conversions, indexing. (What they ask of
    a fake outside its mode loads DTensor.)"""
    for applies, rule in op_implementations_checks:
        if applies(func):
            with mode:
                result = rule(mode, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
    return NotImplemented


def _as_on_real_tensors(
    mode: Any, func: OpOverload, args: Any, kwargs: Any, reader: _KeyReader
) -> Any:
    """Copies, and views of plain sizes, which C++ computes for meta tensors as for any others."""
    if (func.is_view and not reader.symbolic) or func is _COPY:
        return _by_meta_kernel(mode, func, args, kwargs, reader)
    return NotImplemented


def _by_meta_kernel(mode: Any, func: OpOverload, args: Any, kwargs: Any, reader: _KeyReader) -> Any:
    if not has_meta(func):
        return NotImplemented
    metas: dict[int, FakeTensor] = {}
    try:
        with in_kernel_invocation(mode), _dispatcher_for(func, reader):
            if _asks_for_the_device(func):
                result = func(*args, **kwargs)
            else:
                result = func(*_on_meta(args, metas), **_on_meta(kwargs, metas))
    except NotImplementedError:
        return NotImplemented
    if id(result) in metas:
        return metas[id(result)]  # an operator in place
    return mode.wrap_meta_outputs_with_default_device_logic(
        result, func, reader.tensors, device=kwargs.get("device")
    )


@cache
def _asks_for_the_device(func: OpOverload) -> bool:
    """Whether a Python kernel chooses layouts by the device, which meta tensors hide."""
    code = getattr(inspect.unwrap(meta_table.get(func, len)), "__code__", None)
    return code is not None and "device_hint" in code.co_names


def _on_meta(value: Any, metas: dict[int, FakeTensor]) -> Any:
    """The arguments with fake tensors replaced by meta tensors, which are recorded in ``metas``."""
    kind = type(value)
    if kind is FakeTensor:
        meta = meta_of(value)
        metas[id(meta)] = value
        return meta
    if kind is dict:
        return {name: _on_meta(item, metas) for name, item in value.items()}
    return [_on_meta(item, metas) for item in value] if kind in (list, tuple) else value


def _dispatcher_for(func: OpOverload, reader: _KeyReader) -> AbstractContextManager[Any]:
    """The Python dispatcher for meta kernels of Fourier transforms: they reshape, which in C++
    needs plain sizes."""
    reshapes = reader.symbolic and func.name().startswith("aten::_fft")
    return python_kernels() if reshapes else nullcontext()


_RULES: Final = (
    _by_formula, _decomposed, _by_prim, _as_on_real_tensors, _by_special_rule, _by_meta_kernel,
)


class _KeyReader:
    """Turns a call's arguments into a hashable key, and collects their tensors."""

    __slots__ = ("mode", "n_constants", "shape_context", "symbolic", "tensors")

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self.tensors: list[torch.Tensor] = []
        self.n_constants = 0  # tensors whose value is known: PyTorch computes with these alone
        self.symbolic = False
        self.shape_context: Any = None  # of a symbolic argument

    def context(self) -> Any:
        """The `ShapeContext` of the symbolic sizes that were read."""
        if self.shape_context is not None:
            return self.shape_context
        for tensor in self.tensors:
            for n in (*tensor.size(), *tensor.stride(), tensor.storage_offset()):
                if type(n) is not int:
                    return n.node.shape_env
        raise LookupError("no symbolic size was read")

    def key(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable | None:
        if not _is_cacheable(func):
            return None
        parts: list[Any] = [
            func,
            torch.get_default_dtype(),
            torch.is_inference_mode_enabled(),
        ]
        try:
            self.read(args, parts)
            for name, value in kwargs.items():
                parts.append(name)
                self.read((value,), parts)
        except _Unknown:
            return None
        if func is torch.ops.aten.index.Tensor and any(map(_is_mask, self.tensors[1:])):
            return None
        if self.n_constants and (
            self.n_constants == len(self.tensors) or func._schema.is_mutable
        ):
            return None
        return tuple(parts)

    def read(self, values: Iterable[Any], parts: list[Any]) -> None:
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                self.read_tensor(value, parts)
            elif kind in _PLAIN:
                parts.append(kind)
                parts.append(value)
            elif kind is torch.SymInt or kind is torch.SymFloat:
                self.symbolic = True
                self.shape_context = value.node.shape_env
                parts.append(value.node)
            elif kind is list or kind is tuple or kind is torch.Size:
                parts.append(len(value))
                self.read(value, parts)
            else:
                raise _Unknown

    def read_tensor(self, tensor: Any, parts: list[Any]) -> None:
        if (
            tensor.fake_mode is not self.mode
            or tensor.layout is not torch.strided
            or tensor.is_conj()
            or tensor.is_neg()
        ):
            raise _Unknown
        self.tensors.append(tensor)
        self.n_constants += tensor.constant is not None
        parts += (tensor.dtype, tensor.fake_device, tensor.requires_grad)
        parts.append(self.geometry(tensor))

    def geometry(self, tensor: torch.Tensor) -> Hashable:
        """Sizes, strides and offset, with nodes in place of symbolic ints."""
        size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        if not tensor._has_symbolic_sizes_strides:
            return size, stride, offset
        self.symbolic = True
        return tuple([v if type(v) is int else v.node for v in (*size, *stride, offset)])


def _is_mask(tensor: torch.Tensor) -> bool:
    """Whether indexing with it gives a size that depends on data."""
    return tensor.dtype in (torch.bool, torch.uint8)


def _is_cacheable(func: Any) -> bool:
    known = _cacheable.get(func)
    if known is None:
        known = _cacheable[func] = isinstance(func, OpOverload) and _may_cache(func)
    return known


def _may_cache(func: OpOverload) -> bool:
    if func.namespace not in ("aten", "prims", "weft"):
        return False
    if func is torch.ops.aten.index.Tensor:
        return True
    name: str = func.name()
    composite_view = func.is_view and has_dispatch_kernel(name, "CompositeImplicitAutograd")
    queries = name.startswith(("prim::", "aten::lift", "aten::sym_", "aten::set_"))
    return not (
        composite_view
        or queries
        or any(tag in func.tags for tag in _NEVER_TAGS)
        or any(argument.is_out for argument in func._schema.arguments)
        or not _returns_tensors(func)
        or name in ("aten::resize_", "aten::resize_as_")
    )


def _returns_tensors(func: OpOverload) -> bool:
    returns = func._schema.returns
    return bool(returns) and all("Tensor" in str(value.type) for value in returns)


def _rebuild(entry: _Entry, mode: FakeTensorMode, tensors: Sequence[torch.Tensor]) -> Any:
    if isinstance(entry, _Many):
        return entry.kind(None if e is None else e.make(mode, tensors) for e in entry.outputs)
    return None if entry is None else entry.make(mode, tensors)


def _describe_result(result: Any, reader: _KeyReader) -> _Entry:
    if not isinstance(result, tuple | list):
        return _describe(result, reader)
    outputs = tuple([_describe(item, reader) for item in result])
    pairs = zip(result, outputs, strict=True)
    fresh = [r for r, o in pairs if isinstance(o, _New) and o.argument is None]
    if len({tensor.untyped_storage()._cdata for tensor in fresh}) != len(fresh):
        raise _Unknown  # new tensors that share a storage with each other
    return _Many(list if isinstance(result, list) else tuple, outputs)


def _describe(output: Any, reader: _KeyReader) -> _Output:
    if output is None:
        return None
    if type(output) is not FakeTensor or output.fake_mode is not reader.mode:
        raise _Unknown
    for position, tensor in enumerate(reader.tensors):
        if output is tensor:
            return _Same(position)
    if (
        output.constant is not None
        or output.layout is not torch.strided
        or output.is_conj()
        or output.is_neg()
        or output.requires_grad
    ):
        raise _Unknown
    return _describe_geometry(output, reader)


def _describe_geometry(output: FakeTensor, reader: _KeyReader) -> _Output:
    size, stride, offset = tuple(output.size()), tuple(output.stride()), output.storage_offset()
    storage, symbolic = output.untyped_storage()._cdata, output._has_symbolic_sizes_strides
    for position, tensor in enumerate(reader.tensors):
        if tensor.untyped_storage()._cdata == storage:
            if output.dtype != tensor.dtype:
                raise _Unknown
            return _New(size, stride, offset, output.dtype, output.fake_device, symbolic, position)
    if type(offset) is not int or offset:
        raise _Unknown
    if symbolic and not reader.symbolic:
        raise _Unknown  # the sizes depend on data
    return _New(size, stride, 0, output.dtype, output.fake_device, symbolic)
