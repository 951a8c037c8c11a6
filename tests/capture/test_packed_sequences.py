"""Packed sequences: what is made of lengths stays in the graph, the layer is between two graphs."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.capture.harness import check

X = torch.randn(3, 5, 4)
LENGTHS = (torch.tensor([5, 3, 2]), torch.tensor([4, 4, 1]), torch.tensor([2, 2, 2]))


def test_packing_of_several_lengths_is_one_graph() -> None:
    def f(x, lengths):
        packed = pack_padded_sequence(x.sin(), lengths, batch_first=True)
        twice = packed._replace(data=packed.data * 2)
        padded, found = pad_packed_sequence(twice, True, padding_value=-1.0, total_length=6)
        return packed.data, packed.batch_sizes, padded.stride(), padded.cos(), found

    check(f, *[(X, lengths) for lengths in LENGTHS], graphs=1, breaks=0)


def test_packing_of_wrong_lengths_raises() -> None:
    def f(x, lengths):
        try:
            return pack_padded_sequence(x.sin(), lengths, batch_first=True)
        except RuntimeError as error:
            return str(error)

    for wrong in ([2, 3, 1], [3, 2, 0], [3, 2]):
        check(f, (X, torch.tensor(wrong)), (X, LENGTHS[0]))


def test_a_layer_of_packed_sequences_is_one_break() -> None:
    layer = torch.nn.LSTM(4, 3, batch_first=True, bidirectional=True)

    def f(x, lengths):
        packed = pack_padded_sequence(x.sin(), lengths, batch_first=True, enforce_sorted=False)
        output, (hidden, _) = layer(packed)
        padded, found = pad_packed_sequence(output, batch_first=True)
        return padded.sum(1) / found[:, None], hidden.cos()

    shuffled = [(X, lengths[[1, 0, 2]]) for lengths in LENGTHS]
    with torch.no_grad():
        check(f, *shuffled, breaks=1)
    leaf = X.clone().requires_grad_()
    check(lambda x, n: [y.sum() for y in f(x, n)], (leaf, LENGTHS[0]), breaks=1)
