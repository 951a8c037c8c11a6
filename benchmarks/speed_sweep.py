"""Speed and memory over many models that nothing was tuned for: eager, torch.compile and weft.

    python -m benchmarks.speed_sweep --device cuda --jobs 12           # inference
    python -m benchmarks.speed_sweep --device cuda --train --only timm:densenet121,hf:roberta
    python -m benchmarks.speed_sweep --compilers eager,weft            # without torch.compile
    python -m benchmarks.speed_sweep --programs --jobs 2               # operator_programs.py

Models of timm (where it is installed) and of transformers, random weights, of the sizes that their
configurations have by default, transformers with few layers; or small programs. Every case has a process of its own
and empty caches; several may compile at a time, but only the holder of a lock measures, so that
nothing else runs on the device then.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.transformers_sweep import stored

RESULT = "row: "
TIMM = (
    "densenet121", "efficientnet_b0", "mobilenetv3_large_100", "mixer_b16_224", "regnety_016",
    "vgg16_bn", "inception_v3", "hrnet_w18", "resnest26d", "dla34", "ghostnet_100",
    "coat_lite_tiny", "pit_s_224", "poolformer_s12", "levit_128", "tnt_s_patch16_224",
    "twins_pcpvt_small", "cait_xxs24_224", "swin_tiny_patch4_window7_224",
    "beit_base_patch16_224", "repvgg_a2", "res2net50_14w_8s", "botnet26t_256", "mobilevit_s",
    "volo_d1_224", "xcit_nano_12_p16_224", "gernet_m", "convmixer_768_32", "nfnet_l0",
    "cspdarknet53", "dpn68", "visformer_small", "gmlp_s16_224", "crossvit_9_240",
)
HUGGING_FACE = (
    "albert", "bart", "bert", "camembert", "convbert", "deberta-v2", "distilbert", "electra",
    "fnet", "gemma", "gpt_neox", "layoutlm", "m2m_100", "mamba", "mistral", "mixtral",
    "mobilebert", "mpnet", "opt", "pegasus", "phi", "qwen2", "roberta", "squeezebert", "t5",
    "xglm", "xlnet", "dinov2", "segformer", "wav2vec2",
)
LAYERS = 4
GPU_SCALE = 16  # of programs
BATCH, TOKENS, IMAGES = 8, 256, 16


@dataclass(frozen=True)
class Case:
    """A module and the keyword arguments of its call."""

    model: Any
    kwargs: dict[str, Any]


def build(name: str, device: str, train: bool) -> Case:
    """The case of a name such as `timm:dla34`, `hf:bert` or `program:rotary`.

    In bfloat16 on a GPU. Floating-point arguments of programs need gradients to train."""
    import torch

    torch.manual_seed(0)
    source, _, kind = name.partition(":")
    makers = {"timm": _timm, "hf": _hugging_face, "program": _program}
    model, kwargs = makers[source](kind, device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    moved = {k: v.to(device, dtype if v.is_floating_point() else None) for k, v in kwargs.items()}
    if train and source == "program":
        moved = {k: v.requires_grad_(v.is_floating_point()) for k, v in moved.items()}
    return Case(model.to(device, dtype), moved)


def _program(name: str, device: str) -> tuple[Any, dict[str, Any]]:
    from torch import nn

    from benchmarks.operator_programs import PROGRAMS

    function, make = PROGRAMS[name]

    class Program(nn.Module):
        def forward(self, **kwargs: Any) -> Any:
            return function(*kwargs.values())

    arguments = make(GPU_SCALE if device == "cuda" else 1)
    return Program(), {f"x{i}": argument for i, argument in enumerate(arguments)}


def _timm(kind: str, device: str) -> tuple[Any, dict[str, Any]]:
    import timm
    import torch

    model = timm.create_model(kind)
    size = model.default_cfg.get("input_size", (3, 224, 224))
    return model, {"x": torch.randn(2 * IMAGES, *size)}


def _hugging_face(kind: str, device: str) -> tuple[Any, dict[str, Any]]:
    import torch
    import transformers

    config = transformers.CONFIG_MAPPING[kind]()
    for field in ("num_hidden_layers", "num_layers", "encoder_layers", "decoder_layers",
                  "num_decoder_layers", "n_layer"):
        if isinstance(getattr(config, field, None), int):
            setattr(config, field, LAYERS)
    if kind == "mixtral":
        config.hidden_size, config.intermediate_size = 1024, 2048
    config.use_cache = False
    model = transformers.AutoModel.from_config(config)
    if model.main_input_name == "pixel_values":
        side = getattr(config, "image_size", 224)
        return model, {"pixel_values": torch.randn(IMAGES, 3, side, side)}
    if model.main_input_name == "input_values":
        return model, {"input_values": torch.randn(BATCH, 32000)}
    tokens = torch.randint(5, min(config.vocab_size, 30000), (BATCH, TOKENS))
    decoder = {"decoder_input_ids": tokens.clone()} if config.is_encoder_decoder else {}
    return model, {"input_ids": tokens, **decoder}


# -- one case ------------------------------------------------------------------------------------


def calls_of(case: Case, names: list[str], train: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each compiler's step, built when it is asked for."""
    import torch

    from benchmarks.worker import COMPILERS
    from weft.diagnostics.accuracy import tensors

    case.model.train(train)

    def step(fn: Callable[..., Any]) -> Any:
        if not train:
            with torch.no_grad():
                return fn(**case.kwargs)
        for p in (*case.model.parameters(), *case.kwargs.values()):
            p.grad = None
        found = next(t for t in tensors(fn(**case.kwargs)) if t.requires_grad)
        found.float().square().mean().backward()
        return found

    for name in names:
        fn = COMPILERS[name](case.model, None)
        yield name, lambda fn=fn: step(fn)


