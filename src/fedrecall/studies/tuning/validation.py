"""A federation whose test set stays closed: validation examples stand in its place."""

from dataclasses import replace

import numpy as np
import torch

from fedrecall.config.experiment import RunSection
from fedrecall.core import seeds
from fedrecall.data.examples import Examples
from fedrecall.data.validation import split_validation
from fedrecall.runs.setup import FederatedData

VALIDATION_FRACTION = 0.2  # of every client's examples


def with_validation_split(dealt: FederatedData, run: RunSection) -> FederatedData:
    """The same clients without a share of their examples, on which every model is scored instead of the test set."""
    store, known = (
        torch.arange(len(e.labels)) if e.rows is None else e.rows for e in (dealt.client_examples, dealt.auxiliary)
    )
    seed = seeds.derive_seed(run.seed if run.partition_seed is None else run.partition_seed, "validation")
    partition, rows = split_validation(
        dealt.partition, VALIDATION_FRACTION, seed, np.flatnonzero(np.isin(store, known))
    )
    whole, chosen = dealt.dataset, store[torch.from_numpy(rows)]
    dataset = replace(
        whole,
        test_x=whole.train_x[chosen],
        test_y=whole.train_y[chosen],
        test_groups=None if whole.train_groups is None else whole.train_groups[chosen],
    )
    validation = Examples(dataset.test_x, dataset.test_y, dealt.test.transform)
    return dealt._replace(dataset=dataset, test=validation, partition=partition)
