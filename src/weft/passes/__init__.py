"""Graph → graph.

Core types: `Pass` (a step with its needs), `register_pass`, `run_pipeline` (`framework.py`). One
pass a file, its docstring with the graph before and after; `standard.py` lists the built-in
pipeline.
"""

from weft.passes.framework import Pass, register_pass, registered, run_pipeline, unregister_pass

__all__ = ["Pass", "register_pass", "registered", "run_pipeline", "unregister_pass"]
