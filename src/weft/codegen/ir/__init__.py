"""The loop IR (contract 5): what a kernel computes, independent of the target that spells it.

`loop_ir` defines it, over `dtypes` and `scalar_ops`; `simplify` works as nodes are built. For those
who write kernels: `loop_nests`, the runs over inner loops, and `visitor`, a method for each node.
"""
