"""A compiled entry as one value, and as data.

Place in the pipeline: between the compiler, which has the parts (`record.py`), and the files.
`to_data` writes it as lists and texts; `Loading` makes an entry of them in another process::

    data = to_data(record, compiler)
    entry = Loading(data, compiler, state).entry()       # or raises DoesNotFit
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, final

from weft import _frame
from weft.capture.bytecode.continuation import (
    continuation_at,
    copied_from,
    original_code,
    own_copy,
    place_of,
)
from weft.capture.core.frame import is_polyfill
from weft.capture.core.source import FrameState, is_library
from weft.capture.core.tracebacks import Place
from weft.capture.guards.recompiles import Variant
from weft.capture.replacement.function import ReplacementParts, replacement_function
from weft.capture.replacement.user_lines import operation_at, passing_on
from weft.capture.sharing import Settings
from weft.capture.stored.codes import Codes, code_at
from weft.capture.stored.guards import nodes_to_data, tree_checks_to_data, tree_of
from weft.capture.stored.record import Record
from weft.errors import is_ours
from weft.graph_call import GraphCall
from weft.shapes.policy import DynamicPolicy
from weft.storable import how_made
from weft.store import DoesNotFit, NotStorable, Reader, Writer
from weft.store.backwards import BackwardsOnDisk
from weft.store.code_hash import code_hash, nested_codes
from weft.store.identity import Data
from weft.store.names import name_of
from weft.store.writer import Program, outer_function

FORMAT: Final = 1


class Compiler(Protocol):
    """What entries refer to of the compiler that made them."""

    settings: Settings

    def compiled(self, function: types.FunctionType) -> Any:
        """The compiled form of a function."""

    def own_code(self, code: types.CodeType) -> types.CodeType:
        """The compilation's copy of a code object."""

    def policy(self, code: types.CodeType) -> DynamicPolicy:
        """Which sizes of the code are symbolic."""


# -- to data ---------------------------------------------------------------------------------------


def to_data(record: Record, compiler: Compiler) -> tuple[Data, Writer]:
    """The entry as lists and texts, and what has written it; raises NotStorable."""
    for reason in record.bound_to_process:
        raise NotStorable(reason)
    state, parts = record.state, record.parts
    writer = Writer()
    writer.external(state.globals, ["globals"])
    writer.external(state.code, ["code"])
    writer.external(compiler.policy(state.code), ["policy"])
    for signature, function in record.signatures:
        is_bound = isinstance(function, types.MethodType)
        plain = function.__func__ if isinstance(function, types.MethodType) else function
        writer.external(signature, ["signature", writer.refer(plain), is_bound])
    root = original_code(state.code)
    inlined = Codes(writer, root, record.interpreted)
    codes = {code_hash(code) for own in (state.code, root) for code in nested_codes(own)}
    nodes = nodes_to_data(writer, record.nodes)
    checks = tree_checks_to_data(writer, record.tree_checks)
    constants = [[name, _constant_to_data(writer, compiler, inlined, value)]
                 for name, value in parts.constants.items()]
    graph = None if record.graph is None else _graph_to_data(writer, record.graph)
    libraries = _cover(writer, record.interpreted, codes)
    data = {
        "name": f"{state.globals.get('__name__')}.{state.code.co_qualname}",
        "nodes": nodes, "checks": checks, "slots": record.n_slots, "text": parts.text,
        "constants": constants, "graph": graph, "region": parts.region,
        "places": _places_to_data(parts.places, state.code, inlined),
        "flags": [record.needs_hook, record.may_rerun, record.any_size],
        "programs": [[p.identity, None if p.name is None else list(p.name)]
                     for p in writer.programs],
        "libraries": libraries,
        "orders": [writer.value(order) for order in record.orders],
        "policy": compiler.policy(state.code).seen(),
        "guards": [str(guard) for guard in record.guards],
    }
    return data, writer


def _graph_to_data(writer: Writer, graph: GraphCall) -> Data:
    return [writer.value(graph.call), graph.boxed, graph.restores]


