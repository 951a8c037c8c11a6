"""Guards: what must still hold for a captured frame to be used again.

`guard_set` (``GuardSet``) collects them while a frame is interpreted and lowers them to the C
extension's tree (contract 1); `identity_guards` and `shape_guards` are two kinds of their own.
`guard_changes` and `recompiles` tell the user why one failed.
"""
