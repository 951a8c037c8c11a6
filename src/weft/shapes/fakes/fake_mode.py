"""A `FakeTensorMode` that caches operators' results by metadata, symbolic sizes included.

Place in the pipeline: capture and aot run every operator under this mode. The same operator on the
same metadata is common (the layers of a transformer, a graph run again by aot). PyTorch's own cache
costs as much as a small meta kernel, and is built for sympy sizes. Here a hit costs about 25 µs,
with symbolic as with static sizes::

    mode = MemoFakeMode()
    with mode:
        fake + fake        # computed by PyTorch's meta kernel
        fake + fake        # made from the remembered sizes, strides, dtype and device

`result_memo.py` says which results are remembered; `operator_rules.py` computes the others.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft._torch import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    are_functorch_transforms_active,
    in_kernel_invocation,
    make_context_of_device,
    no_modes,
    should_allow_numbers_as_tensors,
)
from weft.shapes.fakes.data_dependent import RULES
from weft.shapes.fakes.kernel_trials import refusal
from weft.shapes.fakes.make_fake import make_fake, make_meta
from weft.shapes.fakes.meta_corrections import corrected
from weft.shapes.fakes.operator_effects import OperatorNotes, is_composite
from weft.shapes.fakes.operator_rules import OPERATOR_RULES
from weft.shapes.fakes.result_memo import MISSING, CallReader, ResultMemo
from weft.shapes.fakes.without_dynamo import initialise
from weft.shapes.fakes.without_sympy import python_kernels, without_sympy
from weft.shapes.fakes.wrappers import keep_nested_dummy_real, ragged_size
from weft.shapes.symnode import SizesAskedError, SymNode
from weft.torch_version import IS_TESTED

if TYPE_CHECKING:
    from weft.shapes.context import ShapeContext

_META: Final = torch.device("meta")
_WITH_CONTEXT: Final = frozenset({"cuda", "xpu"})
_SIZE_QUESTIONS: Final = frozenset(
    {torch.ops.aten.size.default, torch.ops.aten.stride.default, torch.ops.aten.numel.default}
)
_DEVICE: Final = torch.ops.prim.device.default
_LIFTS: Final = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)


@final
class _Unlogged(logging.Filter):
    """Drops what PyTorch's fake tensors log while `depth` is not 0."""

    depth = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        return not self.depth


_unlogged: Final = _Unlogged()
logging.getLogger(FakeTensorMode.__module__).addFilter(_unlogged)