def examine(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """First calls, then, alone on the device, milliseconds and peak memory of each compiler."""
    import torch
    from filelock import FileLock

    import weft
    from weft.diagnostics.memory import peak_memory
    from weft.diagnostics.timing import interleaved, ratio, waiter

    device: str = arguments.device
    case, wait = build(name, device, arguments.train), waiter(device)
    calls, first = {}, {}
    for compiler, call in calls_of(case, arguments.compilers.split(","), arguments.train):
        start = time.perf_counter()
        call()
        wait()
        first[compiler] = round(time.perf_counter() - start, 2)
        calls[compiler] = call
        if device == "cuda":
            torch.cuda.empty_cache()
    with FileLock(arguments.lock):
        times = interleaved(calls, device=device, rounds=arguments.rounds, budget_seconds=3)
        memory = {c: peak_memory(call, device) for c, call in calls.items()}
    return {
        "first": first,
        "ms": {c: round(1000 * t.median, 3) for c, t in times.items()},
        "weft / eager": round(ratio(times, "weft", "eager"), 3),
        "weft / torch": round(ratio(times, "weft", "torch"), 3) if "torch" in times else None,
        "MiB": {c: round(m / 2**20, 1) for c, m in memory.items()},
        "graphs": weft.stats()["graphs"], "breaks": weft.stats()["graph_breaks"],
    }


def worker(arguments: argparse.Namespace) -> None:
    """Examine the one case of `--only` and print its row."""
    warnings.simplefilter("ignore")
    try:
        row = examine(arguments.only, arguments)
    except Exception as error:  # a model that does not build or run is a row
        row = {"error": f"{type(error).__name__}: {error}"[:300]}
    print(RESULT + json.dumps({"name": arguments.only, **row}), flush=True)


# -- the coordinator -----------------------------------------------------------------------------


def sweep(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each case."""
    names = [f"hf:{kind}" for kind in HUGGING_FACE] + [f"timm:{kind}" for kind in TIMM]
    if arguments.only:
        names = arguments.only.split(",")
    elif arguments.programs:
        from benchmarks.operator_programs import PROGRAMS

        names = [f"program:{name}" for name in PROGRAMS]
    with tempfile.TemporaryDirectory() as folder:
        arguments.lock = str(Path(folder) / "measuring")
        with ThreadPoolExecutor(arguments.jobs) as pool:
            return list(pool.map(lambda name: run_case(name, arguments, Path(folder)), names))


def run_case(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The row of a case, from a process with empty caches."""
    environment = dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS="1")
    for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "WEFT_CACHE_DIR"):
        environment[variable] = str(folder / f"{variable}-{name}")
    command = [sys.executable, "-m", "benchmarks.speed_sweep", "--worker", "--only", name,
               "--device", arguments.device, "--compilers", arguments.compilers, "--lock",
               arguments.lock, "--rounds", str(arguments.rounds)]
    command += ["--train"] * arguments.train
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True,
                              timeout=arguments.timeout, check=False)
        found = [x for x in done.stdout.splitlines() if x.startswith(RESULT)]
        row = json.loads(found[-1].removeprefix(RESULT)) if found else {
            "name": name, "error": f"exit {done.returncode}: {done.stderr[-200:]}"}
    except subprocess.TimeoutExpired:
        row = {"name": name, "error": f"no result in {arguments.timeout:.0f} s"}
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """All rows as Markdown, with geometric means."""
    names = ["case", "eager ms", "torch ms", "weft ms", "weft / eager", "weft / torch",
             "first torch s", "first weft s", "MiB eager", "MiB torch", "MiB weft", "graphs"]
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    good = [row for row in rows if "ms" in row]
    for row in good:
        cells: list[Any] = [row["ms"].get(c, "") for c in ("eager", "torch", "weft")]
        cells += [row["weft / eager"], row["weft / torch"] or ""]
        cells += [row["first"].get(c, "") for c in ("torch", "weft")]
        cells += [row["MiB"].get(c, "") for c in ("eager", "torch", "weft")]
        lines.append("| " + " | ".join(map(str, [row["name"], *cells, row["graphs"]])) + " |")
    for key in ("weft / eager", "weft / torch"):
        found = [row[key] for row in good if row[key]]
        if found:
            mean = f"{geometric_mean(found):.2f} of {len(found)}"
            lines.append(f"\n{key}: geometric mean {mean}, largest {max(found):.2f}")
    lines += [f"{row['name']}: {row['error']}" for row in rows if "error" in row]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--compilers", default="eager,torch,weft")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--programs", action="store_true", help="small programs, not models")
    parser.add_argument("--only", help="comma-separated: hf:TYPE, timm:NAME, program:NAME")
    parser.add_argument("--jobs", type=int, default=1, help="processes that may compile at a time")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one case")
    parser.add_argument("--rows", type=Path, nargs="*", default=[],
                        help="rows of earlier runs (their stderr), in place of a run")
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker(arguments)
    else:
        print(table(stored(arguments.rows) or sweep(arguments)))


if __name__ == "__main__":
    main()
