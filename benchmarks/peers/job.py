"""Job of a peer: a JSON file with the settings, and a folder of arrays.

It needs only numpy, so that it works in every environment.
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
    network: str = "cnn"  # of task.NETWORKS
    dropout: bool = True  # False: results of two implementations can be compared
    clients: int = 10
    sample: int | None = None  # clients per round; None: all
    images: int = 500  # per client: client c holds rows c * images ... (c + 1) * images - 1
    epochs: int = 5
    batch: int = 50
    lr: float = 0.01
    momentum: float = 0.9
    beta: float = 1.0  # of FedNTD
    tau: float = 1.0
    workers: int = 2
    warmup: int = 1  # rounds before the timed ones
    timed: int = 3
    after: int = 1  # rounds after them, in which memory is measured

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a job from a file."""
        return cls(**json.loads(Path(path).read_text()))

    def write(self, path: Path) -> None:
        """Write the job to a file."""
        path.write_text(json.dumps(asdict(self)))

    def but(self, **changes: Any) -> Self:
        """Return the job with some fields changed."""
        return replace(self, **changes)

    @property
    def cohort(self) -> int:
        """Number of clients per round."""
        return self.sample or self.clients

    @property
    def rounds(self) -> int:
        """Number of all rounds of a run."""
        return self.warmup + self.timed + self.after

    @property
    def steps(self) -> int:
        """Number of SGD steps of one client's round."""
        return self.epochs * -(-self.images // self.batch)

    def rows(self, client: int) -> slice:
        """Return the rows of a client's pictures."""
        return slice(client * self.images, (client + 1) * self.images)

    def array(self, name: str) -> NDArray[Any]:
        """Return one of the arrays, memory-mapped: processes that read the same rows share the memory."""
        return np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r")

    def save(self, **arrays: NDArray[Any]) -> None:
        """Write arrays to the folder."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            np.save(Path(self.folder) / f"{name}.npy", array)


def learnable(n: int, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Return a weak pattern per class with much noise: five rounds learn it in part, so omitted steps are visible."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(CLASSES, 3, 8, 8)).repeat(4, axis=2).repeat(4, axis=3)
    labels = rng.integers(0, CLASSES, n)
    noise = rng.normal(scale=60.0, size=(n, *SHAPE))
    return {"images": np.clip(128 + 8 * patterns[labels] + noise, 0, 255).astype(np.uint8), "labels": labels}


def repeated(clients: int, images: int) -> dict[str, NDArray[Any]]:
    """Return one picture per client, many times.

    The result then does not depend on the order of batches, so two implementations of a method must agree up to
    rounding. They disagree if the number of steps, the learning rate, the teacher or the mean differs.
    """
    one = learnable(clients, seed=1)
    return {"images": one["images"].repeat(images, axis=0), "labels": one["labels"].repeat(images)}
