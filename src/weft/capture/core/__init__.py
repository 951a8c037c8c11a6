"""The foundations of capture: what every subject of the library stands on.

Place in the pipeline: below `guards/` and `library/`. By role:

- values: `base` (`SymbolicValue`), `registry` (which family stands for which type), `constant`,
  `rules` and `methods` (what calls do; methods of C types), `lifetimes`, `declared`;
- where values come from: `source`; what is recorded: `graph`, `graph_writes`, `side_effects`;
- interpretation: `protocols` (the interpreter as rules see it), `interpreter_state`, `frame`,
  `cell`, `state`, `operator_names`, `data_checks`; what is not captured: `skips`;
- where it ends: `breaks`, `stops`, `early_ends`; what users see of it: `tracebacks`,
  `ignored_warnings`.
"""
