"""Classes by rounds: class-wise accuracy, and which labels clients have and models predict."""

import numpy as np
from matplotlib.figure import Figure

from fedrecall.reporting.figures.heatmaps import colour_bar, heatmap_over_rounds, label_classes, label_shares
from fedrecall.reporting.figures.layout import add_title_legend_notes, new_figure, set_panel_title, wrap_text
from fedrecall.reporting.figures.series import (
    Selection,
    finished_runs,
    label_counts,
    participants,
    pick_client,
    probe_records,
    recall,
    safe_divide,
    scale_note,
)
from fedrecall.reporting.figures.style import DIFFERENCE, NORMAL, PAGE_WIDTH
from fedrecall.studies.results import StudyResults

HEIGHT = 2.1


def classwise(
    results: StudyResults,
    *,
    title: str = "",
    client: int | str = 0,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Accuracy by class and round: the global model, one client's model after its training, and what it changed.

    A client's model of a round began with the global model of the round before, from which it is subtracted.
    """
    found = finished_runs(results, rows, columns)
    figure = new_figure(PAGE_WIDTH, HEIGHT * len(found))
    grid = figure.subplots(len(found), 4, squeeze=False, gridspec_kw={"width_ratios": [0.4, 1, 1, 1]})
    notes = []
    for axes, ((row, column), (first, *_)) in zip(grid, found.items(), strict=True):
        counts, after = label_counts(first), probe_records(first, "local")
        who = pick_client(client, participants(after), counts)
        whole = {number: recall(line["confusion"]) for number, line in probe_records(first, "confusion").items()}
        local = {
            number: safe_divide(line["correct"][line["clients"].index(who)], line["test"])
            for number, line in after.items()
            if who in line["clients"]
        }
        change = {number: local[number] - whole[number - 1] for number in local if number - 1 in whole}
        change = change or {1: np.full(counts.shape[1], np.nan)}  # there was one round only
        rounds = max(*whole, *local)
        label_shares(axes[0], safe_divide(counts[who], counts[who].sum()), HEIGHT - 0.7)
        heatmap_over_rounds(axes[1], whole, rounds)
        image = heatmap_over_rounds(axes[2], local, rounds)
        changes = heatmap_over_rounds(axes[3], change, rounds, limits=(-1, 1), colours=DIFFERENCE)
        titles = (f"client {who}", "global model", "local model", "local less global")
        for place, name in zip(axes, titles, strict=True):
            place.set_title(name)
        for place in axes[1:]:
            place.set_yticks([])
        if len(found) > 1:
            axes[0].set_ylabel("\n".join((*wrap_text(f"{row}, {column}", HEIGHT - 0.5, NORMAL), "class")))
        colour_bar(figure, image, axes[1:3], "accuracy (%)")
        colour_bar(figure, changes, axes[3:], "change (points)")
        notes.append(f"seed {first.cell.seed}")
    return add_title_legend_notes(figure, title=title, notes=[*dict.fromkeys(notes), *scale_note(results)])


def labels_over_rounds(
    results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None
) -> Figure:
    """By class and round: the labels in the cohort's training data, and those that each row's global model predicts."""
    found = finished_runs(results, rows, columns)
    by_column = {column: [o[0] for (_, c), o in found.items() if c == column] for _, column in found}
    across = 1 + max(len(firsts) for firsts in by_column.values())
    per_line = across if across <= 3 else 2 if across == 4 else 3
    lines = -(-across // per_line)
    figure = new_figure(PAGE_WIDTH, HEIGHT * lines * len(by_column))
    grid = figure.subplots(lines * len(by_column), per_line, squeeze=False).reshape(len(by_column), -1)
    for axes, (column, firsts) in zip(grid, by_column.items(), strict=True):
        cohort = {number: np.asarray(line["labels"]) for number, line in probe_records(firsts[0], "cohort").items()}
        parts = {"cohort's training data": cohort}
        for first in firsts:
            tables = probe_records(first, "confusion").items()
            parts[f"{first.cell.row} predicts"] = {n: np.sum(line["confusion"], axis=0) for n, line in tables}
        shares = {
            name: {n: safe_divide(count, count.sum()) for n, count in part.items()} for name, part in parts.items()
        }
        top = max(float(np.nanmax(share)) for part in shares.values() for share in part.values())
        rounds = max(number for part in shares.values() for number in part)
        classes = len(next(iter(cohort.values())))
        for place, (name, part) in zip(axes, shares.items(), strict=False):
            image = heatmap_over_rounds(place, part, rounds, limits=(0, top))
            label_classes(place, classes, HEIGHT - 0.7, across=False)
            set_panel_title(place, f"{column}: {name}" if len(by_column) > 1 else name)
        for spare in axes[len(shares) :]:
            spare.remove()
        colour_bar(figure, image, list(axes[: len(shares)]), "share of the labels (%)", lines)
    seeds = dict.fromkeys(f"seed {outcomes[0].cell.seed}" for outcomes in found.values())
    return add_title_legend_notes(figure, title=title, notes=[*seeds, *scale_note(results)])
