"""Which formulas share a kernel, and in which order everything runs.

`schedule` decides, over `groups` of definitions; `definitions` says what these read and write,
`dependencies` what the steps wait for; `rematerialization` finds what is cheaper to compute twice,
`step_order` saves memory.
"""
