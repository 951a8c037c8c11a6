"""Programs with gradients, compiled and in eager: the same values, types, gradients and errors."""

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from autograd_programs import (  # noqa: F401  (register their programs)
    backwards,
    checkpoints,
    functions,
    hooks,
    models,
    precision,
    saved_tensors,
    transforms,
)
from autograd_programs.programs import PROGRAMS

import weft


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Failures inside weft surface; process groups do not outlive a program."""
    with weft.config.patch(strict=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    if dist.is_initialized():
        dist.destroy_process_group()


def assert_same(found: object, wanted: object) -> None:
    """Equal types and values; tensors within their type's tolerance."""
    assert type(found) is type(wanted), (found, wanted)
    if isinstance(wanted, torch.Tensor):
        assert isinstance(found, torch.Tensor)
        assert found.requires_grad == wanted.requires_grad
        half = wanted.dtype in (torch.bfloat16, torch.float16)
        within = {"rtol": 2e-2, "atol": 1e-2} if half else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(found, wanted, equal_nan=True, **within)
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted)
        for f, w in zip(found, wanted, strict=True):
            assert_same(f, w)
    else:
        assert found == wanted


def outcome(name: str, wrap: object) -> object:
    torch.manual_seed(0)
    try:
        return list(PROGRAMS[name](wrap))
    except RuntimeError as error:
        return type(error)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_autograd_program(name: str) -> None:
    wanted = outcome(name, lambda function: function)
    found = outcome(name, lambda function: weft.compile(function, backend="aot_eager"))
    assert_same(found, wanted)
