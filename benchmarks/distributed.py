"""Training steps over two processes: eager, torch.compile and weft.

    python -m benchmarks.distributed --device cuda            # NCCL, two GPUs: times and memory
    python -m benchmarks.distributed --device cpu --steps 4   # Gloo: results only

A transformer under DistributedDataParallel (around the compiled model, or compiled itself), FSDP2
and tensor parallelism. Each row: the largest difference of the loss to eager's over a few AdamW
steps of a small model; on GPUs then, for a larger one in bfloat16, the seconds of the first step,
the median milliseconds of a step and the peak of allocated memory of the first process.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F

import weft
from benchmarks.worker import COMPILERS

PROCESSES = 2
VOCABULARY = 100
Compile = Callable[[nn.Module], nn.Module]


@dataclass(frozen=True)
class Size:
    """Sizes of the transformer and its batch."""

    width: int
    heads: int
    layers: int
    batch: int
    length: int
    dtype: torch.dtype


SMALL = Size(64, 4, 3, 4, 32, torch.float32)
LARGE = Size(1024, 16, 6, 8, 512, torch.bfloat16)


class Block(nn.Module):
    """Causal self-attention and a perceptron, each behind a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden = F.gelu(self.up(self.norm2(x)))
        return x + self.down(hidden)  # type: ignore[no-any-return]


class LanguageModel(nn.Module):
    """Embedding, blocks, head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, size.width)
        self.blocks = nn.ModuleList(Block(size.width, size.heads) for _ in range(size.layers))
        self.head = nn.Linear(size.width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


# -- ways to distribute ----------------------------------------------------------------------------


def _data_parallel(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _sharded(model: Any) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def _tensor_parallel(model: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(next(model.parameters()).device.type, (PROCESSES,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model  # type: ignore[no-any-return]


WAYS: dict[str, Callable[[nn.Module, Compile], nn.Module]] = {
    "tensor parallel": lambda model, compiled: compiled(_tensor_parallel(model)),
    "DDP(compiled)": lambda model, compiled: _data_parallel(compiled(model)),
    "compiled(DDP)": lambda model, compiled: compiled(_data_parallel(model)),
    "FSDP2": lambda model, compiled: compiled(_sharded(model)),
}


# -- one process -----------------------------------------------------------------------------------


def training(way: str, compiler: str, size: Size, device: str) -> Callable[[], float]:
    """A function that takes one step and returns the loss."""
    torch.manual_seed(0)
    model = LanguageModel(size).to(device, size.dtype)
    model = WAYS[way](model, lambda m: COMPILERS[compiler](m, None))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    seed = 0 if way == "tensor parallel" else dist.get_rank()
    tokens = torch.randint(
        VOCABULARY, (size.batch, size.length + 1), generator=torch.Generator().manual_seed(seed)
    ).to(device)

    def step() -> float:
        predicted = model(tokens[:, :-1]).flatten(0, 1).float()
        loss = F.cross_entropy(predicted, tokens[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def measured(step: Callable[[], float]) -> list[str]:
    """Seconds of the first step, median milliseconds of a step, peak MiB."""
    start = time.perf_counter()
    step()
    first = time.perf_counter() - start
    for _ in range(5):
        step()
    torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        step()  # waits for the loss
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**20
    return [f"{first:.1f}", f"{1000 * statistics.median(times):.2f}", f"{peak:.0f}"]


def row(way: str, compiler: str, options: argparse.Namespace, eager: list[float]) -> list[str]:
    """The cells of one table row; fills `eager` with the losses that others are compared with."""
    weft.reset()
    torch._dynamo.reset()
    device = torch.device(options.device, dist.get_rank() if options.device == "cuda" else None)
    step = training(way, compiler, SMALL, str(device))
    losses = [step() for _ in range(options.steps)]
    eager += [] if eager else losses
    difference = max(abs(a - b) for a, b in zip(losses, eager, strict=True))
    cells = [way, compiler, f"{difference:.1e}"]
    if options.device == "cuda":
        cells += measured(training(way, compiler, LARGE, str(device)))
    return cells


def work(rank: int, store: str, options: argparse.Namespace) -> None:
    """All rows, in one of the processes; the first one prints."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo",
                            init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    table = Table("training", "compiler", "largest difference", "first s", "step ms", "peak MiB",
                  box=None)
    for way in options.ways.split(","):
        eager: list[float] = []
        for compiler in options.compilers.split(","):
            table.add_row(*row(way, compiler, options, eager))
            dist.barrier()
    if rank == 0:
        Console(width=110).print(table)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--compilers", default="eager,torch,weft", help="the first: eager")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (f"{folder}/store", options), nprocs=PROCESSES)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
