"""Sweep: every model type of transformers that builds from a small config, captured and compared.

Place in the pipeline: a benchmark of capture (`backend="eager"`, inference). Each model type runs
in a worker process with a time limit; one line each, then the table of break reasons::

    python benchmarks/sweep_transformers.py --jobs 1 --out sweep.json bert gpt2
    python benchmarks/sweep_transformers.py --peer         # torch.compile's counts beside ours
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {
    "hidden_size": 64, "d_model": 64, "n_embd": 64, "dim": 64, "embed_dim": 64, "emb_dim": 64,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2,
    "decoder_layers": 2, "num_encoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "d_ff": 128, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "n_inner": 128, "ffn_dim": 128, "hidden_dim": 128, "vocab_size": 1000, "head_dim": 16,
    "d_kv": 16, "image_size": 32, "patch_size": 8, "max_position_embeddings": 128,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 64, "projection_dim": 64,
}


_HEADS = ("head_dim", "num_key_value_heads", "num_attention_heads", "hidden_size",
          "moe_intermediate_size")
VARIANTS: list[dict[str, Any]] = [
    SMALL,
    {k: v for k, v in SMALL.items() if k != "head_dim"},
    {k: v for k, v in SMALL.items() if k not in _HEADS},
    {**SMALL, "num_hidden_layers": 6},
    {k: v for k, v in SMALL.items() if "layer" in k or k == "vocab_size"},
    {},
]
"""Tried in turn until a model builds and runs."""


def shrink(config: Any, sizes: dict[str, Any], depth: int = 0) -> None:
    """Makes a config's model small, in place, where the attribute is a plain number."""
    for name, value in sizes.items():
        old = getattr(config, name, None)
        if isinstance(old, int) and not isinstance(old, bool) and old > value:
            try:
                setattr(config, name, value)
            except Exception:
                continue
    for value in list(vars(config).values()):
        if depth < 3 and hasattr(value, "to_dict") and hasattr(value, "model_type"):
            shrink(value, sizes, depth + 1)
    rope = getattr(config, "pad_token_id", None)
    if isinstance(rope, int) and rope >= getattr(config, "vocab_size", 1 << 30):
        config.pad_token_id = 0


def inputs_of(model: Any, config: Any) -> list[dict[str, Any]]:
    """Candidate inputs, most likely first."""
    import torch

    ids = torch.randint(3, 90, (2, 12))
    size = getattr(config, "image_size", None) or 32
    size = size if isinstance(size, int) else 32
    channels = getattr(config, "num_channels", 3)
    image = torch.randn(2, channels if isinstance(channels, int) else 3, size, size)
    mels = getattr(config, "num_mel_bins", 80)
    text = {"input_ids": ids}
    both = {"input_ids": ids, "pixel_values": image}
    encoder_decoder = {"input_ids": ids, "decoder_input_ids": ids}
    return [
        text, {"pixel_values": image}, encoder_decoder, both,
        {"input_values": torch.randn(2, 4000)},
        {"input_features": torch.randn(2, mels if isinstance(mels, int) else 80, 3000),
         "decoder_input_ids": ids},
        {"input_features": torch.randn(2, 64, mels if isinstance(mels, int) else 80)},
        {"inputs_embeds": torch.randn(2, 12, 64)},
        {"pixel_values": torch.randn(2, 3, 64, 64)},
        {"pixel_values": torch.randn(2, 3, 224, 224)},
        {"pixel_values": torch.randn(2, 4, 3, 32, 32)},
        {"past_values": torch.randn(2, 512, 1)},
    ]


def first_working(model: Any, config: Any) -> dict[str, Any]:
    """The first candidate that the model accepts."""
    error: Exception | None = None
    for inputs in inputs_of(model, config):
        try:
            model(**inputs)
            return inputs
        except Exception as failure:
            error = error or failure
    raise RuntimeError(f"no input found: {type(error).__name__}: {error}")


def same(a: Any, b: Any) -> bool:
    """Whether two outputs agree."""
    import torch

    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype and bool(
            torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dict__") and not isinstance(a, type):
        return type(a) is type(b) and same(vars(a), vars(b))
    return type(a) is type(b)


def build(kind: str) -> tuple[Any, dict[str, Any]]:
    """A small model of the type with random weights, and inputs that it accepts."""
    import torch

    error: Exception | None = None
    for sizes in VARIANTS:
        try:
            model, config = build_sized(kind, sizes)
            with torch.no_grad():
                return model, first_working(model, config)
        except Exception as failure:
            error = error or failure
    assert error is not None
    raise error


def build_sized(kind: str, sizes: dict[str, Any]) -> tuple[Any, Any]:
    """A model of the type whose config's numbers are at most `sizes`."""
    import torch
    from transformers import AutoModel
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind]()
    shrink(config, sizes)
    size = sum(p for p in (getattr(config, "num_hidden_layers", 0) or 0,))
    if size > 16:
        raise RuntimeError("does not become small")
    with torch.device("meta"):
        parameters = sum(p.numel() for p in AutoModel.from_config(config).parameters())
    if parameters > 60_000_000:
        raise RuntimeError(f"does not become small: {parameters} parameters")
    return AutoModel.from_config(config).eval(), config


