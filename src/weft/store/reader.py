"""Data as objects: the other half of `writer.py`.

Place in the pipeline: used while a stored entry is loaded. Objects of the program are what the
process has: `bind` is told which object is at the place where the first process had one, and checks
that it is the same thing; further ones are looked up by name::

    reader = Reader(programs)
    reader.bind(["program", 0], f)        # raises DoesNotFit unless f has the stored byte code
    reader.value(["program", 0])          # f
"""

from __future__ import annotations

import functools
import importlib
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, final

import numpy
import torch

from weft.diagnostics.regions import restore_regions
from weft.runtime import tensor_calls
from weft.runtime.compile_pool import Compiling, submit
from weft.runtime.generated_code import load
from weft.runtime.launcher import kernel_of
from weft.store.errors import DoesNotFit, NotStorable
from weft.store.graphs import Forms, GraphAsData
from weft.store.identity import ATTRIBUTES, Data, Looking
from weft.store.names import namespace_named, object_named
from weft.store.writer import Program, outer_function

_UNBOUND: Final = object()


@final
class Reader:
    """Makes the objects of one entry again.

    `externals` read what the writer was told to write by itself, by the first item of its data.
    """

    def __init__(self, programs: Sequence[Program], on_disk: Forms | None = None) -> None:
        self._programs = programs
        self._objects: list[Any] = [_UNBOUND] * len(programs)
        self._bound: dict[int, int] = {}
        self._shared: dict[int, Any] = {}
        self._compiling: dict[str, Compiling] = {}
        self._looking = Looking()
        self.externals: dict[str, Callable[[Data], Any]] = {}
        self.on_disk = on_disk

    # -- objects of the program -------------------------------------------------------------------

    def bind(self, data: Data, actual: Any) -> Any:
        """What stands for `actual`, which this process has where the other one had what `data`
        says; raises DoesNotFit if it is another thing."""
        if type(data) is list and data and data[0] == "program":
            return self._bind(data[1], actual)
        obj = self.value(data)
        if obj is not actual:
            raise DoesNotFit(f"another object than {data}")
        return obj

    def _bind(self, number: int, actual: Any) -> Any:
        known = self._objects[number]
        if known is not _UNBOUND:
            if known is not actual:
                raise DoesNotFit("two places that were one object")
            return actual
        if self._bound.get(id(actual), number) != number:
            raise DoesNotFit("one object at places that had two")
        self._check(number, actual)
        self._objects[number] = actual
        self._bound[id(actual)] = number
        return actual

    def _check(self, number: int, actual: Any) -> None:
        try:
            same = self._looking.at(actual) == self._programs[number].identity
        except NotStorable:
            same = False
        if not same:
            raise DoesNotFit(f"another {self._programs[number].identity[:3]}")

    def describe(self, data: Data) -> str:
        """What an object of the program is, for messages."""
        if data[0] == "signature":
            return f"the signature of {self.describe(data[1])}"
        what = self._programs[data[1]].identity if data[0] == "program" else data
        return str(what)[:80]

    def is_bound(self, data: Data) -> bool:
        """Whether the data can be read already: what it says has a name, or was bound."""
        if data[0] == "signature":
            return self.is_bound(data[1])
        if data[0] != "program" or self._objects[data[1]] is not _UNBOUND:
            return True
        program = self._programs[data[1]]
        return program.name is not None or self._namespace(program.identity) is not None

    def _namespace(self, identity: Data) -> dict[str, Any] | None:
        """The global variables of a module that only its functions lead to."""
        if identity[0] != "namespace":
            return None
        return next((obj.__globals__ for obj in self._objects if isinstance(
            obj, types.FunctionType) and obj.__globals__.get("__name__") == identity[1]), None)

    def _program(self, data: Data) -> Any:
        number = data[1]
        if self._objects[number] is _UNBOUND:
            name = self._programs[number].name
            namespace = self._namespace(self._programs[number].identity)
            if namespace is not None:
                return self._bind(number, namespace)
            if name is None:
                raise DoesNotFit(f"nothing is {self._programs[number].identity[:3]}")
            self._bind(number, object_named(*name))
        return self._objects[number]

    def check_all(self) -> None:
        """Look also at the objects of the program that nothing has asked for."""
        for number in range(len(self._programs)):
            self._program(["program", number])

    # -- values -----------------------------------------------------------------------------------

    def compile_all(self, data: Data) -> None:
        """The same for all kernels in the data."""
        self.compile(sorted(kernel_texts(data)))

    def compile(self, sources: Sequence[str]) -> None:
        """Start loading the kernels' objects, or compiling what the disk does not have."""
        self._compiling.update(zip(sources, submit(sources), strict=True))

    def value(self, data: Data) -> Any:
        """The object that the data describe."""
        if type(data) is not list:
            return data
        kind = data[0]
        external = self.externals.get(kind)
        if external is not None:
            return external(data)
        if kind == "program":
            return self._program(data)
        if kind == "again":
            return self._shared[data[1]]
        constant = _CONSTANTS.get(kind)
        if constant is not None:
            return constant(self, data)
        rule = _RULES[kind]
        obj = rule(self, data)
        self._shared[data[1]] = obj
        return obj

    def values(self, items: Sequence[Data]) -> list[Any]:
        """Several values."""
        return [self.value(item) for item in items]

    def share(self, number: int, obj: Any) -> Any:
        """Make an object known before its parts are read, which may refer to it."""
        self._shared[number] = obj
        return obj

    def kernel(self, data: Data) -> Any:
        """A compiled kernel."""
        _, _, text, buffers, sizes, name = data
        if text not in self._compiling:
            self.compile([text])
        return kernel_of(self._compiling[text], buffers=buffers, sizes=sizes, name=name)


