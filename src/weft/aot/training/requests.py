"""Which of its gradients a running backward is asked for.

Place in the pipeline: made by `compile.py` for each graph, asked by `autograd_function.py` at
every backward. `loss.backward()` wants all gradients, `torch.autograd.grad(loss, x)` some::

    requests = Requests(leaf=0)
    requests.of(ctx.next_functions, (0, 1))     # None: all; or the positions of the wanted ones

For a leaf whose gradient `torch.autograd.grad` returns, the autograd engine answers by an
exception, which takes as long as all else that a small backward does. What was learned so is
believed the next times, too, if other gradients still are not wanted; one that is wanted is asked
for now and then. A belief can only be wrong in that it computes what nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, final

from weft._torch import is_executed

Indices = frozenset[int]

_TRUSTED: Final = 16
"""Backwards after which one of the wanted gradients is asked for again."""


@final
class Requests:
    """The gradients that the backwards of one graph are asked for.

    leaf: a gradient that ends in a leaf.
    """

    def __init__(self, leaf: int | None) -> None:
        self.leaf = leaf
        self.wanted: Indices | None = None  # the last answer
        self.by_exception: list[int] = []  # of these, those that an exception told
        self.unwanted: list[int] = []
        self.calls = 0

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Another process learns by itself what it is asked for."""
        return Requests, (self.leaf,)

    def of(self, following: Sequence[Any], edges: Sequence[int]) -> Indices | None:
        """The gradients that the running backward wants of an autograd node with these next
        functions, of which `edges` are those of the gradients; None: all."""
        if self.by_exception and self._is_as_before(following, edges):
            return self.wanted
        if self.is_plain(following, edges):
            return None
        answers = [is_executed(following[e][0]) for e in edges]
        self.unwanted = [k for k, answer in enumerate(answers) if answer is False]
        self.by_exception = [k for k, answer in enumerate(answers) if answer is None]
        wanted = frozenset(k for k, answer in enumerate(answers) if answer is not False)
        self.wanted = wanted if self.unwanted else None
        return self.wanted

    def is_plain(self, following: Sequence[Any], edges: Sequence[int]) -> bool:
        """Whether it is certain that a plain `backward()` runs: only that executes the nodes of
        leaves."""
        return self.leaf is not None and is_executed(following[edges[self.leaf]][0]) is True

    def _is_as_before(self, following: Sequence[Any], edges: Sequence[int]) -> bool:
        self.calls += 1
        if self.calls % _TRUSTED == 0:
            turn = self.calls // _TRUSTED % len(self.by_exception)
            if is_executed(following[edges[self.by_exception[turn]]][0]) is not None:
                return False
        for k in self.unwanted:  # noqa: SIM110  at every backward
            if is_executed(following[edges[k]][0]) is not False:
                return False
        return True
