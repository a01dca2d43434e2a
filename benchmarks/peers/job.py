"""What is asked of a peer: a JSON file that says what to do, and a folder of arrays to do it with.

Numpy only, so that it is the same in every environment.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

CLASSES = 10
SHAPE = (3, 32, 32)
MEAN, STD = 0.5, 0.25  # of every channel, of values in [0, 1]


@dataclass(frozen=True)
class Job:
    """One run of one peer."""

    folder: str  # of images.npy (uint8 [N, 3, 32, 32]), labels.npy (int64 [N]) and init.npy (float32 [d])
    out: str = ""  # file for the final global weights (.npy, float32 [d])
    method: str = "fedavg"  # or fedntd
    clients: int = 10
    images: int = 500  # of each client: client c holds rows c * images ... (c + 1) * images - 1
    epochs: int = 5
    batch: int = 50
    lr: float = 0.01
    momentum: float = 0.9
    beta: float = 1.0  # of FedNTD
    tau: float = 1.0
    workers: int = 2
    warmup: int = 1  # rounds before the timed ones
    timed: int = 3
    after: int = 1  # rounds after them, in which memory is looked at

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The job that a file holds."""
        return cls(**json.loads(Path(path).read_text()))

    def write(self, path: Path) -> None:
        """Write it to a file."""
        path.write_text(json.dumps(asdict(self)))

    def but(self, **changes: Any) -> Self:
        """The same job with some fields changed."""
        return replace(self, **changes)

    @property
    def rounds(self) -> int:
        """All rounds of a run."""
        return self.warmup + self.timed + self.after

    @property
    def steps(self) -> int:
        """SGD steps of one client's round."""
        return self.epochs * -(-self.images // self.batch)

    def rows(self, client: int) -> slice:
        """Where a client's pictures are."""
        return slice(client * self.images, (client + 1) * self.images)

    def array(self, name: str) -> NDArray[Any]:
        """One of the arrays, mapped: processes that read the same rows share the same memory."""
        return np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r")

    def save(self, **arrays: NDArray[Any]) -> None:
        """Write some of the arrays."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(Path(self.folder) / f"{name}.npy", array)


def learnable(n: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """A faint pattern per class and much noise: five rounds learn it in part, so that work left out shows."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(CLASSES, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    labels = rng.integers(0, CLASSES, n)
    noise = rng.normal(scale=60.0, size=(n, *SHAPE))
    return {"images": np.clip(128 + 8 * patterns[labels] + noise, 0, 255).astype(np.uint8), "labels": labels}


def repeated(clients: int, images: int) -> dict[str, NDArray[Any]]:
    """Every client has one picture, many times over.

    The order of its batches then makes no difference, so that two implementations of one method have to agree not
    just about, but to rounding: a step more or less, another learning rate, teacher or mean, and they do not.
    """
    one = learnable(clients, seed=1)
    return {"images": one["images"].repeat(images, axis=0), "labels": one["labels"].repeat(images)}
