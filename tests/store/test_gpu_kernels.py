"""GPU kernels in entries, without a GPU: stand-ins for the compiler and the driver."""

from types import SimpleNamespace

import pytest
import torch

from weft.runtime import cuda_kernel
from weft.runtime.cuda_kernel import Launching, TwoStep, Unaligned
from weft.runtime.triton_build import TritonRequest
from weft.store import NotStorable, Reader
from weft.store import writer as writing
from weft.store.packing import packed, unpacked
from weft.store.writer import Writer


class _Loaded:
    def __init__(self, unaligned, **rest):
        self.unaligned, self.rest = unaligned, rest


@pytest.fixture
def built(monkeypatch):
    """The requests that were built; the GPU is of kind 90."""
    requests = []

    def build(several):
        requests.extend(several)
        return [SimpleNamespace(image=b"", entry=r.name) for r in several]

    monkeypatch.setattr(cuda_kernel, "build", build)
    monkeypatch.setattr(cuda_kernel, "load", lambda binary, **rest: _Loaded(**rest))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setitem(writing._RULES, _Loaded, writing._gpu_kernel)
    return requests


def _request(arch=90):
    return TritonRequest("def k(b0, n): ...", "k", ("*fp32", "i32"), 4, arch, True, ((1, 16),))


def _again(obj):
    return Reader([]).value(unpacked(packed(Writer().value(obj))))


@pytest.mark.parametrize("grid", [7, "lambda s0: ((s0 + 3) // 4, s0)"])
def test_a_kernel_is_built_again_from_its_text_and_launch(built, grid):
    launching = Launching(_request(), grid, device=0, buffers=1, sizes=1, divisors=1)
    kernel = launching.loaded(SimpleNamespace(image=b"", entry="k"))
    again = _again(kernel)
    assert built == [_request()]
    assert again.unaligned.aligned == launching
    assert again.rest["grid"] == 7 or again.rest["grid"](9) == (3, 9)
    with pytest.raises(TypeError):  # the stand-in cannot be launched, but was built for any address
        again.unaligned(torch.ones(1), 1)
    assert [request.aligned for request in built] == [True, False]


def test_a_kernel_for_another_kind_of_gpu_is_not_loaded(built):
    kernel = Launching(_request(80), 1, 0, 1, 1, 0).loaded(SimpleNamespace(image=b"", entry="k"))
    with pytest.raises(ValueError, match="another kind"):
        _again(kernel)


def test_a_split_reduction_keeps_both_kernels(built):
    parts = [Launching(_request(), 1, 0, 1, 1, 0).loaded(SimpleNamespace(image=b"", entry="k"))
             for _ in range(2)]
    two = TwoStep(*parts, torch.device("cuda", 0), 2, [torch.float32], "lambda s0: (s0,)",
                  ([0, 2, 3], [2, 1, 3]))
    again = _again(two)
    assert again.counts(5) == (5,) and again.dtypes == [torch.float32]
    assert (again.of_first, again.of_second) == ([0, 2, 3], [2, 1, 3])
    assert isinstance(again.first.unaligned, Unaligned) and again.first is not again.second


def test_kernels_that_choose_by_sizes_are_not_kept(built):
    with pytest.raises(NotStorable):
        Writer().value(_Loaded(None))
