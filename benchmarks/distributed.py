"""Training steps over two processes: eager, torch.compile and weft.

    python -m benchmarks.distributed --device cuda            # NCCL, two GPUs
    python -m benchmarks.distributed --device cpu             # Gloo

A transformer in the ways that people wrap it (docs/using/distributed.md). Each row: the largest
difference of a loss to eager's over a few AdamW steps of a small model; graphs, breaks, and graphs
that were compiled after the second step; and for a larger model (on GPUs in bfloat16) the seconds
of the first step, the median milliseconds of a step, measured in turns with the other compilers,
and on GPUs the peak of allocated memory of the first process.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.multiprocessing as mp
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
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
LARGE = {
    "cuda": Size(1024, 16, 6, 8, 512, torch.bfloat16),
    "cpu": Size(128, 4, 3, 4, 64, torch.float32),
}


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


def _sharded(model: Any) -> Any:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def _sharded_around_compiled(model: Any, compiled: Compile) -> Any:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(compiled(block))
    return fully_shard(model)


def _compiled_around_sharded(model: Any, compiled: Compile) -> Any:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = compiled(fully_shard(block))
    return fully_shard(model)


def _tensor_parallel(model: Any) -> Any:
    mesh = init_device_mesh(next(model.parameters()).device.type, (PROCESSES,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


WAYS: dict[str, Callable[[nn.Module, Compile], nn.Module]] = {
    "tensor parallel": lambda model, compiled: compiled(_tensor_parallel(model)),
    "DDP(compiled)": lambda model, compiled: _data_parallel(compiled(model)),
    "compiled(DDP)": lambda model, compiled: compiled(_data_parallel(model)),
    "compiled(FSDP2)": lambda model, compiled: compiled(_sharded(model)),
    "FSDP2 of compiled blocks": _sharded_around_compiled,
    "compiled blocks of FSDP2": _compiled_around_sharded,
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


def counts(compiler: str) -> tuple[int, int]:
    """How many graphs were compiled so far, and how often one broke."""
    if compiler == "weft":
        stats = weft.stats()
        return stats["graphs"], stats["graph_breaks"]
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def checked(way: str, compiler: str, options: argparse.Namespace, device: str, eager: list[float]
            ) -> list[str]:
    """Difference of the losses of a small model, graphs, breaks, late graphs; fills `eager` with
    the losses that others are compared with."""
    step = training(way, compiler, SMALL, device)
    losses = [step() for _ in range(2)]
    early = counts(compiler)[0]
    losses += [step() for _ in range(options.steps - 2)]
    eager += [] if eager else losses
    difference = max(abs(a - b) for a, b in zip(losses, eager, strict=True))
    graphs, breaks = counts(compiler)
    return [f"{difference:.1e}", str(graphs), str(breaks), str(graphs - early)]


def forget() -> None:
    """Drop all compiled code and statistics."""
    weft.reset()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    gc.collect()


def synchronize(device: str) -> None:
    """Wait for the GPU and for the other process."""
    if device != "cpu":
        torch.cuda.synchronize()
    dist.barrier()


def seconds(step: Callable[[], float], device: str) -> float:
    """Of one step."""
    synchronize(device)
    start = time.perf_counter()
    step()  # waits for the loss
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


@dataclass
class Measured:
    """A larger model with one compiler."""

    step: Callable[[], float]
    first: float
    peak: str


def prepared(way: str, compiler: str, device: str) -> Measured:
    """The larger model after some steps; its peak is counted from what there was before."""
    before = torch.cuda.memory_allocated() if device != "cpu" else 0
    step = training(way, compiler, LARGE["cpu" if device == "cpu" else "cuda"], device)
    first = seconds(step, device)
    for _ in range(4):
        step()
    if device == "cpu":
        return Measured(step, first, "")
    torch.cuda.reset_peak_memory_stats()
    step()
    return Measured(step, first, f"{(torch.cuda.max_memory_allocated() - before) / 2**20:.0f}")


def measured(way: str, compilers: list[str], device: str, rounds: int) -> list[list[str]]:
    """For each compiler seconds of the first step, median milliseconds of a step, peak MiB."""
    models = [prepared(way, compiler, device) for compiler in compilers]
    times: list[list[float]] = [[] for _ in models]
    for _ in range(rounds):
        for own, model in zip(times, models, strict=True):
            own.append(seconds(model.step, device))
    return [[f"{model.first:.1f}", f"{1000 * statistics.median(own):.2f}", model.peak]
            for own, model in zip(times, models, strict=True)]


def work(rank: int, store: str, options: argparse.Namespace) -> None:
    """All rows, in one of the processes; the first one prints."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    device = "cpu" if options.device == "cpu" else f"cuda:{rank}"
    if device != "cpu":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo",
                            init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    table = Table("training", "compiler", "largest difference", "graphs", "breaks", "late graphs",
                  "first s", "step ms", "peak MiB", box=None)
    compilers = options.compilers.split(",")
    for way in options.ways.split(","):
        eager: list[float] = []
        rows = []
        for compiler in compilers:
            forget()
            rows.append([way, compiler, *checked(way, compiler, options, device, eager)])
        forget()
        for row, cells in zip(rows, measured(way, compilers, device, options.rounds), strict=True):
            table.add_row(*row, *cells)
        dist.barrier()
    if rank == 0:
        Console(width=130).print(table)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--compilers", default="eager,torch,weft", help="the first: eager")
    parser.add_argument("--steps", type=int, default=4, help="of the small model")
    parser.add_argument("--rounds", type=int, default=20, help="of the larger models")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (f"{folder}/store", options), nprocs=PROCESSES)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
