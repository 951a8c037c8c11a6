"""Single operators on a CPU thread against eager: which of weft's kernels are slower than ATen's?

    python -m benchmarks.operator_speed                  # prints what takes 1.05 times eager's time
    python -m benchmarks.operator_speed --only scatter,bicubic --all
    python -m benchmarks.operator_speed --train
    python -m benchmarks.operator_speed --groups pointwise --elements 1000

Cases are generated: operators, element types, sizes and layouts. The two take turns; each call's
processor time is taken, and the least of all rounds counts. A case that seems slow is measured again
with more rounds before it is printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import torch
import torch.nn.functional as F

import weft

ROUNDS, MORE_ROUNDS = 12, 60
SAMPLE_SECONDS = 0.001
SLOW: Final = 1.05
ELEMENTS = [1 << 15]
"""Elements of pointwise operators: a number that the command line sets."""


@final
@dataclass(frozen=True)
class Case:
    """A function with its arguments."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]


def _numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Positive numbers that all operators take."""
    if dtype.is_floating_point:
        return (torch.rand(shape) * 0.9 + 0.05).to(dtype)
    return torch.randint(1, 100, shape).to(dtype)


def _signed(x: torch.Tensor, name: str) -> torch.Tensor:
    """Every second number negated, unless the operator takes positive ones only: some of eager's
    are faster where all have one sign."""
    if name == "acosh":
        return x + 1
    return x if name in POSITIVE else x * (1 - torch.arange(len(x)) % 2 * 2).to(x.dtype)


FLOATS: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
UNARY: Final = (
    "abs acos asin atan ceil cos cosh digamma erf erfc erfinv exp exp2 expm1 floor frac lgamma log "
    "log10 log1p log2 logit neg reciprocal relu round rsqrt sigmoid sign sin sinh sqrt square tan "
    "tanh trunc acosh asinh atanh sinc i0 isnan isfinite signbit nan_to_num softmax_f gelu silu "
    "mish softplus elu selu celu leaky_relu hardswish hardsigmoid hardtanh logsigmoid tanhshrink "
    "softsign").split()
POSITIVE: Final = "digamma lgamma log log10 log1p log2 logit rsqrt sqrt xlogy".split()
BINARY: Final = ("add sub mul div maximum minimum atan2 pow fmod remainder hypot copysign eq lt "
                 "logaddexp floor_divide heaviside nextafter xlogy fmax").split()
INTEGER_OPERATORS: Final = ("add sub mul maximum floor_divide remainder fmod eq bitwise_and "
                            "bitwise_left_shift bitwise_xor div").split()
REDUCTIONS: Final = ("sum mean amax amin prod argmax argmin std var logsumexp all any "
                     "count_nonzero norm aminmax_f median_f").split()
SCANS: Final = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


def _function(name: str) -> Callable[..., Any]:
    special: dict[str, Callable[..., Any]] = {
        "softmax_f": lambda x: x.softmax(-1), "aminmax_f": lambda x, d: x.aminmax(dim=d),
        "median_f": lambda x, d: x.median(d)[0], "count_nonzero": torch.count_nonzero,
    }
    return special.get(name) or getattr(torch, name, None) or getattr(F, name)


def pointwise() -> Iterator[Case]:
    for dtype in FLOATS:
        x, y = _numbers(dtype, *ELEMENTS), _numbers(dtype, *ELEMENTS)
        short = str(dtype).removeprefix("torch.")
        for name in UNARY:
            yield Case(f"{name} {short}", _function(name), (_signed(x, name),))
        for name in BINARY:
            yield Case(f"{name} {short}", _function(name), (x, y))
    for dtype in INTEGERS:
        x, y = _numbers(dtype, *ELEMENTS), _numbers(dtype, *ELEMENTS) % 7 + 1
        short = str(dtype).removeprefix("torch.")
        for name in INTEGER_OPERATORS:
            yield Case(f"{name} {short}", _function(name), (x, y))
        yield Case(f"to float32 {short}", lambda x: x.float(), (x,))
        yield Case(f"from float32 {short}", lambda x, d=dtype: x.to(d), (x.float(),))
        yield Case(f"add float32 {short}", torch.add, (x, y.float()))
    yield from bools()


def bools() -> Iterator[Case]:
    x, y = torch.rand(ELEMENTS) < 0.5, torch.rand(ELEMENTS) < 0.5
    for name in "logical_and logical_or logical_xor logical_not bitwise_and eq".split():
        yield Case(f"{name} bool", _function(name), (x,) if name == "logical_not" else (x, y))
    for dtype in (*FLOATS, *INTEGERS):
        z = _numbers(dtype, *ELEMENTS)
        short = str(dtype).removeprefix("torch.")
        yield Case(f"to bool {short}", lambda z: z.bool(), (z,))
        yield Case(f"from bool {short}", lambda x, d=dtype: x.to(d), (x,))
        yield Case(f"less {short}", torch.lt, (z, z.flip(0)))
        yield Case(f"where {short}", torch.where, (x, z, z.flip(0)))


def layouts() -> Iterator[Case]:
    for n, m in ((256, 300), (1000, 64), (64, 1000)):
        x, y = torch.randn(n, m), torch.randn(m, n)
        yield Case(f"t + y {n}x{m}", lambda x, y: x.t() + y, (x, y))
        yield Case(f"t contiguous {n}x{m}", lambda x: x.t().contiguous(), (x,))
        yield Case(f"column broadcast {n}x{m}", lambda x, c: x * c, (x, torch.randn(n, 1)))
        yield Case(f"strided {n}x{m}", lambda x: x[:, ::2] + 1, (x,))
        yield Case(f"rows strided {n}x{m}", lambda x: x[::3] + 1, (x,))
        yield Case(f"half t {n}x{m}", lambda x: x.t().contiguous(), (x.half(),))
    image = torch.randn(4, 16, 32, 32)
    yield Case("permute image", lambda x: x.permute(0, 2, 3, 1).contiguous(), (image,))
    yield Case("permute back", lambda x: x.permute(0, 3, 1, 2).contiguous(), (image,))
    yield Case("permute middle", lambda x: x.permute(0, 2, 1, 3).contiguous(), (image,))
    yield Case("channels last add", lambda x, y: x + y,
               (image, image.contiguous(memory_format=torch.channels_last)))
    yield Case("to channels last", lambda x: x.contiguous(memory_format=torch.channels_last), (image,))


def reductions() -> Iterator[Case]:
    for shape in ((256, 300), (2000, 30), (30, 2000)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            x = _numbers(dtype, *shape)
            short = f"{str(dtype).removeprefix('torch.')} {shape[0]}x{shape[1]}"
            for name in REDUCTIONS:
                if dtype is torch.int64 and name in ("mean", "std", "var", "norm", "logsumexp"):
                    continue
                for dim in (0, 1):
                    body = _function(name)
                    if name == "norm":
                        yield Case(f"norm {dim} {short}", lambda x, d=dim: x.norm(dim=d), (x,))
                    else:
                        yield Case(f"{name} {dim} {short}",
                                   lambda x, f=body, d=dim: f(x, d), (x,))


def scans() -> Iterator[Case]:
    for shape in ((256, 300), (2000, 30)):
        for dtype in (torch.float32, torch.float64, torch.int64):
            x = _numbers(dtype, *shape)
            short = f"{str(dtype).removeprefix('torch.')} {shape[0]}x{shape[1]}"
            for name in SCANS:
                for dim in (0, 1):
                    if dtype is torch.int64 and name == "logcumsumexp":
                        continue
                    yield Case(f"{name} {dim} {short}",
                               lambda x, f=_function(name), d=dim: f(x, d), (x,))
        x = _numbers(torch.float32, *shape)
        yield Case(f"cumsum bool {shape}", lambda x: (x > 0.5).cumsum(1), (x,))
        yield Case(f"sort {shape}", lambda x: x.sort(1)[0], (x,))
        yield Case(f"argsort {shape}", lambda x: x.argsort(1), (x,))
        yield Case(f"topk {shape}", lambda x: x.topk(5, 1)[0], (x,))
        yield Case(f"kthvalue {shape}", lambda x: x.kthvalue(3, 1)[0], (x,))


def indexing() -> Iterator[Case]:
    for n, m in ((1000, 64), (10000, 8), (64, 1000), (60000, 1)):
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
            x, s = _numbers(dtype, n, m), _numbers(dtype, n, m)
            rows, columns = torch.randint(n, (n, m)), torch.randint(m, (n, m))
            row = torch.randint(n, (n,))
            short = f"{str(dtype).removeprefix('torch.')} {n}x{m}"
            yield Case(f"gather 0 {short}", lambda x, i: x.gather(0, i), (x, rows))
            yield Case(f"gather 1 {short}", lambda x, i: x.gather(1, i), (x, columns))
            yield Case(f"scatter 0 {short}", lambda x, i, s: x.scatter(0, i, s), (x, rows, s))
            yield Case(f"scatter 1 {short}", lambda x, i, s: x.scatter(1, i, s), (x, columns, s))
            yield Case(f"scatter_add 0 {short}", lambda x, i, s: x.scatter_add(0, i, s), (x, rows, s))
            yield Case(f"scatter_add 1 {short}", lambda x, i, s: x.scatter_add(1, i, s), (x, columns, s))
            yield Case(f"scatter_reduce 0 {short}", lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), (x, rows, s))
            yield Case(f"index_add {short}", lambda x, i, s: x.index_add(0, i, s), (x, row, s))
            yield Case(f"index_put {short}", lambda x, i, s: x.index_put((i,), s), (x, row, s))
            yield Case(f"index_put accumulate {short}", lambda x, i, s: x.index_put((i,), s, accumulate=True), (x, row, s))
            yield Case(f"rows {short}", lambda x, i: x[i], (x, row))
            yield Case(f"index_select 1 {short}", lambda x, i: x.index_select(1, i), (x, columns[0]))
            yield Case(f"take {short}", lambda x, i: x.take(i), (x, rows))
            yield Case(f"masked_fill {short}", lambda x: x.masked_fill(x > 50, 0), (x,))
            yield Case(f"where {short}", lambda x, s: torch.where(x > s, x, s), (x, s))
    words, table = torch.randint(1000, (64, 50)), torch.randn(1000, 64)
    yield Case("embedding", lambda i, t: F.embedding(i, t), (words, table))
    yield Case("one_hot", lambda i: F.one_hot(i, 1000), (words,))
    yield Case("bincount", lambda i: torch.bincount(i.flatten(), minlength=1000), (words,))
    yield Case("searchsorted", lambda s, x: torch.searchsorted(s, x), (torch.linspace(0, 1, 1000), torch.rand(10000)))


def moving() -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16, torch.int8):
        x = _numbers(dtype, 200, 320)
        short = str(dtype).removeprefix("torch.")
        for k in (2, 3, 5, 8):
            yield Case(f"cat {k} rows {short}", lambda x, k=k: torch.cat([x + i for i in range(k)]), (x,))
            yield Case(f"cat {k} columns {short}", lambda x, k=k: torch.cat([x + i for i in range(k)], 1), (x,))
            yield Case(f"cat {k} uneven {short}", lambda x, k=k: torch.cat([x[:, : 7 + 9 * i] + i for i in range(k)], 1), (x,))
            yield Case(f"cat {k} loaded {short}", lambda x, k=k: torch.cat([x] * k), (x,))
            yield Case(f"cat {k} loaded columns {short}", lambda x, k=k: torch.cat([x] * k, 1), (x,))
            yield Case(f"stack {k} first {short}", lambda x, k=k: torch.stack([x + i for i in range(k)]), (x,))
            yield Case(f"stack {k} last {short}", lambda x, k=k: torch.stack([x + i for i in range(k)], -1), (x,))
        yield Case(f"roll {short}", lambda x: x.roll(7, 1), (x,))
        yield Case(f"roll rows {short}", lambda x: x.roll(7, 0), (x,))
        yield Case(f"roll both {short}", lambda x: x.roll((7, 3), (0, 1)), (x,))
        yield Case(f"flip {short}", lambda x: x.flip(1), (x,))
        yield Case(f"flip rows {short}", lambda x: x.flip(0), (x,))
        yield Case(f"repeat {short}", lambda x: x.repeat(2, 3), (x,))
        yield Case(f"repeat_interleave {short}", lambda x: x.repeat_interleave(3, 1), (x,))
        yield Case(f"tril {short}", lambda x: x.tril(), (x,))
        yield Case(f"pad {short}", lambda x: F.pad(x, (3, 5, 2, 1)), (x,))
        yield Case(f"unfold {short}", lambda x: x.unfold(1, 5, 2).contiguous(), (x,))
        yield Case(f"diagonal {short}", lambda x: x.diagonal() + 1, (x,))
        yield Case(f"chunk {short}", lambda x: [c + 1 for c in x.chunk(4, 1)], (x,))
    for mode in ("reflect", "replicate", "circular"):
        yield Case(f"pad {mode}", lambda x, m=mode: F.pad(x, (3, 5, 2, 1), mode=m), (torch.randn(4, 8, 40, 50),))


def images() -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16):
        for channels_last in (False, True):
            x = torch.randn(2, 16, 40, 40).to(dtype)
            if channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            short = str(dtype).removeprefix("torch.") + " nhwc" * channels_last
            for mode in ("bilinear", "bicubic", "nearest", "nearest-exact"):
                for size in (80, 57, 21, 10):
                    yield Case(f"{mode} {size} {short}", lambda x, m=mode, s=size: F.interpolate(x, size=(s, s), mode=m), (x,))
            for k in (2, 3, 5):
                yield Case(f"max_pool {k} {short}", lambda x, k=k: F.max_pool2d(x, k), (x,))
                yield Case(f"max_pool {k}/1 {short}", lambda x, k=k: F.max_pool2d(x, k, 1), (x,))
                yield Case(f"avg_pool {k} {short}", lambda x, k=k: F.avg_pool2d(x, k), (x,))
                yield Case(f"avg_pool {k}/1 {short}", lambda x, k=k: F.avg_pool2d(x, k, 1), (x,))
            for size in (1, 5, 7):
                yield Case(f"adaptive_avg {size} {short}", lambda x, s=size: F.adaptive_avg_pool2d(x, s), (x,))
                yield Case(f"adaptive_max {size} {short}", lambda x, s=size: F.adaptive_max_pool2d(x, s), (x,))
            yield Case(f"batch_norm {short}", lambda x: F.batch_norm(x, None, None, training=True), (x,))
            yield Case(f"group_norm {short}", lambda x: F.group_norm(x, 4), (x,))
            yield Case(f"pixel_shuffle {short}", lambda x: F.pixel_shuffle(x, 2), (x,))
            yield Case(f"pixel_unshuffle {short}", lambda x: F.pixel_unshuffle(x, 2), (x,))
    x = torch.randn(2, 8, 300)
    yield Case("linear 600", lambda x: F.interpolate(x, size=600, mode="linear"), (x,))
    yield Case("max_pool1d", lambda x: F.max_pool1d(x, 3), (x,))
    yield Case("avg_pool1d", lambda x: F.avg_pool1d(x, 3), (x,))
    cube = torch.randn(1, 4, 12, 14, 16)
    yield Case("trilinear", lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (cube,))
    yield Case("max_pool3d", lambda x: F.max_pool3d(x, 2), (cube,))
    yield Case("avg_pool3d", lambda x: F.avg_pool3d(x, 2), (cube,))
    yield Case("grid_sample", lambda x, g: F.grid_sample(x, g, align_corners=False), (torch.randn(2, 8, 30, 30), torch.rand(2, 30, 30, 2) * 2 - 1))
    yield Case("unfold2d", lambda x: F.unfold(x, 3), (torch.randn(2, 8, 30, 30),))
    yield Case("fold2d", lambda x: F.fold(x, (30, 30), 3), (torch.randn(2, 72, 784),))


GROUPS: Final = {"pointwise": pointwise, "layouts": layouts, "reductions": reductions,
                 "scans": scans, "indexing": indexing, "moving": moving, "images": images}


def _caller(function: Callable[..., Any], args: tuple[Any, ...], train: bool) -> Callable[[], Any]:
    """A call, with gradients if `train`."""
    if not train:
        return lambda: function(*args)
    wanted = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    for argument in wanted:
        argument.requires_grad_()

    def step() -> Any:
        results = function(*args)
        results = results if isinstance(results, (list, tuple)) else [results]
        results = [r for r in results if r.requires_grad]
        ones = [torch.ones_like(r) for r in results]
        return torch.autograd.grad(results, wanted, ones, allow_unused=True)

    return step


def _least(calls: list[Callable[[], Any]], rounds: int) -> list[float]:
    """The least seconds of each call."""
    start = time.thread_time()
    calls[-1]()
    repeats = max(1, int(SAMPLE_SECONDS / max(time.thread_time() - start, 1e-6)))
    least = [float("inf")] * len(calls)
    for turn in range(rounds):
        order = range(len(calls)) if turn % 2 else reversed(range(len(calls)))
        for k in order:
            start = time.thread_time()
            for _ in range(repeats):
                calls[k]()
            least[k] = min(least[k], (time.thread_time() - start) / repeats)
    return least


def measure(case: Case, train: bool) -> tuple[float, float] | None:
    """The least seconds of weft and of eager; None if eager refuses, or has no gradients."""
    eager = _caller(case.function, case.args, train)
    try:
        eager()
    except RuntimeError:
        return None
    weft.reset()
    calls = [_caller(weft.compile(case.function), case.args, train), eager]
    for call in calls * 2:
        call()
    times = _least(calls, ROUNDS)
    if times[0] > SLOW * times[1]:
        again = _least(calls, MORE_ROUNDS)
        times = [min(a, b) for a, b in zip(times, again, strict=True)]
    return times[0], times[1]


def main() -> None:
    """Measure the groups and cases that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", default="", help="groups, separated by commas")
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--train", action="store_true", help="with gradients")
    parser.add_argument("--elements", type=int, default=ELEMENTS[0], help="of pointwise operators")
    parser.add_argument("--all", action="store_true", help="print every case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ELEMENTS[:] = [options.elements]
    count, slow = 0, 0
    wanted = tuple(options.only.split(","))
    with tempfile.TemporaryDirectory(prefix="weft-operators-") as folder:
        weft.config.cache_dir = folder
        for group in options.groups.split(",") if options.groups else GROUPS:
            for case in GROUPS[group]():
                if not case.name.startswith(wanted):
                    continue
                times = measure(case, options.train)
                if times is None:
                    continue
                ratio = times[0] / times[1]
                count, slow = count + 1, slow + (ratio > SLOW)
                if options.all or ratio > SLOW:
                    print(f"{case.name:40} {ratio:5.2f} weft {times[0] * 1e6:8.1f} us "
                          f"eager {times[1] * 1e6:8.1f} us", flush=True)
    print(f"{count} cases, {slow} above {SLOW}")


if __name__ == "__main__":
    sys.exit(main())
