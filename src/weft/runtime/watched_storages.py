"""Tensors whose memory is watched: whether anybody could have written to it since.

Place in the pipeline: used by `kept_forms.py`; the watching is C (`csrc/watched_storages.c`), on
PyTorch's hook that runs before a storage hands out a pointer to write with. Where it is in a
storage is measured, and tried on tensors, once per process::

    watch = watched((weight,))            # None: this memory cannot be watched
    weight.data.add_(1)                   # which no version counter sees
    watch.holds([weight], (0,))           # False

Not watched is memory that others may hold a pointer to already: that of NumPy arrays, files,
other processes and other libraries, and storages with aliases.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, final

import torch

from weft import _watched
from weft._torch import lazy_clone, no_dispatch, storage_use_count
from weft.runtime.launcher import tensor_offset

_WORDS: Final = 13
"""Words of a c10::StorageImpl and of a c10::TensorImpl that are searched."""
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
MATERIALIZE: Final = "_ZN3c104impl3cow15materialize_cowEPNS_11StorageImplE"
"""PyTorch's own hook, by which its place is found."""
GET_CONST_DATA: Final = "torch_get_const_data_ptr"


def watched(tensors: tuple[torch.Tensor, ...]) -> _watched.Watch | None:
    """Watch the tensors' memory from now on; None if that is not possible for one of them."""
    if not all(map(can_be_watched, tensors)):
        return None
    try:
        return _watched.Watch(tensors)
    except ValueError:
        return None


def can_be_watched(tensor: torch.Tensor) -> bool:
    """Whether writes to the tensor's memory would all be noticed from now on."""
    places = _places()
    if places is None or type(tensor) not in _PLAIN:
        return False
    try:
        return _is_only_torchs(tensor, places)
    except RuntimeError:  # a tensor of a transform, which has no storage
        return False


def can_watch() -> bool:
    """Whether this PyTorch has the hook, and it does what it should."""
    return _places() is not None


@final
@dataclass(frozen=True, slots=True)
class _Places:
    """What is where: offsets of words in bytes, and what PyTorch's own allocator puts there."""

    storage: int
    """Of a tensor's implementation: its storage."""
    hook: int
    flag: int
    deleter: int
    own_deleter: int
    references: int
    """To the storage of a single tensor, while Python looks at it."""


def _is_only_torchs(tensor: torch.Tensor, places: _Places) -> bool:
    """Whether the memory is of PyTorch's allocator, with no other way to it than this tensor.

    NumPy makes a storage that cannot be resized of each that it sees; foreign memory, shared memory
    and files have a deleter of their own; DLPack and aliases hold a reference.
    """
    if tensor.device.type != "cpu" or tensor.is_inference() or tensor.numel() == 0:
        return False
    storage = tensor.untyped_storage()
    if not storage.resizable() or storage_use_count(tensor) > places.references:
        return False
    return _words(storage._cdata)[places.deleter // 8] == places.own_deleter


def _words(address: int) -> list[int]:
    return list((ctypes.c_uint64 * _WORDS).from_address(address))


@cache
def _places() -> _Places | None:
    """The places, once the hook has been tried there."""
    with no_dispatch(), torch.inference_mode(False), torch.no_grad():
        try:
            places, get_const_data = _measured(), _address("libtorch_cpu.so", GET_CONST_DATA)
        except (OSError, AttributeError, StopIteration, RuntimeError):
            return None
        _watched.configure(tensor_offset(), places.storage, places.hook, places.flag,
                           get_const_data)
        return places if _works() else None


def _address(library: str, name: str) -> int:
    loaded = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / library))
    address = ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
    assert address is not None
    return address


def _new() -> torch.Tensor:
    return torch.zeros(64, device="cpu")


def _measured() -> _Places:
    """What changes in a storage that becomes copy-on-write; raises StopIteration if that is not
    what is expected."""
    hook, tensors = _address("libc10.so", MATERIALIZE), [_new(), _new()]
    storages = [t.untyped_storage() for t in tensors]
    before, other = (_words(s._cdata) for s in storages)
    clone = lazy_clone(tensors[0])
    after = _words(storages[0]._cdata)
    del clone
    changed = [i for i in range(_WORDS) if before[i] != after[i]]
    at_hook = next(i for i in changed if after[i] == hook and before[i] == 0)
    deleter = next(i for i in changed if i != at_hook and before[i] == other[i] > 1 << 32)
    others = [i for i in changed if i not in (at_hook, deleter)]
    [flags] = [i for i in others if before[i] != tensors[0].data_ptr()]
    flag = next(k for k in range(8) if before[flags] ^ after[flags] == 1 << 8 * k)
    implementation = _words(tensors[1]._cdata)
    storage = next(i for i in range(_WORDS) if implementation[i] == storages[1]._cdata)
    return _Places(storage * 8, at_hook * 8, flags * 8 + flag, deleter * 8, before[deleter],
                   storage_use_count(tensors[1]))


def _works() -> bool:
    """Whether readers keep a watch, and every way to write ends it, without harm."""
    return _keeps(lambda t: t + 1) and _keeps(lambda t: t.clone()) and not any(map(_keeps, (
        lambda t: t.add_(1), lambda t: t.data.add_(1), lambda t: t.detach().numpy(),
        lambda t: t.data_ptr(), lambda t: t.untyped_storage().resize_(1024),
        lambda t: t.resize_(1000), lambda t: t.set_(_new()),
    )))


def _keeps(use: Callable[[torch.Tensor], object]) -> bool:
    tensor = _new()
    inputs: list[object] = [tensor]
    watch = _watched.Watch((tensor,))
    first = watch.holds(inputs, (0,))
    use(tensor)
    then = watch.holds(inputs, (0,))
    again = _watched.Watch((tensor,))
    tensor.fill_(3)  # still works
    return first and then and float(tensor[5]) == 3 and not again.holds(inputs, (0,))
