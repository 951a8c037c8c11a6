"""CPython's own tests with every Python frame going through the frame hook and capture.

Each module of `test` runs twice, each time in a process of its own: as it is, and with the hook on,
its frames replaced by what capture makes of them (backend `eager`; also frames without any tensor).
Both import torch first, which changes `inspect` and `typing`. The tests' outcomes are compared::

    python -m tools.cpython_tests                          # all modules, prints a Markdown table
    python -m tools.cpython_tests --module test_dict -v    # one; lists the differences
    python -m tools.cpython_tests --python .venv312/bin/python

Below the table are the tests that end otherwise, with the reason (`tools/cpython_differences.py`).
Frames of the test modules and of the standard library are captured; those of unittest, the import
system, torch and weft are left alone. The bodies of doctests are run with the hook on.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import faulthandler
import gc
import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unittest
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, chdir, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any, Final

from tools.cpython_differences import REASONS, Reason, reason_of

MODULES: Final = [
    "test_dict",
    "test_list",
    "test_tuple",
    "test_set",
    "test_int",
    "test_float",
    "test_bool",
    "test_complex",
    "test_range",
    "test_slice",
    "test_string",
    "test_generators",
    "test_genexps",
    "test_listcomps",
    "test_setcomps",
    "test_dictcomps",
    "test_exceptions",
    "test_raise",
    "test_with",
    "test_contextlib",
    "test_functools",
    "test_itertools",
    "test_collections",
    "test_dataclasses",
    "test_enum",
    "test_scope",
    "test_super",
    "test_descr",
    "test_class",
    "test_unpack",
    "test_unpack_ex",
    "test_fstring",
    "test_patma",
    "test_call",
    "test_keywordonlyarg",
    "test_positional_only_arg",
    "test_extcall",
    "test_decorators",
    "test_property",
    "test_iter",
    "test_enumerate",
    "test_operator",
    "test_copy",
    "test_deque",
    "test_defaultdict",
    "test_ordered_dict",
    "test_userdict",
    "test_userlist",
    "test_augassign",
    "test_compare",
    "test_richcmp",
    "test_binop",
    "test_funcattrs",
    "test_named_expressions",
    "test_dictviews",
    "test_userstring",
    "test_baseexception",
    "test_try_star",
    "test_exception_group",
    "test_except_star",
    "test_abc",
    "test_heapq",
    "test_bisect",
    "test_string_literals",
    "test_typing",
    "test_reprlib",
    "test_math",
    "test_statistics",
    "test_textwrap",
    "test_format",
    "test_weakref",
    "test_global",
    "test_grammar",
    "test_asyncgen",
    "test_context",
    "test_coroutines",
    "test_difflib",
    "test_fractions",
    "test_graphlib",
    "test_numeric_tower",
    "test_pprint",
    "test_queue",
    "test_sched",
    "test_struct",
    "test_threading_local",
    "test_yield_from",
    "test_cmath",
    "test_inspect",
    "test_json",
    "test_random",
    "test_re",
    "test_types",
    "test_builtin",
    "test_bytes",
    "test_csv",
    "test_hash",
    "test_index",
    "test_isinstance",
    "test_long",
    "test_memoryview",
    "test_metaclass",
    "test_pow",
    "test_subclassinit",
    "test_unary",
    "test_unicode",
    "test_argparse",
    "test_shlex",
    "test_optparse",
    "test_getopt",
    "test_sort",
    "test_configparser",
    "test_contextlib_async",
    "test_copyreg",
    "test_colorsys",
    "test_fnmatch",
    "test_base64",
    "test_binascii",
    "test_uuid",
    "test_urlparse",
    "test_html",
    "test_htmlparser",
    "test_calendar",
    "test_hashlib",
    "test_zlib",
    "test_glob",
    "test_posixpath",
    "test_linecache",
    "test_code",
    "test_weakset",
    "test_array",
    "test_pickle",
    "test_shelve",
    "test_contains",
    "test_genericalias",
    "test_genericclass",
    "test_generator_stop",
    "test_dynamicclassattribute",
    "test_exception_hierarchy",
    "test_exception_variations",
    "test_iterlen",
    "test_structseq",
    "test_type_annotations",
    "test_typechecks",
    "test_type_cache",
    "test_opcache",
    "test_print",
    "test_abstract_numbers",
    "test_int_literal",
    "test_logging",
    "test_warnings",
    "test_module",
    "test_memoryio",
    "test_zipfile",
    "test_decimal",
    "test_fileinput",
    "test_plistlib",
    "test_strptime",
    "test_strtod",
    "test_longexp",
    "test_picklebuffer",
    "test_pickletools",
    "test_marshal",
    "test_ast",
    "test_ipaddress",
    "test_hmac",
    "test_secrets",
    "test_keyword",
    "test_pep646_syntax",
]

_ROOT: Final = Path(__file__).resolve().parent.parent
_LEFT_ALONE: Final = (
    "/unittest/",
    "/importlib/",
    "/doctest.py",
    "/torch/",
    "/src/weft/",
    "/tools/cpython_tests.py",
    "<frozen ",
    "<weft ",
)

Outcomes = dict[str, str]


# -- the child: one module, once ------------------------------------------------------------------


class Recorder(unittest.TestResult):
    """Notes the outcome of each test; a test with failing parts has the outcomes of its parts."""

    def __init__(self, unhooked: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        super().__init__()
        self.unhooked = unhooked
        self.outcomes: Outcomes = {}
        self.details: dict[str, str] = {}

    def _note(self, test: Any, outcome: str, error: Any = None) -> None:
        name = test.id()
        known = self.outcomes.get(name)
        self.outcomes[name] = outcome if known in (None, "passed") else f"{known}, {outcome}"
        if error is not None:
            with self.unhooked():
                text = self._exc_info_to_string(error, test)
            self.details[name] = self.details.get(name, "") + text

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        if os.environ.get("WEFT_SHOW_TESTS"):
            print(test.id(), file=sys.__stderr__, flush=True)

    def addSuccess(self, test: Any) -> None:
        if test.id() not in self.outcomes:
            self._note(test, "passed")

    def addFailure(self, test: Any, err: Any) -> None:
        self._note(test, "failed", err)

    def addError(self, test: Any, err: Any) -> None:
        self._note(test, "error", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self._note(test, "skipped")

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._note(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self._note(test, "unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self._note(subtest, "failed" if failed else "error", err)


def is_left_alone(code: CodeType) -> bool:
    """Whether frames of the code are not part of what is tested."""
    return any(part in code.co_filename for part in _LEFT_ALONE)


@dataclass
class Capturing:
    """The hook's state in a child: what was captured and what went wrong inside weft."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def on_miss(self) -> Callable[..., Any]:
        """The capture of every frame that is not left alone."""
        from weft import backends
        from weft.capture.compiler import FrameCompiler
        from weft.config import CompileOptions
        from weft.diagnostics import events

        def count(event: events.Event) -> None:
            self.counts[event.kind] += event.kind in ("bytecode", "skip", "graph_break")

        events.subscribe(count)
        return FrameCompiler(
            CompileOptions(),
            backends.resolve("eager"),
            every_frame=True,
            is_skipped=is_left_alone,
            on_error=self.note,
        ).on_miss

    def unhooked(self) -> Callable[[], AbstractContextManager[Any]]:
        """What turns the hook off."""
        from weft import _frame

        return _frame.unhooked

    def note(self, error: Exception, *, during: str, what: str) -> None:
        """An error inside of weft, not of the program: the frame runs as it is."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else ""
        self.errors[f"{type(error).__name__}: {error} at {where} ({what})"[:300]] += 1


def hook_doctests(hook: Callable[..., Any]) -> None:
    """Doctests' bodies are modules, which run with the hook off: they turn it on themselves."""
    import doctest

    def compile_hooked(source: str, file: str, mode: str, flags: int, inherit: bool) -> Any:
        tree = compile(source, file, mode, flags | ast.PyCF_ONLY_AST, inherit)
        first = ast.parse("__weft_hook__()", file, mode).body  # type: ignore[attr-defined]
        tree.body[:0] = first
        return compile(tree, file, mode, flags, inherit)

    builtins.__weft_hook__ = hook  # type: ignore[attr-defined]
    doctest.compile = compile_hooked  # type: ignore[attr-defined]


