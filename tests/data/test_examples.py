"""Views of a shared store of examples."""

import torch

from fedrecall.core.types import Examples as Protocol
from fedrecall.data.examples import Examples
from fedrecall.data.transforms import Transform

X = torch.arange(10 * 3 * 4 * 4, dtype=torch.int64).remainder(256).to(torch.uint8).view(10, 3, 4, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
NORMAL = Transform(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def test_examples_fulfil_the_protocol_of_core() -> None:
    examples: Protocol = Examples(X, Y, NORMAL)
    assert len(examples) == 10
    assert not examples.is_augmented


def test_a_view_of_a_view_shares_the_store() -> None:
    everything = Examples(X, Y, NORMAL)
    odd = everything.subset(torch.tensor([1, 3, 5, 7, 9]))
    some = odd.subset(torch.tensor([4, 0]))
    assert some.y.tolist() == [0, 1]
    assert len(some) == 2
    assert some.x.data_ptr() == X.data_ptr()
    assert torch.equal(some.batch(slice(0, 2)), NORMAL.apply_test(X[[9, 1]]))
    assert torch.equal(some.batch(torch.tensor([1])), NORMAL.apply_test(X[[1]]))
    assert some.class_counts(4).tolist() == [1, 1, 0, 0]
    assert some.y is some.y
    assert everything.y is Y


def test_batches_are_augmented_only_with_a_generator() -> None:
    flipping = Examples(X, Y, Transform(flip=True))
    assert flipping.is_augmented
    rows = torch.arange(10)
    first = flipping.batch(rows, torch.Generator().manual_seed(0))
    assert torch.equal(first, flipping.batch(slice(None), torch.Generator().manual_seed(0)))
    assert not torch.equal(first, flipping.batch(rows))
    plain = Examples(X, Y, Transform())
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    assert torch.equal(plain.batch(rows, generator), plain.batch(rows))
    assert torch.equal(before, generator.get_state())


def test_float_examples_of_any_shape() -> None:
    table = torch.randn(10, 7, generator=torch.Generator().manual_seed(0))
    examples = Examples(table, Y, Transform(), torch.tensor([2, 2, 8]))
    assert torch.equal(examples.batch(torch.tensor([0, 1, 2])), table[[2, 2, 8]])
    assert Examples(table, Y, Transform()).batch(slice(2, 5)).data_ptr() == table[2:].data_ptr()
