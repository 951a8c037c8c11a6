"""CUDA graphs must never overwrite a result that the caller still holds, nor miss a moved input."""

from __future__ import annotations

from typing import Any

import torch

from weft.runtime.cuda_graphs import MOST_RECORDINGS, CudaGraphs


def scale(inputs: list[Any]) -> list[Any]:
    """An artifact: two launches, one intermediate."""
    weight, x = inputs
    inputs.clear()
    return [(x * weight).relu()]


def graphed() -> CudaGraphs:
    return CudaGraphs(scale, torch.device("cuda", torch.cuda.current_device()))


def test_results_stay_valid_while_held() -> None:
    runner, weight = graphed(), torch.randn(1000, device="cuda")
    held = []
    for step in range(6):
        x = torch.full((1000,), float(step), device="cuda")
        held.append((runner([weight, x])[0], (x * weight).relu()))
    for got, expected in held:
        torch.testing.assert_close(got, expected)
    assert 1 <= len(runner.recordings) <= MOST_RECORDINGS


def test_views_of_results_count_as_held() -> None:
    runner, weight = graphed(), torch.randn(1000, device="cuda")
    views = []
    for step in range(5):
        x = torch.full((1000,), float(step + 1), device="cuda")
        views.append((runner([weight, x])[0][10:20], (x * weight).relu()[10:20]))
    for got, expected in views:
        torch.testing.assert_close(got, expected)


def test_one_recording_serves_a_loop() -> None:
    runner, weight = graphed(), torch.randn(1000, device="cuda")
    for step in range(20):
        x = torch.full((1000,), float(step), device="cuda")
        result = runner([weight, x])[0]
        torch.testing.assert_close(result, (x * weight).relu())
    assert runner.captures <= MOST_RECORDINGS + 1


def test_moved_parameter_is_noticed() -> None:
    runner, x = graphed(), torch.randn(1000, device="cuda")
    weights = [torch.randn(1000, device="cuda") for _ in range(3)]
    for weight in (weights[0], weights[0], weights[0], weights[1], weights[2], weights[0]):
        torch.testing.assert_close(runner([weight, x])[0], (x * weight).relu())


def test_changed_contents_are_seen() -> None:
    runner, weight = graphed(), torch.randn(1000, device="cuda")
    x = torch.randn(1000, device="cuda")
    for _ in range(4):
        weight.add_(1.0)
        torch.testing.assert_close(runner([weight, x])[0], (x * weight).relu())


def test_synchronising_work_runs_without_a_graph() -> None:
    def counts(inputs: list[Any]) -> list[Any]:
        return [inputs[0].nonzero()]

    runner = CudaGraphs(counts, torch.device("cuda", torch.cuda.current_device()))
    for _ in range(4):
        x = (torch.rand(100, device="cuda") > 0.5).float()
        torch.testing.assert_close(runner([x])[0], x.nonzero())
    assert runner.disabled is not None


def test_graphs_follow_the_seed_after_a_capture_that_failed() -> None:
    """The generator was given another state, and earlier graphs went on drawing from the old."""
    def drop(inputs: list[Any]) -> list[Any]:
        (x,) = inputs
        inputs.clear()
        return [torch.nn.functional.dropout(x, 0.5)]

    def synchronise(inputs: list[Any]) -> list[Any]:
        return [drop(inputs)[0].nonzero()]

    device = torch.device("cuda", torch.cuda.current_device())
    runners, x = [CudaGraphs(drop, device), CudaGraphs(synchronise, device)], torch.ones(99).cuda()
    for seed in range(5):
        torch.manual_seed(seed)
        expected = [artifact([x])[0] for artifact in (drop, synchronise, drop)]
        torch.manual_seed(seed)
        found = [runner([x])[0].clone() for runner in (*runners, runners[0])]
        torch.testing.assert_close(found, expected)
    assert runners[1].disabled is not None
    assert runners[0].recordings


def test_copies_of_inputs_keep_their_strides() -> None:
    """Kernels are made for the strides of their inputs; a clone of an expanded tensor is dense."""
    base = torch.arange(24.0, device="cuda")
    layouts = [((4, 3, 2), (6, 2, 1)), ((4, 3, 2), (2, 0, 1)), ((4, 3, 2), (0, 0, 0)),
               ((4, 3), (1, 4)), ((4, 3), (6, 2)), ((4, 3), (1, 1)), ((0, 3), (3, 1)), ((), ())]
    for size, stride in layouts:
        seen: list[Any] = []

        def read(inputs: list[Any], seen: list[Any] = seen) -> list[Any]:
            seen.append(inputs[0].stride())
            return [inputs[0] + 1]

        runner = CudaGraphs(read, torch.device("cuda", torch.cuda.current_device()))
        for step in range(4):
            x = (base * step).as_strided(size, stride)
            torch.testing.assert_close(runner([x])[0], x + 1)
        assert set(seen) == {stride}


def test_each_size_has_its_recording() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    runner, weight = CudaGraphs(scale, device, changing=(1,)), torch.randn(1, device="cuda")
    for count in (10, 10, 10, 20, 20, 10, 20):
        x = torch.randn(count, device="cuda")
        torch.testing.assert_close(runner([weight, x])[0], (x * weight).relu())
