"""Torch operations on fake tensors: their results, and what they write.

Place in the pipeline: under `tensor.record`, which makes nodes and values of what is observed here.
An operation that fails on fakes, or that asks for data, ends the graph::

    observe(tx, "add_", [x, y], {}).writes      # True
"""

from __future__ import annotations

import contextlib
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import torch

from weft._torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    OpOverload,
    OpOverloadPacket,
    is_collective,
)
from weft.capture.core.breaks import SkipFrame, graph_break
from weft.capture.library.tensors.ragged_sizes import is_ragged
from weft.interrupts import surface
from weft.shapes.algebra.relation import eq
from weft.shapes.fakes.float_trials import run_carrying
from weft.shapes.fakes.operator_effects import OperatorNotes
from weft.shapes.symnode import UndecidedValue, expr_of

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_R = TypeVar("_R")

_KNOW_THE_STORAGE: Final = frozenset({"as_strided", "as_strided_", "as_strided_scatter"})


@final
@dataclass(frozen=True, slots=True)
class Observed:
    """What an operation does, as seen on fakes."""

    result: Any
    by_python: bool
    """Whether PyTorch's Python dispatcher was needed."""
    writes: bool
    has_effect: bool
    """Whether it must run even if nothing uses its result."""
    notes: OperatorNotes
    """What its operators write, and whether one may fail because of data."""


def observe(tx: Interpreter, target: object, fakes: list[Any], named: dict[str, Any]) -> Observed:
    """Run an operation on fakes."""
    if name_of(target) in _KNOW_THE_STORAGE:
        guard_offset(tx, fakes[0])
    operands = [*fakes, *named.values()]
    versions = [_version(fake) for fake in operands]
    tx.shapes.data.answers.clear()
    with tx.fakes.mode.noting() as notes, _keeping_size(target, named.get("out")):
        result, by_python = run_on_fakes(tx, target, fakes, named)
    written = [f for f, v in zip(operands, versions, strict=True) if v != _version(f)]
    _check_writable(target, written)
    if "out" in named and not isinstance(target, str):
        _check_out(tx, target, fakes, named)
    changed = bool(written) or "out" in named
    writes = changed or _writes(target)
    updates = _updates_statistics(name_of(target), fakes, named)
    for fake in operands if updates else ():
        notes.note_write(fake)
    return Observed(
        result, by_python, writes,
        has_effect=writes or updates or result is None or is_collective(target), notes=notes)


def run_on_fakes(tx: Interpreter, target: Any, args: list[Any], kwargs: dict[str, Any]
                 ) -> tuple[Any, bool]:
    """The result, and whether PyTorch's Python dispatcher was needed."""
    function = _method(target) if isinstance(target, str) else target
    tx.shapes.data.expects = True
    fixed = len(tx.shapes.fixed)
    try:
        result = _run_checked(
            tx, lambda: run_carrying(tx.shapes, tx.fakes.mode, function, args, kwargs))
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise graph_break("data-dependent-shape", f"{name_of(target)}: {error}") from error
    except UndecidedValue as error:
        raise graph_break("data-dependent-value", f"{name_of(target)}: {error}") from error
    except Exception as error:
        surface(error)
        if "function that returns multiple views" in str(error):
            raise SkipFrame("an error that depends on how a view was made") from error
        text, *_ = str(error).partition("\nException raised from")  # what follows is C++'s stack
        raise graph_break("operator-failed",
                          f"{name_of(target)}: {type(error).__name__}: {text}") from error
    finally:
        tx.shapes.data.expects = False
    numbers = tx.shapes.fixed[fixed:]
    if numbers and not tx.policy.may_fix:
        raise graph_break("varying-argument", f"{name_of(target)}: {', '.join(map(str, numbers))}")
    return result


def _method(name: str) -> Callable[..., object]:
    return lambda owner, *args, **kwargs: getattr(owner, name)(*args, **kwargs)


def _run_checked(tx: Interpreter, run: Callable[[], _R]) -> _R:
    """Run an operator. If it asks a bool of its data and raises for one answer, give it the other:
    it asks again when the graph runs."""
    shapes = tx.shapes
    try:
        return run()
    except UndecidedValue:
        passing: list[tuple[_R, list[Any], bool]] = []
        for shapes.data.bool_answer in (True, False):
            shapes.data.answers.clear()
            with contextlib.suppress(RuntimeError):
                passing.append((run(), list(shapes.data.answers), shapes.floats.carrying))
        if len(passing) != 1:
            raise
        [(result, shapes.data.answers[:], shapes.floats.carrying)] = passing
        return result
    finally:
        shapes.data.bool_answer = None


