"""Objects as data: a closed set of kinds, each as a list that begins with its name.

Place in the pipeline: used while an entry is stored; `reader.py` is the other half. What can be
written: constants; containers; what has a name in a library; generated functions (their text and
their globals); functions inside functions of weft (their place and their cells); objects of weft's
own classes (their fields); kernels (their text); and objects of the program, as numbers::

    writer = Writer()
    writer.value([1, torch.float32])          # ['list', 0, [1, ['torch', 'float32']]]
    writer.refer(f)                           # ['program', 0]; writer.programs[0] says what f is

Objects that appear twice are written once: what is one object stays one.
"""

from __future__ import annotations

import enum
import functools
import json
import operator
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import numpy
import torch
from torch.fx import Graph, GraphModule

from weft import _calls, _cpu, _cuda
from weft._torch import CreationMeta, OpOverload
from weft.diagnostics.regions import Region, regions_of
from weft.runtime.cuda_kernel import Unaligned
from weft.runtime.generated_code import generated_source
from weft.runtime.launcher import KernelSource
from weft.runtime.tensor_calls import making_of
from weft.storable import CompiledLater, Remade, how_made, is_storable
from weft.store.errors import NotStorable
from weft.store.graphs import graph_to_data
from weft.store.identity import ATTRIBUTES, C_DESCRIPTORS, MRO, Data, Looking
from weft.store.names import is_library, name_of, namespace_of

_MOST_ELEMENTS: Final = 64
"""The largest tensors that entries hold."""
_PROGRAMS: Final = (types.FunctionType, type, types.ModuleType)


@final
@dataclass(frozen=True, slots=True)
class Program:
    """An object of the program: what it is, and a name that leads to it, if it has one."""

    identity: Data
    name: tuple[str, str] | None


@final
class Writer:
    """Writes the objects of one entry."""

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self._numbers: dict[int, int] = {}
        self._shared: dict[int, int] = {}
        self._externals: dict[int, Data] = {}
        self._kept: list[Any] = []
        self._looking = Looking()
        self._graphs: dict[int, Data] = {}
        self.compiled_later: list[tuple[CompiledLater, Data]] = []
        """Those that were written, with their graphs."""

    def external(self, obj: Any, data: Data) -> None:
        """Write `data` for the object: whoever reads the entry has it."""
        self._kept.append(obj)
        self._externals[id(obj)] = data

    # -- objects of the program -------------------------------------------------------------------

    def refer(self, obj: Any) -> Data:
        """An object that a guard requires by identity: data for a constant or what a library
        defines, else its number."""
        external = self._externals.get(id(obj))
        if external is not None:
            return external
        if type(obj) in _CONSTANTS or isinstance(obj, numpy.dtype):
            return self.value(obj)
        namespace = namespace_of(obj) if type(obj) is dict else None
        if namespace is not None:
            return ["namespace", *namespace]
        name = name_of(obj)
        if name is not None and is_library(name[0]) and not isinstance(obj, types.ModuleType):
            return ["name", *name]
        return self.number(obj, name)

    def number(self, obj: Any, name: tuple[str, str] | None) -> Data:
        """The number of an object of the program."""
        number = self._numbers.get(id(obj))
        if number is None:
            what = Program(self._looking.at(obj), name)
            number = self._numbers[id(obj)] = len(self.programs)
            self._kept.append(obj)
            self.programs.append(what)
        return ["program", number]

    def codes(self) -> set[str]:
        """The hashes of byte code that are in what was written about the program."""
        return self._looking.codes

    # -- values -----------------------------------------------------------------------------------

    def value(self, obj: Any) -> Data:
        """Any object that the entry needs."""
        external = self._externals.get(id(obj))
        if external is not None:
            return external
        plain = _CONSTANTS.get(type(obj))
        if plain is not None:
            return plain(self, obj)
        if id(obj) in self._numbers:
            return ["program", self._numbers[id(obj)]]
        if id(obj) in self._shared:
            return ["again", self._shared[id(obj)]]
        if self._is_named(obj):
            return self.refer(obj)
        return self._new(obj)

    def _is_named(self, obj: Any) -> bool:
        if isinstance(obj, types.ModuleType) or (type(obj) is dict and namespace_of(obj)):
            return True
        if isinstance(obj, types.FunctionType) and not _is_of_weft(obj.__module__):
            return generated_source(obj) is None
        return isinstance(obj, type) or name_of(obj) is not None

    def _new(self, obj: Any) -> Data:
        number = self._shared[id(obj)] = len(self._shared)
        self._kept.append(obj)
        rule = _RULES.get(type(obj))
        if rule is not None:
            kind, *parts = rule(self, obj)
            return [kind, number, *parts]
        if isinstance(obj, GraphModule):
            return ["graph", number, graph_to_data(self, obj.graph, obj)]
        if isinstance(obj, Graph):
            data = self._graphs[id(obj)] = graph_to_data(self, obj)
            return ["graph", number, data]
        if isinstance(obj, numpy.dtype) and obj.isbuiltin == 1:
            return ["dtype of numpy", number, obj.str]
        if isinstance(obj, enum.Enum | CreationMeta):
            return ["member", number, self.value(type(obj)), obj.name]
        if _is_of_weft(type(obj).__module__):
            if isinstance(obj, Remade):
                function, arguments = obj.remade()
                data = ["remade", number, self.value(function), self.values(arguments)]
                if isinstance(obj, CompiledLater):
                    self.compiled_later.append((obj, self._graphs[id(arguments[0])]))
                return data
            return ["object", number, *_object(self, obj)]
        if isinstance(obj, torch.Tensor):
            return ["tensor", number, *_tensor(self, obj)]
        raise NotStorable(f"it holds a {type(obj).__module__}.{type(obj).__qualname__}")

    def constant(self, obj: Any) -> Data:
        """A constant or what a library defines, which needs nothing else of the entry, or None."""
        if type(obj) in _CONSTANTS:
            return _CONSTANTS[type(obj)](self, obj)
        name = name_of(obj)
        return ["name", *name] if name is not None and is_library(name[0]) else None

    def values(self, objects: Any) -> list[Data]:
        """Several values."""
        return [self.value(obj) for obj in objects]

    def pairs(self, items: dict[Any, Any]) -> list[Data]:
        """The items of a dictionary."""
        return [[self.value(key), self.value(value)] for key, value in items.items()]


