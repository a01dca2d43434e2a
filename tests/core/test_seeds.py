import torch

from fedrecall.core import seeds


def test_streams_are_independent_and_stable() -> None:
    streams = [
        seeds.derive_seed(*key)
        for key in [
            (0, "batches", 1, 2),
            (0, "augment", 1, 2),
            (0, "batches", 12),
            (1, "batches", 1, 2),
            (0, "batches", 2, 1),
        ]
    ]
    assert len(set(streams)) == len(streams)
    assert seeds.derive_seed(0, "init") == 3912388711783151084, "a seed means the same in every version"


def test_fork_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with seeds.seeded_rng(0, "init"):
        draw = torch.rand(3)
    torch.rand(9)
    with seeds.seeded_rng(0, "init"):
        assert torch.equal(draw, torch.rand(3))
    torch.set_rng_state(before)
    with seeds.seeded_rng(0, "init"):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)
