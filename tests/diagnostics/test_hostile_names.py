"""Names and paths of a program in everything that weft writes: nothing of them is executed.

A file name with a newline was code in the call sequence; a keyword or attribute that is no
identifier was code in the replacement.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import logging
import os
import random
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from weft.config import config
from weft.diagnostics import failures, trace_files
from weft.diagnostics.rendering import render
from weft.quoting import as_comment, attribute, is_name, keyword, one_line, printable

pytestmark = pytest.mark.usefixtures("fresh")

CALL = "weft_injected()"
HOSTILE = [
    f"x.py\n    {CALL}\n    #", f"x.py\n{CALL}\n#", f"\r\n{CALL}\r\n", f"\n        {CALL}",
    f"a'''\n{CALL}\n'''", f'a"""\n{CALL}\n"""', f"'); {CALL}; ('", f'"); {CALL}; ("',
    f"x = 1; {CALL}; y", f"a=1, b={CALL}", f"a[{CALL}]", f"{{{CALL}}}", f"\\\n{CALL}\n", "back\\",
    f"*/ {CALL}; /*", "??/", f"\x0b{CALL}\x0c\x1c\x85\u2028\u2029", "\x1b[31mred\x1b[2J\x07",
    "{x}%s%(y)d{0!r}$x", "v[0]", "t0", "out0", "graph", "class", "None", "ﬁ", "\udcff", "a b", "",
    "\u202egnp.exe", "0", "__class__ ", "x" * 500,
]


@pytest.fixture(autouse=True)
def injected(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    calls: list[int] = []
    monkeypatch.setattr(builtins, "weft_injected", lambda: calls.append(1), raising=False)
    yield calls
    assert calls == []


def function_named(name: str, source: str = "", **scope: Any) -> Callable[..., Any]:
    """A function whose file, name, module and variable bear the hostile name."""
    source = source or "def f(x):\n    y = x.relu() * 2.5 + x.sigmoid()\n    return y.sum(-1)\n"
    space: dict[str, Any] = {**scope, "__name__": name}
    exec(compile(source, "<none>", "exec"), space)
    code = space["f"].__code__
    code = code.replace(co_filename=name, co_name=name or "f", co_qualname=name or "f")
    function = types.FunctionType(code, space, name)
    function.__qualname__ = function.__module__ = name
    return function


X = torch.linspace(-1, 1, 16).reshape(4, 4)


class Holder:
    pass


def _file(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return function_named(name), (X,)


def _broken(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    source = ("def f(x):\n    y = x.relu()\n    inner(y)\n    return y.sigmoid()\n")
    inner = function_named(name, "def f(x):\n    print('v[0] t0 c0 out0')\n    return x")
    return function_named(name, source, inner=inner), (X,)


def _attribute(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def program(x: torch.Tensor, holder: Any) -> Any:
        scale = getattr(holder, name)
        setattr(holder, name + "w", x * scale)
        print(end="")
        setattr(holder, name + "z", 3)
        return getattr(holder, name + "w") + getattr(holder, name + "z")

    holder = Holder()
    setattr(holder, name, 2.0)
    return program, (X, holder)


def _keyword(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def takes(x: torch.Tensor, **named: Any) -> Any:
        print(*named)
        return x + len(named)

    def program(x: torch.Tensor) -> Any:
        y = takes(x * 2, **{name: x})
        made = functools.partial(takes, **{name: 1})
        return y, made, types.SimpleNamespace(**{name: y}), {name: y}

    return program, (X,)


def _module(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    child = name.replace(".", "") or "child"
    with contextlib.suppress(KeyError):
        model.add_module(child, torch.nn.Linear(4, 4))
    model.register_buffer(child + "buffer", torch.ones(4))
    hostile = type(name.encode(errors="replace").decode() or "T", (torch.nn.Module,), {
        "forward": lambda self, x: model(x) + getattr(model, child + "buffer"), "__module__": name})
    return hostile(), (X,)


def _classes(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    cls = type("C", (), {"__module__": name})
    setattr(cls, name + "a", 1)

    def program(x: torch.Tensor) -> Any:
        y = x * getattr(cls, name + "a")
        setattr(cls, name + "a", 1)
        made = type(name, (), {name: 3})
        print(end="")
        return y + getattr(made(), name)

    return program, (X,)


def _text_of_program(name: str) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    def program(x: torch.Tensor, texts: Any) -> Any:
        y = x.cos()
        print(texts[0], name)
        logging.getLogger(name).debug(name)
        return y + len(texts), texts[0] + name, {name: texts}

    return program, (X, [name, "v[1]"])


PLACES = [_file, _broken, _attribute, _keyword, _module, _classes, _text_of_program]


def plain(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return torch.round(result, decimals=4).tolist()
    if isinstance(result, functools.partial):
        return plain([result.args, result.keywords])
    if isinstance(result, types.SimpleNamespace):
        return plain(vars(result))
    if isinstance(result, (tuple, list)):
        return [*map(plain, result)]
    return {k: plain(v) for k, v in result.items()} if isinstance(result, dict) else result


def outcome(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            result = plain(call(*arguments))
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            result = type(error)
    return result, out.getvalue()


@pytest.mark.parametrize("place", PLACES)
def test_hostile_names_do_nothing(place: Callable[[str], Any], tmp_path: Path) -> None:
    """In the programs' results, logs, traces, explanations and the code that runs."""
    number = int(os.environ.get("WEFT_TEST_NAMES", "3"))
    names = [HOSTILE[0], *random.Random(place.__name__).sample(HOSTILE, number)]
    with config.patch(cache_dir=str(tmp_path), trace=True):
        for name in names:
            wanted = outcome(*place(name))
            logged = io.StringIO()
            with contextlib.redirect_stderr(logged), warnings.catch_warnings():
                warnings.simplefilter("error")
                weft.reset()
                weft.set_logs(*("graph guards recompiles graph_breaks bytecode aot passes schedule "
                                "output_code perf").split())
                try:
                    function, arguments = place(name)
                    compiled = weft.compile(function)
                    assert outcome(compiled, arguments) == wanted, name
                    again = [torch.ones(3, 4) if a is X else a for a in arguments]
                    with contextlib.suppress(TypeError, AttributeError):
                        outcome(compiled, tuple(again))
                finally:
                    weft.set_logs()
                function, arguments = place(name)
                said = io.StringIO()
                with contextlib.redirect_stdout(said), contextlib.suppress(TypeError, ValueError):
                    explanation = weft.explain(function)(*arguments)
                    check_text(str(explanation))
                    render(explanation)
            assert weft.stats()["fallbacks"] == 0
            check_text(logged.getvalue())
        for file in trace_files.directory().iterdir():
            if file.suffix != ".so":
                check_text(file.read_text())


