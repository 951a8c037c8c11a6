"""Captured graph → functional ATen graph, by running it on fakes.

`trace` runs it, `record` (``Recorder``) sees every ATen operator below autograd, `functionalize`
turns writes and aliases into new values. `record_special` has the operators that are not recorded
as their schema says, with `attention`, `recurrent` and `recomputed_random`.
"""
