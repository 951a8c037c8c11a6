"""Classes, their instances and their attributes.

Captured: attribute access by Python's own rules (`attributes`), calls of classes (`classes`),
instances made outside or inside (`instances`, `immutable_subclasses`), `class` statements
(`made_classes`), `descriptors`, `isinstance` (`class_checks`). Objects of types without a family
are passed on and compared (`unknown`); anything else with them breaks the graph.
"""
