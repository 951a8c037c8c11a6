"""A short form of `python -m tools.stress_cache --rounds 500`."""

import os
import subprocess
import sys

from tools.stress_cache import KINDS


def test_disturbed_compilations_end_right():
    rounds = os.environ.get("WEFT_STRESS_ROUNDS", str(len(KINDS)))
    done = subprocess.run(
        [sys.executable, "-m", "tools.stress_cache", "--rounds", rounds, "--seed", "1000"],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rounds {rounds}, " in done.stdout and "wrong 0, crashed 0, hung 0" in done.stdout
