"""Whole programs on a GPU: `weft.compile` against eager, with kernel counts where fusion is
promised.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import weft
from weft.diagnostics import events
from weft.runtime.cudnn_rnn import LSTM


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    weft.reset()
    torch.manual_seed(0)
    with weft.config.patch(strict=True):
        yield
    assert weft.stats()["uncompiled_graphs"] == 0


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=dtype)


def check(fn: Callable[..., Any], *args: Any, tolerance: float = 1e-4, kernels: int | None = None,
          **options: Any) -> None:
    compiled = weft.compile(fn, **options)
    for _ in range(3):
        torch.testing.assert_close(compiled(*args), fn(*args), rtol=tolerance, atol=tolerance)
    if kernels is not None:
        assert weft.stats()["kernels"] == kernels


def test_relu_plus_sigmoid_is_one_kernel() -> None:
    check(lambda x: x.relu() + x.sigmoid(), rand(1000), kernels=1)


def test_softmax_is_one_kernel() -> None:
    check(lambda x: x.softmax(-1), rand(64, 777), kernels=1)


def test_residual_norm_gelu_is_one_kernel() -> None:
    norm = nn.LayerNorm(512, device="cuda")
    with torch.no_grad():
        check(lambda x, y: F.gelu(norm(x + y)), rand(64, 512), rand(64, 512), kernels=1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types(dtype: torch.dtype) -> None:
    check(lambda x: (x * 2).tanh().mean(-1), rand(30, 50, dtype=dtype), tolerance=2e-2)


def test_full_reduction() -> None:
    check(lambda x: (x * x).sum(), rand(1000, 1000), tolerance=1e-3)


def test_embedding_and_cross_entropy() -> None:
    table, target = rand(100, 32), torch.randint(0, 100, (8, 16), device="cuda")

    def program(tokens: torch.Tensor) -> torch.Tensor:
        logits = F.embedding(tokens, table) @ table.T
        return F.cross_entropy(logits.view(-1, 100), target.view(-1))

    check(program, torch.randint(0, 100, (8, 16), device="cuda"), tolerance=1e-3)


def test_convolution_batch_norm_relu() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                           nn.MaxPool2d(2)).cuda().eval()
    with torch.no_grad():
        check(layers, rand(2, 3, 32, 32), tolerance=1e-3)


def test_views_and_transposes() -> None:
    check(lambda x: (x.transpose(0, 2).flip(1).contiguous() + 1).view(-1)[::3], rand(5, 6, 7))


def test_training_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 8)).cuda()
    x, y = rand(16, 32), rand(16, 8)
    loss = F.mse_loss(model(x), y)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    compiled = weft.compile(model)
    got = torch.autograd.grad(F.mse_loss(compiled(x), y), list(model.parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


def test_transformer_block_in_bf16() -> None:
    block = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    block = block.cuda().bfloat16().eval()
    with torch.no_grad():
        check(block, rand(2, 16, 64, dtype=torch.bfloat16), tolerance=5e-2)


def test_dynamic_shapes() -> None:
    compiled = weft.compile(lambda x: x.softmax(-1).mean(0), dynamic=True)
    for rows, columns in ((8, 100), (16, 333), (31, 2000)):
        x = rand(rows, columns)
        torch.testing.assert_close(compiled(x), x.softmax(-1).mean(0), rtol=1e-4, atol=1e-5)


def test_all_sizes_by_forms_of_one_kernel() -> None:
    """Rows that fit in a tile or do not, cut tiles, aligned and odd lengths, sizes that return."""
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(x, (x.shape[-1],)).softmax(-1)
        return torch.cat([y, y.flip(0)], 1).sum(0)[: x.shape[1]] + (x.t() @ w).mean(1)

    compiled = weft.compile(f, dynamic=True)
    sizes = [(64, 128), (63, 127), (5, 20_000), (4096, 16), (4097, 17), (64, 128), (3, 12)]
    for rows, columns in sizes * 3:
        x, w = rand(rows, columns), rand(rows, 8)
        torch.testing.assert_close(compiled(x, w), f(x, w), rtol=2e-3, atol=2e-3)


def test_flex_attention_trains() -> None:
    slopes = torch.exp2(-torch.arange(4.0, device="cuda"))
    seen = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cuda")

    def f(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return flex_attention(q, k, v, block_mask=seen, score_mod=(
            lambda score, b, h, i, j: score - slopes[h] * (i - j).abs()))

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        place = torch.arange(128, device="cuda")
        away = place[:, None] - place
        scores = q @ k.transpose(-1, -2) / 8 - slopes[:, None, None] * away.abs()
        return scores.masked_fill(away < 0, -torch.inf).softmax(-1) @ v

    inputs = [rand(2, 4, 128, 64).requires_grad_() for _ in range(3)]
    ours, theirs = (torch.autograd.grad(g(*inputs).square().sum(), inputs)
                    for g in (weft.compile(f, fullgraph=True), plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_rows_between_products_start_where_vectors_can_be_read() -> None:
    """The gradient of scores over an odd number of words has rows with room at their ends."""
    torch.manual_seed(0)
    inputs = [rand(1024, 512, dtype=torch.bfloat16), rand(2051, 512, dtype=torch.bfloat16)]
    words = torch.randint(0, 2051, (1024,), device="cuda")

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy((x @ w.t()).float(), words)

    for t in inputs:
        t.requires_grad_()
    expected = torch.autograd.grad(f(*inputs), inputs)
    with events.collect() as seen:
        got = torch.autograd.grad(weft.compile(f)(*inputs), inputs)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=1e-4)
    assert any("2056*" in e.source for e in seen if e.kind == "output_code")


def test_a_thread_without_a_context() -> None:
    """Neither the first call of a new thread nor a second device's kernels find a context there."""
    compiled = weft.compile(lambda x: (x * 2 + 1).exp())
    x, results = rand(100_000), []
    compiled(x)
    del x  # its memory is free to be had without any call of the driver
    x = torch.ones(100_000, device="cuda")
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: results.append(compiled(x)))
    thread.start()
    thread.join()
    torch.testing.assert_close(results[0], (x * 2 + 1).exp())


