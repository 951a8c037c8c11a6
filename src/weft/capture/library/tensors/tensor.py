"""Tensors: operations are run on fakes and recorded in the graph.

Place in the pipeline: the central family of capture. Metadata (shape, dtype, device, ...) is
constant and guarded; methods become `call_method` nodes, functions `call_function` nodes.
"""

from __future__ import annotations

import operator
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch
from torch import fx

from weft._frame import is_lazy
from weft._torch import (
    FakeTensor,
    disabled_torch_function,
    is_functorch_wrapped_tensor,
)
from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import boolean, constant, evaluate, is_none, plain_value
from weft.capture.core.declared import Declared
from weft.capture.core.graph_writes import note_refusal
from weft.capture.core.ignored_warnings import ignoring
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.operator_names import plain_operator
from weft.capture.core.registry import wraps
from weft.capture.core.rules import Rule, rules
from weft.capture.core.source import Source
from weft.capture.guards.guard_set import tensor_guard
from weft.capture.library.classes.attributes import bind
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.mapping import DictValue, dictionary_of
from weft.capture.library.containers.named_tuples import NamedTupleValue
from weft.capture.library.containers.sequences import ListValue, SizeValue, TupleValue
from weft.capture.library.numbers.data_numbers import note_checks, note_symbols
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue, number_node
from weft.capture.library.tensors.device_modes import ignores
from weft.capture.library.tensors.input_tests import outcome
from weft.capture.library.tensors.integer_arguments import integer_arguments
from weft.capture.library.tensors.known_data import known
from weft.capture.library.tensors.operations_on_fakes import (
    guard_offset,
    is_in_place,
    name_of,
    observe,
    run_on_fakes,
)
from weft.capture.library.tensors.print_state import (
    constant_text,
    guard_print_options,
    note_text_of_data,
)
from weft.capture.library.tensors.ragged_sizes import RaggedSize, is_ragged
from weft.capture.library.tensors.size_tensors import number
from weft.capture.library.tensors.symbolic_tensors import symbolic_fake
from weft.capture.library.texts.symbolic_texts import WrittenPart, fits, text_of_data
from weft.quoting import assignment
from weft.shapes.fakes.wrappers import is_wrapper, parts
from weft.shapes.graph_facts import CapturedFacts, captured_facts, note

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

METADATA: Final = frozenset({
    "dtype", "device", "ndim", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_meta",
    "layout", "requires_grad", "is_mkldnn", "is_xpu", "is_mps", "is_nested", "itemsize",
    "is_sparse_csr", "is_xla", "is_hpu", "is_ipu", "is_vulkan", "is_mtia", "is_maia",
    "name", "names", "nbytes",
})
METADATA_METHODS: Final = frozenset({
    "size", "dim", "ndimension", "numel", "nelement", "is_contiguous", "stride", "element_size",
    "get_device", "is_floating_point", "is_complex", "is_signed", "storage_offset", "is_pinned",
    "is_inference", "is_neg", "is_conj", "type", "has_names", "is_same_size", "_is_view",
    "dense_dim", "sparse_dim", "__len__",
})
TENSOR_ATTRIBUTES: Final = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})
DATA_METHODS: Final = frozenset({
    "item", "tolist", "numpy", "data_ptr", "__bool__", "__int__", "__float__", "__index__",
    "__array__", "__complex__", "cpu_data", "untyped_storage", "storage", "backward",
    "register_hook", "__format__", "__repr__", "__str__", "share_memory_", "__reduce_ex__",
    "requires_grad_", "set_", "retain_grad", "__dlpack__", "apply_", "map_", "is_set_to",
    "__hash__", "__dir__", "__sizeof__", "__reduce__", "__getstate__", "__setstate__",
})
"""Methods whose result depends on data or whose effect is outside of the graph."""


