"""`nn.Module` instances and Python modules.

Captured: calls with every kind of hook (`module_hooks`), parameters and buffers as inputs of the
graph, attribute changes as side effects. Modules of C libraries offer their functions only.
"""
