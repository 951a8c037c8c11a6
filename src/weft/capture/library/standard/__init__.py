"""The standard library: caches, weak references, context variables, locks, logs, warnings.

Captured: functions on constants and pure ones (`rules`, `immutable_objects`), C functions by a
Python version (`polyfill_rules`; `library_polyfills`, `twin_polyfills`), `locks` held while the
graph runs, mutable C objects that nothing outside notices (`remade`), logs and warnings of
constants and numbers, which wait for the graph's end (`logging_rules`, `warnings_rules`). Breaks:
output (`print`), caches of the program (`cached-function`), objects whose end is watched
(`watched-object`).
"""
