"""ATen graph → ATen graph: what the compiler gets instead of operators that it does not know.

`expand` replaces operators by their `decompositions`, `complex_pairs` complex tensors by pairs of
real ones (`complex_rules`), `written_pieces` makes one concatenation of many writes, `image_layout`
chooses the memory order of convolutions.
"""
