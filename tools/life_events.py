"""What happens to a model in its life: the events that `tools/fuzz_life.py` draws from.

An event changes or calls one `Side` (the eager model or the compiled one) with the random numbers
that it is handed, and returns what can be seen of it. Both sides are handed equal numbers.
"""

from __future__ import annotations

import copy
import io
import pickle
import random
import types
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, final

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from weft.module import CompiledModule

WIDTH: Final = 4

Event = Callable[["Side", random.Random], Any]
Compiler = Callable[[nn.Module], Any]


class Block(nn.Module):
    """A residual layer with a norm, flags that its forward reads, and a buffer that it updates."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.norm = norm
        self.act: nn.Module = nn.ReLU()
        self.drop = nn.Dropout(0.25)
        self.scale = 1.0
        self.residual = True
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(WIDTH), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        y = self.drop(self.act(self.norm(self.inner(x)))) * self.scale
        if self.training:
            self.calls += 1
            self.mean.lerp_(y.detach().mean(0).to(self.mean.dtype), 0.5)
        return x + y if self.residual else y


class Net(nn.Module):
    """Some blocks, a dictionary of heads, a shared weight."""

    def __init__(self, norms: list[nn.Module], tied: bool) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*map(Block, norms))
        self.heads = nn.ModuleDict({"a": nn.Linear(WIDTH, WIDTH), "b": nn.Linear(WIDTH, WIDTH)})
        self.head = "a"
        self.gain = nn.Parameter(torch.ones(WIDTH))
        if tied:
            self.heads["a"].weight = self.heads["b"].weight

    def forward(self, x: torch.Tensor, *, power: int = 1) -> torch.Tensor:
        """The whole model."""
        y: torch.Tensor = self.heads[self.head](self.blocks(x)) * self.gain
        return y**power


@final
@dataclass
class Side:
    """One of the two twins."""

    model: nn.Module
    compile: Compiler
    call: Any = None
    log: list[Any] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)
    pending: list[torch.Tensor] = field(default_factory=list)
    optimizer: torch.optim.Optimizer | None = None

    def __post_init__(self) -> None:
        self.call = self.compile(self.model)

    def module(self, rng: random.Random) -> nn.Module:
        """Any module of the model."""
        return rng.choice(list(self.model.modules()))

    def block(self, rng: random.Random) -> Block:
        """One of the blocks."""
        return rng.choice([m for m in self.model.modules() if isinstance(m, Block)])

    def linear(self, rng: random.Random) -> nn.Linear:
        """One of the linear layers."""
        return rng.choice([m for m in self.model.modules() if isinstance(m, nn.Linear)])

    def parameter(self, rng: random.Random) -> nn.Parameter:
        """One of the parameters."""
        return rng.choice(list(self.model.parameters()))

    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return next(self.model.parameters()).dtype

    def replace(self, copied: nn.Module) -> None:
        """Go on with a copy of what is called: handles and optimizer are of the old one."""
        if isinstance(copied, CompiledModule):
            self.model, self.call = copied._orig_mod, copied
        else:  # what was compiled in place is not any more
            self.model, self.call = copied, self.compile(copied)
        self.handles, self.pending, self.optimizer = [], [], None


def _input(side: Side, rng: random.Random) -> torch.Tensor:
    x = torch.randn(rng.choice([2, 2, 2, 3, 5]), WIDTH, dtype=side.dtype())
    return x.requires_grad_(rng.random() < 0.2)


# -- calls -----------------------------------------------------------------------------------------


def train_step(side: Side, rng: random.Random) -> Any:
    """Forward and backward."""
    x = _input(side, rng)
    y = side.call(x)
    y.square().mean().backward()
    return y, x.grad


def call_in_mode(side: Side, rng: random.Random) -> Any:
    """Forward under one or two modes."""
    modes = [torch.no_grad, torch.inference_mode, torch.enable_grad, nullcontext,
             lambda: torch.autocast("cpu", torch.bfloat16)]
    with ExitStack() as stack:
        for mode in rng.sample(modes, rng.choice([1, 1, 2])):
            stack.enter_context(mode())
        y = side.call(_input(side, rng), power=rng.choice([1, 1, 2]))
        exact = not torch.is_autocast_enabled("cpu")
    return y, "exact" if exact else "in bfloat16"


def train_in_autocast(side: Side, rng: random.Random) -> Any:
    """A training step with its forward in bfloat16."""
    with torch.autocast("cpu", torch.bfloat16):
        loss = side.call(_input(side, rng)).float().square().mean()
    loss.backward()
    return loss


def forward_only(side: Side, rng: random.Random) -> Any:
    """A forward whose backward comes later, or never."""
    y = side.call(_input(side, rng))
    side.pending.append(y)
    return y


def late_backward(side: Side, rng: random.Random) -> Any:
    """The backward of an earlier forward."""
    if side.pending:
        side.pending.pop(rng.randrange(len(side.pending))).sum().backward()


def part_of_the_gradients(side: Side, rng: random.Random) -> Any:
    """`autograd.grad` for a parameter, unused ones allowed."""
    return torch.autograd.grad(side.call(_input(side, rng)).sum(), [side.parameter(rng)],
                               allow_unused=True)


def two_calls(side: Side, rng: random.Random) -> Any:
    """Two forwards, one backward."""
    (side.call(_input(side, rng)).sum() + side.call(_input(side, rng)).sum()).backward()


def wrong_input(side: Side, rng: random.Random) -> Any:
    """A call that raises: sizes, types, or a keyword that nobody knows."""
    case = rng.randrange(4)
    if case == 0:
        return side.call(torch.ones(2, WIDTH + 1, dtype=side.dtype()))
    if case == 1:
        return side.call(torch.ones(2, WIDTH, dtype=torch.int64))
    if case == 2:
        return side.call(_input(side, rng), strength=2)
    return side.call(None)


def backward_twice(side: Side, rng: random.Random) -> Any:
    """The second one raises."""
    loss = side.call(_input(side, rng)).square().sum()
    loss.backward()
    loss.backward()


# -- modes of the model ----------------------------------------------------------------------------


def train_or_eval(side: Side, rng: random.Random) -> Any:
    """The whole model's mode, or a part's."""
    target = rng.choice([side.model, side.call, side.module(rng)])
    target.train(rng.random() < 0.6)


def freeze(side: Side, rng: random.Random) -> Any:
    """Parameters that need no gradient, or do again."""
    target = rng.choice([side.parameter(rng), side.parameter(rng), side.module(rng)])
    target.requires_grad_(rng.random() < 0.5)


def attribute(side: Side, rng: random.Random) -> Any:
    """Plain attributes that the forward reads."""
    block = side.block(rng)
    case = rng.randrange(8)
    if case == 0:
        block.scale = rng.choice([0.5, 1.0, 2, -1.5])
    elif case == 1:
        block.residual = rng.random() < 0.5
    elif case == 2:
        block.drop.p = rng.choice([0.0, 0.25, 0.5])
    elif case == 3:
        block.norm.eps = rng.choice([1e-5, 1e-3])
    elif case == 4 and isinstance(block.norm, nn.BatchNorm1d):
        block.norm.momentum = rng.choice([None, 0.1, 0.5])
    elif case == 5 and isinstance(block.norm, nn.BatchNorm1d):
        block.norm.track_running_stats = rng.random() < 0.5
    elif case == 6:
        side.call.head = rng.choice("ab")
    else:
        block.unread = rng.random()


def replaced_forward(side: Side, rng: random.Random) -> Any:
    """A module's `forward` is set or deleted."""
    target = rng.choice([side.call, side.block(rng), side.linear(rng)])
    own = side.model if target is side.call else target
    if "forward" in own.__dict__:
        del target.forward
        return
    kept, factor = own.forward, rng.choice([2, 3])
    target.forward = lambda *args, **kwargs: kept(*args, **kwargs) * factor


