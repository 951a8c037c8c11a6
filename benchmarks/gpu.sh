#!/usr/bin/env bash
# GPU tests and benchmarks on a bare machine (Python 3.12, torch 2.11, no network), in one call:
#   OUT=/tmp/out benchmarks/gpu.sh [arguments of python -m benchmarks]
# Results: $OUT/tests.log, $OUT/bench.log, $OUT/results.md, $OUT/results.json
set -uo pipefail
cd "$(dirname "$0")/.."
OUT=${OUT:-benchmarks/results/gpu}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
export PYTHONPATH=src:. WEFT_CACHE_DIR=${WEFT_CACHE_DIR:-$OUT/../weft-cache}
{
    $PYTHON -c 'import sys, torch, triton; print(sys.version, torch.__version__, triton.__version__, torch.cuda.get_device_name())'
    $PYTHON setup.py --quiet build_ext --inplace
} 2>&1 | tee "$OUT/build.log"
timeout "${TEST_SECONDS:-240}" $PYTHON -m pytest -m gpu -q -p no:cacheprovider tests 2>&1 | tail -n 200 | tee "$OUT/tests.log"
timeout "${BENCH_SECONDS:-300}" $PYTHON -m benchmarks --device cuda --out "$OUT" "$@" 2>&1 | tee "$OUT/bench.log"