def run_one(kind: str, peer: bool) -> dict[str, Any]:
    """Builds, runs eagerly, captures, compares."""
    import torch

    import weft
    from weft.diagnostics import events

    row: dict[str, Any] = {"type": kind, "status": "?"}
    try:
        model, inputs = build(kind)
        with torch.no_grad():
            torch.manual_seed(1)
            expected = model(**inputs)
    except Exception as error:
        return {**row, "status": "unbuilt", "error": f"{type(error).__name__}: {error}"[:200]}
    weft.reset()
    try:
        with torch.no_grad(), weft.config.patch(strict=True), events.collect() as seen:
            compiled = weft.compile(model, backend="eager")
            start = time.perf_counter()
            torch.manual_seed(1)
            first = compiled(**inputs)
            row["seconds"] = round(time.perf_counter() - start, 2)
            torch.manual_seed(1)
            second = compiled(**inputs)
    except Exception as error:
        where = traceback.format_exc().splitlines()[-7:]
        return {**row, "status": "raised", "error": f"{type(error).__name__}: {error}"[:300],
                "where": where}
    stats = weft.stats()
    row.update(graphs=stats["graphs"], breaks=stats["graph_breaks"], fallbacks=stats["fallbacks"])
    row["reasons"] = [f"{e.id}: {e.reason.split(' (')[0]} @ {e.stack[-1] if e.stack else ''}"
                      for e in seen if e.kind == "graph_break"]
    right = same(expected, first) and same(expected, second)
    row["status"] = "wrong" if not right else "whole" if stats["graphs"] == 1 and not stats[
        "graph_breaks"] else "pieces"
    if peer:
        row["peer"] = peer_counts(model, inputs)
    return row


def peer_counts(model: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    """torch.compile's graph and break counts on the same model (the peer; never part of weft)."""
    import torch
    import torch._dynamo as dynamo

    dynamo.reset()
    dynamo.utils.counters.clear()
    try:
        with torch.no_grad():
            torch.compile(model, backend="eager")(**inputs)
    except Exception as error:
        return {"error": f"{type(error).__name__}"[:100]}
    counters = dynamo.utils.counters
    return {"graphs": counters["stats"]["unique_graphs"],
            "breaks": sum(counters["graph_break"].values())}


def worker(kinds: list[str], peer: bool, queue: Any) -> None:
    """Runs model types one after the other in this process."""
    import torch

    torch.set_num_threads(1)
    for kind in kinds:
        queue.put(("start", kind))
        queue.put(("row", run_one(kind, peer)))
    queue.put(("end", None))


def sweep(kinds: list[str], peer: bool, limit: float) -> list[dict[str, Any]]:
    """All types, restarting the worker after a crash or a time-out."""
    rows: list[dict[str, Any]] = []
    rest = list(kinds)
    context = multiprocessing.get_context("spawn")
    while rest:
        queue = context.Queue()
        process = context.Process(target=worker, args=(rest, peer, queue), daemon=True)
        process.start()
        current = None
        while True:
            try:
                what, payload = queue.get(timeout=limit)
            except Exception:
                what, payload = "dead", None
            if what == "start":
                current = payload
            elif what == "row":
                rows.append(payload)
                rest.remove(payload["type"])
                show(payload)
            else:
                break
        if what == "dead":
            process.kill()
            rows.append({"type": current, "status": "time-out"})
            show(rows[-1])
            if current in rest:
                rest.remove(current)
        else:
            break
    return rows


def show(row: dict[str, Any]) -> None:
    """One line."""
    detail = row.get("error") or "; ".join(row.get("reasons", ())[:2])
    peer = f" peer={row['peer']}" if "peer" in row else ""
    print(f"{row['type']:32s} {row['status']:9s} graphs={row.get('graphs', '-')} "
          f"breaks={row.get('breaks', '-')} {row.get('seconds', '')}{peer} {detail}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--out", default="")
    parser.add_argument("--limit", type=float, default=90)
    parser.add_argument("--stride", default="0/1", help="i/n: every n-th type from the i-th")
    options = parser.parse_args()
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    first, step = map(int, options.stride.split("/"))
    kinds = options.kinds or sorted(MODEL_MAPPING_NAMES)[first::step]
    rows = sweep(kinds, options.peer, options.limit)
    if options.out:
        Path(options.out).write_text(json.dumps(rows, indent=1))
    print(Counter(row["status"] for row in rows))
    for reason, n in Counter(r for row in rows for r in row.get("reasons", ())).most_common(40):
        print(f"{n:4d}  {reason}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    main()
