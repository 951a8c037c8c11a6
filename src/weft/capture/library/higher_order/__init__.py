"""Operators that take functions, and torch.func.

Captured: `checkpoint`, `cond`, `while_loop`, `map`, `scan`, `associative_scan`, `flex_attention`
(`rules`); `vmap`, `grad`, `jvp`, `vjp` and their compositions (`functorch_rules`). What a function
may not do inside of one (see `subgraphs`) breaks the graph (`checkpoint`, `transform`, `state`).
"""
