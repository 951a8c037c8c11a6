"""The guards of a new variant hold for the call that it was made from, and for the next such call.

Strict mode raises `UnfitGuardError` if they do not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.capture.guards.self_check import UnfitGuardError
from weft.errors import FallbackWarning

Make = Callable[[], torch.Tensor]
PARAMETER = nn.Parameter(torch.ones(3, 4))
FROZEN = nn.Parameter(torch.ones(3, 4), requires_grad=False)


def _under(mode: Any, make: Make) -> Make:
    def made() -> torch.Tensor:
        with mode():
            return make()

    return made


def _hooked() -> torch.Tensor:
    tensor = torch.ones(3, 4, requires_grad=True)
    tensor.register_hook(lambda g: g * 2)
    return tensor


class Own(torch.Tensor):
    """A class of the program."""


BASES: dict[str, Make] = {
    "parameter": lambda: PARAMETER,
    "frozen": lambda: FROZEN,
    "result": lambda: PARAMETER * 2,
    "plain": lambda: torch.ones(3, 4),
    "hooked": _hooked,
    "own class": lambda: torch.ones(3, 4, requires_grad=True).as_subclass(Own),
    "inference": _under(torch.inference_mode, lambda: torch.ones(3, 4)),
    "complex": lambda: nn.Parameter(torch.ones(3, 4, dtype=torch.complex64)),
}
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda t: t,
    "slice": lambda t: t[:2],
    "transposed": lambda t: t.t(),
    "reshaped": lambda t: t.view(12),
    "unbound": lambda t: t.unbind()[0],
    "split": lambda t: t.split(2)[1],
    "expanded": lambda t: t[:1].expand(5, 4),
    "of a view": lambda t: t[1:][0],
    "detached": lambda t: t.detach(),
    "real": torch.view_as_real,
    "conjugated": torch.Tensor.conj,
}
NO_MODE, NO_GRAD, INFERENCE = contextlib.nullcontext, torch.no_grad, torch.inference_mode
MODES = ((NO_MODE, NO_MODE), (NO_GRAD, NO_GRAD), (NO_GRAD, NO_MODE), (INFERENCE, INFERENCE))
"""Under which a tensor is made, and used."""


def _kinds() -> list[Any]:
    def is_possible(base: str, view: str) -> bool:
        try:
            VIEWS[view](BASES[base]())
        except RuntimeError:
            return False
        return True

    return [pytest.param(base, view, id=f"{base}, {view}")
            for base in BASES for view in VIEWS if is_possible(base, view)]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(("base", "view"), _kinds())
def test_tensors_are_compiled_once(base: str, view: str) -> None:
    def use(w: torch.Tensor) -> Any:
        return w * 2, w.requires_grad

    for made_under, used_under in MODES:
        make = _under(made_under, lambda: VIEWS[view](BASES[base]()))
        weft.reset()
        compiled = weft.compile(use, backend="eager")
        for _ in range(3):
            with used_under():
                actual, expected = compiled(make()), use(make())
            assert torch.equal(actual[0], expected[0])
            assert actual[0].requires_grad == expected[0].requires_grad
            assert actual[1] == expected[1]
        assert weft.stats()["recompiles"] == 0, (made_under, used_under)


def test_a_view_says_what_its_base_requires_now() -> None:
    base = torch.ones(3, 4)
    with torch.no_grad():
        view = base[:2]
    compiled = weft.compile(lambda v: (v * 2, v.requires_grad), backend="eager")
    for requires in (False, True, False, True):
        base.requires_grad_(requires)
        result, told = compiled(view)
        assert (told, result.requires_grad) == (view.requires_grad, (view * 2).requires_grad)


LINEAR = nn.Linear(4, 4)


def test_views_of_parameters_pass_a_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        w = LINEAR.weight.t()
        print(end="")
        return x @ w

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    with torch.no_grad():
        for _ in range(4):
            compiled(torch.ones(2, 4))
    assert weft.stats()["recompiles"] == 0


def _with_a_guard_that_fails(monkeypatch: pytest.MonkeyPatch) -> Any:
    from weft.capture import compiler

    def add(tx: Any) -> None:
        tx.guards.add(tx.tree.local(0, "x"), "py", lambda value: False)

    monkeypatch.setattr(compiler, "add_input_tests", add)
    weft.reset()
    return weft.compile(lambda x: x + 1, backend="eager")


def test_a_guard_that_fails_is_named_in_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = _with_a_guard_that_fails(monkeypatch)
    with pytest.raises(UnfitGuardError, match=r"py\(x, "):
        compiled(torch.ones(2))
    assert weft.stats()["unfit_guards"] == 1


def test_a_guard_that_fails_is_an_eager_run_with_one_warning(monkeypatch: pytest.MonkeyPatch
                                                             ) -> None:
    compiled = _with_a_guard_that_fails(monkeypatch)
    x = torch.ones(2)
    with weft.config.patch(strict=False), warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(5):
            assert torch.equal(compiled(x), x + 1)
    assert [w.category for w in seen] == [FallbackWarning]
    stats = weft.stats()
    assert (stats["recompiles"], stats["cache_entries"]) == (0, 0)
    assert 1 <= stats["unfit_guards"] <= 3


def test_methods_of_classes_are_not_bound() -> None:
    def f(x: torch.Tensor) -> Any:
        def wrapper() -> None:
            """A docstring."""

        functools.update_wrapper(wrapper, type, ("__module__", "__name__", "__qualname__"))
        return x + 1, wrapper.__name__, type.__dict__["__dir__"].__name__

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == ("type", "__dir__")
    assert weft.stats()["recompiles"] == 0


def test_a_module_that_capture_imports_made_a_variant_that_never_fits() -> None:
    """`numpy` imports `numpy.fft` when it is first asked for it."""
    program = """
import numpy as np, weft
x = np.arange(4.0)
f = weft.compile(lambda x: np.fft.ifft(x), backend="eager")
assert "fft" not in vars(np)
for _ in range(2):
    result = f(x)
assert (abs(result - np.fft.ifft(x)) < 1e-9).all() and weft.stats()["cache_entries"] == 1
"""
    environment = {**os.environ, "WEFT_STRICT": "1"}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
