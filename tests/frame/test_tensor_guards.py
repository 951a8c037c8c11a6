"""The `tensor` guard sees every difference that matters; the mode guard every global mode."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from weft import _frame as frame


def tensor_check(t: torch.Tensor, **changes: Any) -> tuple[Any, ...]:
    fields = {
        "type": type(t), "dtype": t.dtype, "device": t.device.type,
        "index": -1 if t.device.index is None else t.device.index, "layout": t.layout,
        "grad": t.requires_grad, "sizes": tuple(t.shape),
        "strides": tuple(t.stride()) if t.layout is torch.strided else None,
    }
    return ("tensor", *(fields | changes).values(), 0)


def tree(t: torch.Tensor, **changes: Any) -> frame.GuardTree:
    return frame.GuardTree(((("local", 0), (tensor_check(t, **changes),), 0, ()),), (), 1)


def accepts(guards: frame.GuardTree, value: object) -> bool:
    return guards.check([value], (), {}) is not None


def plain() -> torch.Tensor:
    return torch.zeros(2, 3)


class Subclass(torch.Tensor):
    pass


DIFFERENT: dict[str, Callable[[], object]] = {
    "size": lambda: torch.zeros(3, 2),
    "rank": lambda: torch.zeros(2, 3, 1),
    "scalar": lambda: torch.zeros(()),
    "stride": lambda: torch.zeros(3, 2).t(),
    "dtype": lambda: torch.zeros(2, 3, dtype=torch.float64),
    "device": lambda: torch.zeros(2, 3, device="meta"),
    "requires_grad": lambda: torch.zeros(2, 3, requires_grad=True),
    "result that requires grad": lambda: torch.zeros(2, 3, requires_grad=True) * 2,
    "sparse": lambda: torch.zeros(2, 3).to_sparse(),
    "parameter": lambda: torch.nn.Parameter(torch.zeros(2, 3), requires_grad=False),
    "subclass": lambda: torch.zeros(2, 3).as_subclass(Subclass),
    "negated view": lambda: torch._neg_view(torch.zeros(2, 3)),
    "none": lambda: None,
    "list": lambda: [[0.0] * 3] * 2,
    "eight dimensions": lambda: torch.zeros((1,) * 8),
}


@pytest.mark.parametrize("name", DIFFERENT)
@pytest.mark.parametrize("learned", [False, True])
def test_refuses(name: str, learned: bool) -> None:
    guards = tree(plain())
    if learned:  # the first success remembers what direct reads look like
        assert accepts(guards, plain())
    other = DIFFERENT[name]()
    assert not accepts(guards, other)
    assert guards.explain([other], (), {}) == 0
    assert accepts(guards, plain())
    assert not accepts(guards, other)


@pytest.mark.parametrize("make", [
    plain,
    lambda: torch.zeros((2,) * 5),
    lambda: torch.zeros((2,) * 6),
    lambda: torch.zeros((1, 2, 3, 4, 1, 2, 1, 1)).transpose(1, 3),
    lambda: torch.zeros(()),
    lambda: torch.zeros(0, 3),
    lambda: torch.zeros(4, 1).expand(4, 7),
    lambda: torch.zeros(2, 3, device="meta"),
    lambda: torch.nn.Parameter(torch.zeros(2, 3)),
    lambda: torch.zeros(2, 3).as_subclass(Subclass),
    lambda: torch.eye(3).to_sparse(),
    lambda: torch.zeros(2, 3, dtype=torch.bool),
    lambda: torch.zeros(2, 3, dtype=torch.complex64),
    lambda: torch.zeros(2, 3, dtype=torch.bfloat16)[:, 1:],
    lambda: torch.zeros(2, 3, requires_grad=True) * 2,
])
def test_accepts_its_own_kind(make: Callable[[], torch.Tensor]) -> None:
    guards = tree(make())
    for _ in range(3):
        assert accepts(guards, make())


def test_conjugated_tensors_are_refused() -> None:
    value = torch.zeros(2, 3, dtype=torch.complex64)
    for guards in (tree(value), tree(value.conj())):
        assert not accepts(guards, value.conj())
        assert accepts(guards, value)
        assert not accepts(guards, value.conj())


def test_functorch_wrapped_tensors_are_refused() -> None:
    guards = tree(plain())
    assert accepts(guards, plain())
    seen: list[bool] = []

    def inside(x: torch.Tensor) -> torch.Tensor:
        seen.append(accepts(guards, x))
        seen.append(accepts(tree(plain()), x))
        return x.sum()

    torch.vmap(inside)(torch.zeros(4, 2, 3))
    torch.func.grad(inside)(plain())
    assert seen == [False] * 4


def test_any_extent() -> None:
    guards = tree(plain(), sizes=(None, 3), strides=None)
    assert accepts(guards, torch.zeros(7, 3)) and accepts(guards, torch.zeros(3, 7).t())
    assert not accepts(guards, torch.zeros(7, 4)) and not accepts(guards, torch.zeros(3))
    any_rank = tree(plain(), sizes=None, strides=None)
    assert accepts(any_rank, torch.zeros(1, 2, 3)) and not accepts(any_rank, torch.zeros(1).int())
    loose = tree(plain(), sizes=(None, None), strides=(None, 1))
    assert accepts(loose, torch.zeros(5, 9)[:, :4]) and not accepts(loose, torch.zeros(3, 3).t())


def test_changes_of_the_same_object_are_seen() -> None:
    p = torch.nn.Parameter(torch.zeros(2, 3))
    guards = tree(p)
    assert accepts(guards, p)
    p.requires_grad_(False)
    assert not accepts(guards, p)
    p.requires_grad_(True)
    assert accepts(guards, p)
    p.data = torch.zeros(3, 3)
    assert not accepts(guards, p)
    p.data = torch.zeros(2, 3, dtype=torch.float16)
    assert not accepts(guards, p)
    p.data = torch.zeros(2, 3)
    assert accepts(guards, p)


def test_sizes_and_strides_as_sources() -> None:
    nodes = ((("local", 0), (), -1, ((("size", 1), (), 0, ()), (("stride", 0), (), 1, ()))),)
    guards = frame.GuardTree(nodes, (), 2)
    assert guards.check([torch.zeros(2, 3)], (), {}) == [3, 3]
    assert guards.check([torch.zeros((2,) * 7)], (), {}) == [2, 64]
    assert guards.check([torch.zeros(2)], (), {}) is None
    assert guards.check([3], (), {}) is None


def test_tensors_are_read_directly() -> None:
    assert frame.tensor_access()["direct"] is True


IN_MODES = """
import os, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from weft import _frame

