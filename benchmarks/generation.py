"""`model.generate` of small transformers models with the forward compiled, compared with eager.

    python -m benchmarks.generation                                # all, backend "eager"
    python -m benchmarks.generation --only gpt2,t5 --backend inductor
    python -m benchmarks.generation --peer                         # torch.compile's graph counts

Each model makes 20 tokens, greedily, by sampling from a fixed seed and by beams, with a cache that
grows and with one of a fixed size. A line for each: whether the tokens are eager's, graphs, breaks,
recompiles, and processor seconds of the call, compilation included.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import time
import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch

from benchmarks.small_models import shrunk_config

DECODERS: Final = (
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "phi3", "gpt_neox", "opt",
    "bloom", "falcon", "mixtral", "qwen3_moe", "mamba", "olmo2", "granite", "cohere2", "starcoder2",
    "gpt_oss", "qwen3_next", "lfm2", "falcon_h1", "glm4_moe", "xlnet",
)
ENCODER_DECODERS: Final = ("t5", "mt5", "bart", "marian", "pegasus", "m2m_100", "blenderbot", "led")
NEW_TOKENS: Final = 20


def main() -> None:
    """Print a table of all models and ways to generate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default=",".join(DECODERS + ENCODER_DECODERS))
    parser.add_argument("--backend", default="eager")
    parser.add_argument("--peer", action="store_true", help="torch.compile in place of weft")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    print("| model | way | tokens | graphs | breaks | recompiles | seconds |\n|---|---|---|---|---|---|---|")
    for name in arguments.only.split(","):
        model, prompt = small_model(name)
        for way, settings in ways():
            row = (name, way, *compared(model, prompt, settings, arguments))
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


def small_model(name: str) -> tuple[Any, torch.Tensor]:
    """A model of that type with a head for words, and two texts of 9 tokens."""
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    torch.manual_seed(0)
    kind: Any = AutoModelForSeq2SeqLM if name in ENCODER_DECODERS else AutoModelForCausalLM
    model = kind.from_config(shrunk_config(name)).eval()
    if name in ENCODER_DECODERS:
        model.generation_config.decoder_start_token_id = 0
    return model, torch.randint(5, 200, (2, 9))


def ways() -> Iterator[tuple[str, dict[str, Any]]]:
    """Ways to generate, by name."""
    every = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "pad_token_id": 0}
    drawn = {"do_sample": True, "top_k": 20, "temperature": 0.8}
    fixed = {"cache_implementation": "static", "disable_compile": True}
    for name, more in (("greedy", {"do_sample": False}), ("sampled", drawn)):
        yield name, {**every, **more}
        yield f"{name}, static cache", {**every, **more, **fixed}
    yield "beams", {**every, "num_beams": 3}


def compared(
    model: Any, prompt: torch.Tensor, settings: dict[str, Any], arguments: argparse.Namespace
) -> tuple[Any, ...]:
    """Whether the tokens are eager's, the counts, and the processor time."""
    wanted = _generated(copy.deepcopy(model), prompt, settings)
    fresh = copy.deepcopy(model)
    start = time.process_time()
    fresh.forward, counts = _compiled(fresh.forward, arguments)
    found = _generated(fresh, prompt, settings)
    seconds = time.process_time() - start
    verdict = "eager's" if torch.equal(found, wanted) else "OTHERS"
    return verdict, *counts(), round(seconds, 2)


def _generated(model: Any, prompt: torch.Tensor, settings: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(3)
    return model.generate(prompt, **settings)  # type: ignore[no-any-return]


def _compiled(forward: Any, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """The compiled forward, and what counts its graphs, breaks and recompiles."""
    if arguments.peer:
        import torch._dynamo as dynamo

        dynamo.reset()
        dynamo.utils.counters.clear()
        counters = dynamo.utils.counters
        return torch.compile(forward, backend=arguments.backend), lambda: (
            counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()), "")
    import weft

    weft.reset()
    weft.config.strict = True
    return weft.compile(forward, backend=arguments.backend), lambda: tuple(
        weft.stats()[key] for key in ("graphs", "graph_breaks", "recompiles"))


if __name__ == "__main__":
    main()
