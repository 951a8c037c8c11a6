"""Functions of the program as graphs of their own, and objects that nodes hold.

`subgraphs` records a function's body as a graph module, for operators that take functions;
`late_code` watches what code reads that runs later than the frame (a backward, a hook);
`held_objects` are what such operators call or read when they run. A function that changes state
outside of it, or reads what may change before it runs, breaks the graph.
"""