class Refuses(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, *args):
        raise RuntimeError("a mode of the program")

for mode in (FakeTensorMode, torch.inference_mode, Refuses, lambda: torch.device("meta")):
    if os.fork() == 0:
        with mode():
            direct = _frame.tensor_access()["direct"]
        os._exit(0 if direct else 1)
    assert os.wait()[1] == 0, mode
"""


def test_modes_of_the_first_compilation_do_not_matter() -> None:
    """Offsets are measured once in a process: in a mode that failed, and all calls were slow."""
    subprocess.run([sys.executable, "-c", IN_MODES], check=True)


@contextmanager
def setting(change: Callable[[], Any], back: Callable[[], Any]) -> Iterator[None]:
    change()
    try:
        yield
    finally:
        back()


@contextmanager
def nested(outer: Any, inner: Any) -> Iterator[None]:
    with outer, inner:
        yield


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "default device": lambda: torch.device("meta"),
    "torch function off": torch._C.DisableTorchFunction,
    "vmap level": lambda: torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(
        torch._C.DispatchKey.ADInplaceOrView)),
    "default dtype": lambda: setting(lambda: torch.set_default_dtype(torch.float64),
                                     lambda: torch.set_default_dtype(torch.float32)),
    "deterministic": lambda: setting(lambda: torch.use_deterministic_algorithms(True),
                                     lambda: torch.use_deterministic_algorithms(False)),
    "deterministic warn only": lambda: setting(
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: torch.use_deterministic_algorithms(False)),
    "matmul precision": lambda: setting(lambda: torch.set_float32_matmul_precision("high"),
                                        lambda: torch.set_float32_matmul_precision("highest")),
    "autocast in inference mode": lambda: nested(torch.inference_mode(), torch.autocast("cpu")),
}


@pytest.mark.parametrize("name", MODES)
def test_global_modes_are_guarded(name: str) -> None:
    torch.set_float32_matmul_precision("highest")  # not the same to torch as never set
    guards = frame.GuardTree((), (("global_state", 5),), 0)
    assert guards.check([], (), {}) == []
    with MODES[name]():
        assert guards.explain([], (), {}) == 5
        inside = frame.GuardTree((), (("global_state", frame.global_state(), 5),), 0)
        assert inside.check([], (), {}) == []
    assert guards.check([], (), {}) == []
    assert inside.check([], (), {}) is None


def test_autocast_dtype_and_device_contexts_are_told_apart() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = frame.global_state()
    with torch.autocast("cpu", dtype=torch.float16):
        assert not cast.matches_now()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert cast.matches_now()
        with torch.autocast("cpu", enabled=False):
            assert not cast.matches_now()
    assert not cast.matches_now()
    with torch.device("meta"):
        meta = frame.global_state()
    with torch.device("cpu"):
        assert not meta.matches_now()
    with torch.device("meta"):
        assert meta.matches_now()


def test_dispatch_modes_are_guarded() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    state = frame.global_state()
    with TorchDispatchMode():
        assert not state.matches_now()
    assert state.matches_now()


def test_remembered_parameters_are_still_looked_at() -> None:
    linear = torch.nn.Linear(3, 3)
    weight = (("dict_item", "weight"), (tensor_check(linear.weight),), 0, ())
    parameters = (("dict_item", "_parameters"), (), -1, (weight,))
    node = (("local", 0), (), -1, ((("instance_dict",), (), -1, (parameters,)),))
    guards = frame.GuardTree((node,), (), 1)

    def holds() -> bool:
        return guards.check([linear], (), {}) == [linear.weight]

    assert holds() and holds() and holds()
    linear.weight.requires_grad_(False)
    assert not holds()
    linear.weight.requires_grad_(True)
    assert holds() and holds()
    linear.weight.data = torch.zeros(4, 3)
    assert not holds()
    linear.weight.data = torch.zeros(3, 3)
    assert holds() and holds()
    linear.weight.data.resize_(2, 3)
    assert holds()  # `.data` is another tensor
    torch.utils.swap_tensors(linear.weight, torch.nn.Parameter(torch.zeros(5, 5)))
    assert not holds()
    linear.weight = torch.nn.Parameter(torch.zeros(3, 3))
    assert holds() and holds()
    del linear.weight
    assert guards.check([linear], (), {}) is None
    linear.weight = torch.nn.Parameter(torch.zeros(3, 3))
    assert holds() and holds()
    linear.double()
    assert not holds()
    linear.float()
    assert holds() and holds()


def test_distinct_storages() -> None:
    a, b = torch.zeros(4), torch.zeros(4)
    c = a[2:]
    assert frame.distinct_storages([a, b, 3, None], (0, 1))
    assert not frame.distinct_storages([a, b, c], (0,))
    assert not frame.distinct_storages([a, b, c], (2,))
    assert frame.distinct_storages([a, b, c], (1,))
    assert frame.distinct_storages([a, b, c], ())
    assert not frame.distinct_storages([a, a], (1,))
    many = [torch.zeros(1) for _ in range(1000)]
    assert frame.distinct_storages(many, tuple(range(1000)))
    assert not frame.distinct_storages([*many, many[500].view(1)], (500,))
    with pytest.raises(IndexError):
        frame.distinct_storages([a], (1,))



def test_memory_that_storages_of_arrays_and_buffers_share() -> None:
    array, own, buffer = np.arange(8.0), torch.ones(3), bytearray(8)
    whole, head, tail = (torch.from_numpy(a) for a in (array, array[2:4], array[4:]))
    assert not frame.distinct_storages([whole, head, own], (0,))
    assert not frame.distinct_storages([whole, head], (1,))
    assert frame.distinct_storages([whole, head, own], (2,))
    assert frame.distinct_storages([head, tail, own], (0, 1, 2))
    assert not frame.distinct_storages([own, torch.from_numpy(own.numpy()[1:])], (0,))
    assert not frame.distinct_storages([torch.from_dlpack(own), own], (1,))
    views = [torch.frombuffer(buffer, dtype=torch.uint8) for _ in range(2)]
    assert not frame.distinct_storages(views, (1,))
