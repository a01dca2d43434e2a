"""The model card of a run: data, method, metrics by class and client, and limits, as Markdown."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from fedrecall.config.experiment import CHOICES
from fedrecall.core.rounds import RoundResult
from fedrecall.data.dataset import Dataset
from fedrecall.runs.records import describe_privacy
from fedrecall.runs.result import Result

CARD_FILE = "card.md"

MAX_ROWS = 50  # classes or clients in a table; more are counted


def model_card(result: Result, dataset: Dataset, last: RoundResult | None) -> str:
    """Return the card of a run's global model."""
    experiment, summary = result.experiment, result.summary
    method = CHOICES["method"].dump(experiment.method)
    settings = ", ".join(f"{key} = {value}" for key, value in method.items() if key not in ("name", "of"))
    federation, privacy = experiment.federation, describe_privacy(summary)
    lines = [
        f"# {result.title}",
        "",
        f"- Data: {dataset.name}, {len(dataset.train_y)} training and {len(dataset.test_y)} test examples, "
        f"{dataset.num_classes} classes ({_listed(dataset.classes)}).",
        *([f"- Test examples: {dataset.test_split}."] if dataset.test_split else []),
        f"- Clients: {federation.clients}, {federation.clients_per_round} per round; "
        f"partition {CHOICES['partition'].dump(federation.partition)['name']}.",
        f"- Method: {method.get('of', method['name'])}{f' ({settings})' if settings else ''}, "
        f"{summary['rounds']} rounds, seed {experiment.run.seed}.",
        f"- Model: {len(result.server.w)} weights.",
        "",
        "## Accuracy on the test examples",
        "",
        f"After the last round: {_percent(summary['final'])}. "
        f"Best round ({summary['best_round']}), chosen on the test examples: {_percent(summary['best'])}.",
        *_metrics(summary),
        *_by_class(dataset, last),
        *([] if privacy else _by_client(dataset, last)),  # nothing of a single client beside a private model
        "",
        "## Limits",
        "",
        "- The test examples come from the same source as the training examples. Accuracy elsewhere is not measured.",
        "- This is one run: it says little about the difference of two methods.",
        "- Probabilities are not calibrated.",
    ]
    if privacy is not None:
        lines.append(f"- Differential privacy for the data of a client: {privacy}.")
    if federation.attack is not None:
        lines.append("- Some clients were simulated attackers.")
    if "failed" in summary:
        lines.append(f"- The run failed: {summary['failed']}")
    return "\n".join(lines) + "\n"


def _metrics(summary: Mapping[str, Any]) -> list[str]:
    found = {name: values["final"] for name, values in summary.get("metrics", {}).items()}
    texts = [f"{name} {'undefined' if value is None else f'{value:.4f}'}" for name, value in found.items()]
    return ["", f"Metrics after the last round: {', '.join(texts)}."] if texts else []


def _by_class(dataset: Dataset, last: RoundResult | None) -> list[str]:
    if last is None or last.score is None:
        return []
    rows = []
    for label, name in enumerate(dataset.classes[:MAX_ROWS]):
        is_class, is_predicted = last.score.y == label, last.score.predicted == label
        hits = int((is_class & is_predicted).sum())
        rows.append((name, int(is_class.sum()), _share_text(hits, is_class), _share_text(hits, is_predicted)))
    return _table(("class", "examples", "recall", "precision"), rows, dataset.num_classes)


def _by_client(dataset: Dataset, last: RoundResult | None) -> list[str]:
    if last is None or last.score is None or dataset.test_groups is None:
        return []
    hits = last.score.predicted == last.score.y
    rows = []
    for group, name in enumerate(dataset.group_names[:MAX_ROWS]):
        belongs = dataset.test_groups == group
        rows.append((name, int(belongs.sum()), _share_text(int((hits & belongs).sum()), belongs)))
    return _table(("client", "examples", "accuracy"), rows, len(dataset.group_names))


def _table(header: tuple[str, ...], rows: Iterable[tuple[object, ...]], total: int) -> list[str]:
    lines = ["", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(str(value).replace('|', '/') for value in row)} |" for row in rows]
    return lines + ([f"\n{total - MAX_ROWS} more are not listed."] if total > MAX_ROWS else [])


def _share_text(hits: int, among: torch.Tensor) -> str:
    total = int(among.sum())
    return f"{100 * hits / total:.1f} %" if total else "-"


def _percent(value: float | None) -> str:
    return "not measured" if value is None else f"{100 * value:.2f} %"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
