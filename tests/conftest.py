"""What every test runs under: strict mode, its own cache directory, few threads, no state left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

import weft
from weft.capture.sharing import forget_shared
from weft.config import config


def _has_triton() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


GPU = torch.cuda.is_available() and _has_triton()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden files")


hypothesis.settings.register_profile(
    "weft", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
"""Nothing depends on time: a busy machine is no failure."""


def pytest_configure(config: pytest.Config) -> None:
    hypothesis.settings.load_profile("weft")
    torch.set_num_threads(2 if not hasattr(config, "workerinput") else 1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if GPU:
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and Triton")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def weft_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One disk cache for the tests of this process: equal kernels are compiled once."""
    return tmp_path_factory.mktemp("weft-cache")


@pytest.fixture(autouse=True)
def weft_defaults(weft_cache: Path) -> Iterator[None]:
    """Internal failures raise, verifiers run, settings go back to what they were, and nothing is
    shared with the compiled functions of earlier tests."""
    forget_shared()
    # (Small training graphs are compiled here, or most tests would compare eager with eager.)
    with config.patch(strict=True, cache_dir=str(weft_cache), small_graphs_by_autograd=False):
        yield


@pytest.fixture
def fresh() -> Iterator[None]:
    """No compiled code, counters or events from before or for later; the same random numbers."""
    torch.manual_seed(0)
    weft.reset()
    yield
    weft.reset()
