"""Fake tensors: tensors with metadata and a storage identity, but no data.

Place in the pipeline: capture runs torch-level operators on fakes to learn their results' metadata,
and aot runs the captured graph on fakes to record ATen operators. Both make them through a
`FakeContext`, which wraps PyTorch's `FakeTensorMode` (the oracle for operator metadata), without
its ShapeEnv::

    context = FakeContext()
    fake = context.fake(torch.ones(2, 3))      # same sizes, strides, dtype, device; no data
    with context.mode:
        fake + 1                               # a FakeTensor of sizes (2, 3)

Tensors that share a storage get fakes that share a (meta) storage, so aliasing can be read off
fakes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, final

import torch

from weft._torch import (
    FakeTensor,
    apply_function,
    are_functorch_transforms_active,
    is_functorch_wrapped_tensor,
    without_functorch_levels,
)
from weft.shapes.algebra.layout import dense_strides
from weft.shapes.fakes.fake_mode import MemoFakeMode
from weft.shapes.fakes.make_fake import make_fake, make_meta

_META = torch.device("meta")


def non_leaf(leaf: FakeTensor) -> FakeTensor:
    """A fake tensor on the storage of `leaf` that autograd treats as a computed one.

    Unlike a view of a leaf it may be written in place, as other computed tensors may.
    """
    twin = make_fake(leaf.fake_mode, _meta_twin(leaf), leaf.fake_device)
    with torch.enable_grad():
        computed: FakeTensor = apply_function(
            _Computed, leaf.detach().requires_grad_(), [twin])
    return computed


def connected_non_leaf(leaf: FakeTensor) -> FakeTensor:
    """As `non_leaf`, but gradients flow on to `leaf`."""
    twin = make_fake(leaf.fake_mode, _meta_twin(leaf), leaf.fake_device)
    with torch.enable_grad():
        computed: FakeTensor = apply_function(_Computed, leaf, [twin])
    return computed


def was_computed(fake: torch.Tensor) -> bool:
    """Whether the fake stands for an input that autograd knows as computed before the graph."""
    node = fake.grad_fn
    return node is not None and node.name() == f"{_Computed.__name__}Backward"


def _meta_twin(fake: FakeTensor) -> torch.Tensor:
    meta = torch.empty(0, dtype=fake.dtype, device=_META)
    return meta.set_(fake.untyped_storage(), fake.storage_offset(), fake.size(), fake.stride())


class _Computed(torch.autograd.Function):
    """An identity with a given result, which autograd treats as a fresh tensor."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, box: list[torch.Tensor]) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # a user's function may give no gradient
        return box[0]

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, None]:
        return grad, None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no history. (Autograd refuses to say so of a view that was made under
    `no_grad` and written since.)"""
    try:
        return tensor.is_leaf
    except RuntimeError:
        return True


@final
class FakeContext:
    """Makes fakes of real tensors, one for each tensor, during one capture.

    Real tensors are kept alive as long as the context is, so that the identity memo stays valid.
    """

    def __init__(self, mode: MemoFakeMode | None = None) -> None:
        self.mode = MemoFakeMode(raises_refusals=True) if mode is None else mode
        self._fakes: dict[int, tuple[torch.Tensor, FakeTensor]] = {}
        self._storages: dict[int, torch.Tensor] = {}  # real StorageImpl -> flat meta tensor

    def fake(
        self, tensor: torch.Tensor, *, sizes: Sequence[object] | None = None,
        strides: Sequence[object] | None = None,
    ) -> FakeTensor:
        """The fake of `tensor`; `sizes` (and `strides`) may replace some or all by SymInts.

        Given `sizes` alone, strides are those of the same dimension order, contiguous.
        """
        known = self._fakes.get(id(tensor))
        if known is not None:
            return known[1]
        with contextlib.ExitStack() as stack:
            if tensor.is_inference() is not torch.is_inference_mode_enabled():
                stack.enter_context(torch.inference_mode(tensor.is_inference()))
            if are_functorch_transforms_active():  # active modes would wrap the new tensor
                stack.enter_context(without_functorch_levels())
            fake = self._make(tensor, sizes, strides)
        self._fakes[id(tensor)] = (tensor, fake)
        return fake

    def _make(
        self, tensor: torch.Tensor, sizes: Sequence[object] | None,
        strides: Sequence[object] | None,
    ) -> FakeTensor:
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is self.mode:
                return tensor
            sizes, strides = tensor.size(), tensor.stride()
        if sizes is None and not _is_plain(tensor):
            return self._general(tensor)
        if sizes is None:
            meta = self._meta_of(tensor)
        else:
            stride = strides if strides is not None else _dense_strides(tensor, sizes)
            meta = make_meta(sizes, stride, tensor.dtype)
        fake = make_fake(self.mode, meta, tensor.device)
        if tensor.requires_grad and not is_leaf(tensor):
            return non_leaf(fake)
        if tensor.requires_grad:
            fake.requires_grad_()
        if isinstance(tensor, torch.nn.Parameter):
            fake._is_param = True
        return fake

    def _general(self, tensor: torch.Tensor) -> FakeTensor:
        """Sparse, quantised, wrapped or negated tensors: PyTorch's own conversion."""
        fake = self.mode.from_tensor(tensor, static_shapes=True)
        if not isinstance(fake, FakeTensor):
            raise TypeError(f"no fake tensor for {type(tensor).__name__}")
        return fake

    def _meta_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """A meta tensor of the same geometry, on the storage that its aliases' fakes use too."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        flat = self._storages.get(key)
        size, stride = tensor.size(), tensor.stride()
        if flat is None:
            if tensor.storage_offset() == 0 and storage.nbytes() == _extent_bytes(tensor):
                meta = torch.empty_strided(size, stride, dtype=tensor.dtype, device=_META)
                self._storages[key] = meta
                return meta
            flat = torch.empty(storage.nbytes(), dtype=torch.uint8, device=_META)
            self._storages[key] = flat
        meta = torch.empty(0, dtype=tensor.dtype, device=_META)
        return meta.set_(flat.untyped_storage(), tensor.storage_offset(), size, stride)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether geometry, dtype and device describe `tensor` completely."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_neg()
        and not tensor.is_conj()
        and tensor.device.type != "meta"
        and not is_functorch_wrapped_tensor(tensor)
    )


def _extent_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element of a tensor."""
    if tensor.numel() == 0:
        return 0
    last = sum((n - 1) * s for n, s in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _dense_strides(tensor: torch.Tensor, sizes: Sequence[object]) -> tuple[object, ...]:
    """Strides for `sizes` with the dimension order of `tensor`, kept 0 where they are 0."""
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), tensor.size(d)))
    return dense_strides(sizes, (d for d in order if tensor.stride(d) or tensor.size(d) == 1))
