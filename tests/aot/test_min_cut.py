"""The minimum-cut solver against scipy's maximum flow, on random graphs."""

import random
from array import array

import pytest

from weft._mincut import min_cut

csgraph = pytest.importorskip("scipy.sparse.csgraph")
sparse = pytest.importorskip("scipy.sparse")


def _cut_value(sides: bytes, edges: list[tuple[int, int, int]]) -> int:
    return sum(c for u, v, c in edges if sides[u] and not sides[v])


@pytest.mark.parametrize("seed", range(30))
def test_cut_value_is_the_maximum_flow(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randrange(2, 60)
    pairs = {(rng.randrange(n), rng.randrange(n)) for _ in range(rng.randrange(4 * n))}
    edges = [(u, v, rng.randrange(20)) for u, v in sorted(pairs) if u != v]
    sides = min_cut(n, 0, n - 1, array("q", [x for e in edges for x in e]))
    assert sides[0] and not sides[n - 1]
    dense = [[0] * n for _ in range(n)]
    for u, v, c in edges:
        dense[u][v] = c
    flow = csgraph.maximum_flow(sparse.csr_matrix(dense), 0, n - 1).flow_value
    assert _cut_value(sides, edges) == flow


def test_infinite_cut_and_bad_input() -> None:
    with pytest.raises(OverflowError):
        min_cut(2, 0, 1, array("q", [0, 1, 1 << 60]))
    with pytest.raises(ValueError):
        min_cut(2, 0, 1, array("q", [0, 7, 1]))
    with pytest.raises(ValueError):
        min_cut(2, 0, 0, array("q"))
