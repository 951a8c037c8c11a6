"""Functions: the program's own, which are inlined, and C functions.

Captured: calls of Python functions and methods (`functions`, with `cell`), generators that are
made and used inside (`generators`), `operator.itemgetter` and the like (`getters`), builtins
(`builtin_rules`), other C functions by their rule, as graph nodes, or on constants (`builtins`).
A C function without a rule breaks the graph (`unknown-c-function`): nobody knows its effects.
"""
