"""Classes by rounds: class-wise accuracy, and which labels clients have and models predict."""

import numpy as np
from matplotlib.figure import Figure

from fedrecall.reporting.figures.heatmaps import colour_bar, heat_over_rounds, label_shares, number_classes
from fedrecall.reporting.figures.layout import blank, finish, fold, name_panel
from fedrecall.reporting.figures.series import (
    Names,
    finished,
    label_counts,
    lines_of,
    participants,
    pick_client,
    recall,
    scale_note,
    share_of,
)
from fedrecall.reporting.figures.style import DIFFERENCE, NORMAL, PAGE
from fedrecall.studies.results import Results

HEIGHT = 2.1


def classwise(
    results: Results,
    *,
    title: str = "",
    client: int | str = 0,
    rows: Names = None,
    columns: Names = None,
) -> Figure:
    """Accuracy by class and round: the global model, one client's model after its training, and what it changed.

    A client's model of a round began with the global model of the round before, from which it is subtracted.
    """
    found = finished(results, rows, columns)
    figure = blank(PAGE, HEIGHT * len(found))
    grid = figure.subplots(len(found), 4, squeeze=False, gridspec_kw={"width_ratios": [0.4, 1, 1, 1]})
    notes = []
    for axes, ((row, column), (first, *_)) in zip(grid, found.items(), strict=True):
        counts, after = label_counts(first), lines_of(first, "local")
        who = pick_client(client, participants(after), counts)
        whole = {number: recall(line["confusion"]) for number, line in lines_of(first, "confusion").items()}
        local = {
            number: share_of(line["correct"][line["clients"].index(who)], line["test"])
            for number, line in after.items()
            if who in line["clients"]
        }
        change = {number: local[number] - whole[number - 1] for number in local if number - 1 in whole}
        change = change or {1: np.full(counts.shape[1], np.nan)}  # there was one round only
        rounds = max(*whole, *local)
        label_shares(axes[0], share_of(counts[who], counts[who].sum()), HEIGHT - 0.7)
        heat_over_rounds(axes[1], whole, rounds)
        image = heat_over_rounds(axes[2], local, rounds)
        changes = heat_over_rounds(axes[3], change, rounds, limits=(-1, 1), colours=DIFFERENCE)
        titles = (f"client {who}", "global model", "local model", "local less global")
        for place, name in zip(axes, titles, strict=True):
            place.set_title(name)
        for place in axes[1:]:
            place.set_yticks([])
        if len(found) > 1:
            axes[0].set_ylabel("\n".join((*fold(f"{row}, {column}", HEIGHT - 0.5, NORMAL), "class")))
        colour_bar(figure, image, axes[1:3], "accuracy (%)")
        colour_bar(figure, changes, axes[3:], "change (points)")
        notes.append(f"seed {first.cell.seed}")
    return finish(figure, title=title, notes=[*dict.fromkeys(notes), *scale_note(results)])


def labels_over_rounds(results: Results, *, title: str = "", rows: Names = None, columns: Names = None) -> Figure:
    """By class and round: the labels in the cohort's training data, and those that each row's global model predicts."""
    found = finished(results, rows, columns)
    by_column = {column: [o[0] for (_, c), o in found.items() if c == column] for _, column in found}
    across = 1 + max(len(firsts) for firsts in by_column.values())
    per_line = across if across <= 3 else 2 if across == 4 else 3
    lines = -(-across // per_line)
    figure = blank(PAGE, HEIGHT * lines * len(by_column))
    grid = figure.subplots(lines * len(by_column), per_line, squeeze=False).reshape(len(by_column), -1)
    for axes, (column, firsts) in zip(grid, by_column.items(), strict=True):
        cohort = {number: np.asarray(line["labels"]) for number, line in lines_of(firsts[0], "cohort").items()}
        parts = {"cohort's training data": cohort}
        for first in firsts:
            tables = lines_of(first, "confusion").items()
            parts[f"{first.cell.row} predicts"] = {n: np.sum(line["confusion"], axis=0) for n, line in tables}
        shares = {name: {n: share_of(count, count.sum()) for n, count in part.items()} for name, part in parts.items()}
        top = max(float(np.nanmax(share)) for part in shares.values() for share in part.values())
        rounds = max(number for part in shares.values() for number in part)
        classes = len(next(iter(cohort.values())))
        for place, (name, part) in zip(axes, shares.items(), strict=False):
            image = heat_over_rounds(place, part, rounds, limits=(0, top))
            number_classes(place, classes, HEIGHT - 0.7, across=False)
            name_panel(place, f"{column}: {name}" if len(by_column) > 1 else name)
        for spare in axes[len(shares) :]:
            spare.remove()
        colour_bar(figure, image, list(axes[: len(shares)]), "share of the labels (%)", lines)
    seeds = dict.fromkeys(f"seed {outcomes[0].cell.seed}" for outcomes in found.values())
    return finish(figure, title=title, notes=[*seeds, *scale_note(results)])
