"""The algebra of integers of unknown value, and what follows from what is known about them.

Place in the pipeline: the lowest part of `shapes`; nothing here knows PyTorch or a capture.

- the language: `expr` (``Expr``), `atoms`, `polynomials`, `intervals`, `functions`; comparisons:
  `relation` (``Condition``);
- tensors in memory: `layout`, `views` (``View``);
- what is known: `facts` (``Facts``), `solving`, `samples`;
- floats of sizes: `floats`, `float_domains`, `rounding`;
- as text: `rendering`, `printing`.
"""
