"""`activation_memory_budget`: less saved for the backward, the same results."""

from collections.abc import Callable

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import weft
from weft.errors import BadValue

F = torch.nn.functional
BUDGETS = (1.0, 0.8, 0.6, 0.4, 0.2, 0.0)


def perceptrons() -> torch.nn.Module:
    layers = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(6)]
    return torch.nn.Sequential(*layers)


def transformer() -> torch.nn.Module:
    return torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


def convolutions() -> torch.nn.Module:
    kinds = [torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU()]
    return torch.nn.Sequential(*kinds, torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.GELU())


def dropouts() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 16), torch.nn.Sigmoid()
    )


CASES: dict[str, tuple[Callable, tuple[int, ...]]] = {
    "perceptrons": (perceptrons, (64, 16)),
    "transformer": (transformer, (4, 8, 16)),
    "convolutions": (convolutions, (2, 4, 8, 8)),
    "dropouts": (dropouts, (64, 16)),
}


def step(call: Callable, module: torch.nn.Module, x: torch.Tensor) -> tuple[int, list]:
    """Bytes that the forward saves beside parameters and the input; results and gradients."""
    known = {p.untyped_storage().data_ptr() for p in [*module.parameters(), x]}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in known:
            kept[memory.data_ptr()] = memory.nbytes()
        return tensor

    torch.manual_seed(1)
    module.zero_grad()
    with saved_tensors_hooks(pack, lambda t: t):
        result = call(x)
    result.square().mean().backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    return sum(kept.values()), [result.detach(), *gradients, *module.buffers()]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("case", CASES)
def test_less_is_saved_and_results_stay(case: str, backend: str) -> None:
    make, size = CASES[case]
    sizes = []
    wanted = None
    for budget in BUDGETS:
        torch.manual_seed(0)
        module, x = make(), torch.randn(size)
        compiled = weft.compile(
            module, backend=backend, options={"activation_memory_budget": budget}
        )
        saved, found = step(compiled, module, x)
        sizes.append(saved)
        wanted = found if wanted is None else wanted
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[3] <= 0.4 * sizes[0] or case == "dropouts", "masks are not drawn again"
    assert sizes[-1] < sizes[0]


def test_nothing_but_inputs_is_saved_at_zero() -> None:
    module, x = perceptrons(), torch.randn(64, 16)
    with weft.config.patch(activation_memory_budget=0.0):
        saved, _ = step(weft.compile(module, backend="aot_eager"), module, x)
    assert saved == 0


def test_a_budget_lies_between_zero_and_one() -> None:
    for wrong in (-0.1, 1.5, "half"):
        with pytest.raises(BadValue), weft.config.patch(activation_memory_budget=wrong):
            pass
    with weft.config.patch(activation_memory_budget=1):
        assert weft.config.activation_memory_budget == 1.0
