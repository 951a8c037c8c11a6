"""Functions of torch that are more than an operator.

Captured: modes and settings (`rules`, `library_flags`), layers whose kernels take plain numbers
(`recurrent_rules`, `batch_norm_rules`, `size_rules`, each with polyfills), pytrees
(`pytree_rules`), operators whose kernels differ from their meta kernels (`kernel_promises`).
Breaks: changes of state that the graph cannot make (`state`), output (`print`), loops that would
be unrolled too far (`unrolled-loop`).
"""
