"""Run the tests of this folder that need neither torch nor pytest, under any interpreter:

    python3.13 setup.py build_ext --inplace && python3.13 -m tests.frame.plain
"""

import importlib
import sys
import time
import traceback

MODULES = ("test_binding", "test_guards", "test_memo", "test_compiled_function", "test_frame_hook",
           "test_leaks")


def fewer_calls(calls: int) -> None:
    """For slow instrumented runs: what leaks is looked for elsewhere."""
    leaks = importlib.import_module("tests.frame.test_leaks")
    leaks.CALLS = leaks.SLOW_CALLS = calls
    leaks.BYTES = sys.maxsize
    importlib.import_module("tests.frame.test_memo").ROUNDS = calls // 10


def main() -> int:
    failed = 0
    for argument in sys.argv[1:]:
        fewer_calls(int(argument.removeprefix("--calls=")))
    for name in MODULES:
        module = importlib.import_module(f"tests.frame.{name}")
        for label, test in sorted(vars(module).items()):
            if not label.startswith("test_") or not callable(test):
                continue
            start = time.perf_counter()
            try:
                test()
            except BaseException:
                failed += 1
                traceback.print_exc()
                print(f"FAILED {name}.{label}")
            else:
                print(f"ok {name}.{label} {time.perf_counter() - start:.2f}s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
