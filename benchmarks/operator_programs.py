"""Small programs of the kinds that models and numerical code are made of, for `speed_sweep`.

    python -m benchmarks.speed_sweep --programs --device cuda --jobs 12

Nothing is tuned for them: they show which operators and patterns are slower than eager's kernels
or torch.compile's. Each is a function and what makes its arguments for a scale (1 on CPUs, more on
GPUs, so that a call takes long enough to measure).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F

Arguments = tuple[Any, ...]
PROGRAMS: Final[dict[str, tuple[Callable[..., Any], Callable[[int], Arguments]]]] = {}


def program(make: Callable[[int], Arguments]) -> Callable[[Callable[..., Any]], Any]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = (function, make)
        return function

    return register


def _given(*shapes: tuple[int, ...]) -> Callable[[int], Arguments]:
    """Random tensors; the scale multiplies the first dimension of each that is not negative.

    A negative first dimension is taken as it stands (weights)."""

    def make(scale: int) -> Arguments:
        sizes = [(n * scale if n > 0 else -n, *rest) for n, *rest in shapes]
        return tuple(torch.randn(size) for size in sizes)

    return make


def _simple(name: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> None:
    PROGRAMS[name] = (function, _given(*shapes))


# -- reductions ------------------------------------------------------------------------------------

_simple("softmax_last", lambda x: x.softmax(-1), (512, 1000))
_simple("softmax_middle", lambda x: x.softmax(1), (4, 64, 32, 32))
_simple("softmax_first", lambda x: x.softmax(0), (256, 1024))
_simple("softmax_temperature_top", lambda x: (x / 0.7).softmax(-1).amax(-1), (128, 32000))
_simple("log_softmax_vocabulary", lambda x: x.log_softmax(-1), (32, 32000))
_simple("logsumexp_rows", lambda x: x.logsumexp(-1), (1024, 1024))
_simple("logsumexp_columns", lambda x: x.logsumexp(0), (1024, 1024))
_simple("sum_all", lambda x: x.sum(), (512, 2048))
_simple("mean_first", lambda x: x.mean(0), (2048, 512))
_simple("mean_images", lambda x: x.mean((2, 3)), (16, 64, 32, 32))
_simple("variance_channels", lambda x: x.var((0, 2, 3)), (16, 64, 32, 32))
_simple(
    "standard_deviation",
    lambda x: (x - x.mean(-1, True)) / (x.std(-1, keepdim=True) + 1e-6),
    (2048, 256),
)
_simple("norm_rows", lambda x: x.norm(dim=-1), (2048, 512))
_simple("norm_all", lambda x: x.norm(), (1024, 1024))
_simple("argmax_last", lambda x: x.argmax(-1), (256, 8192))
_simple("argmax_first", lambda x: x.argmax(0), (1024, 512))
_simple("max_with_indices", lambda x: x.max(-1), (1024, 512))
_simple("minimum_and_maximum", lambda x: (x.amin(1), x.amax(1)), (512, 128, 16))
_simple("product_last", lambda x: (1 + 0.01 * x).prod(-1), (4096, 64))
_simple("any_negative", lambda x: (x < -3).any(-1), (2048, 512))
_simple("count_above", lambda x: (x > 0.5).sum(), (1024, 1024))
_simple("cumsum_last", lambda x: x.cumsum(-1), (512, 1024))
_simple("cumsum_first", lambda x: x.cumsum(0), (512, 1024))
_simple("cumprod_last", lambda x: (1 + 0.01 * x).cumprod(-1), (512, 1024))
_simple(
    "cumulative_mean",
    lambda x: x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None],
    (8, 512, 64),
)
_simple("cummax", lambda x: x.cummax(-1).values, (256, 512))
_simple("sort_last", lambda x: x.sort(-1), (128, 1024))
_simple("topk", lambda x: x.topk(8, -1), (256, 4096))
_simple("median", lambda x: x.median(-1).values, (256, 512))
_simple(
    "top_p_filter",
    lambda x: (x.sort(-1, descending=True).values.softmax(-1).cumsum(-1) < 0.9).sum(-1),
    (32, 8192),
)
_simple("entropy", lambda x: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1), (512, 1000))
_simple("weighted_mean", lambda x, w: (x * w.softmax(1)).sum(1), (16, 128, 256), (16, 128, 1))
_simple(
    "trace_of_products",
    lambda a, b: torch.einsum("bij,bji->b", a, b),
    (64, 128, 128),
    (64, 128, 128),
)
_simple("gram_difference", lambda x: (x - x.mean(0)).square().sum(0), (4096, 256))

# -- normalisations --------------------------------------------------------------------------------

_simple("layer_norm", lambda x, w, b: F.layer_norm(x, (768,), w, b), (1024, 768), (-768,), (-768,))
_simple(
    "layer_norm_image",
    lambda x, w, b: F.layer_norm(x.permute(0, 2, 3, 1), (96,), w, b).permute(0, 3, 1, 2),
    (8, 96, 56, 56),
    (-96,),
    (-96,),
)
_simple(
    "layer_norm_2d",
    lambda x, w, b: F.layer_norm(x, (64, 64), w, b),
    (128, 64, 64),
    (-64, 64),
    (-64, 64),
)
_simple(
    "rms_norm",
    lambda x, w: x * torch.rsqrt(x.square().mean(-1, True) + 1e-6) * w,
    (1024, 1024),
    (-1024,),
)
_simple(
    "group_norm", lambda x, w, b: F.silu(F.group_norm(x, 16, w, b)), (8, 64, 32, 32), (-64,), (-64,)
)
_simple("instance_norm", F.instance_norm, (8, 32, 64, 64))
_simple(
    "batch_norm_train",
    lambda x, w, b: F.relu(F.batch_norm(x, None, None, w, b, True)),
    (16, 64, 32, 32),
    (-64,),
    (-64,),
)
_simple(
    "batch_norm_1d",
    lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    (1024, 256),
    (-256,),
    (-256,),
)
_simple(
    "norm_then_transpose",
    lambda x, w, b: F.layer_norm(x, (256,), w, b).transpose(1, 2).contiguous(),
    (16, 196, 256),
    (-256,),
    (-256,),
)
_simple(
    "mixer_tokens",
    lambda x, w, b, u: F.linear(F.layer_norm(x, (256,), w, b).transpose(1, 2), u),
    (16, 196, 256),
    (-256,),
    (-256,),
    (-384, 196),
)
_simple(
    "weight_norm",
    lambda x, v, g: x @ (v * (g / v.norm(dim=1, keepdim=True))).T,
    (256, 512),
    (-512, 512),
    (-512, 1),
)
_simple("normalise_rows", lambda x: F.normalize(x, dim=-1), (2048, 256))
_simple("normalise_channels", lambda x: F.normalize(x, dim=1), (8, 64, 32, 32))
_simple("softmax_of_norms", lambda x: (x.square().sum(-1) / 8).softmax(-1), (64, 64, 64))
_simple(
    "residual_dropout_norm",
    lambda x, r, w, b: F.layer_norm(r + F.dropout(x, 0.1, True), (768,), w, b),
    (1024, 768),
    (1024, 768),
    (-768,),
    (-768,),
)

# -- losses ----------------------------------------------------------------------------------------


@program(lambda s: (torch.randn(512 * s, 4096), torch.randint(0, 4096, (512 * s,))))
def cross_entropy(x: Any, t: Any) -> Any:
    return F.cross_entropy(x, t)


@program(lambda s: (torch.randn(512 * s, 1000), torch.randint(0, 1000, (512 * s,))))
def cross_entropy_smoothed(x: Any, t: Any) -> Any:
    return F.cross_entropy(x, t, label_smoothing=0.1)


@program(lambda s: (torch.randn(4 * s, 21, 64, 64), torch.randint(0, 21, (4 * s, 64, 64))))
def cross_entropy_segmentation(x: Any, t: Any) -> Any:
    return F.cross_entropy(x, t, ignore_index=0)


_simple(
    "binary_cross_entropy",
    lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()),
    (1024, 512),
    (1024, 512),
)
_simple("smooth_l1", F.smooth_l1_loss, (1024, 512), (1024, 512))
_simple(
    "kl_divergence",
    lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"),
    (512, 1000),
    (512, 1000),
)
_simple(
    "gaussian_nll",
    lambda m, x, v: F.gaussian_nll_loss(m, x, v.exp()),
    (1024, 256),
    (1024, 256),
    (1024, 256),
)
_simple("cosine_similarity", F.cosine_similarity, (2048, 256), (2048, 256))
_simple(
    "contrastive",
    lambda x, y: F.cross_entropy(
        F.normalize(x) @ F.normalize(y).T / 0.07, torch.arange(len(x), device=x.device)
    ),
    (256, 256),
    (256, 256),
)
_simple("triplet", F.triplet_margin_loss, (1024, 256), (1024, 256), (1024, 256))
_simple(
    "dice",
    lambda x, t: 1 - 2 * (x.sigmoid() * (t > 0)).sum() / (x.sigmoid().sum() + (t > 0).sum() + 1),
    (8, 128, 128),
    (8, 128, 128),
)
_simple(
    "focal",
    lambda x, t: (
        (1 - torch.exp(-F.softplus(-x * t.sign()))) ** 2 * F.softplus(-x * t.sign())
    ).mean(),
    (1024, 512),
    (1024, 512),
)
_simple(
    "total_variation",
    lambda x: (
        (x[..., 1:] - x[..., :-1]).abs().mean() + (x[..., 1:, :] - x[..., :-1, :]).abs().mean()
    ),
    (8, 3, 128, 128),
)
_simple("pairwise_distances", torch.cdist, (512, 64), (-512, 64))
_simple(
    "pairwise_by_hand",
    lambda x, y: (x[:, None] - y[None]).square().sum(-1).sqrt(),
    (256, 32),
    (-256, 32),
)
_simple(
    "soft_chamfer",
    lambda x, y: (x[:, :, None] - y[:, None]).square().sum(-1).amin(2).mean(),
    (4, 512, 3),
    (4, 512, 3),
)

# -- indexing and moving data ----------------------------------------------------------------------


@program(
    lambda s: (
        torch.randn(30000, 256),
        torch.randn(512, 256),
        torch.randint(0, 30000, (4 * s, 512)),
    )
)
def embedding_and_positions(table: Any, positions: Any, ids: Any) -> Any:
    return F.layer_norm(F.embedding(ids, table) + positions, (256,))


@program(lambda s: (torch.randn(5000, 64), torch.randint(0, 5000, (512 * s, 16))))
def embedding_bag(table: Any, ids: Any) -> Any:
    return F.embedding_bag(ids, table, mode="mean")


@program(lambda s: (torch.randn(512 * s, 1024), torch.randint(0, 1024, (512 * s, 64))))
def gather_columns(x: Any, index: Any) -> Any:
    return x.gather(1, index).sum(1)


@program(lambda s: (torch.randn(4096 * s, 64), torch.randint(0, 1024, (4096 * s,))))
def scatter_add_nodes(x: Any, index: Any) -> Any:
    return x.new_zeros(1024, 64).index_add(0, index, x)


@program(lambda s: (torch.randn(1024 * s, 64), torch.randint(0, 1024 * s, (2, 8192 * s))))
def message_passing(x: Any, edges: Any) -> Any:
    messages = torch.relu(x[edges[0]] - x[edges[1]])
    return torch.zeros_like(x).scatter_add(0, edges[1][:, None].expand_as(messages), messages)


@program(lambda s: (torch.randn(8192 * s), torch.randint(0, 1024, (8192 * s,))))
def segment_softmax(x: Any, segment: Any) -> Any:
    top = x.new_full((1024,), -1e9).scatter_reduce(0, segment, x, "amax")
    e = (x - top[segment]).exp()
    return e / x.new_zeros(1024).index_add(0, segment, e)[segment]


@program(lambda s: (torch.randn(2048, 256 * s), torch.randperm(2048)))
def permute_rows(x: Any, order: Any) -> Any:
    return x[order]


@program(lambda s: (torch.randn(256 * s, 64, 64),))
def masked_by_triangle(x: Any) -> Any:
    mask = torch.ones(64, 64, device=x.device, dtype=torch.bool).tril()
    return x.masked_fill(~mask, float("-inf")).softmax(-1)


@program(lambda s: (torch.randint(0, 256, (8 * s, 128, 128, 3), dtype=torch.uint8),))
def image_normalise(image: Any) -> Any:
    x = image.permute(0, 3, 1, 2).float() / 255
    mean = torch.tensor([0.485, 0.456, 0.406], device=x.device).view(3, 1, 1)
    return (x - mean) / 0.226


@program(lambda s: (torch.randint(0, 1000, (65536 * s,)),))
def one_hot_counts(labels: Any) -> Any:
    return F.one_hot(labels % 64, 64).sum(0)


@program(lambda s: (torch.randn(65536 * s), torch.linspace(-3, 3, 128)))
def bucketise(x: Any, bounds: Any) -> Any:
    return torch.bucketize(x, bounds)


_simple("roll_images", lambda x: torch.roll(x, (3, 3), (1, 2)) + x, (8, 56, 56, 96))
_simple("flip_columns", lambda x: x.flip(-1) * 2, (1024, 1024))
_simple("pad_reflect", lambda x: F.pad(x, (2, 2, 2, 2), mode="reflect") * 1.5, (8, 16, 64, 64))
_simple("pad_constant_conv_input", lambda x: F.pad(x, (1, 1, 1, 1)).relu(), (8, 32, 64, 64))
_simple("upper_triangle", lambda x: x.triu(1) + x.tril(-1), (16, 256, 256))
_simple("transpose_copy", lambda x: x.T.contiguous(), (1024, 1024))
_simple(
    "heads_permuted",
    lambda x: x.view(*x.shape[:2], 8, 64).permute(0, 2, 1, 3).contiguous(),
    (8, 256, 512),
)
_simple(
    "heads_merged",
    lambda x: x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1) * 2,
    (8, 8, 256, 64),
)
_simple(
    "window_partition",
    lambda x: x.view(x.shape[0], 8, 7, 8, 7, 96).permute(0, 1, 3, 2, 4, 5).reshape(-1, 49, 96),
    (8, 56, 56, 96),
)
_simple("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2).clamp(0, 1), (8, 64, 32, 32))
_simple("space_to_depth", lambda x: F.pixel_unshuffle(x, 2) * 0.5, (8, 16, 64, 64))
_simple("unfold_patches", lambda x: F.unfold(x, 4, stride=4), (8, 16, 64, 64))
_simple("fold_patches", lambda x: F.fold(x, (64, 64), 3, padding=1), (4, 72, 4096))
_simple("sliding_windows", lambda x: x.unfold(-1, 16, 4).mean(-1), (256, 2048))
_simple(
    "channels_shuffled",
    lambda x: x.view(x.shape[0], 4, 16, 32, 32).transpose(1, 2).reshape(x.shape),
    (16, 64, 32, 32),
)
_simple(
    "concatenate_features",
    lambda a, b, c: torch.cat([a.relu(), b.tanh(), c * 2], 1),
    (1024, 128),
    (1024, 256),
    (1024, 64),
)
_simple(
    "stack_and_sum", lambda a, b: torch.stack([a, b, a * b], 1).sum(1), (1024, 512), (1024, 512)
)
_simple(
    "repeat_heads",
    lambda k: k[:, :, None].expand(-1, -1, 4, -1, -1).reshape(k.shape[0], 8, 256, 64) * 0.125,
    (8, 2, 256, 64),
)
_simple("interleave_rows", lambda x: x.repeat_interleave(2, 1) + 1, (512, 256, 4))
_simple("diagonal_sum", lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1), (256, 64, 64))
_simple("outer_sum", lambda x, y: (x[:, None] + y[None]).tanh().sum(1), (512,), (-2048,))
_simple(
    "where_clamped",
    lambda x, y: torch.where(x > 0, x.clamp(max=2), y.exp().clamp(min=0.1)),
    (1024, 1024),
    (1024, 1024),
)

# -- convolutions, pooling, resampling -------------------------------------------------------------

_simple(
    "conv_relu_pool",
    lambda x, w, b: F.max_pool2d(F.conv2d(x, w, b, padding=1).relu(), 2),
    (8, 32, 32, 32),
    (-64, 32, 3, 3),
    (-64,),
)
_simple(
    "conv_norm_residual",
    lambda x, w: x + F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True)),
    (8, 64, 28, 28),
    (-64, 64, 3, 3),
)
_simple(
    "conv_depthwise",
    lambda x, w: F.gelu(F.conv2d(x, w, padding=3, groups=64)),
    (8, 64, 28, 28),
    (-64, 1, 7, 7),
)
_simple("conv_1d", lambda x, w: F.gelu(F.conv1d(x, w, stride=2)), (8, 64, 512), (-128, 64, 3))
_simple(
    "conv_causal",
    lambda x, w: F.silu(F.conv1d(F.pad(x, (3, 0)), w, groups=256)),
    (8, 256, 512),
    (-256, 1, 4),
)
_simple(
    "conv_transposed",
    lambda x, w: F.conv_transpose2d(x, w, stride=2).relu(),
    (8, 32, 16, 16),
    (-32, 16, 2, 2),
)
_simple(
    "conv_3d", lambda x, w: F.conv3d(x, w, padding=1).relu(), (2, 8, 16, 32, 32), (-16, 8, 3, 3, 3)
)
_simple(
    "squeeze_excite",
    lambda x, a, b: x * (F.relu(x.mean((2, 3)) @ a) @ b).sigmoid()[..., None, None],
    (16, 64, 32, 32),
    (-64, 16),
    (-16, 64),
)
_simple("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), (8, 64, 56, 56))
_simple("average_pool", lambda x: F.avg_pool2d(x, 3, 1, 1) - x, (8, 64, 56, 56))
_simple("adaptive_pool", lambda x: F.adaptive_avg_pool2d(x, 7), (8, 64, 56, 56))
_simple("max_pool_1d", lambda x: F.max_pool1d(x, 4), (16, 64, 1024))
_simple("upsample_nearest", lambda x: F.interpolate(x, scale_factor=2) * 0.5, (8, 32, 32, 32))
_simple(
    "upsample_bilinear",
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    (8, 32, 32, 32),
)
_simple("resize_bicubic", lambda x: F.interpolate(x, (48, 48), mode="bicubic"), (8, 16, 64, 64))
_simple(
    "grid_sample",
    lambda x, g: F.grid_sample(x, g.tanh(), align_corners=False),
    (8, 16, 64, 64),
    (8, 64, 64, 2),
)
_simple(
    "blur_separable",
    lambda x, k: F.conv2d(F.conv2d(x, k.view(1, 1, 5, 1)), k.view(1, 1, 1, 5)),
    (8, 1, 128, 128),
    (-5,),
)

# -- attention and products ------------------------------------------------------------------------

_QKV = ((8, 8, 256, 64),) * 3


def _attention(q: Any, k: Any, v: Any, bias: Any = 0) -> Any:
    return ((q @ k.mT) / math.sqrt(q.shape[-1]) + bias).softmax(-1) @ v


_simple("attention_by_hand", _attention, *_QKV)
_simple(
    "attention_library",
    lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    *_QKV,
)
_simple("attention_with_bias", _attention, *_QKV, (-8, 256, 256))
_simple("attention_one_token", _attention, (32, 8, 1, 64), (32, 8, 512, 64), (32, 8, 512, 64))
_simple(
    "attention_talking_heads",
    lambda q, k, v, w: torch.einsum("hg,bhij->bgij", w, (q @ k.mT * 0.125)).softmax(-1) @ v,
    *_QKV,
    (-8, 8),
)
_simple("attention_linear", lambda q, k, v: (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v), *_QKV)
_simple(
    "attention_pooling",
    lambda x, q: ((x @ q).softmax(1).mT @ x).squeeze(1),
    (32, 256, 256),
    (-256, 1),
)
_simple(
    "rotary",
    lambda x, a: torch.cat(
        [
            x[..., :32] * a.cos() - x[..., 32:] * a.sin(),
            x[..., 32:] * a.cos() + x[..., :32] * a.sin(),
        ],
        -1,
    ),
    (8, 8, 256, 64),
    (-256, 32),
)
_simple(
    "rotary_complex",
    lambda x, a: torch.view_as_real(
        torch.view_as_complex(x.float().unflatten(-1, (32, 2)))
        * torch.polar(torch.ones_like(a.float()), a.float())
    ).flatten(-2),
    (8, 8, 256, 64),
    (-256, 32),
)
_simple(
    "linear_gelu", lambda x, w, b: F.gelu(F.linear(x, w, b)), (512, 512), (-1024, 512), (-1024,)
)
_simple(
    "swiglu",
    lambda x, a, b, c: (F.silu(x @ a) * (x @ b)) @ c,
    (256, 256),
    (-256, 512),
    (-256, 512),
    (-512, 256),
)
_simple(
    "low_rank_adapter",
    lambda x, w, a, b: x @ w + (x @ a) @ b * 2,
    (512, 512),
    (-512, 512),
    (-512, 8),
    (-8, 512),
)
_simple(
    "vector_times_matrix",
    lambda x, w, b: F.relu(F.linear(x, w, b)),
    (1, 2048),
    (-2048, 2048),
    (-2048,),
)
_simple("batched_small_products", lambda a, b: torch.bmm(a, b).relu(), (4096, 8, 8), (4096, 8, 8))
_simple(
    "bilinear_form",
    lambda x, w, y: torch.einsum("bi,ij,bj->b", x, w, y),
    (1024, 128),
    (-128, 128),
    (1024, 128),
)
_simple(
    "einsum_heads", lambda x, w: torch.einsum("btd,dhk->bhtk", x, w), (8, 256, 256), (-256, 8, 32)
)
_simple(
    "mlp_of_coordinates",
    lambda x, a, b, c: torch.sigmoid(torch.sin(torch.sin(x @ a) @ b) @ c),
    (8192, 2),
    (-2, 64),
    (-64, 64),
    (-64, 3),
)
_simple(
    "experts_dense",
    lambda x, g, w: torch.einsum(
        "be,beo->bo", (x @ g).softmax(-1), torch.einsum("bi,eio->beo", x, w)
    ),
    (256, 128),
    (-128, 8),
    (-8, 128, 128),
)
_simple("kronecker", torch.kron, (32, 32), (-32, 32))

# -- recurrences and pointwise ---------------------------------------------------------------------


@program(_given((64, 16, 128), (-128, 512), (-128, 512)))
def lstm_by_hand(x: Any, w: Any, u: Any) -> Any:
    h = c = x.new_zeros(x.shape[0], 128)
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w + h @ u).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h


@program(_given((16, 32, 64, 4)))
def state_space_scan(x: Any) -> Any:
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = 0.9 * h + x[:, t].tanh()
        out.append(h.sum(-1))
    return torch.stack(out, 1)


@program(_given((256, 1024), (256, 1024), (256, 1024), (256, 1024)))
def adam_update(p: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v.abs() + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


@program(_given((128, 256)))
def mandelbrot(x: Any) -> Any:
    z, c = torch.zeros_like(x), x
    for _ in range(20):
        z = (z * z + c).clamp(-4, 4)
    return z


@program(_given((8, 256, 256)))
def heat_equation(u: Any) -> Any:
    for _ in range(4):
        around = u[:, :-2, 1:-1] + u[:, 2:, 1:-1] + u[:, 1:-1, :-2] + u[:, 1:-1, 2:]
        u = u + 0.1 * F.pad(around - 4 * u[:, 1:-1, 1:-1], (1, 1, 1, 1))
    return u


@program(_given((512, 3)))
def n_body(x: Any) -> Any:
    d = x[:, None] - x[None]
    return (d * (d.square().sum(-1, keepdim=True) + 1e-2) ** -1.5).sum(1)


@program(_given((65536,), (65536,)))
def black_scholes(s: Any, k: Any) -> Any:
    s, k = s.abs() + 1, k.abs() + 1
    d = (torch.log(s / k) + 0.045) / 0.3
    return s * 0.5 * (1 + torch.erf(d / 1.4142)) - k * 0.97 * 0.5 * (
        1 + torch.erf((d - 0.3) / 1.4142)
    )


_simple("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), (1024, 1024))
_simple("mish_softplus", lambda x: F.mish(x) + F.softplus(x), (1024, 1024))
_simple("powers", lambda x: x**3 - 0.5 * x**2 + x.abs() ** 1.5, (1024, 1024))
_simple("fake_quantise", lambda x: (x / 0.1).round().clamp(-128, 127) * 0.1, (1024, 1024))
_simple(
    "quantise_rows",
    lambda x: (x / (s := x.abs().amax(-1, True) / 127)).round().to(torch.int8).float() * s,
    (1024, 1024),
)
_simple(
    "position_encoding",
    lambda t: torch.cat(
        [(t * f).sin() for f in (1, 2, 4, 8)] + [(t * f).cos() for f in (1, 2, 4, 8)], -1
    ),
    (16384, 3),
)
_simple(
    "broadcast_chain",
    lambda x, a, b: (x * a + b).relu() * a.sigmoid(),
    (64, 128, 64),
    (-128, 1),
    (-64,),
)
_simple("bit_operations", lambda x: ((y := (x * 100).int()) & 255) ^ (y << 3) | 1, (1024, 1024))
_simple("half_precision_chain", lambda x: (x.half() * 2 + 1).float().tanh(), (1024, 1024))
_simple(
    "fft_filter",
    lambda x, w: torch.fft.irfft(torch.fft.rfft(x.float()) * w.float()[: x.shape[-1] // 2 + 1]),
    (256, 1024),
    (-1024,),
)
_simple(
    "many_outputs",
    lambda x: (x.sin(), x.cos(), x.exp(), x.tanh(), x.sigmoid(), x.sum(-1), x.amax(0)),
    (512, 1024),
)
_simple(
    "dropout_twice", lambda x: F.dropout(F.dropout(x, 0.1, True).relu(), 0.2, True), (1024, 1024)
)
_simple("random_noise", lambda x: x + torch.randn_like(x) * torch.rand_like(x), (1024, 1024))