@final
class MemoFakeMode(FakeTensorMode):
    """A `FakeTensorMode` with a cache of results; see the module's docstring."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch: False, because otherwise the first operator would load torch._dynamo."""
        return False

    def __init__(self, raises_refusals: bool = False) -> None:
        if IS_TESTED:
            initialise(self)
        else:
            super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False
        self.symbols: ShapeContext | None = None
        """Makes symbols for what depends on data; None: such operators raise."""
        self.notes: OperatorNotes | None = None
        self._memo = ResultMemo()
        self.raises_refusals = raises_refusals
        """Whether what the CPU's kernels refuse raises; not where weft rewrites operators."""
        self._refuses_sizes = False

    @contextmanager
    def noting(self) -> Iterator[OperatorNotes]:
        """Note what the operators inside do."""
        symbols = self.symbols
        notes = self.notes = OperatorNotes(
            has_open_sizes=symbols is not None and symbols.unbacked_symbols.exist)
        try:
            yield notes
        finally:
            self.notes = None

    def __torch_dispatch__(
        self, func: object, types: Sequence[type], args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return self.dispatch(func, types, args, kwargs)

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The operator's result on fakes, cached or computed."""
        if torch.is_inference_mode_enabled() and func.is_view and not args[0].is_inference():
            with torch.inference_mode(False), torch.no_grad():  # it is not one, either
                return self.dispatch(func, types, args, kwargs)
        if self._refuses_sizes and func in _SIZE_QUESTIONS:
            raise SizesAskedError(str(func))
        if func is _DEVICE and type(args[0]) is FakeTensor:  # C++ asks it in most operators
            return _META if args[0].fake_mode.in_kernel_invocation else args[0].fake_device
        if self.notes is not None:
            if torch.is_inference_mode_enabled() and self._has_parts(func):
                with self:  # in other modes, autograd's dispatch has called them
                    return func.decompose(*args, **(kwargs or {}))
            self.notes.note(func, args, kwargs or {})
        symbols = self.symbols
        if symbols is None:
            return self._plain(func, types, args, kwargs)
        symbols.in_operator += 1
        try:
            rule = RULES.get(func)
            result = NotImplemented if rule is None else rule(
                self, symbols, *args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
            return self._plain(func, types, args, kwargs)
        finally:
            symbols.in_operator -= 1

    def _has_parts(self, func: Any) -> bool:
        """Whether an operator is to be noted as the operators that it calls."""
        return is_composite(func) and not func.is_view and func not in RULES

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> torch.SymInt:
        """torch: the ragged size of a nested tensor, which equals only itself."""
        keep_nested_dummy_real()
        return ragged_size()

    def _plain(
        self, func: object, types: Sequence[type], args: Sequence[object],
        kwargs: Mapping[str, object] | None,
    ) -> Any:
        """The result of an operator whose metadata depends on its arguments' metadata alone."""
        options = kwargs or {}
        call = CallReader(self)
        key = call.key(func, args, options)
        known = MISSING if key is None else self._memo.find(key, call)
        if known is not MISSING:
            return known
        _use_device(options.get("device"))
        n_known_answers = self.n_known_answers()
        with self._accepting_all():
            result = (self._by_pytorch(func, types, args, options) if key is None
                      else self._computed(func, types, args, options, call))
        refused = self._is_refused(func, args, options)
        if key is not None and self.n_known_answers() == n_known_answers and not refused:
            self._memo.store(key, call, result)
        return result

    def _computed(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any],
        call: CallReader,
    ) -> object:
        try:
            return self._compute(func, types, args, kwargs, call)
        except (RuntimeError, TypeError) as error:
            if not call.symbolic or not _may_specialize(func, error):
                raise
            return self._otherwise(func, types, args, kwargs, call)

    @contextmanager
    def _accepting_all(self) -> Iterator[None]:
        """While the operators that run are not the program's, but PyTorch's definitions of them."""
        raised, self.raises_refusals = self.raises_refusals, False
        try:
            yield
        finally:
            self.raises_refusals = raised

    def _is_refused(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a CPU's kernel raises what the meta kernel accepted; then this may raise, too."""
        error = refusal(func, args, kwargs)
        if error is not None and self.raises_refusals:
            raise type(error)(*error.args)
        return error is not None

    def _by_pytorch(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> object:
        """PyTorch's own result. It logs operators' errors, which the program may expect."""
        if func in _LIFTS and type(args[0]) is torch.Tensor and args[0].layout is torch.strided:
            return self._lifted(args[0])
        _unlogged.depth += 1
        draws = torch.Tag.nondeterministic_seeded in func.tags
        try:
            with without_sympy(), _preserve_generators(args) if draws else nullcontext():
                return super().dispatch(func, types, args, kwargs)
        finally:
            _unlogged.depth -= 1

    def _lifted(self, real: torch.Tensor) -> FakeTensor:
        """The result of `torch.tensor(...)`, which remembers a single number for `.item()`.

        PyTorch's own way to the same result loads torch._dynamo.
        """
        fake = make_fake(self, make_meta(real.size(), real.stride(), real.dtype), real.device)
        if self.may_turn_const(real):
            with no_modes():
                fake.constant = real.clone()
            self.fake_tensor_converter.add_constant_storage_mapping(fake)
        return fake

    def n_known_answers(self) -> int:
        """How often known data has decided a result, which then must not be cached."""
        return 0 if self.symbols is None else self.symbols.data.n_known_answers

    def _compute(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object],
        kwargs: Mapping[str, object], call: CallReader,
    ) -> object:
        """The result of a plain operator by the first rule that applies, else by PyTorch."""
        if not IS_TESTED or (not call.tensors and should_allow_numbers_as_tensors(func)):
            return corrected(func, args, self._by_pytorch(func, types, args, kwargs), self._cast)
        with without_sympy():
            for rule in OPERATOR_RULES:
                result = rule(self, func, args, kwargs, call)
                if result is not NotImplemented:
                    return corrected(func, args, result, self._cast)
        return self._by_pytorch(func, types, args, kwargs)

    def _cast(self, fake: object, **form: object) -> Any:
        return self.dispatch(torch.ops.aten._to_copy.default, (), (fake,), form)

    def run(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, bool]:
        """``function`` under this mode, and whether it needed PyTorch's Python dispatcher.

        Composite operators in C++ ask for plain sizes. Before symbolic ones are fixed for them,
        the Python dispatcher is tried, which has Python forms of many. A backward frees its graph
        and cannot be tried twice; vmap's rules for it are where C++ asks.
        """
        if (function is torch.autograd.grad and self.symbols is not None and self.symbols.sources
                and are_functorch_transforms_active()):
            with self, python_kernels(), self._accepting_all():
                return function(*args, **kwargs), True
        self._refuses_sizes = SymNode.refuses_ints = True
        try:
            with self:
                return function(*args, **kwargs), False
        except RuntimeError as error:
            if not _wants_plain_sizes(error):
                raise
        finally:
            self._refuses_sizes = SymNode.refuses_ints = False
        if self.symbols is not None:
            self.symbols.data.answers.clear()
        with self, python_kernels(), self._accepting_all():
            return function(*args, **kwargs), True

    def _otherwise(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object],
        kwargs: Mapping[str, object], call: CallReader,
    ) -> object:
        """The result of an operator whose C++ kernel takes no symbolic sizes."""
        try:
            with python_kernels():
                return self._compute(func, types, args, kwargs, call)
        except (RuntimeError, TypeError):
            return self._specialized(func, types, args, kwargs)

    def _specialized(
        self, func: OpOverload, types: Sequence[type], args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> object:
        """The result for the sizes of this call, fixed by guards.

        For operators whose meta kernels take no symbolic sizes. Other errors (sizes that do not
        fit) are raised again.
        """
        with in_kernel_invocation(self):
            plain_args = [_concrete(arg, self) for arg in args]
            plain_kwargs = {name: _concrete(value, self) for name, value in kwargs.items()}
        return self.dispatch(func, types, plain_args, plain_kwargs)


@contextmanager
def _preserve_generators(args: Sequence[Any]) -> Iterator[None]:
    """Restore the generators afterwards: PyTorch runs an operator without a meta kernel on real
    tensors of zeros."""
    devices = {a.fake_device for a in args if isinstance(a, FakeTensor)}
    cuda = [d for d in devices if d.type == "cuda"]
    with no_modes():
        cpu, states = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in cuda]
    try:
        yield
    finally:
        with no_modes():
            torch.set_rng_state(cpu)
            for device, state in zip(cuda, states, strict=True):
                torch.cuda.set_rng_state(state, device)


def _wants_plain_sizes(error: RuntimeError) -> bool:
    """Whether C++ code refused symbolic sizes (each kind of accessor has its own message)."""
    text = str(error)
    return isinstance(error, SizesAskedError) or any(words in text for words in _REFUSALS)


_REFUSALS: Final = (
    "on tensor with symbolic sizes/strides", "expected to contain only concrete integers",
)


def _may_specialize(func: OpOverload, error: Exception) -> bool:
    has_symbolic_sizes = isinstance(error, SizesAskedError)
    return not (func.is_view or func._schema.is_mutable or has_symbolic_sizes)


def _concrete(value: object, mode: FakeTensorMode) -> object:
    """The argument with symbolic numbers replaced by plain ones (guarded)."""
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, list | tuple):
        return [_concrete(item, mode) for item in value]
    if type(value) is not FakeTensor or not value._has_symbolic_sizes_strides:
        return value
    size, stride = [int(n) for n in value.size()], [int(n) for n in value.stride()]
    meta = make_meta(size, stride, value.dtype)
    return make_fake(mode, meta, value.fake_device)


@functools.cache
def _use_device(device: object) -> None:
    """Let PyTorch make the context of a device outside of modes, once: with the first fake there it
    makes a tensor, which a mode would fake, and so on without end."""
    if isinstance(device, torch.device) and device.type in _WITH_CONTEXT:
        with no_modes():
            make_context_of_device(device)
