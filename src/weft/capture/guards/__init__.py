"""Guards: what must still hold for a captured frame to be used again.

`guard_set` (``GuardSet``) collects them while a frame is interpreted and lowers them to the C
extension's tree (contract 1). What the program knows of identities is guarded by `outside_objects`
and `identity_guards`, what it knows of sizes by `shape_guards`. `guard_changes` and `recompiles`
tell the user why a guard failed.
"""
