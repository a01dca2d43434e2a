"""Train your own model: any torch module whose last layer is linear, without changes.

Run it with `python examples/own_model.py`. It takes a few seconds and needs no download.

Distillation methods use features and logits. The features are the input of the linear layer that computes the logits;
fedrecall finds this layer. A module with another last layer returns the pair (features, logits) from its forward.
"""

import torch
from torch import Tensor, nn

import fedrecall as fr


class SmallCNN(nn.Module):
    """A small convolutional network; `nn.LazyLinear` infers its input size from the data."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.hidden = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Dropout(0.2))
        self.classifier = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images."""
        return self.classifier(self.hidden(self.convolutions(x)))


def main() -> None:
    """Compare two methods with the model, then train one and use the result."""
    # A class: each seed has its own initial weights. An instance would give all runs the weights of this instance.
    comparison = fr.compare(
        ["fedavg", "fedlmd"], data="digits", model=SmallCNN, clients=10, alpha=0.1, rounds=5, seeds=2
    )
    print(comparison)

    result = fr.run(method="fedlmd", data="digits", model=SmallCNN, rounds=5)
    print(f"\n{result}")

    trained = SmallCNN()
    trained(torch.zeros(1, 1, 8, 8))  # initialises the lazy layer
    trained.load_state_dict(result.model().state_dict())  # the state dict has the names of your module
    print(f"\nback in a plain module: {sum(p.numel() for p in trained.parameters())} parameters")


if __name__ == "__main__":
    main()
