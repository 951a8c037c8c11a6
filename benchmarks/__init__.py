"""Benchmarks: eager, torch.compile and weft side by side.

``python -m benchmarks --help``; ``make bench CASES="bert softmax --quick"``. The files:

* `cases`: what is measured: `models` (transformers, random weights), `micro` (single operations);
* `worker`: one fresh process: a first call (cold or warm caches), or the steady state of all
  compilers interleaved;
* `runner`: starts the workers with cache directories of their own;
* `report`: Markdown and JSON.
"""
