"""Code and objects: what a program defines, and what it makes of it.

`functions`, `builtins` (C functions), `getters`, `cell`, `generators`; `classes`, `made_classes`,
`descriptors`; `instances`, `immutable_subclasses`, `exceptions`, `modules`; `remade`
(mutable objects of C types).
"""