def _is_of_weft(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "weft"


# -- constants -------------------------------------------------------------------------------------

Rule = Callable[[Writer, Any], Data]


def _text(writer: Writer, obj: str) -> Data:
    json.dumps(obj)
    return obj


def _sequence(kind: str) -> Rule:
    return lambda writer, items: [kind, *map(writer.value, items)]


def _operator(writer: Writer, op: OpOverload) -> Data:
    if op.namespace not in _NAMESPACES:
        raise NotStorable(f"it calls the operator {op}")
    return ["operator", op.namespace, op._schema.name.partition("::")[2], op._overloadname]


_NAMESPACES: Final = frozenset({"aten", "prims", "mkldnn"})
"""Whose operators the version of PyTorch defines."""

_CONSTANTS: Final[dict[type, Rule]] = {
    type(None): lambda writer, obj: obj,
    bool: lambda writer, obj: obj,
    int: lambda writer, obj: obj if obj.bit_length() < 53 else ["int", hex(obj)],
    str: _text,
    float: lambda writer, obj: ["float", repr(obj)],
    complex: lambda writer, obj: ["complex", repr(obj.real), repr(obj.imag)],
    bytes: lambda writer, obj: ["bytes", obj.hex()],
    type(Ellipsis): lambda writer, obj: ["ellipsis"],
    type(NotImplemented): lambda writer, obj: ["not implemented"],
    torch.dtype: lambda writer, obj: ["torch", str(obj).removeprefix("torch.")],
    torch.layout: lambda writer, obj: ["torch", str(obj).removeprefix("torch.")],
    torch.memory_format: lambda writer, obj: ["torch", str(obj).removeprefix("torch.")],
    torch.device: lambda writer, obj: ["device", obj.type, obj.index],
    torch.Size: _sequence("size"),
    tuple: _sequence("tuple"),
    frozenset: lambda writer, obj: ["frozenset", *sorted(map(writer.value, obj), key=repr)],
    slice: lambda writer, s: ["slice", *map(writer.value, (s.start, s.stop, s.step))],
    range: lambda writer, r: ["range", r.start, r.stop, r.step],
    OpOverload: _operator,
}


# -- everything else -------------------------------------------------------------------------------


def _function(writer: Writer, function: types.FunctionType) -> Data:
    if making_of(function) is not None:
        return _call(writer, function)
    making = how_made(function)
    if making is not None:
        return ["remade", writer.value(making.function), writer.values(making.arguments)]
    source = generated_source(function)
    if source is not None:
        return _generated(writer, function, source)
    place = place_in_weft(function)
    if place is None:
        raise NotStorable(f"it needs the function {function.__qualname__}")
    cells = [["cell", writer.value(cell.cell_contents)] for cell in function.__closure__ or ()]
    return ["inner", *place, cells, writer.value(function.__defaults__),
            writer.value(function.__kwdefaults__)]


def _generated(writer: Writer, function: types.FunctionType, source: Any) -> Data:
    used = _global_names(function.__code__)
    scope = {name: value for name, value in function.__globals__.items()
             if name in used and value is not function}
    return ["generated", source.file, source.name, source.text, writer.pairs(scope),
            writer.value(regions_of(function))]


def _global_names(code: types.CodeType) -> set[str]:
    return {*code.co_names, *(name for part in code.co_consts if isinstance(part, types.CodeType)
                              for name in _global_names(part))}


def place_in_weft(function: types.FunctionType) -> tuple[str, str, list[int]] | None:
    """The function of weft that the function is made in, and where its code is among constants."""
    outer_name, inside, _ = function.__qualname__.partition(".<locals>.")
    outer = outer_function(function.__module__, outer_name) if inside else None
    if outer is None or not is_storable(outer):
        return None
    path = _path_to(function.__code__, outer.__code__)
    return None if path is None else (function.__module__, outer_name, path)


def outer_function(module: str, path: str) -> types.FunctionType | None:
    """The function of that name, without what decorates it."""
    obj: Any = sys.modules.get(module)
    for name in path.split("."):
        obj = vars(obj).get(name) if obj is not None else None
        obj = getattr(obj, "fget", None) or getattr(obj, "__func__", obj)
        while hasattr(obj, "__wrapped__"):
            obj = obj.__wrapped__
    return obj if isinstance(obj, types.FunctionType) else None


def _path_to(wanted: types.CodeType, code: types.CodeType) -> list[int] | None:
    for at, part in enumerate(code.co_consts):
        if isinstance(part, types.CodeType):
            rest = [] if part is wanted else _path_to(wanted, part)
            if rest is not None:
                return [at, *rest]
    return None


def _object(writer: Writer, obj: Any) -> list[Data]:
    """The class and the fields of an object of weft."""
    cls = type(obj)
    name = name_of(cls)
    if name is None or not is_storable(cls):
        raise NotStorable(f"it holds a {cls.__qualname__}")
    fields = dict(getattr(obj, "__dict__", {}))
    for base in MRO(cls):
        for slot, member in ATTRIBUTES(base).items():
            if isinstance(member, types.MemberDescriptorType):
                fields[slot] = getattr(obj, slot)
            elif not _is_plain_member(slot, member):
                raise NotStorable(f"it holds a {cls.__qualname__}")
    return [*name, [[field, writer.value(value)] for field, value in fields.items()]]


def _is_plain_member(name: str, member: Any) -> bool:
    """Whether a class is one of Python as far as this attribute goes: those of C hide fields."""
    return not isinstance(member, types.MethodDescriptorType) or name in vars(object)


def _tensor(writer: Writer, tensor: torch.Tensor) -> list[Data]:
    is_plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    if not is_plain or tensor.requires_grad or tensor.device.type != "cpu" or tensor._is_view() or (
            tensor.numel() > _MOST_ELEMENTS or not tensor.is_contiguous()):
        raise NotStorable("it holds a tensor")
    raw = tensor.detach().reshape(-1).view(torch.uint8).tolist() if tensor.numel() else []
    return [writer.value(tensor.dtype), list(tensor.shape), bytes(raw).hex()]


def _call(writer: Writer, call: Any) -> Data:
    """A callable of `runtime/tensor_calls.py`."""
    making = making_of(call)
    assert making is not None
    return ["call", making.function, writer.values(making.arguments)]


def _kernel(writer: Writer, kernel: Any) -> Data:
    source = kernel.keep
    if not isinstance(source, KernelSource):
        raise NotStorable("it has a kernel without its source")
    return ["kernel", source.text, source.buffers, source.sizes, source.name]


def _gpu_kernel(writer: Writer, kernel: Any) -> Data:
    if not isinstance(kernel.unaligned, Unaligned):
        raise NotStorable("it has a GPU kernel without its source")
    return ["remade", ["name", *_BUILT], [writer.value(kernel.unaligned.aligned)]]


_BUILT: Final = ("weft.runtime.cuda_kernel", "Launching.built")

_RULES: Final[dict[type, Rule]] = {
    **{kind: lambda writer, obj: ["of C", writer.value(obj.__objclass__), obj.__name__]
       for kind in C_DESCRIPTORS},
    weakref.ReferenceType: lambda writer, ref: ["weak", writer.value(ref())],
    list: lambda writer, items: ["list", writer.values(items)],
    set: lambda writer, items: ["set", sorted(writer.values(items), key=repr)],
    dict: lambda writer, items: ["dict", writer.pairs(items)],
    types.FunctionType: _function,
    types.MethodType: lambda writer, m: ["method", writer.value(m.__self__), m.__name__],
    types.CellType: lambda writer, cell: ["cell", writer.value(cell.cell_contents)],
    functools.partial: lambda writer, p: [
        "partial", writer.value(p.func), writer.values(p.args), writer.pairs(p.keywords)],
    operator.methodcaller: lambda writer, m: ["methodcaller", writer.value(m.__reduce__()[1])],
    operator.itemgetter: lambda writer, g: ["itemgetter", writer.value(g.__reduce__()[1])],
    operator.attrgetter: lambda writer, g: ["attrgetter", writer.value(g.__reduce__()[1])],
    Region: lambda writer, region: ["same", writer.value(region.call)],
    _calls.Empty: _call,
    _calls.View: _call,
    _calls.Product: _call,
    _cpu.Kernel: _kernel,
    _cuda.Kernel: _gpu_kernel,
}
