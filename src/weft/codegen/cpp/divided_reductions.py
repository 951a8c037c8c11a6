"""Prints long reductions of few points, which threads divide between them.

Place in the pipeline: below `emit.py`, for plans with a `split`. The function `partial` reduces one
chunk of one point into scratch memory, `body` combines the chunks. Their number does not depend on
the number of threads, so neither do results.
"""

from __future__ import annotations

from typing import final

from weft.codegen.cpp.plan import CHUNK_WORK, MAX_CHUNKS, Plan
from weft.codegen.cpp.points import PointsWriter
from weft.codegen.cpp.spelling import REDUCTION
from weft.codegen.ir.loop_ir import LoopVar
from weft.codegen.source_text import SourceText


@final
class DividedReductionWriter:
    """Prints both functions, and how they are called."""

    def __init__(self, plan: Plan, split: LoopVar, text: SourceText) -> None:
        self.plan, self.split, self.text = plan, split, text
        self.nest = plan.nests[0]

    def write_functions(self) -> None:
        """The accumulators of a chunk, `partial` and `body`."""
        partial, body = PointsWriter(self.plan, self.text), PointsWriter(self.plan, self.text)
        with self.text.block("struct Partial", ";"):
            for r in self.nest.reductions:
                self.text.line(f"decltype({body.nests.reductions.begin(r)}) acc{r.id};")
        with partial.function("partial", "a.chunks"):
            self.text.line("Partial& partial = ((Partial*)a.scratch)[point];")
            self._chunk_bounds(partial)
            partial.point(lambda: self._reduce_chunk(partial))
        with body.function("body"):
            first = "(const Partial*)a.scratch + point * a.chunks"
            self.text.line(f"const Partial* const partials = {first};")
            body.point(lambda: self._combine(body))

    def write_entry(self, points: str, cost: str) -> None:
        """The calls of both functions."""
        self.text.line(f"const int64_t points = {points}, cost = {cost};")
        self.text.line(f"alignas(64) Partial scratch[{MAX_CHUNKS}];")
        self.text.line(f"const int64_t room = {MAX_CHUNKS} / weft_max(points, 1);")
        self.text.line(f"const int64_t most = weft_min(room, cost / {CHUNK_WORK});")
        self.text.line("Arguments a{buffers, sizes, 0, scratch, weft_max(most, 1)};")
        self.text.line("run(partial, a, points * a.chunks, cost / a.chunks);")
        self.text.line("if (!a.error) body(a, 0, points);")
        self.text.line("return a.error;")

    def _chunk_bounds(self, partial: PointsWriter) -> None:
        """Where a chunk begins and ends: at multiples of a vector's length, if it has vectors."""
        extent = partial.indices.index(self.split.extent)
        unit = self.plan.step if self.split is self.plan.vector else 1
        last = f"units * (chunk + 1) / a.chunks * {unit}"
        self.text.line(f"const int64_t units = (({extent}) + {unit - 1}) / {unit};")
        self.text.line(f"const int64_t chunk_begin = units * chunk / a.chunks * {unit};")
        self.text.line(f"const int64_t chunk_end = weft_min({last}, {extent});")

    def _reduce_chunk(self, partial: PointsWriter) -> None:
        partial.nodes.write_outer(lambda n: not self.plan.nest_of[n.id])
        for number, name in partial.nests.accumulators(self.nest).items():
            self.text.line(f"partial.acc{number} = {name};")

    def _combine(self, body: PointsWriter) -> None:
        reductions = body.nests.reductions
        for r in self.nest.reductions:
            self.text.line(f"auto acc{r.id} = {reductions.begin(r)};")
        with self.text.block("for (int64_t chunk = 0; chunk < a.chunks; ++chunk)"):
            for r in self.nest.reductions:
                accumulators = f"acc{r.id}, partials[chunk].acc{r.id}"
                self.text.line(f"acc{r.id} = {REDUCTION[r.kind]}::combine({accumulators});")
        for r in self.nest.reductions:
            reductions.finish(r, f"acc{r.id}")
        body.nests.write_rest()
