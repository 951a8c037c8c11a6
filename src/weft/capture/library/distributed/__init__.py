"""torch.distributed: process groups, and collectives that a graph can hold.

Captured: queries of groups, functional collectives, and those that write to their argument, as
functional ones (`polyfills`). Asynchronous handles and groups made inside break the graph.
"""
