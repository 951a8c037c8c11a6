"""Operators: binary operators, comparisons and identity between values of any families.

Captured: whatever the operands' families or the special methods of the program's classes define,
reflected and in-place forms included. An operation that no operand knows is Python's on constants;
on anything else it breaks the graph (`unknown-operation`), since its effects are unknown.
"""
