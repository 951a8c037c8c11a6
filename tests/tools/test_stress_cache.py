"""A short form of `python -m tools.stress_cache --rounds 500`."""

import argparse
import os
import subprocess
import sys

from tools import stress_cache
from tools.stress_cache import KINDS


def test_disturbed_compilations_end_right():
    rounds = os.environ.get("WEFT_STRESS_ROUNDS", str(len(KINDS)))
    done = subprocess.run(
        [sys.executable, "-m", "tools.stress_cache", "--rounds", rounds, "--seed", "1000"],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rounds {rounds}, " in done.stdout and "wrong 0, crashed 0, hung 0" in done.stdout


def test_a_part_that_does_not_run_is_counted(monkeypatch):
    """It ended as a part does whose rounds failed, and counted as nothing."""
    monkeypatch.setattr(stress_cache.sys, "executable", "/bin/false")
    options = argparse.Namespace(jobs=2, rounds=4, seed=0, kind=[], verbose=False)
    assert stress_cache._in_parts(options)["failed parts"] == 2
