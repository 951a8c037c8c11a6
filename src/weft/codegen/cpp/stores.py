"""Prints stores as C++ statements: vectors, interleaved, into tiles, combined with what is there.

Place in the pipeline: beside `nodes.py`, whose values it stores::

    store(b1 + (768*i0+r0), v5, n);
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import final

from weft.codegen.cpp.nodes import NodeWriter
from weft.codegen.cpp.plan import SHUFFLED_STEPS
from weft.codegen.cpp.tiles import Tile
from weft.codegen.ir.loop_ir import Store
from weft.shapes.algebra.expr import IntExpr, symbol_of


@final
class StoreWriter:
    """Prints the stores of one function."""

    def __init__(self, nodes: NodeWriter) -> None:
        self.nodes, self.indices = nodes, nodes.indices
        self.plan, self.kernel, self.text = nodes.plan, nodes.kernel, nodes.text

    def write(self, stores: Sequence[Store]) -> None:
        """Print stores in order; those that fill memory together become one."""
        left = list(stores)
        alike = len(self.owner_tests()) < 2
        while left:
            together = self._interleaved(left)
            test = self._owner_test(self.kernel.stores.index(left[0]))
            with nullcontext() if alike else self.text.block(f"if ({test})"):
                self._write_together(together)
            left = [s for s in left if s not in together]

    # -- stores of one thread ------------------------------------------------------------------

    def owner_tests(self) -> list[str]:
        """The different answers to whether what a store writes is this thread's."""
        if not self.plan.owners:
            return []
        return list(dict.fromkeys(map(self._owner_test, range(len(self.kernel.stores)))))

    def _owner_test(self, number: int) -> str:
        """Is what a store (by position) writes this thread's?"""
        owner = self.plan.owners.get(number)
        name = "" if owner is None else self.indices.names[symbol_of(owner.symbol).name]
        place = f"{name}.at[0]" if name else "point"
        low, high = (f"{edge}_{name}" if name else edge for edge in ("low", "high"))
        return f"{place} >= {low} && {place} < {high}"

    # -- stores that fill memory together ------------------------------------------------------

    def _interleaved(self, stores: Sequence[Store]) -> list[Store]:
        """The stores that fill the gaps of the first one, in the order of their elements."""
        first = stores[0]
        step = None if self._tile_of(first) else self.indices.step(first.index, first.indirect)
        if step not in SHUFFLED_STEPS or not self._is_wide(first) or first.mode != "assign":
            return [first]
        partners: dict[IntExpr, Store] = {
            s.index - first.index: s for s in stores
            if (s.buffer, s.mode) == (first.buffer, first.mode) and self._is_wide(s)
        }
        lowest = min((k for k in partners if isinstance(k, int)), default=0)
        run = [partners.get(lowest + k) for k in range(int(step))]
        return [first] if None in run else [s for s in run if s is not None]

    def _write_together(self, together: Sequence[Store]) -> None:
        if len(together) == 1:
            self._write(together[0])
            return
        address = self.indices.address(together[0])
        values = ", ".join(self.nodes.wide(s.value) for s in together)
        self.text.line(f"store_interleaved({address}, n, {values});")

    # -- one store -----------------------------------------------------------------------------

    def _write(self, store: Store) -> None:
        address = self.indices.address(store)
        wide = self._is_wide(store)
        value = self.nodes.wide(store.value) if wide else self.nodes.use(store.value)
        if store.mode != "assign":
            self._combine(store, address, value)
        elif (tile := self._tile_of(store)) is not None:
            number = self.kernel.stores.index(store)
            self.text.line(f"store(made{number} + ({self.indices.within_tile(tile)}), {value}, n);")
        elif not wide:
            self.text.line(f"store1({address}, {value});")
        elif self._is_adjacent(store):
            self.text.line(f"store({address}, {value}, n);")
        else:
            kind = self.indices.memory[store.buffer]
            self.text.line(f"scatter<{kind}>({self._per_lane(store)}, {value}, n);")

    def _combine(self, store: Store, address: str, value: str) -> None:
        """Combine the value with what is there; lane by lane where lanes may conflict."""
        mode = store.mode
        if not self._is_wide(store):
            self.text.line(f"store1({address}, {mode}(load1({address}), {value}));")
        elif self._is_adjacent(store):
            self.text.line(f"store({address}, {mode}(load<L, P>({address}, n), {value}), n);")
        else:
            combine = f"[](auto a, auto b) LAMBDA {{ return {mode}(a, b); }}"
            self.text.line(f"accumulate({self._per_lane(store)}, {value}, n, {combine});")

    def _is_adjacent(self, store: Store) -> bool:
        """Whether the lanes' elements lie next to each other."""
        return self.indices.step(store.index, store.indirect) == 1

    def _per_lane(self, store: Store) -> str:
        buffer = self.indices.buffers[store.buffer]
        return self.indices.per_lane(store.index, store.indirect, buffer)

    def _tile_of(self, store: Store) -> Tile | None:
        """The tile that a store fills."""
        tile = self.plan.tile
        return tile if tile and self.kernel.stores.index(store) in tile.stores else None

    def _is_wide(self, store: Store) -> bool:
        """Whether there is a value for each lane."""
        return self.plan.vector is not None and (store.inner or not self.plan.vector_inner)
