"""Makes fake tensors from meta tensors in about 3 µs; `FakeTensor(...)` takes 8 to 20.

Place in the pipeline: the innermost step of every fake operator. `FakeTensor(mode, meta, device)`
checks its arguments and sets a dozen attributes one by one. Here the first tensor of a mode and
device is made that way, and the others copy its attributes::

    fake = make_fake(mode, torch.empty(2, 3, device="meta"), torch.device("cpu"))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from weft._torch import (
    FakeTensor,
    FakeTensorMode,
    forbid_data_access,
    make_subclass,
    no_dispatch,
    set_storage,
)
from weft.torch_version import RELEASE

_PROTOTYPES = "_weft_prototypes"
_META = torch.device("meta")


def make_fake(mode: FakeTensorMode, meta: torch.Tensor, device: torch.device) -> FakeTensor:
    """A fake tensor of `mode` on `device` with the geometry and storage of `meta`."""
    prototypes: dict[torch.device, dict[str, Any]] = mode.__dict__.setdefault(_PROTOTYPES, {})
    attributes = prototypes.get(device)
    if attributes is None:
        prototype = FakeTensor(mode, meta, device)
        if prototype.fake_device == device:  # otherwise "cuda" became "cuda:0", which may change
            prototypes[device] = dict(prototype.__dict__)
        return prototype
    fake: FakeTensor = make_subclass(
        FakeTensor, meta, False, dispatch_device=True, device_for_backend_keys=device
    )
    forbid_data_access(fake)
    fake.__dict__.update(attributes)
    return fake


def make_fake_like(
    mode: FakeTensorMode, template: torch.Tensor, owner: torch.Tensor | None, device: torch.device
) -> FakeTensor:
    """A fake tensor with a meta tensor's geometry, on the owner's storage or one of its own.

    Copying symbolic sizes from a tensor takes a third of the time of setting them.
    """
    with no_dispatch():  # no mode that is active may record it
        meta = template.data  # with a version counter of its own
        if owner is None:
            set_storage(meta, _room(template.dtype))
        elif _SETTING_ASKS_DEVICES:
            set_storage(meta, _on_storage_of(owner, template.dtype))
    fake = make_fake(mode, meta, device)
    if owner is not None and not _SETTING_ASKS_DEVICES:
        set_storage(fake, owner)
    return fake


_SETTING_ASKS_DEVICES: Final = RELEASE >= (2, 14)
"""Whether `set_storage` compares the devices of both: of fakes, at twice the cost of the detour."""


def _on_storage_of(viewed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """An empty meta tensor on the storage of a fake one. C++ would ask the fake one for its device:
    an operator for active modes, which loads DTensor the first time."""
    # `set_` to symbolic sizes would compare them with the storage's: ten times dearer.
    return torch.empty(0, dtype=dtype, device=_META).set_(
        viewed.untyped_storage(), 0, (0,), (1,))


_ROOM: Final = 1 << 48
"""Elements of meta storages of unknown size."""


def make_meta(size: Sequence[Any], stride: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor of this geometry with its own storage.

    If sizes are symbolic, the storage is large enough for anything: computing its size would cost
    five times as much as the rest.
    """
    for number in (*size, *stride):
        if type(number) is not int:
            return make_template(size, stride, 0, dtype)
    return torch.empty_strided(size, stride, dtype=dtype, device=_META)


def make_template(
    size: Sequence[Any], stride: Sequence[Any], offset: Any, dtype: torch.dtype
) -> torch.Tensor:
    """A meta tensor of this geometry, symbolic or not, on a storage with room for anything."""
    with no_dispatch():
        return _room(dtype).as_strided(size, stride, offset)


def _room(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(_ROOM, dtype=dtype, device=_META)


def meta_of(fake: torch.Tensor) -> torch.Tensor:
    """A meta tensor on the fake tensor's storage, which C++ kernels can ask for the device at no
    cost. (If they ask a fake one, Python code runs, and the first time it loads DTensor.)"""
    return meta_view(fake, fake.dtype, fake.size(), fake.stride(), fake.storage_offset())


def meta_view(
    viewed: torch.Tensor, dtype: torch.dtype, size: Sequence[Any], stride: Sequence[Any],
    offset: Any,
) -> torch.Tensor:
    """A meta tensor of this geometry on the storage of a fake one."""
    with no_dispatch():  # no mode that is active may record it
        return _on_storage_of(viewed, dtype).as_strided(size, stride, offset)
