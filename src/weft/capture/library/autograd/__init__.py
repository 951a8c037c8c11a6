"""Autograd: gradients, functions with a backward of their own, hooks.

Captured: `backward`, `torch.autograd.grad`, `.grad`, leaves and modes (`rules`), classes derived
from `torch.autograd.Function` (`function_rules`), hooks on tensors (`tensor_hooks`) and on what is
saved (`saved_tensor_hooks`), the program's operators with a formula (`registered_operators`).
Breaks: hooks whose effects cannot be repeated (`gradient-hook`), states that the graph cannot
restore (`state`), engine functions without a rule.
"""
