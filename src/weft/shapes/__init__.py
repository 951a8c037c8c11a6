"""Integers of unknown value: sizes that change between calls, and the indices of kernels.

Core types: ``Expr`` (``expr.py``), ``Facts`` (``facts.py``), ``ShapeGuard`` (``guard.py``),
``SymNode`` and ``ShapeContext`` (``symnode.py``), ``FakeContext`` (``fake.py``).
"""
