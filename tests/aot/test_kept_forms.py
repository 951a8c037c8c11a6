"""Forms of parameters that are kept between calls: made again after every kind of write."""

from __future__ import annotations

import gc
import random
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import weft
from tools import stale_forms
from weft.codegen.lowering import onednn
from weft.diagnostics import events
from weft.runtime import kept_forms
from weft.runtime.watched_storages import can_watch

pytestmark = pytest.mark.skipif(not can_watch(), reason="this PyTorch's storages have no hook")


@pytest.fixture(autouse=True)
def _packed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(onednn, "packed_is_faster", lambda rows: True)
    weft.reset()
    gc.collect()
    with weft.config.patch(strict=True, store_entries=False):
        yield


def _layer() -> tuple[nn.Module, Callable[..., torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(512, 512), nn.GELU()).eval()
    return layer, weft.compile(layer), torch.randn(16, 512)


def _agree(layer: nn.Module, compiled: Callable[..., torch.Tensor], x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), rtol=1e-4, atol=1e-5)


def _kept(layer: nn.Module, compiled: Callable[..., torch.Tensor], x: torch.Tensor) -> bool:
    before = weft.stats()["kept_form_bytes"]
    _agree(layer, compiled, x)
    return weft.stats()["kept_form_bytes"] > before


def test_weight_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = []
    pack = kept_forms.pack
    monkeypatch.setattr(kept_forms, "pack", lambda *args: packed.append(args) or pack(*args))
    for _ in range(3):
        layer, compiled, x = _layer()
        for _ in range(3):
            _agree(layer, compiled, x)
    assert len(packed) == 3  # once for each module: they share a graph


WRITES = [event for event in stale_forms.EVENTS if event is not stale_forms.tie]


@pytest.mark.parametrize("write", WRITES, ids=lambda event: event.__name__)
def test_write_is_noticed(write: stale_forms.Event) -> None:
    torch.manual_seed(1)
    model = stale_forms.Model().eval()
    compiled, x = weft.compile(model), torch.randn(16, stale_forms.WIDTH)
    assert _kept(model, compiled, x)
    for seed in range(3):
        write(model, random.Random(seed))
        _agree(model, compiled, x)


def test_memory_that_others_may_write_is_not_kept() -> None:
    layer, compiled, x = _layer()
    array = layer[0].weight.detach().numpy()
    assert not _kept(layer, compiled, x)
    array *= 2
    _agree(layer, compiled, x)
    layer, compiled, x = _layer()
    foreign = torch.rand(512, 512).numpy()
    layer[0].weight.data = torch.from_numpy(foreign)
    assert not _kept(layer, compiled, x)
    layer, compiled, x = _layer()
    exported = torch.utils.dlpack.to_dlpack(layer[0].weight.detach())
    assert not _kept(layer, compiled, x)
    torch.from_dlpack(exported).mul_(2)
    _agree(layer, compiled, x)


def test_two_graphs_that_keep_forms_of_one_weight() -> None:
    layer, compiled, x = _layer()
    other = weft.compile(lambda x: layer(x) + 1)
    for factor in (1.0, 1.1, 0.9):
        layer[0].weight.data.mul_(factor)
        _agree(layer, compiled, x)  # watches the weight anew: the other must not believe it
        with torch.no_grad():
            torch.testing.assert_close(other(x), layer(x) + 1, rtol=1e-4, atol=1e-5)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(256, 256) for _ in range(3))
        self.gate, self.up = (nn.Linear(256, 512, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).view(2, 64, 4, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = attended.transpose(1, 2).reshape(2, 64, 256)
        return nn.functional.silu(self.gate(x)) * self.up(x)


def _products(model: nn.Module, x: torch.Tensor) -> list[str]:
    """The shapes of the right matrices in the compiled calls, which are compared with eager."""
    with events.collect() as seen:
        _agree(model, weft.compile(model), x)
    [text] = [e.source for e in seen if e.kind == "output_code" and e.name == "call sequence"]
    return re.findall(r"@ (\(\d+, \d+\))", text)


@pytest.fixture
def without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "packed_is_faster", lambda rows: False)
    monkeypatch.setattr(onednn, "onednn_is_faster", lambda shape: False)


@pytest.mark.usefixtures("without_onednn")
def test_products_of_one_matrix_are_one_product() -> None:
    torch.manual_seed(0)
    model, x = Attention().eval(), torch.randn(2, 64, 256)
    assert _products(model, x) == ["(256, 768)", "(256, 1024)"]
    compiled = weft.compile(model)
    for write in (stale_forms.write_data, stale_forms.step, stale_forms.swap):
        write(model, random.Random(0))
        _agree(model, compiled, x)
        _agree(model, compiled, x)
    array = model.up.weight.detach().numpy()  # from now on computed at each call
    for _ in range(3):
        array *= 1.1
        _agree(model, compiled, x)


@pytest.mark.usefixtures("without_onednn")
def test_products_that_are_returned_or_cannot_be_watched_stay() -> None:
    class Returned(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q(x), self.k(x) + self.v(x)

    x = torch.randn(2, 64, 256)
    torch.manual_seed(0)
    assert _products(Returned().eval(), x) == ["(256, 256)"] * 3
    weft.reset()
    model = Attention().eval()
    assert model.k.weight.detach().numpy() is not None
    assert sorted(_products(model, x)) == ["(256, 1024)", "(256, 256)", "(256, 512)"]


def test_memory_bound_and_its_end() -> None:
    for settings, kept in (({"kept_forms_mb": 0}, False), ({"kept_forms_mb": 1}, True),
                           ({"kept_forms_mb": 0, "freezing": True}, True)):
        with weft.config.patch(**settings):
            weft.reset()
            gc.collect()
            layer, compiled, x = _layer()
            assert _kept(layer, compiled, x) is kept, settings
    before = kept_forms.bytes_kept()
    del layer, compiled
    weft.reset()
    gc.collect()
    assert kept_forms.bytes_kept() < before


def test_forms_that_are_out_of_date_all_the_time_are_not_made() -> None:
    layer, compiled, x = _layer()
    for _ in range(12):
        layer[0].weight.data.mul_(1.001)
        _agree(layer, compiled, x)
    assert not _kept(layer, compiled, x)


def test_drawn_sequences() -> None:
    assert sum(stale_forms.run_sequence(seed, 6) for seed in range(2)) > 0


def test_a_form_that_is_not_made_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Blind:
        def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None: ...

        def holds(self, inputs: list[object], positions: tuple[int, ...]) -> bool:
            return True

    monkeypatch.setattr(kept_forms, "watched", Blind)
    with pytest.raises(AssertionError, match="differs by"):
        for seed in range(3):
            stale_forms.run_sequence(seed, 6)