def _constant_to_data(writer: Writer, compiler: Compiler, codes: Codes, value: Any) -> Data:
    if isinstance(value, _frame.CompiledFunction):
        return ["continuation", *_continuation_to_data(writer, compiler, codes, value)]
    shared = copied_from(value.__code__) if isinstance(value, types.FunctionType) else None
    if shared is not None:
        return ["eager continuation", _resumed_to_data(codes, shared), value.__name__,
                writer.value(value.__globals__)]
    making = how_made(value) if isinstance(value, types.FunctionType) else None
    if making is not None and making.function in (operation_at, passing_on):
        code, line, *rest = making.arguments
        return ["stand-in", making.function.__name__, _resumed_to_data(codes, code), line,
                writer.values(rest)]
    if isinstance(value, Place):
        return ["place", _place_to_data(value, None, codes)]
    if type(value) is tuple and any(isinstance(item, Place) for item in value):
        return ["tuple", *(_constant_to_data(writer, compiler, codes, item) for item in value)]
    if isinstance(value, types.CodeType):
        return ["resumed code", _resumed_to_data(codes, value)]
    if isinstance(value, types.MethodType) and value.__self__ is compiler:
        return ["compiler", value.__name__]
    return writer.value(value)


def _continuation_to_data(writer: Writer, compiler: Compiler, codes: Codes, value: Any
                          ) -> list[Data]:
    function = value.__wrapped__
    if getattr(value.on_miss.function, "__self__", None) is not compiler:
        raise NotStorable("it calls another compiled function")
    return [_resumed_to_data(codes, function.__code__), function.__name__,
            writer.value(function.__globals__)]


def _resumed_to_data(codes: Codes, code: types.CodeType) -> Data:
    """A code: of a continuation, where it begins, and in which code; else where it is."""
    place = place_of(code)
    return [codes.reference(code)] if place is None else [codes.reference(place[0]), *place[1]]


def _places_to_data(places: Mapping[str, tuple[Place, ...]], root: types.CodeType, codes: Codes
                    ) -> Data:
    return [[line, [_place_to_data(place, root, codes) for place in frames]]
            for line, frames in places.items()]


def _place_to_data(place: Place, root: types.CodeType | None, codes: Codes) -> Data:
    reference = None if place.code is root else codes.reference(place.code)
    return [place.offset, place.line, place.last_line, reference]


def _cover(writer: Writer, interpreted: Mapping[int, tuple[types.CodeType, str]],
           known: set[str]) -> list[Data]:
    """Make sure that every code that was interpreted is compared when the entry is loaded: by a
    guard's object, or found by its name; returns what is to be compared of the libraries'."""
    libraries: list[Data] = []
    known |= writer.codes()
    for code, module in interpreted.values():
        if is_polyfill(code) or is_ours(code.co_filename):
            continue
        if not is_library(module) and code_hash(code) in known:
            continue
        function = outer_function(module, code.co_qualname) if (
            "<" not in code.co_qualname) else None
        is_there = function is not None and function.__code__ is code
        if is_library(module):
            if is_there:
                libraries.append(_of_library(code, module))
            continue
        if not is_there or name_of(function) is None:
            raise NotStorable(f"no name leads to the inlined {module}.{code.co_qualname}")
        writer.refer(function)
        known |= writer.codes()
    return libraries


def _of_library(code: types.CodeType, module: str) -> Data:
    return [module, code.co_qualname, code.co_firstlineno, len(code.co_code)]


# -- from data -------------------------------------------------------------------------------------


