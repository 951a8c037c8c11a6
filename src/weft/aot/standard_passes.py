"""weft's own passes, in the order in which they run, each with the reason for its place.

Place in the pipeline: `passes/framework.py` runs them, stage by stage (its `Stage` says when); they
come from `passes/` or, if they compute metadata of new nodes, from `rewrites/`. Those of users run
among them::

    WEFT_LOGS=passes python program.py         # what each of them changed
"""

from __future__ import annotations

from typing import Final

from torch.fx import GraphModule

from weft.aot.rewrites.complex_pairs import split_complex
from weft.aot.rewrites.expand import expand
from weft.aot.rewrites.image_layout import use_channels_last
from weft.aot.rewrites.keep_copies import keep_copies
from weft.aot.rewrites.protect_outputs import protect_outputs
from weft.aot.rewrites.replace_patterns import replace_patterns
from weft.aot.rewrites.scan_gradients import use_library_gradients
from weft.aot.rewrites.written_pieces import join_written_pieces
from weft.passes.eliminate_dead_code import eliminate_dead_code, keep_errors
from weft.passes.fold_constants import fold_constants
from weft.passes.framework import REGISTERED, Pass, always, register_standard
from weft.passes.merge_equal_nodes import merge_equal_nodes
from weft.passes.pad_rows import pad_rows
from weft.passes.simplify import simplify
from weft.passes.write_parts import write_parts
from weft.shapes.graph_facts import GraphFacts


def is_trained(facts: GraphFacts) -> bool:
    """The condition of passes for graphs with a backward."""
    return facts.is_trained


def is_lowered(facts: GraphFacts) -> bool:
    """The condition of passes for graphs whose operators the code generator must know."""
    return facts.lowered is not None


def _nothing(gm: GraphModule) -> bool:
    """The pass that marks a place."""
    return False


STANDARD: Final = (
    Pass("keep_copies", keep_copies, "joint", is_trained,
         "before simplify, which drops copies that are not marked"),
    Pass("keep_errors", keep_errors, "joint", always,
         "before passes leave operators unused that the program ran and that may raise"),
    Pass("eliminate_dead_code", eliminate_dead_code, "joint", always,
         "before decompositions, each of which is traced"),
    Pass("expand", expand, "joint", is_lowered,
         "before passes that recognise operators, of which there are fewer then"),
    Pass("use_library_gradients", use_library_gradients, "joint", is_lowered,
         "after expand: it replaces what a formula became"),
    Pass("split_complex", split_complex, "joint", is_lowered,
         "after expand, whose formulas may compute with complex numbers"),
    Pass("join_written_pieces", join_written_pieces, "joint", always,
         "after expand, which turns gradients of slices into such writes"),
    Pass("eliminate_replaced_code", eliminate_dead_code, "joint", always,
         "after passes that leave behind what they replace: it is neither folded nor merged"),
    Pass("fold_constants", fold_constants, "joint", always,
         "before simplify, which drops operations with the constants 0 and 1"),
    Pass("simplify", simplify, "joint", always,
         "before merge_equal_nodes: nodes become equal"),
    Pass("merge_equal_nodes", merge_equal_nodes, "joint", always,
         "after simplify, and before the passes of users, who see each value once"),
    Pass("replace_patterns", replace_patterns, "joint", always,
         "after merge_equal_nodes: a value that is computed twice is no pattern's inner value"),
    Pass(REGISTERED, _nothing, "joint", always,
         "here run passes that users register, unless they name another place"),
    Pass("eliminate_merged_code", eliminate_dead_code, "joint", always,
         "after passes that leave nodes behind: the cut would save what these read"),
    Pass("use_channels_last", use_channels_last, "joint", is_lowered,
         "last, because it changes the strides that other passes compare"),

    Pass("protect_outputs", protect_outputs, "split", always,
         "after the cut, which decides what is returned; simplify would drop the copies"),

    Pass("write_parts", write_parts, "kernels", always,
         "after protect_outputs; its nodes are no operators of ATen, so no other pass knows them"),
    Pass("pad_rows", pad_rows, "kernels", always,
         "after write_parts: what is written in place keeps the layout of its input"),
)
"""weft's own passes. The decompositions of `expand` are a table: `rewrites/decompositions.py`."""

register_standard(STANDARD)
