"""Whether a compiled graph computes the same as PyTorch.

Place in the pipeline: used by `checks.py` (settings `check_numerics`, `repro_after`) and by the
programs that `repro.py` writes::

    compare(gm, compiled, [x, w])          # "" or "output 0: 1 of 96 elements differ, by 0.5 ..."

Both run on copies of the inputs, with the same random numbers. Outputs, written inputs, and the
gradients of inputs are compared. If they differ by more than rounding, the graph runs again in
float64: a result that is as close to that as eager's is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from weft._torch import pytree
from weft.errors import NumericsError
from weft.graph_call import graph_call
from weft.interrupts import surface

Compiled = Callable[..., Any]
"""A compiled graph: takes its inputs, or one list of them if it has a true ``boxed``."""

RELATIVE: Final = {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 2e-3,
                   torch.bfloat16: 1.6e-2}
"""Difference that is rounding, as a share of the largest value; other dtypes must be equal."""

COARSE: Final = dict.fromkeys(RELATIVE, 0.05)
"""Difference that could be rounding in some order of half-precision operators."""

ROOM: Final = 3.0
"""How much further from float64 than eager a result may be."""


def compare(
    gm: fx.GraphModule, compiled: Compiled, inputs: Sequence[object],
    relative: Mapping[torch.dtype, float] = RELATIVE,
) -> str:
    """How the results differ from those of `gm` run by PyTorch; empty if they do not, or if `gm`
    itself raises on copies of these inputs.

    relative: for each dtype, the share of the largest value that a difference may have.
    """
    gpus = _gpus(inputs)

    def results(run: Callable[..., object], dtype: torch.dtype | None = None) -> dict[str, Any]:
        with torch.random.fork_rng(gpus):  # each run begins with the same random numbers
            return results_of(run, inputs, dtype)

    try:
        wanted = results(gm)
    except Exception as error:  # noqa: BLE001  the program's own: there is nothing to compare with
        surface(error)
        return ""
    try:
        computed = results(_taking_inputs(compiled))
    except NumericsError:  # of a later stage, which knows more
        raise
    except Exception as error:  # noqa: BLE001  any error is a difference
        surface(error)
        return f"it raises {type(error).__name__}: {error}"
    if not _difference(computed, wanted, None, relative):
        return ""
    try:
        exact = results(_DoubleInterpreter(gm).run, torch.float64)
    except Exception as error:  # noqa: BLE001  an operator without float64, dtypes that no longer fit
        surface(error)
        exact = None
    return _difference(computed, wanted, exact, relative)


def results_of(
    run: Callable[..., object], inputs: Sequence[object], dtype: torch.dtype | None = None
) -> dict[str, object]:
    """The results of a graph for copies of the inputs, by name: outputs, inputs after the run,
    gradients of the inputs as they were given. With a `dtype`, floating-point inputs are converted.
    """
    leaves, values = _copy_inputs(inputs, dtype)
    outputs = pytree.tree_leaves(run(*values))
    named = {f"output {i}": _copy_detached(value) for i, value in enumerate(outputs)}
    named |= {f"input {i} afterwards": _copy_detached(value) for i, value in enumerate(values)}
    ends = [t for t in outputs if isinstance(t, torch.Tensor) and t.requires_grad]
    trained = [(i, t) for i, t in enumerate(leaves)
               if isinstance(t, torch.Tensor) and t.requires_grad]
    if ends and trained:
        tangents = [torch.linspace(0.5, 1.5, t.numel(), dtype=torch.float64, device=t.device)
                    .view(t.shape).to(t.dtype) for t in ends]
        gradients = torch.autograd.grad(ends, [t for _, t in trained], tangents, allow_unused=True)
        named |= {f"gradient of input {i}": g
                  for (i, _), g in zip(trained, gradients, strict=True)}
    return named


def copies(inputs: Sequence[object]) -> list[Any]:
    """The inputs, tensors copied; those that share memory share that of their copies."""
    return _copy_inputs(inputs, None)[1]


def _copy_inputs(
    inputs: Sequence[Any], dtype: torch.dtype | None
) -> tuple[list[object], list[object]]:
    """Copies that are leaves, and the same as inputs: only what is no leaf may be written."""
    storages: dict[int, torch.UntypedStorage] = {}
    leaves = [_copy(x, storages, dtype) if isinstance(x, torch.Tensor) else x for x in inputs]
    values = [leaf.clone() if isinstance(x, torch.Tensor) and not x.is_leaf else leaf
              for x, leaf in zip(inputs, leaves, strict=True)]
    return leaves, values


def _copy(
    tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage], dtype: torch.dtype | None
) -> torch.Tensor:
    source = tensor.detach()
    if dtype is not None and source.is_floating_point():
        copy = source.to(dtype)
        copy = copy.clone() if copy is source else copy
    elif source.layout is not torch.strided or type(source) is not torch.Tensor:
        copy = source.clone()
    else:
        storage = source.untyped_storage()
        own = storages.get(storage.data_ptr())
        if own is None:
            own = storages[storage.data_ptr()] = storage.clone()
        copy = torch.empty(0, dtype=source.dtype, device=source.device).set_(
            own, source.storage_offset(), source.shape, source.stride())
    return copy.requires_grad_(tensor.requires_grad)


def _copy_detached(value: object) -> object:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _taking_inputs(compiled: Compiled) -> Callable[..., object]:
    return graph_call(compiled).taking_inputs()


def _gpus(inputs: Sequence[object]) -> list[int]:
    return sorted({t.device.index or 0 for t in inputs
                   if isinstance(t, torch.Tensor) and t.device.type == "cuda"})


class _DoubleInterpreter(fx.Interpreter):
    """Runs a graph with float64 wherever a node names a narrower floating-point dtype."""

    def run_node(self, n: fx.Node) -> object:
        if n.op in ("call_function", "call_method"):
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            args, kwargs = pytree.tree_map(_widen, (args, kwargs))
            run = self.call_function if n.op == "call_function" else self.call_method
            return run(n.target, args, kwargs)
        return super().run_node(n)


def _widen(value: object) -> object:
    return torch.float64 if isinstance(value, torch.dtype) and value in RELATIVE else value


def _difference(
    computed: dict[str, Any], wanted: dict[str, Any], exact: dict[str, Any] | None,
    relative: Mapping[torch.dtype, float],
) -> str:
    """The first difference, as a sentence; empty if there is none."""
    top = max((_largest(t.double()[t.isfinite()].abs()) for t in wanted.values()
               if isinstance(t, torch.Tensor) and t.dtype in RELATIVE), default=0.0)
    for name, value in wanted.items():
        other = computed.get(name)
        if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
            precise = None if exact is None else exact.get(name)
            problem = _of_tensors(other, value, precise, top, relative)
        elif isinstance(value, torch.Tensor) or isinstance(other, torch.Tensor):
            problem = f"{type(other).__name__}, not {type(value).__name__}"
        else:
            problem = "" if _same_number(other, value) else f"{other!r}, not {value!r}"
        if problem:
            return f"{name}: {problem}"
    return ""


def _same_number(computed: object, wanted: object) -> bool:
    return bool(computed == wanted or (computed != computed and wanted != wanted))


def _of_tensors(
    computed: torch.Tensor, wanted: torch.Tensor, exact: torch.Tensor | None, top: float,
    relative: Mapping[torch.dtype, float],
) -> str:
    for what in ("shape", "dtype", "device"):
        if getattr(computed, what) != getattr(wanted, what):
            return f"its {what} is {getattr(computed, what)}, not {getattr(wanted, what)}"
    if wanted.is_complex():
        computed, wanted = (torch.view_as_real(t.resolve_conj()) for t in (computed, wanted))
        exact = None  # complex inputs are not converted to a wider type
    if wanted.dtype not in RELATIVE:
        wrong = int((computed != wanted).sum())
        return f"{wrong} of {wanted.numel()} elements differ" if wrong else ""
    a, b = computed.double(), wanted.double()
    both = a.isnan() & b.isnan()
    error = torch.where(both | (a == b), 0.0, (a - b).abs())
    finite = b[b.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    # What cancels (the gradient of a bias before a batch norm) is rounding of larger values.
    computed_in = torch.bfloat16 if relative is COARSE else wanted.dtype
    allowed = relative[wanted.dtype] * scale + ROOM * torch.finfo(computed_in).eps * top
    if exact is not None and exact.shape == wanted.shape:
        allowed = max(allowed, ROOM * _largest((b - exact).abs()))
        error = torch.where(both | (a == b), 0.0, (a - exact).abs())
    wrong = int((~(error <= allowed)).sum())
    if not wrong:
        return ""
    return (f"{wrong} of {wanted.numel()} elements differ, by at most {_largest(error):.3g} "
            f"({allowed:.3g} is rounding)")


def _largest(values: torch.Tensor) -> float:
    known = values[~values.isnan()]
    return float(known.max()) if known.numel() else 0.0
