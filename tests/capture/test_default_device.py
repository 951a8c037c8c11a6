"""Compiled functions called while a default device is set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import weft


@pytest.fixture(autouse=True)
def no_default_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)


def made_here(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + torch.ones(3, device=x.device), torch.arange(3).float() * 2


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_devices_of_new_tensors_follow_the_default(backend: str) -> None:
    weft.reset()
    compiled = weft.compile(made_here, backend=backend, fullgraph=True)
    x = torch.randn(3)
    for device in (None, "meta", None, "cpu", "meta"):
        torch.set_default_device(device)
        expected, given = made_here(x), compiled(x)
        assert [t.device for t in given] == [t.device for t in expected]
        torch.testing.assert_close(given[0], expected[0])
    assert weft.stats()["graphs"] == 3


def test_context_managers_outside_and_inside() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        before = torch.zeros(2)
        with torch.device("meta"):
            inside = torch.zeros(2)
        return x * 2, before, inside, torch.zeros(2)

    weft.reset()
    compiled = weft.compile(program, fullgraph=True)
    for device in ("cpu", "meta"):
        with torch.device(device):
            given = compiled(torch.ones(2, device="cpu"))
            assert [t.device.type for t in given] == ["cpu", device, "meta", device]
            assert torch.zeros(1).device.type == device
    assert torch.zeros(1).device.type == "cpu"


def test_a_default_device_that_the_program_sets() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        torch.set_default_device("meta")
        inside = torch.zeros(2)
        torch.set_default_device("cpu")
        return x * 2, inside, torch.zeros(2)

    weft.reset()
    compiled = weft.compile(program, fullgraph=True)
    for _ in range(2):
        assert [t.device.type for t in compiled(torch.ones(2))] == ["cpu", "meta", "cpu"]
        assert torch.get_default_device().type == "cpu"
        torch.set_default_device(None)


def test_breaks_and_gradients_under_a_default_device() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * torch.ones(3)
        if y.sum() > 0:
            y = y + torch.full((3,), 2.0)
        return y.sum()

    weft.reset()
    torch.set_default_device("cpu")
    compiled = weft.compile(program)
    for sign in (1.0, -1.0):
        x = torch.full((3,), sign, requires_grad=True)
        compiled(x).backward()
        torch.testing.assert_close(x.grad, torch.ones(3))
        torch.testing.assert_close(compiled(x), program(x))
    assert weft.stats()["graphs"] >= 3
    assert torch.get_default_device().type == "cpu"


def test_a_break_inside_the_context() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.device("meta"):
            first = torch.zeros(2)
            if x.sum() > 0:
                x = x + 1
            second = torch.zeros(2)
        return x, first, second, torch.zeros(2)

    weft.reset()
    compiled = weft.compile(program)
    for sign in (1.0, -1.0, 1.0):
        x = torch.full((3,), sign)
        expected, given = program(x), compiled(x)
        assert [t.device for t in given] == [t.device for t in expected]
        torch.testing.assert_close(given[0], expected[0])
        assert torch.zeros(1).device.type == "cpu"
    assert weft.stats()["graphs"] == 3


def test_another_mode_sees_every_call() -> None:
    seen = []

    class Watching(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    compiled = weft.compile(lambda x: x.relu() + 1)
    with Watching():
        compiled(torch.ones(2))
    assert torch.Tensor.relu in seen