# -- hooks -----------------------------------------------------------------------------------------


def _sums(values: Any) -> list[float]:
    return [round(float(v.detach().float().abs().sum()), 2) for v in
            torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]


def module_hook(side: Side, rng: random.Random) -> Any:
    """A hook on a module or on what `compile` returned."""
    target = rng.choice([side.module(rng), side.module(rng), side.call])
    log, factor = side.log, rng.choice([1, 1, 2])
    hooks: dict[str, Callable[..., Any]] = {
        "register_forward_pre_hook": lambda m, args: tuple(a * factor for a in args),
        "register_forward_hook": lambda m, args, y: y * factor,
        "register_full_backward_hook": lambda m, gi, go: log.append(("backward", len(_sums(gi)))),
        "register_full_backward_pre_hook": lambda m, go: log.append(("before", len(_sums(go)))),
    }
    kind = rng.choice(list(hooks))
    side.handles.append(getattr(target, kind)(hooks[kind]))


def recording_hook(side: Side, rng: random.Random) -> Any:
    """A forward hook that keeps what it sees, or sets an attribute of its module."""
    log = side.log

    def hook(module: nn.Module, args: Any, y: torch.Tensor) -> None:
        log.append((type(module).__name__ == "CompiledModule", tuple(y.shape)))
        module.last = y.detach()

    side.handles.append(side.module(rng).register_forward_hook(hook))


