"""ATen graph → ATen graph: passes that compute metadata of new nodes (`../standard_passes.py`).

`expand` replaces operators by their `decompositions`, `complex_pairs` complex tensors by pairs of
real ones (`complex_rules`), `written_pieces` makes one concatenation of many writes, `image_layout`
chooses the memory order of convolutions, `scan_gradients` finds formulas that the library has,
`keep_copies` and `protect_outputs` keep copies of the program and of results. `new_nodes` completes
what passes of users add.
"""
