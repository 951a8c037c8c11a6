"""What one fake operator costs, over the operators of a BERT layer.

    python -m benchmarks.fake_operators

Columns: microseconds with PyTorch's fake mode on static sizes, with weft's on static and on
symbolic sizes, and with PyTorch's own engine of symbolic sizes; then, for each of the two, symbolic
against static sizes. Every operator has run before (a model repeats its operators), so remembered
results count. Times are this thread's, the least of several rounds, the modes in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake_mode import MemoFakeMode

Case = Callable[[], Any]


def cases(mode: FakeTensorMode, b: Any, s: Any) -> dict[str, Case]:
    """The operators of one layer on fakes of batch ``b`` and length ``s``."""

    def fake(size: tuple[Any, ...], dtype: torch.dtype = torch.float32) -> FakeTensor:
        meta = torch.empty(size, dtype=dtype, device="meta")
        return FakeTensor(mode, meta, torch.device("cpu"))

    x, h, w, g = fake((b, s, 768)), fake((b, s, 3072)), fake((768, 768)), fake((768,))
    ids, table, mask = fake((b, s), torch.int64), fake((1000, 768)), fake((b, 1, 1, s))
    q = fake((b, s, 768)).view(b, s, 12, 64).transpose(1, 2)
    return {
        "embedding": lambda: F.embedding(ids, table),
        "add": lambda: x + x,
        "layer_norm": lambda: F.layer_norm(x, (768,), g, g),
        "linear": lambda: F.linear(x, w, g),
        "view": lambda: x.view(b, s, 12, 64),
        "transpose": lambda: x.transpose(1, 2),
        "contiguous": lambda: q.transpose(1, 2).contiguous(),
        "reshape": lambda: q.transpose(1, 2).reshape(b, s, 768),
        "matmul": lambda: torch.matmul(q, q.transpose(-1, -2)),
        "softmax": lambda: torch.softmax(x, -1),
        "attention": lambda: F.scaled_dot_product_attention(q, q, q),
        "gelu": lambda: F.gelu(h),
        "tanh": lambda: torch.tanh(x),
        "dropout": lambda: F.dropout(x, 0.1),
        "first token": lambda: x[:, 0],
        "scale": lambda: x * 0.125,
        "mask": lambda: (1.0 - mask) * -1000.0,
        "arange": lambda: torch.arange(s),
    }


def configurations() -> dict[str, tuple[FakeTensorMode, Any, Any]]:
    """Name → mode, batch, length."""
    ours, env = ShapeContext(), ShapeEnv()

    def theirs(value: int, name: str) -> Any:
        source = ConstantSource(name)
        return env.create_unspecified_symint_and_symbol(value, source, DimDynamic.DYNAMIC)

    symbolic = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
    return {
        "torch": (FakeTensorMode(allow_non_fake_inputs=True), 8, 128),
        "weft": (MemoFakeMode(), 8, 128),
        "weft sym": (MemoFakeMode(), ours.size(8, "b"), ours.size(128, "s")),
        "torch sym": (symbolic, theirs(8, "b"), theirs(128, "s")),
    }


def microseconds(run: Case, mode: FakeTensorMode, calls: int = 30) -> float:
    with mode:
        run()
        start = time.thread_time()
        for _ in range(calls):
            run()
        return (time.thread_time() - start) / calls * 1e6


def main() -> None:
    made = configurations()
    tables = {}
    for name, (mode, b, s) in made.items():
        with mode:
            tables[name] = cases(mode, b, s)
    print(f"{'operator':12s}" + "".join(f"{name:>11s}" for name in made) + "   symbolic / static")
    ratios: list[tuple[float, float]] = []
    for operator in tables["torch"]:
        rounds = [
            [microseconds(tables[name][operator], mode) for name, (mode, _, _) in made.items()]
            for _ in range(6)
        ]
        torch_static, static, symbolic, torch_symbolic = map(min, zip(*rounds, strict=True))
        ratios.append((symbolic / static, torch_symbolic / torch_static))
        times = (torch_static, static, symbolic, torch_symbolic)
        cells = "".join(f"{value:11.1f}" for value in times)
        print(f"{operator:12s}{cells}   weft {ratios[-1][0]:5.2f}  torch {ratios[-1][1]:5.2f}")
    ours, theirs = (statistics.mean(column) for column in zip(*ratios, strict=True))
    print(f"mean of the ratios: weft {ours:.2f}, torch {theirs:.2f}")


if __name__ == "__main__":
    main()
