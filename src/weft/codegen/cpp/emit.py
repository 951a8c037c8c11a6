"""Prints a kernel as C++ source, following its `Plan`.

Place in the pipeline: `target.py` calls `emit`; the text goes to `runtime/compile_pool.py`.

The text is canonical: loop variables, sizes and buffers are renamed by position, so that equal
kernels give equal texts and are compiled once. `y = x.exp().sum(-1)` over a 32 x 768 matrix becomes

    static void body(Arguments& a, int64_t begin, int64_t end) {
      const float* b0 = (const float*)a.buffers[0];
      float* b1 = (float*)a.buffers[1];
      for (int64_t point = begin; point < end; ++point) {
        const int64_t i0 = point;
        auto acc2 = Sum::begin<float, L, P>();
        full_loop<S>(0, 768, [&](int64_t r0, auto n) LAMBDA {
          const auto v0 = load<L, P>(b0 + (768*i0+r0), n);
          const auto v1 = exp(v0);
          acc2 = Sum::next(acc2, v1, n);
        });
        const auto v2 = Sum::fold(acc2);
        store1(b1 + (i0), v2);
      }
    }
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final, final

from weft.codegen.cpp.divided_reductions import DividedReductionWriter
from weft.codegen.cpp.indices import IndexWriter
from weft.codegen.cpp.plan import BACKWARDS, DEAR, HEAVY, SHUFFLED_STEPS, Plan, accesses, make_plan
from weft.codegen.cpp.points import PointsWriter, point_variables
from weft.codegen.cpp.spelling import headers_of
from weft.codegen.ir.loop_ir import Kernel, Op, Reduce, stride
from weft.codegen.source_text import SourceText
from weft.runtime.compile_pool import ENTRY

MOST_INLINED: Final = 4
"""An expensive function that is called more often is not inlined: each of hundreds of sines would
take the compiler 20 ms, and a call costs little compared to one."""


def emit(kernel: Kernel, vector_bytes: int) -> str:
    """The translation unit of `kernel`."""
    plan = make_plan(kernel, vector_bytes)
    longer = make_plan(kernel, vector_bytes, keep_rows=False) if plan.row_capacity else None
    return _TranslationUnit(plan, longer).write()


@final
class _TranslationUnit:
    """Prints one kernel; also with the plan for rows that are too long for row buffers, if there is
    one."""

    def __init__(self, plan: Plan, longer: Plan | None) -> None:
        self.plan, self.longer, self.kernel = plan, longer, plan.kernel
        self.text = SourceText("  ", braces=True)
        self.indices = IndexWriter(plan, self.text)
        self.divided = (
            DividedReductionWriter(plan, plan.split, self.text) if plan.split is not None else None)

    def write(self) -> str:
        """The whole file: headers, functions over points, entry point."""
        plan = self.plan
        for header in sorted(_headers(plan)):
            self.text.line(f'#include "{header}"')
        self.text.line("using namespace weft;")
        lanes = f"L = {plan.lanes}, P = {plan.parts}, S = L * P"
        self.text.line(f"[[maybe_unused]] static constexpr int {lanes};")
        if self.divided is not None:
            self.divided.write_functions()
        else:
            self._function("body", plan)
        if self.longer is not None:
            self._function("body_of_long_rows", self.longer)
        self._entry_point()
        return "\n".join(_with_functions_apart(self.text.lines)) + "\n"

    def _function(self, name: str, plan: Plan) -> None:
        points = PointsWriter(plan, self.text)
        with points.function(name):
            points.point()

    # -- the entry point -----------------------------------------------------------------------

    def _entry_point(self) -> None:
        exported = 'extern "C" __attribute__((visibility("default")))'
        head = f"{exported} int {ENTRY}(void* const* buffers, const int64_t* sizes)"
        with self.text.block(head):
            self.indices.declare_sizes("sizes")
            points = _product(extent for _, extent in point_variables(self.plan, self.indices))
            if self.divided is not None:
                self.divided.write_entry(points, self._cost())
            else:
                run = "run_owned" if self.plan.owners else "run"
                body = self._body()
                self.text.line(f"return {run}({body}, buffers, sizes, {points}, {self._cost()});")

    def _body(self) -> str:
        """The function over points that suits the sizes of the call."""
        body = self._version("body", self.plan)
        if self.longer is None:
            return body
        row = _product(self.indices.index(v.extent) for v in self.kernel.inner)
        longer = self._version("body_of_long_rows", self.longer)
        return f"{row} <= {self.plan.row_capacity} ? {body} : {longer}"

    def _version(self, body: str, plan: Plan) -> str:
        """The template's instance for rows that are whole vectors, or the one for others."""
        if not plan.in_two:
            return body
        rests = [self.indices.index(edge % plan.step) for edge in plan.edges]
        whole = " && ".join(f"{rest} == 0" for rest in rests)
        return f"({whole} ? {body}<true> : {body}<false>)"

    def _cost(self) -> str:
        """The work of one point, in elements; 0 keeps the kernel on one thread."""
        plan = self.plan
        if plan.one_thread:
            return "0"
        per_element = sum(HEAVY.get(n.name, 1) for n in self.kernel.nodes if isinstance(n, Op))
        factors: list[str] = [str(1 + per_element // 4)]
        factors += [self.indices.index(v.extent) for v in self.kernel.inner]
        if plan.tile is not None:
            factors.append(str(plan.tile.height))
        if plan.vector is not None and not plan.vector_inner:
            extent = self.indices.index(plan.vector.extent)
            factors.append(str(plan.block) if plan.block else extent)
        return _product(factors)


def _with_functions_apart(lines: list[str]) -> list[str]:
    """The text with expensive functions that it calls often moved into functions of their own."""
    text = "\n".join(lines)
    calls = Counter(re.findall(r"= (\w+)\(", text))
    names = [n for n, k in sorted(calls.items()) if k > MOST_INLINED and HEAVY.get(n, 0) >= DEAR]
    if not names:
        return lines
    text = re.sub(rf"= ({'|'.join(names)})\(", r"= \1_apart(", text)
    functions = "\n".join(
        "template <class... V> static __attribute__((noinline)) "
        f"auto {name}_apart(V... x) {{ return {name}(x...); }}" for name in names
    )
    return [text.replace("using namespace weft;", f"using namespace weft;\n{functions}", 1)]


def _headers(plan: Plan) -> set[str]:
    kernel = plan.kernel
    headers = {"core.h"}.union(*(headers_of(n) for n in kernel.nodes if isinstance(n, Op)))
    if any(isinstance(n, Reduce) for n in kernel.nodes):
        headers.add("reduce.h")
    if any(b.dtype == "f16" for b in kernel.buffers):
        headers.add("half.h")
    if plan.tile is not None:
        headers.add("tile.h")
    if plan.vector is not None and any(
        stride(a.index, plan.vector.symbol) in (*SHUFFLED_STEPS, BACKWARDS)
        for a in accesses(kernel)
    ):
        headers.add("strided.h")
    return headers


def _product(factors: Iterable[str]) -> str:
    wanted = [f"(int64_t)({f})" for f in factors if f != "1"]
    return " * ".join(wanted) or "1"
