"""Marks that the program sets: weft's and torch.compiler's markers, stances, error modes.

Captured: `disable`, `allow_in_graph`, `assume_constant_result`, `substitute_in_graph` and the like
as they are defined (`rules`); a mark that forbids compilation breaks the graph (`disabled`,
`user`), or ends it with an error where the program asks for one (`forbidden`).
"""
