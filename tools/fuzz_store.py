"""Changes between two processes: is a stored entry ever used where the program is another one?

    python -m tools.fuzz_store                  every kind of change in every kind of program
    python -m tools.fuzz_store --short          a few programs of each kind (as CI runs it)
    python -m tools.fuzz_store --programs trained,trained_twice

Each case is a module in two versions that differ in one thing: a helper's code, a default, a class,
a closure, an environment variable. One process compiles the first versions and keeps the entries; a
second one imports the other versions from another folder, compiles with the same store, and
compares each result with eager's. As a control, half of the modules are the same in both: their
entries must be loaded, or the tool would find nothing whatever the store did.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS: dict[str, tuple[str, str, str]] = {
    # kind: (definitions, the text that differs as "first|second", an expression of x)
    "helper": ("def helper(x):\n    return x * {}\n", "2|3", "helper(x)"),
    "helper_of_helper": (
        "def inner(x):\n    return x * {}\ndef helper(x):\n    return inner(x)\n", "2|3",
        "helper(x)"),
    "global": ("VALUE = {}\n", "2|3", "x * VALUE"),
    "global_float": ("VALUE = {}\n", "0.5|0.25", "x * VALUE"),
    "global_type": ("VALUE = {}\n", "2|2.5", "x * VALUE"),
    "global_bool": ("VALUE = {}\n", "True|False", "(x * 2 if VALUE else x * 3)"),
    "global_text": ("VALUE = {}\n", "'a'|'b'", "(x * 2 if VALUE == 'a' else x * 3)"),
    "global_none": ("VALUE = {}\n", "None|4", "(x * 2 if VALUE is None else x * VALUE)"),
    "global_tuple": ("VALUE = (1, {})\n", "2|3", "x * VALUE[1]"),
    "global_list": ("VALUE = [1, {}]\n", "2|3", "x * VALUE[1]"),
    "global_dict": ("VALUE = {{'a': {}}}\n", "2|3", "x * VALUE['a']"),
    "dict_keys": ("VALUE = {{{}: 2}}\n", "'a'|'b'", "(x * 2 if 'a' in VALUE else x * 5)"),
    "list_length": ("VALUE = [1] * {}\n", "2|3", "x * len(VALUE)"),
    "global_set": ("VALUE = {{1, {}}}\n", "2|3", "(x * 2 if 2 in VALUE else x * 5)"),
    "default": ("def helper(x, n={}):\n    return x * n\n", "2|3", "helper(x)"),
    "keyword_default": ("def helper(x, *, n={}):\n    return x * n\n", "2|3", "helper(x)"),
    "mutable_default": ("def helper(x, n=[{}]):\n    return x * n[0]\n", "2|3", "helper(x)"),
    "closure": (
        "def make(n):\n    def helper(x):\n        return x * n\n    return helper\n"
        "helper = make({})\n", "2|3", "helper(x)"),
    "closure_code": (
        "def make():\n    def helper(x):\n        return x * {}\n    return helper\n"
        "helper = make()\n", "2|3", "helper(x)"),
    "lambda": ("helper = lambda x: x * {}\n", "2|3", "helper(x)"),
    "same_name": (
        "def a(x):\n    return x * 2\ndef b(x):\n    return x * 3\nhelper = {}\n", "a|b",
        "helper(x)"),
    "method": (
        "class C:\n    def get(self, x):\n        return x * {}\nobj = C()\n", "2|3", "obj.get(x)"),
    "base_method": (
        "class B:\n    def get(self, x):\n        return x * {}\nclass C(B):\n    pass\nobj = C()\n",
        "2|3", "obj.get(x)"),
    "overriding": (
        "class B:\n    def get(self, x):\n        return x * 2\nclass C(B):\n    {}\nobj = C()\n",
        "pass|get = lambda self, x: x * 3", "obj.get(x)"),
    "bases": (
        "class A:\n    def get(self, x):\n        return x * 2\n"
        "class B:\n    def get(self, x):\n        return x * 3\nclass C({}):\n    pass\nobj = C()\n",
        "A, B|B, A", "obj.get(x)"),
    "class_data": ("class C:\n    n = {}\nobj = C()\n", "2|3", "x * obj.n"),
    "instance_data": (
        "class C:\n    def __init__(self):\n        self.n = {}\nobj = C()\n", "2|3", "x * obj.n"),
    "shadowing": (
        "class C:\n    n = 2\nobj = C()\n{}\n", "pass|obj.n = 3", "x * obj.n"),
    "property": (
        "class C:\n    @property\n    def n(self):\n        return {}\nobj = C()\n", "2|3",
        "x * obj.n"),
    "static": (
        "class C:\n    @staticmethod\n    def n():\n        return {}\n", "2|3", "x * C.n()"),
    "class_method": (
        "class C:\n    m = 1\n    @classmethod\n    def n(cls):\n        return {} * cls.m\n", "2|3",
        "x * C.n()"),
    "getattr": (
        "class C:\n    def __getattr__(self, name):\n        return {}\nobj = C()\n", "2|3",
        "x * obj.n"),
    "slots": (
        "class C:\n    __slots__ = ('n',)\nobj = C()\nobj.n = {}\n", "2|3", "x * obj.n"),
    "call": ("class C:\n    def __call__(self, x):\n        return x * {}\nobj = C()\n", "2|3",
             "obj(x)"),
    "operator": (
        "class C:\n    def __add__(self, x):\n        return x * {}\nobj = C()\n", "2|3", "obj + x"),
    "constructor": (
        "class C:\n    def __init__(self, n):\n        self.n = n * {}\n", "2|3", "x * C(1).n"),
    "dataclass": (
        "import dataclasses\n@dataclasses.dataclass\nclass C:\n    n: int = {}\n", "2|3",
        "x * C().n"),
    "frozen_dataclass": (
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass C:\n    n: int = {}\n"
        "obj = C()\n", "2|3", "x * obj.n"),
    "named_tuple": (
        "from typing import NamedTuple\nclass C(NamedTuple):\n    n: int = {}\nobj = C()\n", "2|3",
        "x * obj.n"),
    "enum": ("import enum\nclass E(enum.Enum):\n    A = {}\n", "2|3", "x * E.A.value"),
    "enum_member": (
        "import enum\nclass E(enum.Enum):\n    A = 2\n    B = 3\nwhich = E.{}\n", "A|B",
        "(x * 2 if which is E.A else x * 3)"),
    "decorator": (
        "import functools\ndef times(f):\n    @functools.wraps(f)\n    def wrapper(x):\n"
        "        return f(x) * {}\n    return wrapper\n@times\ndef helper(x):\n    return x + 1\n",
        "2|3", "helper(x)"),
    "partial": (
        "import functools\ndef base(x, n):\n    return x * n\nhelper = functools.partial(base, n={})\n",
        "2|3", "helper(x)"),
    "generator": (
        "def numbers():\n    yield {}\n    yield 1\n", "2|3", "x * sum(numbers())"),
    "comprehension": ("VALUES = [1, {}]\n", "2|3", "x * sum([v for v in VALUES])"),
    "imported": ("from math import {} as rounded\n", "floor|ceil", "x * rounded(2.5)"),
    "torch_function": ("import torch\nhelper = torch.{}\n", "sin|cos", "helper(x)"),
    "dtype": ("import torch\nkind = torch.{}\n", "float32|float64", "x.to(kind) * 2"),
    "version": (
        "__version__ = {}\n", "'1.0'|'2.0'", "(x * 2 if __version__ == '1.0' else x * 3)"),
    "environment": (
        "import os\nos.environ['FUZZ_STORE_{name}'] = {}\n", "'a'|'b'",
        "(x * 2 if os.environ.get('FUZZ_STORE_{name}') == 'a' else x * 3)"),
    "tensor": ("import torch\nw = torch.full((4,), {})\n", "2.0|3.0", "x * w"),
    "requires_grad": (
        "import torch\nw = torch.ones(4, requires_grad={})\n", "False|True",
        "(x * 2 if w.requires_grad else x * 3)"),
    "shape": ("import torch\nw = torch.ones({})\n", "4|1", "x * w.shape[0]"),
    "parameter": (
        "import torch\nmod = torch.nn.Linear(4, 4, bias={})\ntorch.nn.init.ones_(mod.weight)\n"
        "if mod.bias is not None:\n    torch.nn.init.ones_(mod.bias)\n", "False|True", "mod(x)"),
    "training": ("import torch\nmod = torch.nn.Identity()\nmod.train({})\n", "True|False",
                 "(x * 2 if mod.training else x * 3)"),
    "structure": (
        "import torch\nmod = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.{}())\n", "Tanh|Sigmoid",
        "mod(x)"),
    "forward": (
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        return x * {}\n"
        "mod = M()\n", "2|3", "mod(x)"),
    "forward_hook": (
        "import torch\nmod = torch.nn.ReLU()\n{}\n",
        "pass|mod.register_forward_hook(lambda m, a, r: r * 3)", "mod(x)"),
    "hook_code": (
        "import torch\nmod = torch.nn.ReLU()\n"
        "mod.register_forward_hook(lambda m, a, r: r * {})\n", "2|3", "mod(x)"),
    "replaced_forward": (
        "import torch\nmod = torch.nn.ReLU()\n{}\n", "pass|mod.forward = lambda x: x * 3", "mod(x)"),
    "descriptor": (
        "class D:\n    def __get__(self, obj, cls):\n        return {}\nclass C:\n    n = D()\n"
        "obj = C()\n", "2|3", "x * obj.n"),
    "metaclass": (
        "class M(type):\n    def n(cls):\n        return {}\nclass C(metaclass=M):\n    pass\n", "2|3",
        "x * C.n()"),
    "contains": (
        "class C:\n    def __contains__(self, v):\n        return {}\nobj = C()\n", "True|False",
        "(x * 2 if 1 in obj else x * 3)"),
    "length": ("class C:\n    def __len__(self):\n        return {}\nobj = C()\n", "2|3",
               "x * len(obj)"),
    "equality": (
        "class C:\n    def __eq__(self, other):\n        return {}\nobj = C()\n", "True|False",
        "(x * 2 if obj == 1 else x * 3)"),
    "super": (
        "class B:\n    def n(self):\n        return {}\nclass C(B):\n    def n(self):\n"
        "        return super().n() + 1\nobj = C()\n", "2|3", "x * obj.n()"),
    "setattr": (
        "class C:\n    def __setattr__(self, name, v):\n        object.__setattr__(self, name, v * {})\n"
        "def helper(x):\n    c = C()\n    c.n = 1\n    return x * c.n\n", "2|3", "helper(x)"),
    "exception": (
        "def helper(x):\n    try:\n        raise {}\n    except KeyError:\n        return x * 2\n"
        "    except ValueError:\n        return x * 3\n", "KeyError|ValueError", "helper(x)"),
    "text_format": ("PREFIX = {}\n", "'a'|'bb'", "x * len(f'{{PREFIX}}!')"),
    "cached": (
        "import functools\n@functools.lru_cache\ndef n():\n    return {}\n", "2|3", "x * n()"),
    "pattern": ("import re\nP = re.compile({})\n", "'a+'|'b+'",
                "(x * 2 if P.match('aa') else x * 3)"),
    "numpy": ("import numpy as np\nVALUE = np.float64({})\n", "2|3", "x * float(VALUE)"),
    "slice": ("VALUE = slice(0, {})\n", "2|3", "x[VALUE] * 2"),
    "range": ("VALUE = range({})\n", "2|3", "x * len(VALUE)"),
    # What other caches of compiled programs have got wrong:
    "tensor_value": ("import torch\nT = torch.tensor([{}.0])\n", "2|3", "x * T"),
    "parameter_value": (
        "import torch\nT = torch.nn.Parameter(torch.full((1,), {}.0))\n", "2|3", "x * T"),
    "marking": (
        "import torch\nT = torch.ones(4)\nif {}:\n    import weft\n    weft.mark_dynamic(T, 0)\n",
        "True|False", "x * T.sum()"),
    "rank_of_environment": (
        "import os\nos.environ['RANK_{name}'] = '{}'\nclass Vocabulary:\n"
        "    def __init__(self):\n        self.start = int(os.environ['RANK_{name}']) * 10\n"
        "part = Vocabulary()\n", "0|1", "x + part.start"),
    "rank_in_closure": (
        "def part_of(rank):\n    start, end = rank * 2, rank * 2 + 2\n    def mask(x):\n"
        "        return (x >= start) & (x < end)\n    return mask\nmask = part_of({})\n", "0|1",
        "x * mask(x * 3)"),
    "rank_in_default": (
        "RANK = {}\ndef shifted(x, start=RANK * 10):\n    return x + start\n", "0|1", "shifted(x)"),
    "rank_in_buffer": (
        "import torch\nclass Part(torch.nn.Module):\n    def __init__(self, rank):\n"
        "        super().__init__()\n        self.register_buffer('start', torch.tensor(rank * 10.0))\n"
        "    def forward(self, x):\n        return x + self.start\npart = Part({})\n", "0|1",
        "part(x)"),
    "rank_in_slice": ("RANK = {}\n", "0|1", "x[RANK * 2:RANK * 2 + 2] * 3"),
    "dict_order": (
        "import torch\nSTEPS = {{{}}}\n", "'a': torch.sin, 'b': torch.exp|'b': torch.exp, 'a': torch.sin",
        "__import__('functools').reduce(lambda y, f: f(y), STEPS.values(), x)"),
    "order_of_modules": (
        "import torch\nmod = torch.nn.Sequential({})\n",
        "torch.nn.ReLU(), torch.nn.Tanh()|torch.nn.Tanh(), torch.nn.ReLU()", "mod(x) + mod[0](x)"),
    "mode_of_module": (
        "import torch\nmod = torch.nn.BatchNorm1d(1, affine=False)\nmod.{}()\n", "train|eval",
        "mod(x.reshape(4, 1)).reshape(4)"),
    "rate_of_dropout": ("import torch\nmod = torch.nn.Dropout({})\n", "0.0|1.0", "mod(x)"),
    "kind_of_items": ("VALUE = {}\n", "[2, 3]|(2, 4)", "x * VALUE[1]"),
    "write": ("def helper(x):\n    y = x.clone()\n    y.mul_({})\n    return y\n", "2|3",
              "helper(x)"),
    "detached": ("def helper(x):\n    return (x * 2){}\n", "|.detach()", "helper(x)"),
    "gradient_mode": (
        "import torch\ndef helper(x):\n    with torch.set_grad_enabled({}):\n        return x * 2\n",
        "True|False", "helper(x)"),
    "backward_of_function": (
        "import torch\nclass Scaled(torch.autograd.Function):\n    @staticmethod\n"
        "    def forward(ctx, x):\n        return x * 2\n    @staticmethod\n"
        "    def backward(ctx, gradient):\n        return gradient * {}\n", "2|3",
        "Scaled.apply(x)"),
    "gradient_hook": (
        "def helper(x):\n    y = x * 2\n    if y.requires_grad:\n"
        "        y.register_hook(lambda gradient: gradient * {})\n    return y\n", "2|3",
        "helper(x)"),
    "helper_of_hook": (
        "def scaled(gradient):\n    return gradient * {}\ndef helper(x):\n    y = x * 2\n"
        "    if y.requires_grad:\n        y.register_hook(scaled)\n    return y\n", "2|3",
        "helper(x)"),
}
"""What changes: definitions with a gap, its two fillings, and what the program computes."""

PROGRAMS: dict[str, str] = {
    "function": "def f(x):\n    return {} + 1\n",
    "module": (
        "import torch\nclass Program(torch.nn.Module):\n    def forward(self, x):\n"
        "        return torch.relu({}) + 1\nf = Program()\n"),
    "inlined": "def outer(x):\n    return {}\ndef f(x):\n    return outer(x + 1) * 2\n",
    "after_break": (
        "def f(x):\n    y = x + 1\n    print(end='')\n    x = y * 2\n    return {} - 1\n"),
    "method": (
        "class Program:\n    def run(self, x):\n        return {} + 1\nf = Program().run\n"),
    "loop": (
        "def f(x):\n    for _ in range(2):\n        x = {}\n    return x.sum()\n"),
    "inlined_break": (
        "def outer(x):\n    y = x + 1\n    print(end='')\n    x = y * 2\n    return {}\n"
        "def f(x):\n    return outer(x) * 2\n"),
    "recompiled": "SIZES = 4, 6, 4\ndef f(x):\n    x = x[:4]\n    return {} + 1\n",
    "trained": "TRAINS = True\ndef f(x):\n    return ({}).sum() * x.sin()\n",
    "trained_module": (
        "import torch\nTRAINS = True\nclass Program(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.w = torch.nn.Parameter(torch.ones(4))\n"
        "    def forward(self, x):\n        x = x * self.w\n        return torch.exp({}).sum()\n"
        "f = Program()\n"),
    "trained_twice": (
        "TRAINS = True\nSIZES = 4, 6, 4\ndef f(x):\n    x = x[:4]\n    return ({}).sum() * x\n"),
}
"""The program around the expression."""


_SHORT_CONTROLS = 4
"""In the short form, and with chosen programs, every so many kinds have a control."""


@dataclass(frozen=True)
class Case:
    """One module in two versions."""

    name: str
    first: str
    second: str
    changes: bool


def cases(short: bool = False, programs: Sequence[str] = tuple(PROGRAMS)) -> Iterator[Case]:
    """Every kind in every program (`short`: in one program each), and controls."""
    for number, (kind, (definitions, fillings, expression)) in enumerate(KINDS.items()):
        names = list(programs)
        chosen = [names[number % len(names)]] if short else names
        for program in chosen:
            name = f"case_{kind}_{program}"
            first, second = (
                definitions.format(filling, name=name)
                + PROGRAMS[program].format(expression.format(name=name))
                for filling in fillings.split("|", 1))
            yield Case(name, first, second, changes=True)
            if (short or len(names) < len(PROGRAMS)) and number % _SHORT_CONTROLS:
                continue
            control = f"same_{kind}_{program}"
            text = (definitions.format(fillings.split("|", 1)[0], name=control)
                    + PROGRAMS[program].format(expression.format(name=control)))
            yield Case(control, text, text, changes=False)


def run(folder: str, backend: str) -> dict[str, Any]:
    """Import every module of a folder, call its compiled `f`, and compare with eager."""
    import weft
    from weft.diagnostics import events

    sys.path.insert(0, folder)
    results: dict[str, Any] = {}
    for file in sorted(Path(folder).glob("*.py")):
        module = __import__(file.stem)
        before = dict(events.counters())
        with events.collect() as seen:
            actual = outcome(module, weft.compile(module.f, backend=backend))
        after = events.counters()
        expected = outcome(module, module.f)
        results[file.stem] = {
            "right": all(map(_are_same, actual, expected)),
            "loaded": after.get("entries_loaded", 0) - before.get("entries_loaded", 0),
            "stored": after.get("entries_stored", 0) - before.get("entries_stored", 0),
            "captured": any(e.kind == "stage_start" and e.name == "capture" for e in seen),
            "reasons": [e.reason for e in seen if e.kind in ("not_stored", "not_loaded")],
        }
    return results


def outcome(module: Any, call: Any) -> list[Any]:
    """What the module's program gives, call by call: the result, and if it trains, gradients."""
    import torch

    parameters = [p for p in vars(module).values() if isinstance(p, torch.nn.Parameter)]
    parameters += module.f.parameters() if isinstance(module.f, torch.nn.Module) else []
    trains = getattr(module, "TRAINS", False)
    outcomes: list[Any] = []
    for size in getattr(module, "SIZES", (4,)):
        x = torch.linspace(-1, 1, size, requires_grad=trains)
        result = call(x)
        if trains and result.requires_grad:
            result.sum().backward()
        leaves = [x, *parameters]
        outcomes += [result, *(leaf.grad for leaf in leaves)]
        for leaf in leaves:
            leaf.grad = None
    return outcomes


