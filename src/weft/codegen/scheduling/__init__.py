"""Which formulas share a kernel, and in which order everything runs.

`schedule` decides, over `groups` of definitions; `recomputed` finds what is cheaper to compute
twice, `step_order` saves memory.
"""
