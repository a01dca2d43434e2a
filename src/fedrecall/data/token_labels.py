"""Labels of tokens: one row of labels for each text, with `NO_LABEL` where a token has none."""

import torch
from torch import Tensor

NO_LABEL = -100  # as in torch's cross-entropy and in transformers


def label_per_example(labels: Tensor) -> Tensor:
    """Return one label for each example [N]: labels [N] as they are, of labels of tokens [N, L] the rarest of a text.

    Partitions, splits and the auxiliary set go by it. Most tokens have the same label (in named entity recognition
    "O"), so that the most frequent one would not distinguish texts. A text without any label counts as class 0.
    """
    if labels.ndim == 1:
        return labels
    known = labels != NO_LABEL
    totals = torch.bincount(labels[known], minlength=1)
    rarity = torch.where(known, totals[labels.clamp(min=0)], torch.iinfo(torch.int64).max)
    return labels.gather(1, rarity.argmin(1, keepdim=True))[:, 0].clamp(min=0)
