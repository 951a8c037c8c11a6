"""Matrix products spelled as oneDNN calls: chosen by layout and size, right in value."""

from __future__ import annotations

import pytest
import torch
import torch.fx

from weft.backends.inductor import compile_fx
from weft.codegen.lowering import onednn
from weft.config import config
from weft.diagnostics import events
from weft.runtime.gemm_speed import onednn_is_faster
from weft.runtime.onednn import onednn_linear

needs_onednn = pytest.mark.skipif(onednn_linear() is None, reason="torch without oneDNN")


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "onednn_is_faster", lambda shape: True)


def compiled(function: object, *inputs: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The result and the call sequence."""
    events.reset()
    gm = torch.fx.symbolic_trace(function)  # type: ignore[arg-type]
    with torch.no_grad():
        call = compile_fx(gm, list(inputs))
        result = call(*inputs)
    [code] = events.history("output_code")
    return (result[0] if isinstance(result, (list, tuple)) else result), code.source


@needs_onednn
@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_large_products_go_to_onednn(transposed: bool, bias: bool) -> None:
    x, w, b = torch.randn(64, 256), torch.randn(256, 192), torch.randn(192)
    if transposed:
        w = w.t().contiguous().t()
    if bias:
        got, source = compiled(lambda x, w, b: torch.addmm(b, x, w), x, w, b)
    else:
        got, source = compiled(lambda x, w, b: torch.mm(x, w), x, w, b)
    assert "linear" in source
    wanted = x.double() @ w.double() + (b.double() if bias else 0)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-4)


@needs_onednn
@pytest.mark.usefixtures("faster")
def test_a_transposed_left_matrix_is_copied_for_onednn() -> None:
    g, x = torch.randn(96, 300), torch.randn(96, 256)
    got, source = compiled(lambda g, x: torch.mm(g.t(), x), g, x)
    assert "linear" in source
    torch.testing.assert_close(
        got.double(), g.double().t() @ x.double(), rtol=1e-4, atol=1e-4
    )
    assert got.stride() == (256, 1)


@pytest.mark.usefixtures("faster")
@pytest.mark.parametrize("shape", [(64, 8, 8), (2, 1024, 1024)])
def test_small_products_stay_with_aten(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    got, source = compiled(lambda x, w: torch.mm(x, w), torch.ones(m, k), torch.ones(k, n))
    assert "linear" not in source
    assert torch.equal(got, torch.full((m, n), float(k)))


@pytest.mark.usefixtures("faster")
def test_other_types_and_layouts_stay_with_aten() -> None:
    x = torch.randn(128, 256, dtype=torch.float64)
    _, source = compiled(lambda x: torch.mm(x, x.t()), x)
    assert "linear" not in source
    strided = torch.randn(512, 512)[::2, ::2]
    _, source = compiled(lambda x: torch.mm(x, x), strided)
    assert "linear" not in source


def test_the_machine_is_measured_once() -> None:
    onednn_is_faster.cache_clear()
    first = onednn_is_faster()
    onednn_is_faster.cache_clear()
    assert onednn_is_faster() == first  # from the disk cache


@needs_onednn
@pytest.mark.parametrize("autotune", [False, True])
def test_max_autotune_measures_products_at_their_own_sizes(
    monkeypatch: pytest.MonkeyPatch, autotune: bool
) -> None:
    asked: list[tuple[int, int, int]] = []

    def remember(shape: tuple[int, int, int]) -> bool:
        asked.append(shape)
        return False

    monkeypatch.setattr(onednn, "onednn_is_faster", remember)
    with config.patch(max_autotune=autotune):
        compiled(lambda x, w: torch.mm(x, w), torch.randn(64, 256), torch.randn(256, 192))
    assert set(asked) == {(64, 256, 192) if autotune else onednn.SHAPE}