class TensorValue(SymbolicValue):
    """A tensor: a fake, and a graph node (for outside tensors made at the first use)."""

    __slots__ = ("_node", "example", "original", "written")

    def __init__(self, example: torch.Tensor, node: fx.Node | None, source: Source | None = None,
                 original: Any = MISSING) -> None:
        super().__init__(source)
        self.example = example
        self._node = node
        self.original = original
        self.written: dict[str, SymbolicValue] = {}
        """Attributes that the program set."""

    def python_type(self) -> type:
        if self.original is not MISSING:
            return type(self.original)
        if not isinstance(self.example, FakeTensor):
            return type(self.example)
        return torch.nn.Parameter if "_is_param" in self.example.__dict__ else torch.Tensor

    def __repr__(self) -> str:
        return f"tensor {self.source}" if self.source is not None else "a tensor"

    def dict_key(self, tx: Interpreter) -> object:
        return self if self.original is MISSING else tx.identities.key(self, self.original)

    # -- in the graph -----------------------------------------------------------------------------

    def proxy(self, tx: Interpreter) -> Any:
        if self._node is None:
            assert self.source is not None
            self._node = tx.builder.placeholder(self.source, self.example, self.original)
            if self.source in tx.data.relied_on:
                note(self._node, replace(captured_facts(self._node), is_known=True))
        return self._node

    def fake(self, tx: Interpreter) -> Any:
        return self.example

    def become(self, example: torch.Tensor, node: fx.Node) -> None:
        """Let the object be another tensor of the graph, an alias of what it was."""
        self.example, self._node = example, node

    def rebuild(self, emit: Emitter) -> str:
        assert self._node is not None
        text = rebuild_tensor(emit, self, self._node)
        if not self.written:
            return text
        name = emit.bind(self, text)
        emit.later(lambda: self.replay(emit))
        return name

    def replay(self, emit: Emitter) -> None:
        """Emit the attributes that the program set."""
        for name, value in self.written.items():
            writer = WRITERS.get(name)
            text = assignment(emit.value(self), name, emit.value(value))
            emit.line(text if writer is None else writer(emit, self, value))

    def known_data(self, tx: Interpreter) -> torch.Tensor | None:
        """The real tensor if it follows from constants and guarded contents, else None."""
        data: torch.Tensor | None = known(tx, self.proxy(tx))
        return data

    def known_number(self, tx: Interpreter) -> SymbolicValue | None:
        """The number in a tensor of one element if it follows from sizes and known data, else
        None."""
        value = number(tx, self.proxy(tx))
        return None if value is None else tx.wrap_new(value)

    def text(self, tx: Interpreter, function: Callable[..., str], *more: str) -> SymbolicValue:
        """`function(self, *more)`, which is `str`, `repr` or `format`."""
        data = self.known_data(tx)
        if data is not None:
            guard_print_options(tx)
            return constant_text(tx, function, data, *more)
        reason = graph_break("data-dependent-value", f"formatting {self!r}", self.proxy(tx))
        known = self.python_type() in (torch.Tensor, torch.nn.Parameter)
        kind = float if self.example.is_floating_point() and not self.example.dim() else str
        fitting = known and all(fits(kind, spec) for spec in more)
        if not fitting or tx.state.levels_changed():  # (transforms refuse to read data)
            raise reason
        number = function is format and not self.example.dim()
        written = None
        escapes = getattr(tx.builder, "outer", None) is None
        if escapes and (number or self._prints_as_copy()):
            plain = self.method(tx, "detach", [], {}) if number else self
            copied = record(tx, torch.clone, [plain])
            written = WrittenPart(function, copied, more)
            note_text_of_data(tx)
        return text_of_data(tx, reason, written)

    def _prints_as_copy(self) -> bool:
        """Whether a copy has the same text, when the graph has run."""
        return self.python_type() is torch.Tensor and not self.example.requires_grad

    # -- metadata ---------------------------------------------------------------------------------

    def truth(self, tx: Interpreter) -> bool:
        data = self.known_data(tx)
        if data is not None and data.numel() == 1:
            return bool(data)
        value = self.known_number(tx)
        if value is not None:
            return value.truth(tx)
        answer = outcome(tx, self.proxy(tx))
        if answer is None:
            answer = likely_truth(tx, self)
        if answer is None:
            raise graph_break("data-dependent-branch", f"a branch on {self!r}", self.proxy(tx))
        return answer

    def length(self, tx: Interpreter) -> int:
        return evaluate(tx, lambda: len(self.example))

    def rows(self, tx: Interpreter) -> SymbolicValue:
        """`len(self)` as a value, which may be symbolic."""
        return tx.wrap_new(self.example.shape[0] if self.example.dim() else self.length(tx))

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in self.written:
            return self.written[name]
        own = self._own_attribute(tx, name)
        if own is not None:
            return own
        special = GETTERS.get(name)
        if special is not None:
            return special(tx, self)
        if name == "shape":
            return self._shape(tx)
        if name in METADATA:
            return tx.wrap_new(_ask(tx, lambda: getattr(self.example, name)))
        if name in TENSOR_ATTRIBUTES:
            return record(tx, getattr, [self, constant(name)])
        if name == "__class__":
            return tx.wrap_fixed(self.python_type(), "Tensor")
        return self._other_attribute(tx, name)

    def _own_attribute(self, tx: Interpreter, name: str) -> SymbolicValue | None:
        """An attribute defined by the tensor's own class, derived from torch.Tensor."""
        kind = self.python_type()
        if kind in _PLAIN:
            return None
        if is_wrapper(kind) and (part := self._part(tx, name)) is not None:
            return part
        attribute = own_attribute(kind, name)
        if attribute is MISSING or name in getattr(self.original, "__dict__", ()):
            return None
        return bind(tx, self, kind, name, attribute)

    def _part(self, tx: Interpreter, name: str) -> SymbolicValue | None:
        """An attribute of a tensor made of tensors that its class does not define: one of its
        parts."""
        if name in parts(self.example)[0] and isinstance(getattr(self.example, name), torch.Tensor):
            return record(tx, getattr, [self, constant(name)])
        in_slot = isinstance(own_attribute(self.python_type(), name), types.MemberDescriptorType)
        if self.original is MISSING and (in_slot or name in vars(self.example)):
            return tx.wrap_new(getattr(self.example, name))
        return None

    def _other_attribute(self, tx: Interpreter, name: str) -> SymbolicValue:
        if self.source is not None and name in getattr(self.original, "__dict__", ()):
            return tx.wrap(getattr(self.original, name), self.source.attribute(name))
        attribute = getattr(torch.Tensor, name, MISSING)
        if attribute is MISSING:
            if self.source is not None:
                tx.guards.add(self.source, "no_attr", name)
            kind = self.python_type().__name__
            raise tx.error(AttributeError, f"'{kind}' object has no attribute '{name}'")
        if callable(attribute):
            return BoundBuiltin(self, name)
        raise graph_break("unknown-operation", f"attribute {name!r} of a tensor")

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        setter = SETTERS.get(name)
        if setter is not None:
            setter(tx, self, value)
        elif hasattr(torch.Tensor, name):
            raise graph_break("unknown-operation", f"setting attribute {name!r} of a tensor")
        else:
            self.write(tx, name, value)

    def write(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        """Store an attribute; the real object gets it after the graph."""
        self.written[name] = value
        if self.source is not None:
            tx.effects.touch(self)

    # -- operations -------------------------------------------------------------------------------

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        mine = self._own_attribute(tx, name)
        if mine is not None:
            return mine.call(tx, args, kwargs)
        own = TENSOR_METHODS.get(name)
        if own is not None:
            return own.call((tx, self), args, kwargs)
        if name in METADATA_METHODS:
            return self.metadata(tx, name, args, kwargs)
        if name in DATA_METHODS:
            raise graph_break("data-dependent-value", f"{name}() of {self!r}", self.proxy(tx))
        if not hasattr(torch.Tensor, name):
            return self.getattr(tx, name).call(tx, args, kwargs)
        return record(tx, name, [self, *args], kwargs)

    def metadata(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """The answer of the fake to a question about the tensor."""
        objects = [a.fake(tx) for a in args]
        named = {k: v.fake(tx) for k, v in kwargs.items()}
        if name == "storage_offset":
            self.proxy(tx)
            guard_offset(tx, self.example)
        if name == "type" and (objects or named):
            return record(tx, name, [self, *args], kwargs)
        result = _ask(tx, lambda: getattr(self.example, name)(*objects, **named))
        if isinstance(result, torch.Size):
            return self._shape(tx)
        if is_ragged(result) and name == "size":
            return RaggedSize(self, [*objects, *named.values()][0], result)
        return tx.wrap_new(result)

    def _shape(self, tx: Interpreter) -> SizeValue:
        if not self.example.is_nested:
            return shape_value(tx, self.example.shape)
        return SizeValue([RaggedSize(self, d, n) if is_ragged(n) else tx.wrap_new(n)
                          for d, n in enumerate(self.example.shape)])

    def plain_number(self, tx: Interpreter) -> SymbolicValue:
        example = self.example
        number = example.dim() == 0 and not example.is_complex() and example.dtype != torch.bool
        return self.method(tx, "item", [], {}) if number and not example.requires_grad else self

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return self.method(tx, "__getitem__", [key], {})

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        self.method(tx, "__setitem__", [key, value], {})

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        raise graph_break("data-dependent-value", "`in` on a tensor")

    def iter(self, tx: Interpreter) -> SymbolicValue:
        if self.example.dim() == 0:
            raise tx.error(TypeError, "iteration over a 0-d tensor")
        return record(tx, "unbind", [self, constant(0)]).iter(tx)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        other = plain_value(other) or other
        if not isinstance(other, TensorValue) and not _number(other):
            plain = isinstance(other, (TupleValue, ListValue)) or (
                other.is_constant and not isinstance(other.constant(), numpy.generic))
            return boolean(op == "ne") if plain and op in ("eq", "ne") else None
        left, right = (other, self) if reflected else (self, other)
        target = getattr(operator, plain_operator(op) if reflected else op)
        if target is operator.pow and isinstance(other, SymbolicNumberValue):  # has a form
            return tx.call(tx.wrap_fixed(torch.pow, "pow"), [left, right])
        return record(tx, target, [left, right])


def _number(value: SymbolicValue) -> bool:
    if isinstance(value, SymbolicNumberValue):
        return True
    return value.is_constant and isinstance(value.constant(), _NUMBERS)


_NUMBERS = (int, float, complex, numpy.integer, numpy.floating)


TENSOR_METHODS: dict[str, Rule] = {}
"""Methods with a rule of their own."""

tensor_method = rules(TENSOR_METHODS, first=2)

likely_truth: Declared[[Interpreter, TensorValue], bool | None] = Declared()
"""The truth to assume of a tensor, which the graph then checks, or None."""

GETTERS: dict[str, Callable[[Any, TensorValue], SymbolicValue]] = {}
"""Attributes with a rule of their own."""

SETTERS: dict[str, Callable[[Any, TensorValue, SymbolicValue], None]] = {}
"""The rules of setting attributes."""

WRITERS: dict[str, Callable[[Any, TensorValue, SymbolicValue], str]] = {}
"""The statements that set attributes, if not an assignment."""

MAY_OVERRIDE: set[type] = set()
"""Families of values that may have a `__torch_function__` (`tensor_subclasses`)."""

overriding_result: Declared[
    [Interpreter, Any, Args, Kwargs], SymbolicValue | None] = Declared()
"""The result of the arguments' `__torch_function__` for an operation, if there is one."""

overridden_function: Declared[[Any, Args], tuple[Any, Args]] = Declared()
"""The function and the arguments that `__torch_function__` receives for a graph operation."""

draw_ahead: Declared[[Interpreter, Any, SymbolicValue, Args, Kwargs], SymbolicValue] = Declared()
"""The result of an operation that draws from a generator of the program, which comes first."""

OTHER_TENSORS: list[tuple[
    Callable[[type], bool], Callable[[Any, Any, Source | None], SymbolicValue]]] = []
"""Tests for classes that decide what operations do, and the functions that wrap their tensors."""

rebuild_tensor: Declared[[Emitter, TensorValue, fx.Node], str] = Declared()
"""The expression for a tensor of the graph."""


def shape_value(tx: Interpreter, size: torch.Size) -> SizeValue:
    """The value of a `torch.Size`."""
    return SizeValue([constant(n) if type(n) is int else tx.wrap_new(n) for n in size])


def _may_override(tx: Interpreter, arg: SymbolicValue) -> bool:
    if arg.__class__ in _LISTS:  # of tensors, perhaps
        return any(tx.force(item).__class__ in MAY_OVERRIDE for item in arg.all(tx))
    return arg.__class__ in MAY_OVERRIDE


def record(
    tx: Interpreter, target: object, args: Args, kwargs: Kwargs | None = None
) -> SymbolicValue:
    """Run a torch operation on fakes and record it in the graph; `target` is a function, or the
    name of a method of the first argument."""
    kwargs = kwargs or {}
    if tx.modes.functions and not all(ignores(mode, target) for mode in tx.modes.functions):
        return _through_mode(tx, target, args, kwargs)
    if tx.modes.overriding or any(_may_override(tx, arg) for arg in (*args, *kwargs.values())):
        overridden = overriding_result(tx, target, args, kwargs)
        if overridden is not None:
            return overridden
    args, kwargs = _plain_arguments(tx, target, args, kwargs)
    if "generator" in kwargs:
        rest = {name: value for name, value in kwargs.items() if name != "generator"}
        return draw_ahead(tx, target, kwargs["generator"], args, rest)
    nodes = tuple(arg.proxy(tx) for arg in args)
    named_nodes = {name: value.proxy(tx) for name, value in kwargs.items()}
    fakes = [arg.fake(tx) for arg in args]
    named_fakes = {name: value.fake(tx) for name, value in kwargs.items()}
    with ignoring(tx.modes.ignored_warnings):
        seen = observe(tx, target, fakes, named_fakes)
    result, operands = seen.result, (*args, *kwargs.values())
    same = next((a for a in operands if isinstance(a, TensorValue) and a.example is result), None)
    if same is not None and not seen.writes and not is_in_place(target):
        return same  # contiguous() of a contiguous tensor, dropout in evaluation, ...
    note_refusal(tx, seen.notes)
    node = tx.builder.call(target, nodes, named_nodes, result, tx.stack())
    node.meta["nn_module_stack"] = tx.module_stack()
    tx.calls.nodes.append(node)
    tx.calls.n_effects += same is not None or seen.has_effect
    _note_data(tx, node, result)
    note(node, CapturedFacts(
        seen.notes, has_effect=same is not None or seen.has_effect, by_python=seen.by_python,
        answers=tuple(tx.shapes.data.answers), carries_floats=tx.shapes.floats.carrying))
    return same or _written_out(tx, kwargs, result) or wrap_result(tx, node, result)


def _written_out(tx: Interpreter, kwargs: Kwargs, result: object) -> SymbolicValue | None:
    """The value of several results that were written into the tensors of `out`, else None."""
    out = kwargs.get("out")
    if isinstance(out, (TupleValue, ListValue)) and isinstance(result, tuple):
        return NamedTupleValue(list(out.all(tx)), None, type(result))
    return None


def outcome_on_fakes(tx: Interpreter, target: object, args: Args, kwargs: Kwargs) -> torch.Tensor:
    """What a function gives, which the graph does not record."""
    fakes = [arg.fake(tx) for arg in args]
    named = {name: value.fake(tx) for name, value in kwargs.items()}
    result: torch.Tensor = run_on_fakes(tx, target, fakes, named)[0]
    return result


def _plain_arguments(tx: Interpreter, target: object, args: Args, kwargs: Kwargs
                     ) -> tuple[Args, Kwargs]:
    """The arguments, read; tensors become numbers where the operation takes no tensors."""
    args = [tx.force(arg) for arg in args]
    kwargs = {name: tx.force(value) for name, value in kwargs.items()}
    for name in ("generator", "out"):  # said outright, no generator chooses a form that takes
        if name in kwargs and is_none(kwargs[name]):  # plain sizes only
            del kwargs[name]
    if target is operator.getitem or target is operator.setitem:
        return args, kwargs
    sizes_only = name_of(target) in _TAKE_SIZES
    if sizes_only or name_of(target) in _TAKE_NUMBERS:
        args, kwargs = _plain_numbers(tx, name_of(target), args, kwargs)
    else:
        args, kwargs = plain_integers(tx, name_of(target), args, kwargs)
    args = [_plain_sizes(tx, arg, sizes_only) for arg in args]
    return args, {name: _plain_sizes(tx, arg, sizes_only) for name, arg in kwargs.items()}


def _note_data(tx: Interpreter, node: Any, result: Any) -> None:
    """Record what the node's result holds that depends on data, and which answers about it capture
    assumed."""
    if tx.shapes.unbacked_symbols.exist:
        note_symbols(tx, node, result)
        note_checks(tx, partial(number_node, tx))


_LISTS: Final = (TupleValue, ListValue)


_TAKE_SIZES: Final = frozenset({
    "pad", "view", "reshape", "expand", "repeat", "tile", "zeros", "ones", "empty", "full", "split",
    "split_with_sizes", "new_zeros", "new_ones", "new_full", "new_empty", "randn", "rand", "roll",
    "broadcast_to", "unflatten", "as_strided", "fold", "unfold", "im2col", "col2im",
    *(f"adaptive_{kind}_pool{rank}d" for kind in ("avg", "max") for rank in (1, 2, 3)),
    *(f"upsample_{kind}" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d",
                                      "bilinear2d", "trilinear3d", "bicubic2d")),
    *(f"_upsample_nearest_exact{rank}d" for rank in (1, 2, 3)),
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
})
"""Functions whose list arguments are sizes, even if all items are tensors."""


_TAKE_NUMBERS: Final = frozenset({"arange", "linspace", "eye", "randperm", "narrow"})
_MAKE: Final = frozenset({
    "arange", "linspace", "eye", "randperm", "zeros", "ones", "empty", "randn", "rand",
})
"""Functions that take numbers, and those among them that make a tensor of nothing else."""


def _plain_numbers(tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments with tensors that stand for numbers replaced by the numbers."""
    first = 0 if name in _MAKE else 1
    most = 1 if name == "full" else len(args)
    numbers = [_index(tx, arg) if first <= i < most else arg for i, arg in enumerate(args)]
    return numbers, {key: _index(tx, value) if key in ("start", "end", "steps", "length") else value
                     for key, value in kwargs.items()}


def plain_integers(tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments with tensors of one integer replaced by their numbers, where the operator takes
    nothing but integers."""
    if not any(map(_is_scalar, (*args[1:], *kwargs.values()))):
        return args, kwargs
    integers = integer_arguments(name)
    return ([_index(tx, arg) if at in integers else arg for at, arg in enumerate(args)],
            {key: _index(tx, arg) if key in integers else arg for key, arg in kwargs.items()})


def _index(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    return value.method(tx, "__index__", [], {}) if _is_scalar(value) else value


def _plain_sizes(tx: Interpreter, sizes: SymbolicValue, sizes_only: bool) -> SymbolicValue:
    """A list of sizes with tensors that stand for numbers replaced by the numbers."""
    if sizes.__class__ not in _LISTS:
        return sizes
    items = [tx.force(item) for item in sizes.iterate(tx)]
    if not any(map(_is_scalar, items)) or not (sizes_only or any(map(_number, items))):
        return sizes
    plain = [_index(tx, item) for item in items]
    return TupleValue(plain) if isinstance(sizes, TupleValue) else ListValue(plain)


def _is_scalar(value: SymbolicValue) -> bool:
    """Whether a value is a tensor that may stand for a size."""
    if not isinstance(value, TensorValue):
        return False
    dtype = value.example.dtype
    return value.example.dim() == 0 and not dtype.is_floating_point and not dtype.is_complex


def _through_mode(tx: Interpreter, target: object, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Let the innermost torch function mode handle the call; the mode is off meanwhile."""
    function, args = overridden_function(target, [tx.force(arg) for arg in args])
    named = dictionary_of(tx, kwargs)
    mode = tx.modes.functions.pop()
    try:
        return mode.method(tx, "__torch_function__", [
            tx.wrap_fixed(function, name_of(target)), TupleValue([]), TupleValue(args), named], {})
    finally:
        tx.modes.functions.append(mode)


def _ask(tx: Interpreter, question: Callable[[], object]) -> object:
    """What a fake answers in its mode: outside it, PyTorch loads DTensor first, half a second."""
    with tx.fakes.mode:
        return evaluate(tx, question)


def wrap_result(tx: Interpreter, node: fx.Node, result: Any) -> SymbolicValue:
    """The value of an operation's result: tensors become nodes, other objects constants."""
    if isinstance(result, torch.Tensor):
        return TensorValue(result, node)
    if isinstance(result, torch.Size):
        return shape_value(tx, result)
    if isinstance(result, (tuple, list)):
        items = [_wrap_item(tx, node, i, item) for i, item in enumerate(result)]
        if type(result) in (tuple, list):
            return TupleValue(items) if type(result) is tuple else ListValue(items)
        return NamedTupleValue(items, None, type(result))
    if type(result) in (dict, OrderedDict):
        dictionary = DictValue(cls=type(result))
        for key, item in result.items():
            dictionary.setitem(tx, tx.wrap_new(key), _wrap_item(tx, node, key, item))
        return dictionary
    return tx.wrap_new(result)


def _wrap_item(tx: Interpreter, node: fx.Node, index: object, item: object) -> SymbolicValue:
    if not isinstance(item, (torch.Tensor, tuple, list, dict)):
        return tx.wrap_new(item)
    part = tx.builder.call(operator.getitem, (node, index), {}, item, ())
    part.meta["stack"] = node.meta["stack"]
    tx.calls.nodes.append(part)
    return wrap_result(tx, part, item)


_NAMED: Final = hasattr(torch.Tensor, "has_names")
"""Whether this PyTorch has tensors with named dimensions."""


@wraps(torch.Tensor, subclasses=True)
def _wrap_tensor(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    kind = type(obj)
    if is_lazy(obj):  # the guards of tensors refuse them
        return unknown(tx, obj, source)
    if kind not in _PLAIN and not _is_plain(kind):
        return next((wrap(tx, obj, source) for is_of, wrap in OTHER_TENSORS if is_of(kind)),
                    None) or unknown(tx, obj, source)
    if source is None:
        source = tx.tree.object(obj, "tensor")
    special = obj.is_nested or obj.is_quantized or (_NAMED and obj.has_names())
    plain = obj.layout is torch.strided and not special
    if not plain or is_functorch_wrapped_tensor(obj):
        return unknown(tx, obj, source)
    same = tx.policy.contents.known(source.name, obj)
    fake = symbolic_fake(tx, obj, source) if same is None else None
    if fake is None:
        tx.guards.add(source, "tensor", *tensor_guard(obj))
        fake = tx.fakes.fake(obj)
    if same is not None:
        raw = same.raw(obj)
        tx.guards.add(source, *(("py", same) if raw is None else ("content", raw, same)))
        tx.data.relied_on.add(source)
    value = TensorValue(fake, None, source, obj)
    if obj.requires_grad:
        tx.autograd.leaves[id(fake)] = value
    return value


_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


def _is_plain(kind: type) -> bool:
    """Whether operations on tensors of the class are those on plain tensors, as nn.Parameter's
    are."""
    if kind is getattr(torch.nn, "Buffer", None):
        return True
    function: Any = getattr(kind, "__torch_function__", None)
    return (function is disabled_torch_function
            and getattr(kind, "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__)


def own_class(value: TensorValue) -> bool:
    """Whether a tensor made inside is an instance of a class of the program."""
    return value.python_type() not in (*_PLAIN, type(value.example))


def own_attribute(kind: type, name: str) -> object:
    """What a class derived from torch.Tensor defines itself under the name, or MISSING."""
    for base in kind.__mro__:
        if base in _PLAIN:
            return MISSING
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING
