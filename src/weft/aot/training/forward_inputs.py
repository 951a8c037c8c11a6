"""The inputs of a compiled forward, for backwards that differentiate the captured graph.

Place in the pipeline: part of `autograd_function`'s context. Such a backward (`create_graph=True`)
runs the captured graph again, and so needs its inputs beside the saved values. Eager would not save
them: they are kept outside autograd's saved tensors, because the program may write to them, and
hooks do not see them. Leaves are kept strongly, which costs nothing, and so are others as long as
no more is kept in all than in eager. The rest is held weakly, and if it is gone, that is an error
and not a wrong number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, final
from weakref import ref

import torch

from weft.aot.training.replaced_inputs import Reads
from weft.errors import WeftError
from weft.storable import storable


class DoubleBackwardError(WeftError, RuntimeError):
    """`create_graph=True` needs something that the compiled graph cannot give."""


@storable
@final
@dataclass(frozen=True, slots=True)
class ForwardInputs:
    """How each input (by number) is held from the forward to the backward."""

    count: int
    saved: tuple[int, ...]
    """Inputs among the saved values, which begin with them."""
    leaves: tuple[int, ...]
    """Leaves, kept strongly for this purpose alone."""
    unread_leaves: frozenset[int]
    """Of these, those whose values no gradient depends on."""
    weak: tuple[int, ...]
    """Tensors that are held weakly, at the latest when autograd has freed what it saved."""
    held: frozenset[int]
    """Of these, those that are kept strongly until then."""
    unread: tuple[int, ...]
    """Tensors whose values no gradient depends on: only their metadata matters."""
    written: frozenset[int]
    """Tensors that the graph writes: their versions say nothing."""
    reads: tuple[Reads, ...]
    """How the backward reads the saved ones."""
    watched: tuple[int, ...]
    """Positions of saved ones whose memory may be replaced."""
    copied: tuple[int, ...]
    """Of these, small ones whose values the results depend on: copied before they are written."""

    def copy_lines(self) -> Iterator[str]:
        """Statements before the graph runs."""
        if self.copied:
            yield f"ctx.copies = ({''.join(f'inputs[{i}].clone(), ' for i in self.copied)})"

    def forward_lines(self, held: str) -> Iterator[str]:
        """Statements of the forward that keep them in `ctx`, weakly those in the list `held`."""
        if self.watched:
            watched = "".join(f"inputs[{self.saved[k]}], " for k in self.watched)
            yield f"ctx.watched = hold(({watched}))"
        kept = "".join(f"inputs[{i}], " for i in self.leaves)
        read = (i for i in self.leaves if i not in self.unread_leaves)
        if kept:
            yield f"ctx.kept = ({kept})"
            versions = ", ".join(f"{i}: inputs[{i}]._version" for i in read)
            yield f"ctx.versions = {{{versions}}}" if versions else ""
        if len(self.saved) + len(self.leaves) + len(self.copied) < self.count:
            yield f"ctx.others = hold_others({held})"

    def replaced(self, ctx: Any) -> dict[int, torch.Tensor]:
        """What saved inputs (by position) were, whose memory the program has replaced."""
        if not self.watched or not ctx.watched.changed():
            return {}
        pairs = zip(self.watched, ctx.watched.old(), strict=True)
        return {k: old for k, old in pairs if old is not None}

    def hold_others(self, inputs: Sequence[Any]) -> dict[int, object]:
        """What stands for inputs that are not kept strongly: numbers, weak references with
        versions."""
        others = {i: x for i, x in enumerate(inputs) if not isinstance(x, torch.Tensor)}
        for i in self.unread:
            others[i] = _StandIn(inputs[i])
        for i in self.weak:
            untracked = i in self.written or inputs[i].is_inference()
            version = None if untracked else inputs[i]._version
            others[i] = ((_Strong if i in self.held else ref)(inputs[i]), version)
        return others

    def release(self, ctx: Any) -> None:
        """Hold weakly what was kept strongly, if autograd has freed what it saved."""
        with suppress(RuntimeError):
            ctx.saved_tensors  # noqa: B018  raises if it is freed
            return
        for i in self.held:
            held, version = ctx.others[i]
            if type(held) is _Strong:
                ctx.others[i] = ref(held()), version

    def found_again(self, ctx: Any, saved: Sequence[object]) -> list[object]:
        """The arguments of the forward."""
        inputs: list[Any] = [None] * self.count
        for i, tensor in zip(self.saved, saved, strict=False):
            inputs[i] = tensor
        if self.leaves:
            versions = {} if self.unread_leaves.issuperset(self.leaves) else ctx.versions
            for i, tensor in zip(self.leaves, ctx.kept, strict=True):
                if tensor._version != versions.get(i, tensor._version):
                    raise _lost("was modified in place")
                inputs[i] = tensor
        if self.copied:
            if not hasattr(ctx, "copies"):
                raise _lost("was overwritten")
            for i, tensor in zip(self.copied, ctx.copies, strict=True):
                inputs[i] = tensor
        for i, other in getattr(ctx, "others", {}).items():
            inputs[i] = _revived(other) if isinstance(other, tuple | _StandIn) else other
        return inputs


@final
class _Strong:
    """A tensor in the place of a weak reference to it."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __call__(self) -> torch.Tensor:
        return self.tensor


@final
class _StandIn:
    """The metadata of an input whose value does not matter."""

    __slots__ = ("device", "dtype", "requires_grad", "size", "stride")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.size, self.stride = tensor.size(), tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        self.requires_grad = tensor.requires_grad

    def zeros(self) -> torch.Tensor:
        """A tensor of zeros with that metadata."""
        tensor = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return tensor.zero_().requires_grad_(self.requires_grad)


def _revived(held: tuple[Any, int | None] | _StandIn) -> torch.Tensor:
    if isinstance(held, _StandIn):
        return held.zeros()
    tensor: torch.Tensor | None = held[0]()
    if tensor is None or (held[1] is not None and tensor._version != held[1]):
        raise _lost("no longer exists" if tensor is None else "was modified in place")
    return tensor


def _lost(state: str) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"create_graph=True needs an input of the compiled graph that {state}",
        do="keep a reference to the inputs of the compiled function until after the backward",
    )
