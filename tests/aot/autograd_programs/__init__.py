"""Programs with gradients: each takes `wrap`, weft.compile or nothing, and gives what is seen."""