@contextmanager
def every_frame(on_miss: Callable[..., Any]) -> Iterator[None]:
    """The hook is on and captures everything."""
    from weft import _frame

    def enter() -> None:
        _frame.hook(on_miss).__enter__()

    _frame.skip(enter.__code__)
    hook_doctests(enter)
    with _frame.hook(on_miss):
        yield


def run_module(name: str, hooked: bool, only: str) -> dict[str, Any]:
    """Runs a test module in this process."""
    faulthandler.enable()
    random.seed(0)
    loader = unittest.TestLoader()
    if only:
        loader.testNamePatterns = [f"*{only}*"]
    importlib.import_module("torch")
    state = Capturing()
    on_miss = state.on_miss() if hooked else None
    result = Recorder(state.unhooked() if hooked else nullcontext)
    suite = loader.loadTestsFromName(f"test.{name}")
    gc.freeze()  # many tests collect garbage: torch and weft need not be looked at each time
    capturing = every_frame(on_miss) if on_miss else nullcontext()
    with tempfile.TemporaryDirectory() as folder, chdir(folder), capturing:
        suite.run(result)
    return {
        "outcomes": result.outcomes,
        "details": result.details,
        "counts": state.counts,
        "errors": state.errors,
    }


# -- the parent -----------------------------------------------------------------------------------


@dataclass
class Run:
    """What became of one child."""

    outcomes: Outcomes
    details: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    crash: str = ""
    seconds: float = 0.0


