"""Studies without training: run directories in the documented formats, with plausible numbers."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from matplotlib.figure import Figure
from safetensors.numpy import save_file

from fedrecall.reporting.figures import draw
from fedrecall.reporting.figures.style import figure_style
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import FigureSpec, Study

PER_CLASS = 100  # test examples


@pytest.fixture
def drawn() -> Callable[..., Figure]:
    """Draw one form and compute its layout."""

    def draw_form(results: StudyResults, form: str, title: str = "", **options: object) -> Figure:
        with figure_style():
            figure = draw(results, FigureSpec(form=form, title=title, options=options))
            figure.draw_without_rendering()
            return figure

    return draw_form


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., StudyResults]:
    """Write the folder of a study whose runs are all finished."""

    def made(study: Study, **options: object) -> StudyResults:
        return make_study(study, tmp_path, **options)  # type: ignore[arg-type]

    return made


def make_study(
    study: Study,
    folder: Path,
    *,
    rounds: int = 6,
    classes: int = 10,
    clients: int = 10,
    cohort: int | None = None,
    probes: Sequence[str] = (),
    local_accuracy: bool = False,
    named: bool = False,
    diverged: Sequence[str | tuple[str, int]] = (),  # rows, or (row, seed), of runs that diverge half-way
) -> StudyResults:
    folder.mkdir(parents=True, exist_ok=True)
    study.save(folder)
    for cell in study.cells():
        rng = np.random.default_rng([crc32(cell.row.encode()), crc32(cell.column.encode()), cell.seed])
        path = folder / cell.folder
        (path / "probes").mkdir(parents=True)
        partition_rng = np.random.default_rng([crc32(cell.column.encode()), cell.seed])
        counts = np.stack(
            [partition_rng.multinomial(500, partition_rng.dirichlet([0.3] * classes)) for _ in range(clients)]
        )
        manifest = {"law": {"name": "dirichlet"}, "seed": cell.seed, "counts": counts.tolist()}
        manifest |= {"hash": f"{crc32(counts.tobytes()):08x}", "clients": clients, "samples": 500 * clients}
        if named:
            manifest["class_names"] = [f"quite a long class {number}" for number in range(classes)]
            manifest["client_names"] = [f"hospital {chr(65 + number)}" for number in range(clients)]
        (path / "partition.json").write_text(json.dumps(manifest))
        rank = list(study.rows).index(cell.row) / len(study.rows)
        height, pace = 0.55 + 0.25 * rank, rounds / (3 + 3 * rank)
        diverges = cell.row in diverged or (cell.row, cell.seed) in diverged
        total = rounds // 2 if diverges else 1 if cell.start_from else rounds
        lines: dict[str, list[dict]] = {}
        for number in range(1, total + 1):
            accuracy = height * (1 - np.exp(-(number + rounds * bool(cell.start_from)) / pace)) + rng.normal(0, 0.012)
            participants = sorted(rng.choice(clients, cohort or clients, replace=False).tolist())
            recalls = np.clip(accuracy + rng.normal(0, 0.15, classes), 0.02, 0.98)
            mixed = np.stack([_confused(recall, k, classes, rng) for k, recall in enumerate(recalls)])
            shares = counts[participants] / counts[participants].sum(1, keepdims=True)
            locals_ = np.clip(recalls * (0.2 + 0.8 * np.minimum(1, 8 * shares / shares.max(1, keepdims=True))), 0, 1)
            correct = np.round(locals_ * PER_CLASS).astype(int)
            mean_local = float(correct.sum(1).mean() / (PER_CLASS * classes))
            confusions = np.zeros((len(participants), classes, classes), dtype=int)
            if "local_confusion" in probes:
                confusions += [[_confused(r, k, classes, rng) for k, r in enumerate(client)] for client in locals_]
            record = {"round": number, "accuracy": accuracy, "loss": 2 - 2 * accuracy, "train_loss": 1.5 - accuracy}
            record |= {
                "seconds": 1.0,
                "bytes_up": 10,
                "bytes_down": 10,
                "clients": participants,
                "replies": len(participants),
            }
            if local_accuracy:
                record["local_accuracy"] = mean_local
            epochs = np.linspace(0.2, 1, 8)
            growth = np.sqrt(epochs) * (1.5 - rank) * rng.uniform(0.8, 1.2, (len(participants), 1))
            records = {
                "confusion": {"confusion": mixed.tolist()},
                "local": {
                    "clients": participants,
                    "labels": counts[participants].tolist(),
                    "correct": correct.tolist(),
                    "predicted": confusions.sum(1).tolist(),
                    "test": [PER_CLASS] * classes,
                    "mean_accuracy": mean_local,
                    "forgetting": accuracy - mean_local,
                },
                "local_confusion": {"clients": participants, "confusion": confusions.tolist()},
                "cohort": {"labels": counts[participants].sum(0).tolist()},
                "shift": {
                    "clients": participants,
                    "kl": (0.1 * growth).tolist(),
                    "features": (3 * growth).tolist(),
                    "accuracy": (accuracy - 0.1 * growth).tolist(),
                },
                "distillation": {"filter_rate": 0.9 * np.exp(-number / rounds) + rng.normal(0, 0.01)},
                "own_data": {
                    "clients": participants,
                    "global": np.clip(accuracy + rng.normal(0, 0.05, len(participants)), 0, 1).tolist(),
                    "local": np.clip(accuracy + 0.15 + rng.normal(0, 0.02, len(participants)), 0, 1).tolist(),
                },
            }
            lines.setdefault("../rounds", []).append(record)
            for name in set(probes) & set(records):
                lines.setdefault(name, []).append({"round": number, **records[name]})
        for name, content in lines.items():
            (path / "probes" / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
        if "features" in probes:
            y = np.arange(8 * classes) % classes
            centres = rng.normal(0, 3, (classes, 16))
            shapes = {name: centres[y] + rng.normal(0, 1, (len(y), 16)) for name in ("global", "local-0", "local-3")}
            features = {name: shape.astype(np.float32) for name, shape in shapes.items()}
            save_file({**features, "y": y}, path / "probes" / "features.safetensors")
        summary = {"rounds": total, "seconds": total, "bytes_up": 10, "bytes_down": 10}
        summary |= {"final": accuracy, "best": accuracy, "last10": accuracy}
        summary |= {"failed": "the loss is not finite"} if diverges else {}
        (path / "summary.json").write_text(json.dumps(summary))
    return StudyResults(study, folder)


def _confused(recall: float, true: int, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Draw a row of a confusion matrix: the test examples of a class by predicted class."""
    shares = rng.dirichlet([0.4] * classes) * (1 - recall)
    shares[true] += recall
    return rng.multinomial(PER_CLASS, shares / shares.sum())