def _are_same(actual: Any, expected: Any) -> bool:
    import torch

    if actual is None or expected is None:
        return actual is expected
    return (actual.dtype == expected.dtype and actual.requires_grad == expected.requires_grad
            and torch.allclose(actual, expected, equal_nan=True))


def compare(folder: Path, chosen: list[Case], backend: str = "aot_eager"
            ) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of the two processes, by case."""
    for name in ("first", "second"):
        (folder / name).mkdir()
        for case in chosen:
            (folder / name / f"{case.name}.py").write_text(getattr(case, name))
    return tuple(_process(folder, name, backend)  # type: ignore[return-value]
                 for name in ("first", "second"))


def _process(folder: Path, name: str, backend: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tools.fuzz_store", "--run", str(folder / name),
         "--backend", backend],
        capture_output=True, text=True, check=False,
        env={**os.environ, "WEFT_CACHE_DIR": str(folder / "cache"), "WEFT_STORE_ENTRIES": "1"})
    if done.returncode:
        raise SystemExit(done.stderr)
    results: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return results


def stale(second: dict[str, Any]) -> list[str]:
    """The cases with a wrong result."""
    return [name for name, row in second.items() if not row["right"]]


def _report(chosen: list[Case], first: dict[str, Any], second: dict[str, Any]) -> int:
    wrong = stale(second)
    controls = [case.name for case in chosen if not case.changes]
    loaded = [name for name in controls if second[name]["loaded"] and not second[name]["captured"]]
    print(f"{sum(case.changes for case in chosen)} changes: {len(wrong)} stale results {wrong}")
    print(f"{len(loaded)} of {len(controls)} unchanged programs wholly from the store")
    for name in controls:
        if name not in loaded:
            print(f"  {name}: {first[name]['reasons']} {second[name]['reasons']}")
    return len(wrong) + len(stale(first))


def main() -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="in these programs alone")
    parser.add_argument("--run", default="")
    parser.add_argument("--backend", default="aot_eager")
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run(options.run, options.backend)))
        return 0
    chosen = list(cases(options.short, options.programs.split(",")))
    with tempfile.TemporaryDirectory() as folder:
        first, second = compare(Path(folder), chosen, options.backend)
    return _report(chosen, first, second)


if __name__ == "__main__":
    sys.exit(main())