def kernel_texts(data: Data) -> set[str]:
    """The texts of all kernels in the data."""
    parts = data.values() if type(data) is dict else data if type(data) is list else ()
    is_kernel = type(data) is list and len(data) == 6 and data[0] == "kernel"
    own = {data[2]} if is_kernel else set()
    return own.union(*map(kernel_texts, parts))


Rule = Callable[[Reader, Data], Any]

_CONSTANTS: Final[dict[str, Rule]] = {
    "int": lambda reader, data: int(data[1], 16),
    "float": lambda reader, data: float(data[1]),
    "complex": lambda reader, data: complex(float(data[1]), float(data[2])),
    "bytes": lambda reader, data: bytes.fromhex(data[1]),
    "ellipsis": lambda reader, data: Ellipsis,
    "not implemented": lambda reader, data: NotImplemented,
    "torch": lambda reader, data: getattr(torch, data[1]),
    "device": lambda reader, data: torch.device(*data[1:]) if data[2] is not None else (
        torch.device(data[1])),
    "size": lambda reader, data: torch.Size(reader.values(data[1:])),
    "tuple": lambda reader, data: tuple(reader.values(data[1:])),
    "frozenset": lambda reader, data: frozenset(reader.values(data[1:])),
    "slice": lambda reader, data: slice(*reader.values(data[1:])),
    "range": lambda reader, data: range(*data[1:]),
    "name": lambda reader, data: object_named(*data[1:]),
    "operator": lambda reader, data: functools.reduce(getattr, data[1:], torch.ops),
    "namespace": lambda reader, data: namespace_named(*data[1:]),
}


def _list(reader: Reader, data: Data) -> Any:
    items: list[Any] = reader.share(data[1], [])
    items += reader.values(data[2])
    return items


def _dict(reader: Reader, data: Data) -> Any:
    items: dict[Any, Any] = reader.share(data[1], {})
    items.update((reader.value(key), reader.value(value)) for key, value in data[2])
    return items


def _cell(reader: Reader, data: Data) -> Any:
    return types.CellType(reader.value(data[-1]))


def _inner(reader: Reader, data: Data) -> Any:
    """A function of weft inside another one."""
    _, _, module, outer, path, cells, defaults, named = data
    importlib.import_module(module)
    function = outer_function(module, outer)
    if function is None:
        raise DoesNotFit(f"there is no {module}.{outer}")
    code = function.__code__
    for at in path:
        code = code.co_consts[at]
    inside = types.FunctionType(code, function.__globals__, code.co_name, None, tuple(
        types.CellType() for _ in cells) or None)
    reader.share(data[1], inside)
    for cell, content in zip(inside.__closure__ or (), cells, strict=True):
        cell.cell_contents = reader.value(content[1])
    inside.__qualname__ = code.co_qualname
    inside.__defaults__ = reader.value(defaults)
    inside.__kwdefaults__ = reader.value(named)
    return inside


def _generated(reader: Reader, data: Data) -> Any:
    _, _, file, name, text, scope, regions = data
    function = load(text, file, {reader.value(key): reader.value(value) for key, value in scope},
                    name)
    restore_regions(function, reader.value(regions))
    return function


def _object(reader: Reader, data: Data) -> Any:
    _, number, module, name, fields = data
    importlib.import_module(module)
    cls = object_named(module, name)
    obj = reader.share(number, object.__new__(cls))
    for field, value in fields:
        object.__setattr__(obj, field, reader.value(value))
    return obj


def _tensor(reader: Reader, data: Data) -> Any:
    _, _, dtype, shape, raw = data
    content = torch.tensor(list(bytes.fromhex(raw)), dtype=torch.uint8)
    return content.view(reader.value(dtype)).reshape(shape) if raw else torch.empty(
        shape, dtype=reader.value(dtype))


_RULES: Final[dict[str, Rule]] = {
    "list": _list,
    "set": lambda reader, data: set(reader.values(data[2])),
    "dict": _dict,
    "cell": _cell,
    "inner": _inner,
    "generated": _generated,
    "graph": lambda reader, data: GraphAsData(
        data[2], reader.values(data[2]["outer"]), Reader([]).value, reader.on_disk),
    "dtype of numpy": lambda reader, data: numpy.dtype(data[2]),
    "member": lambda reader, data: getattr(reader.value(data[2]), data[3]),
    "object": _object,
    "tensor": _tensor,
    "method": lambda reader, data: getattr(reader.value(data[2]), data[3]),
    "partial": lambda reader, data: functools.partial(
        reader.value(data[2]), *reader.values(data[3]),
        **{reader.value(key): reader.value(value) for key, value in data[4]}),
    "methodcaller": lambda reader, data: operator.methodcaller(*reader.value(data[2])),
    "itemgetter": lambda reader, data: operator.itemgetter(*reader.value(data[2])),
    "attrgetter": lambda reader, data: operator.attrgetter(*reader.value(data[2])),
    "of C": lambda reader, data: ATTRIBUTES(reader.value(data[2]))[data[3]],
    "weak": lambda reader, data: weakref.ref(reader.value(data[2])),
    "remade": lambda reader, data: reader.value(data[2])(*reader.values(data[3])),
    "same": lambda reader, data: reader.value(data[2]),
    "call": lambda reader, data: getattr(tensor_calls, data[2])(*reader.values(data[3])),
    "kernel": Reader.kernel,
}
