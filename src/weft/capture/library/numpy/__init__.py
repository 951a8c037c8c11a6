"""NumPy: arrays are tensors in the graph, calls are nodes.

Captured: functions and methods of arrays (`rules`, `arrays`, `recording`; the nodes' functions are
`calls` and `operations`), calls on constants evaluated by NumPy itself, sizes in NumPy's functions
(`number_rules`), contents that follow from constants (`known_arrays`). `models` finds out what
NumPy does in a call by trying it on made-up numbers. Breaks: functions that the tensors' side
cannot express exactly (`unknown-c-function`, `unknown-operation`), object arrays, views that the
graph would copy where the program writes to them (`copied_views`).
"""