def raising_hook(side: Side, rng: random.Random) -> Any:
    """A hook that raises once."""
    seen: list[int] = []

    def hook(module: nn.Module, args: Any) -> None:
        if not seen:
            seen.append(1)
            raise ArithmeticError("once")

    side.handles.append(side.module(rng).register_forward_pre_hook(hook))


def parameter_hook(side: Side, rng: random.Random) -> Any:
    """A hook on a parameter's gradient."""
    parameter, log, factor = side.parameter(rng), side.log, rng.choice([1, 3])
    if not parameter.requires_grad or not parameter.is_leaf:
        return
    if rng.random() < 0.5:
        side.handles.append(parameter.register_hook(lambda g: g * factor))
    else:
        side.handles.append(parameter.register_post_accumulate_grad_hook(
            lambda p: log.append(tuple(p.shape))))


def global_hook(side: Side, rng: random.Random) -> Any:
    """One training step with a hook of all modules."""
    log = side.log
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, y: log.append(tuple(y.shape)))
    try:
        return train_step(side, rng)
    finally:
        handle.remove()


def remove_hook(side: Side, rng: random.Random) -> Any:
    """One of the hooks goes."""
    if side.handles:
        side.handles.pop(rng.randrange(len(side.handles))).remove()


# -- parameters and buffers ------------------------------------------------------------------------


def optimizer_step(side: Side, rng: random.Random) -> Any:
    """A step of an optimizer, which is made when there is none."""
    if side.optimizer is None or rng.random() < 0.1:
        kinds = [lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
                 lambda p: torch.optim.AdamW(p, 0.01, eps=0.1)]
        side.optimizer = rng.choice(kinds)(list(side.model.parameters()))
    side.optimizer.step()
    side.optimizer.zero_grad(set_to_none=rng.random() < 0.5)


def zero_grad(side: Side, rng: random.Random) -> Any:
    """Gradients are zeroed or dropped."""
    rng.choice([side.model, side.call]).zero_grad(set_to_none=rng.random() < 0.5)


def write_parameter(side: Side, rng: random.Random) -> Any:
    """A parameter gets other values, in one of the many ways."""
    parameter, case = side.parameter(rng), rng.randrange(5)
    values = torch.randn_like(parameter)
    if case == 0:
        parameter.data = values
    elif case == 1:
        parameter.data.mul_(0.5)
    elif case == 2:
        with torch.no_grad():
            parameter.copy_(values)
    elif case == 3:
        parameter.grad = values
    elif parameter.requires_grad and parameter.is_leaf:  # (graphs refer to others weakly)
        torch.utils.swap_tensors(parameter, nn.Parameter(values, parameter.requires_grad))


def new_parameter(side: Side, rng: random.Random) -> Any:
    """A parameter is replaced, tied, or taken away."""
    linear, other, case = side.linear(rng), side.linear(rng), rng.randrange(4)
    if parametrize.is_parametrized(linear) or prune.is_pruned(linear):
        return
    if case == 0:
        linear.weight = nn.Parameter(torch.randn_like(linear.weight))
    elif case == 1:
        linear.bias = None
    elif case == 2:
        linear.bias = nn.Parameter(torch.zeros(WIDTH, dtype=side.dtype()))
    elif not (parametrize.is_parametrized(other) or prune.is_pruned(other)):
        linear.weight = other.weight


def write_buffer(side: Side, rng: random.Random) -> Any:
    """A buffer gets other values, or is another tensor."""
    block, case = side.block(rng), rng.randrange(5)
    if case == 0:
        block.calls.fill_(3)
    elif case == 1:
        block.calls = torch.full((), 7.0, dtype=side.dtype())
    elif case == 2:
        block.register_buffer("mean", torch.ones(WIDTH, dtype=side.dtype()),
                              persistent=rng.random() < 0.5)
    elif case == 3:
        del block.mean
        block.mean = nn.Buffer(torch.zeros(WIDTH, dtype=side.dtype()))
    else:
        block.mean = block.mean.clone()