@final
class Loading:
    """One entry as it is loaded for a frame."""

    def __init__(self, data: Data, compiler: Compiler, state: FrameState) -> None:
        self.data = data
        self.compiler = compiler
        self.state = state
        self.root = original_code(state.code)
        programs = [Program(identity, None if name is None else (name[0], name[1]))
                    for identity, name in data["programs"]]
        self.reader = Reader(programs, BackwardsOnDisk)
        self.reader.externals = {
            "globals": lambda _: state.globals,
            "code": lambda _: state.code,
            "policy": lambda _: compiler.policy(state.code),
            "compiler": lambda item: getattr(compiler, item[1]),
            "continuation": lambda item: self.compiler.compiled(self._continuation(item)),
            "eager continuation": self._eager_continuation,
            "stand-in": self._stand_in,
            "place": lambda item: self._place(item[1]),
            "resumed code": lambda item: self._resumed(item[1]),
            "signature": self._signature,
        }
        self._signatures: dict[tuple[int, bool], inspect.Signature] = {}

    def entry(self) -> Any:
        """The entry; raises DoesNotFit if the frame is not like the one that it was made from."""
        data, state = self.data, self.state
        tree = self.tree()
        needs_hook, may_rerun, any_size = data["flags"]
        entry = _frame.Entry(tree, self._replacement(), state.globals, needs_hook, may_rerun,
                             any_size=any_size, owner=self.compiler.settings)
        self.compiler.policy(state.code).continue_from(data["policy"])
        return entry

    def tree(self) -> Any:
        """The guards; raises DoesNotFit if they do not hold for the frame."""
        data, state = self.data, self.state
        tree = tree_of(self.reader, data["nodes"], data["checks"], data["slots"], state)
        if tree.check(*state[1:]) is None:
            raise DoesNotFit("a guard does not hold")
        self._compare_libraries()
        self._compare_orders()
        self.reader.check_all()
        return tree

    def _compare_libraries(self) -> None:
        for module, qualname, line, size in self.data["libraries"]:
            function = outer_function(module, qualname)
            if function is None or _of_library(function.__code__, module) != [
                    module, qualname, line, size]:
                raise DoesNotFit(f"another {module}.{qualname}")

    def _compare_orders(self) -> None:
        for data in self.data["orders"]:
            kind, keys, order = self.reader.value(data)
            if tuple(kind(keys)) != order:
                raise DoesNotFit("sets have another order")

    def _replacement(self) -> Callable[[list[Any]], Any]:
        data, reader = self.data, self.reader
        reader.compile_all(data["graph"])
        graph = None
        if data["graph"] is not None:
            call, boxed, restores = data["graph"]
            graph = GraphCall(reader.value(call), boxed=boxed, restores=restores)
        constants = {name: reader.value(value) for name, value in data["constants"]}
        places = {line: tuple(map(self._place, frames)) for line, frames in data["places"]}
        parts = ReplacementParts(data["text"], constants, places, data["region"])
        function = replacement_function(parts, graph, self.root, self.state.globals)
        Variant.attach_texts(function, data["guards"])
        return function

    def _signature(self, data: Data) -> inspect.Signature:
        function, is_bound = self.reader.value(data[1]), data[2]
        key = id(function), is_bound
        if key not in self._signatures:
            self._signatures[key] = inspect.signature(
                types.MethodType(function, self) if is_bound else function)
        return self._signatures[key]

    def _place(self, data: Data) -> Place:
        *numbers, reference = data
        if reference is None:
            return Place(self.state.code, self.state.globals, *numbers)
        return Place(*self._code_and_globals(reference), *numbers)

    def _code_and_globals(self, reference: Data) -> tuple[types.CodeType, dict[str, Any]]:
        return code_at(self.reader, reference, self.root, self.state.globals)

    def _code(self, reference: Data) -> types.CodeType:
        return self._code_and_globals(reference)[0]

    def _stand_in(self, data: Data) -> types.FunctionType:
        _, name, resumed, line, rest = data
        make = operation_at if name == operation_at.__name__ else passing_on
        return make(self._resumed(resumed), line, *self.reader.values(rest))

    def _eager_continuation(self, data: Data) -> types.FunctionType:
        function = self._continuation(data)
        function.__code__ = own_copy(function.__code__)
        _frame.skip(function.__code__)
        return function

    def _continuation(self, data: Data) -> types.FunctionType:
        _, resumed, name, namespace = data
        code = self._resumed(resumed)
        closure = tuple(types.CellType() for _ in code.co_freevars)
        return types.FunctionType(code, self.reader.value(namespace), name, None, closure or None)

    def _resumed(self, data: Data) -> types.CodeType:
        """The code of a continuation."""
        reference, *place = data
        code = self._code(reference)
        if not place:
            return code
        offset, stack, present, cells, suspended, iterated = place
        if code is not self.root or code is self.state.code:
            code = self.compiler.own_code(code)
        return continuation_at(code, (
            offset, stack, tuple(present), tuple(cells), suspended, iterated))


def require_readable(data: Data, compiler: Compiler, state: FrameState) -> None:
    """Raise NotStorable unless this very process could use the guards: an object that nothing
    leads to, say."""
    try:
        Loading(data, compiler, state).tree()
    except DoesNotFit as reason:
        raise NotStorable(f"its own process cannot read it: {reason}") from None