def check_text(text: str) -> None:
    """No line is the program's own, nothing moves the cursor."""
    for line in re.sub(r"\x1b\[[0-9;]*m(?=\n|\[|$)", "", text).split("\n"):
        assert not line.strip().startswith(CALL), line
        assert line.replace("\t", " ").isprintable(), ascii(line)


def test_reports_and_programs_that_show_a_defect(tmp_path: Path) -> None:
    """The program is run: it only shows the defect."""
    name = "".join([HOSTILE[0], *HOSTILE[4:8], HOSTILE[18], HOSTILE[13]])

    def backend(gm: Any, inputs: Any) -> Any:
        raise ZeroDivisionError(name)

    backend.__name__ = name
    function = function_named(name)
    with config.patch(report_dir=str(tmp_path), repro_after="capture", strict=False):
        with pytest.raises(weft.errors.BackendError):
            weft.compile(function, backend=backend)(X)
        failures.write_report(ValueError(name), during="a test", what=name,
                              stack=[weft.errors.SourceLine(name, 1, name)])
    program = next(tmp_path.glob("repro-*.py"))
    compile(program.read_text(), "repro", "exec")
    done = subprocess.run(
        [sys.executable, "-c", "import builtins, sys, runpy\n"
         "builtins.weft_injected = lambda: print('INJECTED')\n"
         "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')", str(program)],
        capture_output=True, text=True)
    assert "INJECTED" not in done.stdout and "UnknownBackend" in done.stderr
    check_text(program.read_text())
    for report in failures.reports() or tmp_path.glob("*.txt"):
        assert printable(report.read_text()) == report.read_text()


@pytest.mark.parametrize("name", HOSTILE)
def test_quoting(name: str) -> None:
    space: dict[str, Any] = {"owner": types.SimpleNamespace(**{name: 5}), "f": dict}
    assert eval(attribute("owner", name), space) == 5
    assert eval(f"f({keyword(name, '7')})", space) == {name: 7}
    assert one_line(name).isprintable() and not one_line(name).endswith("\\")
    assert one_line(name) == one_line(one_line(name)) or "\\" in one_line(name)
    for mark in ("#", "//"):
        assert all(line.startswith(mark) and not line.endswith("\\")
                   for line in as_comment(name, mark).split("\n"))
    exec(f"{as_comment(name)}\n", {})
    assert printable(name).replace("\n", "").replace("\t", "").isprintable()


def test_a_class_of_str_is_not_asked() -> None:
    class Liar(str):
        def __repr__(self) -> str:
            return CALL

        __str__ = __format__ = lambda self, *_: CALL

        def isidentifier(self) -> bool:
            return True

    for text in ("a b", "ab"):
        assert CALL not in attribute("owner", Liar(text)) + keyword(Liar(text), "1")
    assert CALL not in one_line(Liar("a\nb")) and not is_name(Liar("a b"))