def start(python: str, module: str, hooked: bool, limit: float, only: str) -> Run:
    """Runs one module in a child process."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [
            python,
            "-X",
            "faulthandler",
            "-m",
            "tools.cpython_tests",
            "--child",
            module,
            "--report",
            str(report),
            "--only",
            only,
            *(["--hooked"] if hooked else []),
        ]
        path = os.pathsep.join([str(_ROOT / "src"), str(_ROOT)])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONSAFEPATH": "1",
        }
        began = time.monotonic()
        try:
            child = subprocess.run(
                command,
                env=environment,
                cwd=folder,
                timeout=limit,
                text=True,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                errors="replace",
                check=False,
            )
            trouble = f"exit status {child.returncode}: {child.stderr[-3000:]}"
        except subprocess.TimeoutExpired as late:
            trouble = f"no end after {limit:.0f} s: {(late.stderr or b'')[-500:]!r}"
        seconds = time.monotonic() - began
        if report.exists():
            return Run(**json.loads(report.read_text()), seconds=seconds)
    return Run({}, crash=trouble, seconds=seconds)


@dataclass
class Comparison:
    """One module without and with the hook."""

    module: str
    plain: Run
    hooked: Run

    @property
    def different(self) -> dict[str, tuple[str, str]]:
        """Test → its outcomes without and with."""
        names = sorted({*self.plain.outcomes, *self.hooked.outcomes})
        pairs = {
            n: (self.plain.outcomes.get(n, "absent"), self.hooked.outcomes.get(n, "absent"))
            for n in names
        }
        return {n: pair for n, pair in pairs.items() if pair[0] != pair[1]}

    @property
    def reasons(self) -> dict[str, Reason | None]:
        """Test that ends otherwise → why, if that is known."""
        return {test: reason_of(test) for test in self.different}

    @property
    def verdict(self) -> str:
        if self.plain.crash:
            return "not comparable: fails without the hook"
        if self.hooked.crash:
            return "CRASH" if "exit" in self.hooked.crash else "HANG"
        kinds = Counter(_kind(reason) for reason in self.reasons.values())
        return ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items())) or "same"

    def row(self) -> str:
        captured = self.hooked.counts.get("bytecode", 0)
        asked = captured + self.hooked.counts.get("skip", 0)
        return (
            f"| {self.module} | {_summary(self.plain)} | {_summary(self.hooked)} | {captured} of "
            f"{asked} | {sum(self.hooked.errors.values())} | {self.verdict} |"
        )


def _kind(reason: Reason | None) -> str:
    """What a difference is called in the table."""
    if reason is None:
        return "differ"
    return "observe the interpreter" if reason.observes else "explained"


def _summary(run: Run) -> str:
    if run.crash:
        return "-"
    counts = Counter(run.outcomes.values())
    bad = sum(n for kind, n in counts.items() if "fail" in kind or "error" in kind)
    bad -= counts["expected failure"]
    return f"{counts['passed']} passed" + (f", {bad} failed" if bad else "")


HEADER: Final = (
    "| module | without the hook | with every frame captured | frames captured | internal "
    "errors | |\n|---|---|---|---|---|---|"
)


def compare(args: argparse.Namespace) -> Iterable[Comparison]:
    """All modules, `--jobs` at a time, in order."""

    def one(module: str) -> Comparison:
        runs = [
            start(args.python, module, hooked, args.timeout, args.only) for hooked in (False, True)
        ]
        return Comparison(module, *runs)

    with ThreadPoolExecutor(args.jobs) as pool:
        yield from pool.map(one, args.module or MODULES)


def explain(comparisons: list[Comparison]) -> None:
    """Prints the tests that end otherwise, by reason."""
    tests: dict[Reason | None, list[str]] = {}
    for comparison in comparisons:
        for test, reason in comparison.reasons.items():
            tests.setdefault(reason, []).append(test.removeprefix("test."))
    if not tests:
        return
    print("\n| kind | tests | the test ... |\n|---|---|---|")
    for reason in (*REASONS, None):
        if reason in tests:
            names = ", ".join(f"`{test}`" for test in tests[reason])
            text = reason.text if reason else "is still to be looked at"
            print(f"| {_kind(reason)} | {names} | {text} |")


def show(comparison: Comparison, verbose: bool) -> None:
    """Prints a table row, and on demand what is behind it."""
    print(comparison.row(), flush=True)
    if not verbose:
        return
    hooked = comparison.hooked
    if hooked.crash or comparison.plain.crash:
        print(hooked.crash or comparison.plain.crash)
        return
    for name, (plain, now) in comparison.different.items():
        print(f"\n--- {name}: {plain} -> {now}\n{hooked.details.get(name, '')[-2500:]}")
    for error, n in Counter(hooked.errors).most_common():
        print(f"{n} x {error}")
    print(f"{comparison.plain.seconds:.1f} s, {hooked.seconds:.1f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--module", action="append", help="a module of `test`; default: a long list"
    )
    parser.add_argument("--only", default="", help="part of the names of the tests to run")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to run under")
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for one module")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("-v", "--verbose", action="store_true", help="also list the differences")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--report", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--hooked", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        args.report.write_text(json.dumps(run_module(args.child, args.hooked, args.only)))
        return 0
    print(HEADER)
    done = []
    for comparison in compare(args):
        show(comparison, args.verbose)
        done.append(comparison)
    explain(done)
    return 1 if any(c.hooked.crash or None in c.reasons.values() for c in done) else 0


if __name__ == "__main__":
    sys.exit(main())
