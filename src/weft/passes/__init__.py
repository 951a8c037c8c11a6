"""ATen graph → ATen graph.

Place in the pipeline: between aot and code generation. `framework.py` has `Pass` (a step with its
requirements), `register_pass` and `run_stage`; `patterns.py` rewrites that are shown by example,
`standard_patterns.py` weft's own ones. Each other file is one pass, whose docstring shows
the graph before and after (`node_key.py`: how passes compare nodes). `aot/standard_passes.py` lists
all in order, with those of `aot/rewrites/`.
"""

from weft.passes.framework import Pass, register_pass, unregister_pass
from weft.passes.patterns import register_pattern, unregister_pattern

__all__ = [
    "Pass", "register_pass", "register_pattern", "unregister_pass", "unregister_pattern",
]
