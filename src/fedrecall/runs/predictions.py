"""Predictions on the test set that a run keeps: intervals over test examples are computed from them, without the data.

`python -m fedrecall.runs.predictions DIR...` computes the predictions of run directories from their final weights, for
runs that kept none. It needs the data. A directory that has predictions is skipped.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor

from fedrecall.config.experiment import Experiment
from fedrecall.core.flat_model import FlatModel
from fedrecall.core.seeds import single_threaded
from fedrecall.core.types import Score
from fedrecall.errors import UserError, first_line
from fedrecall.files import write_atomic

PREDICTIONS_FILE = "predictions.safetensors"

INTEGER_TYPES = (torch.uint8, torch.int16, torch.int32)  # by the number of values that they hold


class Predictions(NamedTuple):
    """Predictions of the final global model on the test set, and how often each example was right at the end."""

    y: Tensor  # true labels [n]
    predicted: Tensor  # predicted labels [n]
    probability: Tensor  # of the true label, float16 [n]
    correct: Tensor | None = None  # evaluations of the last `evaluations` in which the example was right, uint8 [n]
    evaluations: int = 1  # the last ten, or fewer in a shorter run
    groups: Tensor | None = None  # group of each test example [n]

    def shares_correct(self, measure: str) -> Tensor | None:
        """Return the share of right predictions of each example [n]: after the last round, or over the last ten.

        None if the predictions of this measure are not kept.
        """
        if measure == "final":
            return (self.predicted == self.y).double()
        if measure == "last10" and self.correct is not None:
            return self.correct.double() / self.evaluations
        return None


def make_predictions(score: Score, recent: Sequence[Tensor], groups: Tensor | None) -> Predictions:
    """Return the predictions to keep of a score with logits; `recent` are right answers [n] of the last evaluations."""
    assert score.z is not None
    p = F.softmax(score.z.double(), -1).gather(1, score.y[:, None])[:, 0]
    correct = torch.stack(list(recent)).sum(0, dtype=torch.uint8) if recent else None
    labels = _shrink(score.y), _shrink(score.predicted), p.half()
    return Predictions(*labels, correct, max(1, len(recent)), None if groups is None else _shrink(groups))


def save_predictions(path: Path, predictions: Predictions) -> None:
    """Write the predictions of a run to its directory."""
    tensors = {name: t.contiguous() for name, t in predictions._asdict().items() if isinstance(t, Tensor)}
    metadata = {"evaluations": str(predictions.evaluations)}
    write_atomic(path / PREDICTIONS_FILE, safetensors.torch.save(tensors, metadata))


def load_predictions(path: Path) -> Predictions | None:
    """Read the predictions of a run directory; None if it has none."""
    file = path / PREDICTIONS_FILE
    if not file.exists():
        return None
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - not a mapping
            found = Predictions(**tensors, evaluations=int(opened.metadata()["evaluations"]))
    except (OSError, SafetensorError, TypeError, KeyError, ValueError, RuntimeError) as error:
        raise _damaged(file, first_line(error)) from None
    if len({t.shape for t in tensors.values()}) > 1 or found.y.ndim != 1 or not len(found.y) or found.evaluations < 1:
        raise _damaged(file, "its parts do not have one length")
    return found


def predict_directory(path: Path) -> Predictions:
    """Compute the predictions of a run directory's final global model on its test set. Needs the data."""
    from fedrecall.runs.setup import load_weights, prepare_run

    setup = prepare_run(Experiment.load(path / "config.toml"))
    f = setup.server.f
    load_weights(f.model, path)
    with single_threaded():
        f = FlatModel(f.model)  # its vectors are the loaded weights
        score = f.score(f.join(f.w, f.b), setup.data.test, logits=True)
    return make_predictions(score, (), setup.data.dataset.test_groups)


def _shrink(ids: Tensor) -> Tensor:
    """Return whole numbers from 0 in the smallest type that holds them."""
    largest = int(ids.max()) if len(ids) else 0
    return ids.to(next(kind for kind in INTEGER_TYPES if largest <= torch.iinfo(kind).max))


def _damaged(file: Path, problem: str) -> UserError:
    hint = "remove it; python -m fedrecall.runs.predictions DIR computes it again"
    return UserError("run.damaged_file", f"{file}: the file is damaged: {problem}", str(file), hint)


def main(paths: Sequence[str]) -> None:
    """Compute and write the predictions of run directories, one line each."""
    for path in map(Path, paths):
        if (path / PREDICTIONS_FILE).exists():
            sys.stdout.write(f"{path}: has predictions\n")
            continue
        found = predict_directory(path)
        save_predictions(path, found)
        accuracy = 100 * float((found.predicted == found.y).double().mean())
        sys.stdout.write(f"{path}: {len(found.y)} test examples, accuracy {accuracy:.2f} %\n")


if __name__ == "__main__":
    main(sys.argv[1:])
