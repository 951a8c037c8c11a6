"""Kinds of calls: what a compiled function may be besides its arithmetic.

Each is a function of rows (n, 64) and a matrix (64, 64). The first ones have next to no work, so
that what a call costs in itself is seen; others return views, write their inputs, draw numbers,
break the graph, or are classes of modules::

    function = CALLS["two views"]()
    function(x, w)
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import nn

import weft

Function = Callable[..., Any]
CALLS: Final[dict[str, Callable[[], Function]]] = {}


def _plain(name: str, function: Function) -> None:
    CALLS[name] = lambda: function


def call(make: Callable[[], Function]) -> Callable[[], Function]:
    CALLS[make.__name__.replace("_", " ")] = make
    return make


# -- hardly any work -------------------------------------------------------------------------------

_plain("times two", lambda x, w: x * 2)
_plain("three pointwise", lambda x, w: (x * 2 + 1).relu())
_plain("matrix product", lambda x, w: x @ w)
_plain("linear", F.linear)
_plain("product and activation", lambda x, w: (x @ w).relu())
_plain("row sums", lambda x, w: x.sum(-1))
_plain("sum of all", lambda x, w: x.sum())
_plain("mean of squares", lambda x, w: (x * x).mean())
_plain("one input unused", lambda x, w: w.exp())
_plain("softmax", lambda x, w: x.softmax(-1))
_plain("layer norm", lambda x, w: F.layer_norm(x, (64,)))
_plain("cross entropy", lambda x, w: F.cross_entropy(x, x.argmax(-1)))

# -- results that are views, inputs, several -------------------------------------------------------

_plain("the input", lambda x, w: x)
_plain("a view", lambda x, w: x.t())
_plain("two views", lambda x, w: (x[:2], x[:, ::2]))
_plain("six views", lambda x, w: x.chunk(2, 1) + w.chunk(4))
_plain("a view of a result", lambda x, w: (x * 2).unflatten(1, (4, 16)))
_plain("a result and its view", lambda x, w: ((y := x * 2), y.t()))
_plain("a detached result", lambda x, w: (x * 2, x.detach()))
_plain("two results", lambda x, w: (x * 2, w + 1))
_plain("ten results", lambda x, w: tuple(x * k for k in range(1, 11)))
_plain("a dictionary", lambda x, w: {"product": x @ w, "rows": x.sum(1)})
_plain("the same result twice", lambda x, w: [x * 2] * 2)
_plain("a number", lambda x, w: (x * 2, x.shape[0]))
_plain("sum of an input's view", lambda x, w: x.t().sum())
_plain("added inputs", lambda x, w: x + x)
_plain("x + w rows", lambda x, w: x + w[0])
_plain("reshape", lambda x, w: x.reshape(-1))
_plain("concatenated", lambda x, w: torch.cat([x, w]))
_plain("stacked", lambda x, w: torch.stack([x, x * 2]))

# -- random numbers, writes, modes -----------------------------------------------------------------

_plain("dropout", lambda x, w: F.dropout(x, 0.1))
_plain("noise", lambda x, w: x + torch.randn_like(x))
_plain("dropout of a product", lambda x, w: F.dropout(x @ w, 0.5))


def _in_place(x: Any, w: Any) -> Any:
    y = x * 2
    y += 1
    y[0] = 3
    return y.relu_()


def _without_gradients(x: Any, w: Any) -> Any:
    with torch.no_grad():
        scale = w.abs().mean()
    return x * scale


def _under_autocast(x: Any, w: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ w).float()


def _checkpointed(x: Any, w: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: (x @ w).relu(), x, use_reentrant=False)


_plain("in place", _in_place)
_plain("without gradients", _without_gradients)
_plain("under autocast", _under_autocast)
_plain("checkpointed", _checkpointed)


@call
def cache_written() -> Function:
    cache = torch.zeros(4096, 64)

    def write(x: Any, w: Any) -> Any:
        cache[: len(x)] = (x @ w).detach()
        return cache[:64].sum(-1) + x.sum()

    return write


@call
def running_mean() -> Function:
    mean = torch.zeros(64)

    def update(x: Any, w: Any) -> Any:
        with torch.no_grad():
            mean.lerp_(x.float().mean(0), 0.1)
        return x - mean.to(x.dtype)

    return update


# -- graphs that break -----------------------------------------------------------------------------

@weft.disable
def _outside() -> None:
    """Never captured."""


@call
def one_break() -> Function:
    def broken(x: Any, w: Any) -> Any:
        y = x * 2
        _outside()
        return y + 1

    return broken


@call
def three_breaks() -> Function:
    def broken(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = x * 2
            _outside()
        return x

    return broken


# -- modules ---------------------------------------------------------------------------------------


def _module(name: str, make: Callable[[], nn.Module]) -> None:
    CALLS[name] = lambda: _of_type(make())


def _of_type(module: nn.Module) -> Function:
    """The module as a function of the rows, which are of its type or of bfloat16."""
    narrow = deepcopy(module).bfloat16()

    def run(x: Any, w: Any) -> Any:
        return (narrow if x.dtype == torch.bfloat16 else module)(x)

    return run


_module("a linear module", lambda: nn.Linear(64, 64))
_module("a perceptron", lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)))
_module("batch norm", lambda: nn.BatchNorm1d(64))
_module("attention", lambda: nn.TransformerEncoderLayer(64, 4, 128, batch_first=True))
_module("convolution", lambda: nn.Sequential(
    nn.Unflatten(1, (4, 4, 4)), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()))
_module("recurrent", lambda: nn.GRU(64, 32))
