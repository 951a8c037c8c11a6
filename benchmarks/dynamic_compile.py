"""``python -m benchmarks.dynamic_compile [--rounds 5]``: what symbolic sizes cost at compile time.

First calls of BERT (12 layers) compiled static and with ``dynamic=True``, in fresh processes that
take turns: median processor seconds of the process, C++ compilers (as long for both) aside.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

KINDS = ("static", "dynamic")


def measure(kind: str) -> float:
    """Processor seconds of the first call in this process."""
    import torch
    import transformers

    import weft

    torch.set_num_threads(1)
    model = transformers.BertModel(transformers.BertConfig(
        num_hidden_layers=12, hidden_size=256, intermediate_size=512, num_attention_heads=4)).eval()
    ids = torch.randint(0, 1000, (2, 32))
    compiled = weft.compile(model, dynamic=kind == "dynamic")
    with torch.no_grad():
        start = time.process_time()
        compiled(input_ids=ids)
        return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(measure(options.worker))
        return
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.dynamic_compile", "--worker", kind],
                capture_output=True, text=True, check=True)
            seconds[kind].append(float(done.stdout.split()[-1]))
    static, dynamic = (statistics.median(seconds[kind]) for kind in KINDS)
    print(f"BERT: static {static:.2f} s, dynamic {dynamic:.2f} s, ratio {dynamic / static:.2f}")


if __name__ == "__main__":
    main()
