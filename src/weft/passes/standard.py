"""The built-in pipeline of the ATen graph, in order.

Place in the pipeline: imported by `aot.pipeline` before the first compilation, which registers the
passes; user passes are placed among them by their `before=` and `after=`.
"""

from __future__ import annotations

from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.passes.fold_constants import fold_constants
from weft.passes.framework import register_pass
from weft.passes.merge_equal_nodes import merge_equal_nodes
from weft.passes.simplify import simplify

register_pass(eliminate_dead_code, before="codegen")
register_pass(fold_constants, before="codegen", after="eliminate_dead_code")
register_pass(simplify, before="codegen", after="fold_constants")
# Simplification makes more nodes equal, so merging follows it.
register_pass(merge_equal_nodes, before="codegen", after="simplify")