def name_of(target: object) -> str:
    """The name of a function, or the name itself of a method."""
    return target if isinstance(target, str) else getattr(target, "__name__", repr(target))


def guard_offset(tx: Interpreter, fake: torch.Tensor) -> None:
    """Guard the storage offsets of the inputs that share the tensor's memory."""
    storage = fake.untyped_storage()._cdata
    for graph_input in tx.builder.inputs:
        example = graph_input.node.meta["example_value"]
        if isinstance(example, torch.Tensor) and example.untyped_storage()._cdata == storage:
            starts_at = partial(_starts_at, example.storage_offset())
            tx.guards.add(graph_input.source, "py", starts_at)


def _starts_at(offset: Any, tensor: torch.Tensor) -> bool:
    return tensor.storage_offset() == offset  # type: ignore[no-any-return]


def _check_writable(target: object, written: list[torch.Tensor]) -> None:
    """Raise the error of a write to a tensor whose items share memory; fakes do not raise it."""
    for fake in written:
        layout = zip(fake.shape, fake.stride(), strict=True)
        if any(type(n) is int and n > 1 and _is_zero(stride) for n, stride in layout):
            raise graph_break("operator-failed", f"{name_of(target)} on an expanded tensor")


def _is_zero(stride: Any) -> bool:
    """Whether a stride is 0 in this call; False if only a size that depends on data could make it
    0."""
    if type(stride) is int or is_ragged(stride):
        return bool(stride == 0)
    answer: bool | None = stride.node.shape_env.truth(eq(expr_of(stride), 0))
    return answer is True


@contextlib.contextmanager
def _keeping_size(target: object, out: object) -> Iterator[None]:
    """Break the graph if an operation inside resizes its `out`: eager makes it another view of its
    memory, and warns."""
    tensors = [t for t in (out if isinstance(out, (tuple, list)) else (out,))
               if isinstance(t, torch.Tensor)]
    if not tensors:
        yield
        return
    sizes = [t.size() for t in tensors]
    with warnings.catch_warnings():  # which eager gives
        warnings.simplefilter("ignore")
        yield
    if any(t.size() != size and 0 not in size for t, size in zip(tensors, sizes, strict=True)):
        raise graph_break("operator-failed", f"{name_of(target)} resizes its `out`")


def _check_out(tx: Interpreter, target: object, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Break the graph if `out` has another type than the result: only eager's kernels know if that
    works."""
    own = {name: fake for name, fake in kwargs.items() if name != "out"}
    function = getattr(target, "overloadpacket", target)  # `aten.sin.out` must have one
    out, result = kwargs["out"], run_on_fakes(tx, function, args, own)[0]
    if isinstance(out, torch.Tensor):
        out, result = (out,), (result,)
    if any(o.dtype != r.dtype for o, r in zip(out, result, strict=False)):
        raise graph_break("operator-failed", f"{name_of(target)} with an `out` of another type")


def is_in_place(target: object) -> bool:
    """Whether the name is that of an in-place operation; inference tensors have no versions to
    compare."""
    name = name_of(target)
    return name.endswith("_") or (name.startswith("i") and name in vars(operator))


def _writes(target: object) -> bool:
    """Whether an operator's schema says that it writes to arguments: versions do not tell it in
    inference mode and below autograd."""
    if isinstance(target, OpOverloadPacket):
        return all(_writes(getattr(target, name)) for name in target.overloads())
    return isinstance(target, OpOverload) and target._schema.is_mutable


def _updates_statistics(name: str, fakes: Sequence[object], named: Mapping[str, object]) -> bool:
    """Whether it is a batch norm in training or an observer: their kernels write to arguments
    without changing the versions. They are computed even if the result is not used."""
    if not name.endswith("batch_norm"):
        return name.lstrip("_").startswith(
            ("batch_norm_gather", "batch_norm_update", "fused_moving_avg_obs"))
    training = named.get("training", fakes[5] if len(fakes) > 5 else False)
    return training is True


def _version(fake: object) -> int:
    if isinstance(fake, torch.Tensor) and not fake.is_inference():
        return fake._version
    return 0
