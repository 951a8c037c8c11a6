"""Integers of unknown value: sizes that change between calls, and the indices of kernels.

Core types: ``Expr`` (``expr.py``), ``Condition`` (``relation.py``), ``Facts`` (``facts.py``),
``ShapeGuard`` (``guard.py``), ``SymNode`` (``symnode.py``), ``ShapeContext`` (``context.py``),
``DynamicPolicy`` (``policy.py``), ``FakeContext`` (``fake.py``, on the ``MemoFakeMode`` of
``fake_mode.py``).
"""

import weft.shapes.pickling  # noqa: F401  registers how expressions are copied
