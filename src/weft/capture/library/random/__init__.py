"""Random generators of Python, NumPy and PyTorch.

Captured: numbers drawn by Python's and NumPy's generators become inputs of the graph, drawn anew
at each call in the program's order; `torch.Generator` is passed to the operators. State that is
read, or set from something unknown, breaks the graph.
"""
