"""Remembered results of operators on fakes: how calls are keyed, and how results are made again.

Place in the pipeline: the memory of `MemoFakeMode`. Results are remembered if they are new tensors,
views of one argument, or an argument itself. Data-dependent, in-place-view and user-defined
operators are not. A result that was computed under guards of a `ShapeContext` is valid for that
context: such entries are kept by mode, those of static sizes for the whole process::

    call = CallReader(mode)
    key = call.key(aten.add.Tensor, (x, y), {})      # None: not to be remembered
    memo.store(key, call, result)
    memo.find(key, call)                             # an equal result, or MISSING
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch

from weft._torch import FakeTensor, FakeTensorMode, OpOverload, has_dispatch_kernel
from weft.shapes.fakes.make_fake import make_fake, make_fake_like, make_meta, make_template

MISSING: Final[Any] = object()
"""Nothing is remembered; results may be None."""

_LIMIT: Final = 20_000
"""Entries of the process-wide memory; it is emptied when full."""

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

_static_entries: dict[Hashable, _Entry] = {}
_cacheable: dict[OpOverload, bool] = {}


@final
class ResultMemo:
    """What one mode remembers."""

    def __init__(self) -> None:
        self._symbolic_entries: dict[Hashable, _Entry] = {}

    def find(self, key: Hashable, call: CallReader) -> object:
        """The result of an equal call, made again from this call's arguments, or MISSING."""
        entry = self._entries(call).get(key, MISSING)
        if isinstance(entry, _Many):
            return entry.kind([_made(output, call) for output in entry.outputs])
        return entry if entry is MISSING else _made(entry, call)

    def store(self, key: Hashable, call: CallReader, result: object) -> None:
        """Remember a result, if it can be made again."""
        try:
            entry = _describe_result(result, call)
        except _Unknown:
            return
        entries = self._entries(call)
        if len(entries) >= _LIMIT:
            entries.clear()
        entries[key] = entry

    def _entries(self, call: CallReader) -> dict[Hashable, _Entry]:
        return self._symbolic_entries if call.symbolic else _static_entries


def _made(output: _Output, call: CallReader) -> object:
    return None if output is None else output.make(call.mode, call.tensors)


@final
class CallReader:
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
        """The call as a key, or None if its result must not be remembered."""
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


def _describe_result(result: object, call: CallReader) -> _Entry:
    if not isinstance(result, tuple | list):
        return _describe(result, call)
    outputs = tuple([_describe(item, call) for item in result])
    pairs = zip(result, outputs, strict=True)
    fresh = [r for r, o in pairs if isinstance(o, _New) and o.argument is None]
    if len({tensor.untyped_storage()._cdata for tensor in fresh}) != len(fresh):
        raise _Unknown  # new tensors that share a storage with each other
    return _Many(list if isinstance(result, list) else tuple, outputs)


def _describe(output: object, call: CallReader) -> _Output:
    if output is None:
        return None
    if type(output) is not FakeTensor or output.fake_mode is not call.mode:
        raise _Unknown
    for position, tensor in enumerate(call.tensors):
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
    return _describe_geometry(output, call)


def _describe_geometry(output: FakeTensor, call: CallReader) -> _Output:
    size, stride, offset = tuple(output.size()), tuple(output.stride()), output.storage_offset()
    storage, symbolic = output.untyped_storage()._cdata, output._has_symbolic_sizes_strides
    for position, tensor in enumerate(call.tensors):
        if tensor.untyped_storage()._cdata == storage:
            if output.dtype != tensor.dtype:
                raise _Unknown
            return _New(size, stride, offset, output.dtype, output.fake_device, symbolic, position)
    if type(offset) is not int or offset:
        raise _Unknown
    if symbolic and not call.symbolic:
        raise _Unknown  # the sizes depend on data
    return _New(size, stride, 0, output.dtype, output.fake_device, symbolic)
