"""Your own model: any torch module whose last layer is linear, as it is.

Run it with `python examples/own_model.py`; it takes some seconds and needs no download.

Methods that distil look at features and logits. The features are the input of the linear layer that makes the logits;
fedrecall finds it. A module that ends otherwise returns the pair (features, logits) from its forward.
"""

import torch
from torch import Tensor, nn

import fedrecall as fr


class Mine(nn.Module):
    """A small convolutional network; `nn.LazyLinear` spares us the arithmetic of what the last picture's size is."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.think = nn.Sequential(nn.LazyLinear(64), nn.ReLU(), nn.Dropout(0.2))
        self.say = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        return self.say(self.think(self.see(x)))


def main() -> None:
    """Compare two methods with it, then train one and use the result."""
    # The class, not an object: each seed begins with weights of its own. An object gives all runs its own weights.
    side = fr.compare(["fedavg", "fedlmd"], data="digits", model=Mine, clients=10, alpha=0.1, rounds=5, seeds=2)
    print(side)

    result = fr.run(method="fedlmd", data="digits", model=Mine, rounds=5)
    print(f"\n{result}")

    trained = Mine()
    trained(torch.zeros(1, 1, 8, 8))  # gives the lazy layer its size
    trained.load_state_dict(result.model().state_dict())  # the names of your own module
    print(f"\nback in a plain module: {sum(p.numel() for p in trained.parameters())} parameters")


if __name__ == "__main__":
    main()
