"""Name → `backend(gm, example_inputs) -> callable`.

Core names: `register_backend`, `list_backends`, `resolve` (`registry.py`). `eager` runs the
captured graph, `aot_eager` the functional ATen graph, `inductor` (the default) weft's own code
generator.
"""

from weft.backends.registry import is_own, list_backends, register_backend, resolve

__all__ = ["is_own", "list_backends", "register_backend", "resolve"]
