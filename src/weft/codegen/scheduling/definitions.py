"""What the definitions of a lowered graph read, write and need.

Place in the pipeline: under `schedule.py`, which orders them first and drops what no output needs.
`accesses` has the loads of each formula's kernel, by the definition's id (`codegen/access.py`)::

    reads_of(definition, accesses)      # names of buffers
    written_by(definition)              # buffers
    symbols_of(definition, accesses)    # names of symbols that data gives values
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from weft._torch import OpOverload, runs_as_written
from weft.codegen.access import Access
from weft.codegen.values import Buffer, Computed, Definition, ExternCall, Value
from weft.shapes.algebra.expr import Expr
from weft.shapes.algebra.floats import SYMBOLIC_FLOATS, number_symbols
from weft.shapes.unbacked import Binding


def reads_of(definition: Definition, accesses: dict[int, Access]) -> Iterable[str]:
    """Names of the buffers that a definition reads."""
    if isinstance(definition, ExternCall):
        return [b.name for b in definition.reads]
    return accesses[id(definition)].reads


def binds_of(definition: Definition) -> tuple[Binding, ...]:
    """The data-dependent symbols that a definition binds."""
    return definition.binds if isinstance(definition, ExternCall) else ()


def symbols_of(definition: Definition, accesses: dict[int, Access]) -> frozenset[str]:
    """The data-dependent symbols that a definition needs (for calls, other symbols too)."""
    if isinstance(definition, Computed):
        return accesses[id(definition)].symbols
    own = {b.name for b in definition.binds}
    sizes = [n for b in definition.outputs if b is not None for n in (*b.shape, *b.strides)]
    needed = {str(s) for size in sizes for s in number_symbols(size)}
    needed.update(_argument_symbols((definition.arguments, definition.keywords)))
    return frozenset(needed - own)


def _argument_symbols(item: object) -> Iterator[str]:
    if isinstance(item, Value):
        placed = item.realize()
        for size in (*placed.shape, *placed.strides, placed.offset):
            yield from map(str, number_symbols(size))
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from _argument_symbols(part)
    elif isinstance(item, dict):
        yield from _argument_symbols(tuple(item.values()))
    elif isinstance(item, (Expr, *SYMBOLIC_FLOATS)):
        yield from map(str, number_symbols(item))


def written_by(definition: Definition) -> list[Buffer]:
    """The buffers that a definition defines."""
    if isinstance(definition, ExternCall):
        return [b for b in definition.outputs if b is not None]
    return [definition.buffer]


def sorted_definitions(
    definitions: list[Definition], accesses: dict[int, Access]
) -> list[Definition]:
    """Producers before consumers; otherwise the given order (depth first)."""
    producer = {b.name: d for d in definitions for b in written_by(d)}
    symbols = {b.name: d for d in definitions for b in binds_of(d)}
    done: set[int] = set()
    result: list[Definition] = []
    for root in definitions:
        stack: list[tuple[Definition, bool]] = [(root, False)]
        while stack:
            definition, ready = stack.pop()
            if ready:
                result.append(definition)
                continue
            if id(definition) in done:
                continue
            done.add(id(definition))
            stack.append((definition, True))
            needed = [producer.get(name) for name in reads_of(definition, accesses)]
            if symbols:
                needed += [symbols.get(name) for name in symbols_of(definition, accesses)]
            stack += [(d, False) for d in needed if d is not None and id(d) not in done]
    return result


def needed_definitions(
    ordered: list[Definition], accesses: dict[int, Access], outputs: set[str]
) -> set[int]:
    """Definitions that an output depends on."""
    wanted = set(outputs)
    alive: set[int] = set()
    for definition in reversed(ordered):
        if any(b.name in wanted for b in written_by(definition)) or _has_effect(definition):
            alive.add(id(definition))
            wanted.update(reads_of(definition, accesses))
    return alive


def _has_effect(definition: Definition) -> bool:
    """Whether it must run even if its result is unused: operators without tensor results
    (assertions), those that bind symbols, draw random numbers, or may raise."""
    if not isinstance(definition, ExternCall):
        return False
    kept = definition.must_run or bool(definition.binds)
    return kept or not written_by(definition) or runs_in_order(definition)


def runs_in_order(definition: Definition) -> bool:
    """Whether it advances a random generator, or talks to other processes: such calls keep their
    order."""
    op = getattr(definition, "op", None)
    return isinstance(op, OpOverload) and runs_as_written(op)
