"""Containers, and iterators over them.

`sequences` (list, tuple, range, slice), `mapping`, `sets`, `deques`, `named_tuples`, `namespaces`;
`iterators`, `lazy_iterators` (zip, map, …), `outside_iterators`. What keys are equal or the same:
`user_keys`, `identities`; `copy_memo` serves deep copies.
"""
