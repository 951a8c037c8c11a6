"""What runs instead of a captured frame (contract 2).

- the whole frame: `emitter` (``Emitter``) and `graph_calls` write the replacement, with
  `side_effects`, `gradients`, `device_modes`, `ignored_warnings`, `reruns`;
- what follows a graph break: `resumption` (the operation, then the rest), `break_operations`,
  `continuation`, `checkpointing`;
- as the user sees it: `user_lines`, `tracebacks`.
"""