def to_dtype(side: Side, rng: random.Random) -> Any:
    """The model in another precision."""
    rng.choice([side.model, side.call]).to(rng.choice([torch.float32, torch.float64]))


def load_state(side: Side, rng: random.Random) -> Any:
    """A state dict with other values, strict or not, copied or assigned."""
    target = rng.choice([side.model, side.call])
    state = {k: v * 0.9 if v.is_floating_point() else v.clone()
             for k, v in target.state_dict().items()}
    strict = rng.random() < 0.7
    if not strict:
        state.pop(rng.choice(list(state)))
    return len(target.load_state_dict(state, strict=strict,
                                      assign=rng.random() < 0.3).missing_keys)


# -- structure -------------------------------------------------------------------------------------


def swap_submodule(side: Side, rng: random.Random) -> Any:
    """A submodule is replaced, added, or taken away."""
    block, case, dtype = side.block(rng), rng.randrange(6), side.dtype()
    if case == 0:
        block.act = rng.choice([nn.ReLU, nn.GELU, nn.Tanh, nn.Identity])()
    elif case == 1:
        block.inner = nn.Linear(WIDTH, WIDTH, dtype=dtype)
    elif case == 2:
        block.norm = rng.choice([nn.LayerNorm, nn.BatchNorm1d])(WIDTH, dtype=dtype)
    elif case == 3:
        side.call.heads["a"] = copy.deepcopy(side.model.heads["b"])
    elif case == 4 and len(side.model.blocks) < 3:
        side.call.blocks.append(Block(nn.LayerNorm(WIDTH)).to(dtype))
    elif case == 5 and len(side.model.blocks) > 1:
        del side.call.blocks[0]


def pruned(side: Side, rng: random.Random) -> Any:
    """A weight is pruned, or pruned for good."""
    linear = side.linear(rng)
    if parametrize.is_parametrized(linear):
        return
    if prune.is_pruned(linear) and any("weight_mask" in n for n, _ in linear.named_buffers()):
        prune.remove(linear, "weight")
    else:
        prune.l1_unstructured(linear, "weight", amount=3)


class Doubled(nn.Module):
    """A parametrization."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Twice the weight."""
        return 2 * x


def parametrized(side: Side, rng: random.Random) -> Any:
    """A weight gets a parametrization, or loses all of them."""
    linear = side.linear(rng)
    if prune.is_pruned(linear):
        return
    if parametrize.is_parametrized(linear):
        parametrize.remove_parametrizations(linear, "weight",
                                            leave_parametrized=rng.random() < 0.5)
    elif rng.random() < 0.5:
        parametrize.register_parametrization(linear, "weight", Doubled())
    else:
        rng.choice([parametrizations.weight_norm, parametrizations.spectral_norm])(linear)


def copied(side: Side, rng: random.Random) -> Any:
    """Life goes on with a copy."""
    side.replace(copy.deepcopy(side.call))


def pickled(side: Side, rng: random.Random) -> Any:
    """Life goes on with what was saved and loaded (which hooks and set forwards are not)."""
    file = io.BytesIO()
    pickle.dump(side.call, file)
    file.seek(0)
    side.replace(pickle.load(file))


def wrapper_copied(side: Side, rng: random.Random) -> Any:
    """A copy of what `compile` returned computes the same."""
    return copy.deepcopy(side.call)(_input(side, rng))


def other_method(side: Side, rng: random.Random) -> Any:
    """A method that the class gets while the model is in use."""
    block = side.block(rng)
    block.extra = types.MethodType(lambda self, x: x * self.scale, block)
    return block.extra(torch.ones(2))


WEIGHTS: Final[dict[Event, int]] = {
    train_step: 12, call_in_mode: 8, train_in_autocast: 2, forward_only: 3, late_backward: 3,
    part_of_the_gradients: 2, two_calls: 2, wrong_input: 2, backward_twice: 1, train_or_eval: 3,
    freeze: 2, attribute: 5, replaced_forward: 1, module_hook: 3, recording_hook: 1,
    raising_hook: 1, parameter_hook: 1, global_hook: 1, remove_hook: 4, optimizer_step: 4,
    zero_grad: 2, write_parameter: 2, new_parameter: 2, write_buffer: 2, to_dtype: 1,
    load_state: 1, swap_submodule: 2, pruned: 1, parametrized: 1, copied: 1, pickled: 1,
    wrapper_copied: 1, other_method: 1,
}
"""How often each event is drawn."""