@pytest.mark.filterwarnings("ignore:The AccumulateGrad")  # both graphs share them
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_another_device_than_the_present_one() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((x @ w).softmax(-1) + x.to(w.device)).to("cuda:0").sum(0)

    for dynamic in (False, True):
        compiled = weft.compile(f, dynamic=dynamic)
        for rows in (8, 8, 33):
            x = torch.randn(rows, 64, device="cuda:1", requires_grad=True)
            w = torch.randn(64, 64, device="cuda:1", requires_grad=True)
            got, expected = compiled(x, w), f(x, w)
            torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
            assert got.device.index == 0
            ours = torch.autograd.grad(got.square().sum(), [x, w])
            theirs = torch.autograd.grad(expected.square().sum(), [x, w])
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes(mode: str) -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).cuda()
    compiled = weft.compile(model, mode=mode)
    held = []
    with torch.no_grad():
        for _ in range(6):
            x = rand(16, 32)
            held.append((compiled(x), model(x)))
    for got, expected in held:
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_other_stream() -> None:
    compiled = weft.compile(lambda x: (x * 2 + 1).exp())
    x = rand(100_000)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        result = compiled(x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(result, (x * 2 + 1).exp())


@pytest.mark.parametrize("length", [512, 197])
def test_attention_takes_eagers_kernel(length: int) -> None:
    query = rand(4, length, 128, dtype=torch.bfloat16).view(4, length, 2, 64).transpose(1, 2)
    check(lambda q: F.scaled_dot_product_attention(q, q, q) + 1, query, tolerance=2e-2)
    stats = weft.stats()
    assert stats["extern_calls"] == 1  # one attention kernel, no matrix products


def test_attention_with_a_broadcast_mask_stays_fused() -> None:
    query = rand(4, 197, 128, dtype=torch.bfloat16).view(4, 197, 2, 64).transpose(1, 2)
    mask = torch.ones(197, 1, dtype=torch.bool, device="cuda").expand(4, 1, 197, 197)
    check(lambda q: F.scaled_dot_product_attention(q, q, q, mask) + 1, query, tolerance=2e-2)
    assert weft.stats()["extern_calls"] <= 2


def test_dropout_in_attention_draws_as_eager_whatever_the_masks_layout() -> None:
    """A mask that was laid out for the fast kernel had it draw other numbers than eager's."""
    query = rand(2, 4, 16, 16)
    bias = rand(16, 16, 4).permute(2, 0, 1)[None].requires_grad_()

    def attend(q: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, q, q, bias, dropout_p=0.1)

    with weft.config.patch(fallback_random=True):
        torch.manual_seed(0)
        expected = attend(query)
        torch.manual_seed(0)
        torch.testing.assert_close(weft.compile(attend)(query), expected)


def test_compiling_draws_no_numbers() -> None:
    """PyTorch has no meta kernel of it: its fake result was drawn on the device."""
    concentration = rand(8, 41).abs() + 1
    with weft.config.patch(fallback_random=True):
        torch.manual_seed(0)
        expected = torch._standard_gamma(concentration)
        torch.manual_seed(0)
        found = weft.compile(torch._standard_gamma)(concentration)
    torch.testing.assert_close(found, expected)


class Images(nn.Module):
    """Convolutions of all kinds, some as products, with norms, pooling and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.narrow = nn.Conv2d(64, 48, 1)
        self.depthwise = nn.Conv2d(48, 48, 5, padding=2, groups=48)
        self.grouped = nn.Conv2d(48, 48, 3, padding=1, groups=2)
        self.eights = nn.Conv2d(48, 64, 3, padding=1, groups=2, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.up = nn.ConvTranspose2d(64, 16, 2, stride=2)
        self.head = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        y = self.grouped(F.gelu(self.depthwise(self.narrow(x))))
        y = F.relu(self.norm(self.eights(y)) + x)
        z = F.silu(self.up(y))
        return self.head(z.mean((2, 3))), z


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dynamic", [None, True])
def test_convolutions_in_any_layout(
    dtype: torch.dtype, memory_format: torch.memory_format, dynamic: bool | None
) -> None:
    net = Images().cuda().to(dtype)
    peer = copy.deepcopy(net).double()
    compiled = weft.compile(net, dynamic=dynamic)
    limit = 2e-2 if dtype == torch.float32 else 6e-2  # TF32; of the largest element
    for batch in (8, 6):
        x = rand(batch, 3, 96, 96, dtype=dtype).to(memory_format=memory_format)
        with torch.no_grad():
            plain, wanted = compiled(x), net(x)
        assert [t.stride() for t in plain] == [t.stride() for t in wanted]
        results = []
        for call, model, given in ((compiled, net, x), (peer, peer, x.double())):
            model.zero_grad()
            out, image = call(given)
            ((out.square().sum() + image.sin().sum()) / batch).backward()
            results.append([out, image, *(p.grad for p in model.parameters())])
        for found, exact in zip(*results, strict=True):
            assert (found.double() - exact).abs().max() <= limit * exact.abs().max()


def test_biases_of_convolutions_are_fused_with_what_follows() -> None:
    layers = nn.Sequential(nn.Conv1d(8, 16, 3), nn.GELU()).cuda()
    with torch.no_grad():
        check(layers, rand(2, 8, 50), tolerance=1e-2, kernels=1)


@pytest.mark.parametrize("training", [False, True])
def test_statistics_of_channels(training: bool) -> None:
    """Few results, long rows that are no row of memory: two kernels for each pass."""
    x = rand(64, 16, 32, 32).requires_grad_(training)
    check(lambda x: F.batch_norm(x, None, None, training=True), x, tolerance=1e-3)
    check(lambda x: x.var((0, 2, 3)), x, tolerance=1e-3)


@pytest.mark.parametrize("dim", [0, 1, None])
def test_positions_of_extrema_in_long_rows(dim: int | None) -> None:
    x = rand(20000, 7).round(decimals=1)
    x[500, 3] = float("nan")
    check(lambda x: (x.argmax(dim), x.argmin(dim), (-x).argmax(dim)), x)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scans(dim: int) -> None:
    x = rand(30, 200, 5)
    check(lambda x: ((x + 1).cumsum(dim), x.cummax(dim), x.logcumsumexp(dim)), x)


def test_windows() -> None:
    x = rand(2, 8, 17, 16)
    x[0, 0] = float("-inf")
    check(lambda x: F.avg_pool2d(x, 3, 1, 1) - x, x[1:], kernels=1)
    check(lambda x: F.max_pool2d(x.relu(), 3, 2, 1), x)
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    check(lambda x: F.max_pool2d(x, 2) + 1, x.to(memory_format=torch.channels_last))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8])
def test_powers_of_integers(dtype: torch.dtype) -> None:
    base = torch.tensor([0, 1, 2, 3, 7, 200, 250], device="cuda").to(dtype)
    exponent = torch.arange(7, device="cuda").to(dtype)
    check(lambda a, b: (a**b, b**3, 2**b, (-a) ** b), base, exponent)


def test_results_that_are_conjugated_by_a_flag() -> None:
    x = rand(3, 4, 4, dtype=torch.complex64)
    check(lambda x: (torch.linalg.svdvals(x), torch.linalg.svd(x)[2].abs() + 1), x)


def test_indices_that_the_compiler_packs_in_pairs() -> None:
    """Windows rolled back and cut: ptxas loses a constant of such sums (`without_packed_sums`)."""
    def windows(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x + torch.roll(y, (3, 3), (1, 2))[:, :4, :4].reshape(2, 16, 48)
        return F.layer_norm(x, (48,))

    check(windows, rand(2, 16, 48), rand(2, 7, 7, 48), kernels=1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norms_train_with_statistics_in_pieces(layout: torch.memory_format) -> None:
    """One kernel counts the batches of both norms; statistics are exact far from zero."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.BatchNorm2d(64), torch.nn.SiLU(), torch.nn.BatchNorm2d(64)
    ).cuda()
    exact = copy.deepcopy(model).double()
    x = (rand(16, 64, 56, 56) * 3 + 50).to(memory_format=layout)
    compiled = weft.compile(model)
    for _ in range(2):
        inputs = x.clone().requires_grad_(), x.double().requires_grad_()
        found, wanted = compiled(inputs[0]), exact(inputs[1])
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-4)
        weight = rand(16, 64, 56, 56)
        (found * weight).sum().backward()
        (wanted * weight).sum().backward()
        torch.testing.assert_close(inputs[0].grad.double(), inputs[1].grad, rtol=1e-3, atol=1e-3)
    for name, buffer in model.named_buffers():
        wanted = exact.get_buffer(name)
        torch.testing.assert_close(buffer.to(wanted.dtype), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_batch_norms_that_pytorch_gives_to_cudnn_train_compiled(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()).cuda()
    peer, x = copy.deepcopy(model), rand(4, 3, 9, 9)
    results = []
    for module, call in ((model, weft.compile(model)), (peer, peer)):
        with torch.autocast("cuda", dtype, enabled=dtype is not torch.float32):
            out = call(x).float()
        out.square().sum().backward()
        results.append([out, *(p.grad for p in module.parameters()), *module.buffers()])
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [
    {"batch_first": True}, {"num_layers": 2, "bidirectional": True}, {"bias": False},
], ids=["batch", "both", "no-bias"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_recurrent_layers_are_cudnns(
    kind: type[nn.RNNBase], options: dict[str, Any], dynamic: bool | None
) -> None:
    layer = kind(6, 8, **options).cuda()
    compiled = weft.compile(lambda x: layer(x.tanh())[0].relu(), dynamic=dynamic)
    for length in (5, 9):
        x = rand(4, length, 6) if layer.batch_first else rand(length, 4, 6)
        found = []
        for call in (compiled, lambda x: layer(x.tanh())[0].relu()):
            own = x.clone().requires_grad_()
            out = call(own)
            grads = torch.autograd.grad(out.square().sum(), [own, *layer.parameters()])
            found.append((out, *grads))
            assert out.stride() == found[0][0].stride()
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
    assert weft.stats()["graph_breaks"] == 0
    assert weft.stats()["graphs"] <= 2


@pytest.mark.filterwarnings("ignore:RNN module weights are not part")  # of eager's call
@pytest.mark.parametrize("autocast", [False, True])
def test_recurrent_layers_in_half_precision_are_cudnns(autocast: bool) -> None:
    """They were unrolled, or failed: cuDNN takes bfloat16 too, and autocast casts for it."""
    layer = nn.LSTM(6, 8, num_layers=2, bidirectional=True).cuda()
    layer = layer if autocast else layer.bfloat16()
    compiled, found = weft.compile(layer, fullgraph=True), []
    numbers = rand(70, 4, 6).to(layer.weight_hh_l0.dtype)
    for call in (layer, compiled):
        layer.zero_grad()
        x = numbers.clone().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            out, states = call(x)
        out.float().square().sum().backward()
        found.append([out, *states, x.grad, *(p.grad for p in layer.parameters())])
    torch.testing.assert_close(*found, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dropout_between_recurrent_layers(kind: type[nn.RNNBase]) -> None:
    layer, x = kind(6, 8, num_layers=2, dropout=0.5).cuda(), rand(70, 4, 6)
    compiled = weft.compile(layer, fullgraph=True)
    results = []
    for _ in range(2):
        torch.manual_seed(5)
        results.append(compiled(x)[0])
    assert torch.equal(*results)
    assert not torch.equal(results[0], compiled(x)[0])
    layer.eval()
    torch.testing.assert_close(compiled(x)[0], layer(x)[0], rtol=1e-4, atol=1e-4)
    layer.train().dropout = 0.0
    torch.testing.assert_close(compiled(x)[0], layer(x)[0], rtol=1e-4, atol=1e-4)
    layer.dropout = 1e-9
    torch.testing.assert_close(compiled(x)[0], layer(x)[0], rtol=1e-4, atol=1e-4)


def test_layers_flattened_at_each_call() -> None:
    layer, x = nn.LSTM(6, 8).cuda(), rand(5, 4, 6)

    def f(x: torch.Tensor) -> torch.Tensor:
        layer.flatten_parameters()
        return layer(x)[0] * 2

    with torch.no_grad():
        check(f, x, fullgraph=True)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_ctc_losses_that_cudnn_refuses_are_in_the_graph(dtype: torch.dtype) -> None:
    targets = torch.tensor([[1, 2, 3], [2, 4, 1]], device="cuda", dtype=dtype)
    given, lengths = (torch.tensor(n, device="cuda", dtype=dtype) for n in ([8, 7], [3, 2]))

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x.log_softmax(-1), targets, given, lengths)

    check(f, rand(8, 2, 5), fullgraph=True)
    check(f, rand(8, 2, 5).requires_grad_(), fullgraph=True)


def test_recurrent_weights_that_lie_apart_are_copied() -> None:
    layer, x = nn.LSTM(6, 8, proj_size=3).cuda(), rand(5, 4, 6)
    states = x.new_zeros(1, 4, 3), x.new_zeros(1, 4, 8)
    apart = [w.detach().clone() for w in layer.parameters()]
    found = torch.ops.weft.cudnn_rnn(x, apart, 5, *states, LSTM, 1, False, False, False)
    torch.testing.assert_close(found[0], layer(x)[0].detach(), rtol=1e-4, atol=1e-4)
    assert found[4].numel() == sum(w.numel() for w in apart)


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 2, 4, 7), (1, 1, 3, 4, 5)], ids=len)
def test_nearest_rows_of_sizes_and_scales_that_disagree(shape: tuple[int, ...]) -> None:
    x = torch.arange(1.0 * math.prod(shape), device="cuda").view(shape)
    for scale in (1.2, 2.01, 0.7):
        check(lambda x, scale=scale: F.interpolate(x, scale_factor=scale, mode="nearest"), x)


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resized_images_of_few_channels_stay_channels_last(mode: str) -> None:
    x = rand(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    resize = lambda x: F.interpolate(x, size=(5, 6), mode=mode)
    found, wanted = weft.compile(resize)(x), resize(x)
    torch.testing.assert_close(found, wanted, check_stride=True)
    (gradient,) = torch.autograd.grad(found, x, wanted.detach())
    (by_eager,) = torch.autograd.grad(wanted, x, wanted.detach())
    torch.testing.assert_close(gradient, by_eager, check_stride=True)


def test_statistics_of_a_batch_norm_in_inference() -> None:
    """They were zeros; on a CPU there are none."""
    mean, var = rand(3), rand(3).abs()
    check(lambda x: torch.native_batch_norm(x, None, None, mean, var, False, 0.1, 1e-5),
          rand(2, 3, 4))


def test_gradients_of_empty_tensors_read_no_memory() -> None:
    for shape, program in (((0,), lambda x: x.prod()), ((0, 2, 2), torch.matrix_exp)):
        x = rand(*shape).requires_grad_()
        torch.autograd.grad(weft.compile(program)(x).sum(), x)
        torch.cuda.synchronize()
