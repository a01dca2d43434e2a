"""How far local models go from the global one: by epoch, by round, and by partition."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedrecall.reporting.figures.curves import draw_line, dress, handle
from fedrecall.reporting.figures.layout import (
    PERCENT,
    STEPS,
    blank,
    cut,
    finish,
    lowest,
    name_panel,
    panels,
    text_width,
)
from fedrecall.reporting.figures.series import (
    Floats,
    Missing,
    Names,
    chosen,
    finished,
    lines_of,
    measured,
    numbered,
    over_seeds,
    scale_note,
    seeds_note,
    values,
)
from fedrecall.reporting.figures.style import DASHED, FAINT, INK, PAGE, SMALL, SOLID, Look, looks, series
from fedrecall.studies.results import Outcome, Results
from fedrecall.studies.statistics import Curve

SHIFTS = {"kl": "KL from the received model", "features": "distance of features", "accuracy": "test accuracy (%)"}

# Colour says on which data, line and marker whose model.
MODELS = {
    "global model, test set": Look("#0072B2", SOLID, "o"),
    "local models, test set": Look("#0072B2", DASHED, "s"),
    "global model, own data": Look("#D55E00", SOLID, "o"),
    "local models, own data": Look("#D55E00", DASHED, "s"),
}


def shift(
    results: Results,
    *,
    title: str = "",
    rows: Names = None,
    column: str | None = None,
    x: Sequence[float] | None = None,
    xlabel: str = "local epoch",
) -> Figure:
    """How far local models go in a round, epoch by epoch, from the model that they received, and how well they do.

    Shown are KL of the outputs, distance of the features and test accuracy, means over the clients of the last round.
    Of the averaged model, the accuracy is known at the end of a round: `x` says after how many epochs that is in each
    column of the study.
    """
    columns = list(results.study.columns)
    column = chosen(columns, [column], "column")[0] if column else columns[-1]
    found = {row: outcomes for (row, _), outcomes in finished(results, rows, [column]).items()}
    tables = {row: {key: _last_shifts(outcomes, key) for key in SHIFTS} for row, outcomes in found.items()}
    style = {row: look._replace(line=SOLID) for row, look in looks(found).items()}
    ends = numbered(columns, None, x) if x else {column: next(iter(tables.values()))["kl"].shape[1]}
    figure, axes = panels(3)
    for place, (key, label) in zip(axes, SHIFTS.items(), strict=True):
        for i, row in enumerate(found):
            epochs = range(1, tables[row][key].shape[1] + 1)
            line = over_seeds([list(zip(epochs, client, strict=True)) for client in tables[row][key].tolist()])
            assert line is not None
            whole = key != "accuracy"
            draw_line(place, line, style[row] if whole else style[row]._replace(line=DASHED), offset=i / len(found))
            if not whole:
                ended = {end: measured(results.outcomes(row, name), "final") for name, end in ends.items()}
                points = sorted((end, spread.mean) for end, spread in ended.items() if spread is not None)
                place.plot(*zip(*points, strict=True), color=style[row].colour, marker="*", markersize=6)
        dress(place, share=key == "accuracy", zero=False)
        place.set(xlabel=xlabel, title=label)
    legend: list[tuple[str, Artist]] = [(row, handle(style[row])) for row in found]
    legend.append(("averaged model", Line2D([], [], color=INK, marker="*", markersize=6)))
    legend.append(("local models", Line2D([], [], color=INK, linestyle=DASHED)))
    clients = max(len(table["kl"]) for table in tables.values())
    notes = [f"mean and standard deviation over the local models of {clients} clients", *scale_note(results)]
    return finish(figure, title=title, legend=legend, notes=notes)


def drift_accuracy(results: Results, *, title: str = "", rows: Names = None, columns: Names = None) -> Figure:
    """Over rounds, the accuracy of the global and the local models, on the test set and on the clients' own data."""
    found = finished(results, rows, columns)
    figure, axes = panels(len(found))
    for place, ((row, column), outcomes) in zip(axes, found.items(), strict=True):
        for i, (look, curves) in enumerate(zip(MODELS.values(), _four(outcomes), strict=True)):
            line = over_seeds(curves, any(outcome.diverged for outcome in outcomes))
            if line is not None:
                draw_line(place, line, look, offset=i / len(MODELS))
        dress(place, share=True, zero=False)
        place.set_ylabel("accuracy (%)")
        if len(found) > 1:
            name_panel(place, row if len(results.study.columns) == 1 else f"{row}, {column}")
    for place in lowest(axes):
        place.set_xlabel("round")
    legend = [(name, handle(look)) for name, look in MODELS.items()]
    return finish(figure, title=title, legend=legend, notes=[seeds_note(found.values()), *scale_note(results)])


def local_global(results: Results, *, title: str = "", rows: Names = None, columns: Names = None) -> Figure:
    """Global against mean local accuracy, a dot a round and a colour a column; beside it their differences."""
    found = {place: _pairs(outcomes) for place, outcomes in finished(results, rows, columns).items()}
    found = {place: pairs for place, pairs in found.items() if len(pairs)}
    if not found:
        hint = "set run.local_accuracy = true and run it again"
        raise Missing("report.missing_measurement", "no run has local accuracies", "run.local_accuracy", hint)
    names = list(dict.fromkeys(row for row, _ in found))
    settings = list(dict.fromkeys(column for _, column in found))
    colours = dict(zip(settings, series(len(settings)), strict=True))
    figure = blank(PAGE, 2.6 * len(names))
    grid = figure.subplots(len(names), 2, squeeze=False)
    crowded = max(text_width(column, SMALL) for column in settings) > 2.6 / len(settings)
    for (left, right), row in zip(grid, names, strict=True):
        here = {column: found[row, column] for column in settings if (row, column) in found}
        for column, pairs in here.items():
            left.scatter(pairs[:, 0], pairs[:, 1], s=9, color=colours[column], alpha=0.75, linewidths=0)
        low, high = (float(edge(pairs)) for edge, pairs in ((np.min, _all(here)), (np.max, _all(here))))
        left.plot([low, high], [low, high], color=FAINT, linewidth=0.8, linestyle=DASHED)
        left.set(xlabel="mean local accuracy (%)", ylabel="global accuracy (%)")
        left.xaxis.set_major_formatter(PERCENT)
        right.axhline(0, color=FAINT, linewidth=0.8)
        boxes = right.boxplot(
            [pairs[:, 1] - pairs[:, 0] for pairs in here.values()],
            widths=0.6,
            patch_artist=True,
            medianprops={"color": INK, "linewidth": 1.0},
            whiskerprops={"color": FAINT, "linewidth": 0.8},
            capprops={"color": FAINT, "linewidth": 0.8},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": FAINT},
        )
        for box, column in zip(boxes["boxes"], here, strict=True):
            box.set(facecolor=colours[column], edgecolor=FAINT, linewidth=0.6)
        turned = {"rotation": 30, "ha": "right"} if crowded else {}
        right.set_xticks(range(1, len(here) + 1), [cut(column, 1.0, SMALL) for column in here], **turned)
        right.set_ylabel("global less local (points)")
        for place in (left, right):
            place.yaxis.set_major_formatter(PERCENT)
            place.yaxis.set_major_locator(MaxNLocator(5, steps=STEPS, min_n_ticks=3))
            if len(names) > 1:
                place.set_title(row)
    legend = [(c, Line2D([], [], color=colours[c], marker="o", linestyle="")) for c in settings]
    notes = ["a dot is a round", "boxes hold the middle half of the rounds", *scale_note(results)]
    return finish(figure, title=title, legend=legend, notes=notes)


def _last_shifts(outcomes: Sequence[Outcome], key: str) -> Floats:
    """What was measured in the last round, of its clients after each epoch [clients, epochs], in all seeds."""
    lines = (max(lines_of(outcome, "shift").items())[1] for outcome in outcomes)
    return np.concatenate([np.asarray(line[key], dtype=np.float64) for line in lines])


def _four(outcomes: Sequence[Outcome]) -> tuple[list[Curve], list[Curve], list[Curve], list[Curve]]:
    """Curves by the names of MODELS. The global model that a round's clients receive is that of the round before."""
    own = [lines_of(outcome, "own_data") for outcome in outcomes]
    return (
        [outcome.curve() for outcome in outcomes],
        [values(outcome, "local_accuracy") for outcome in outcomes],
        [[(number - 1, float(np.mean(line["global"]))) for number, line in lines.items()] for lines in own],
        [[(number, float(np.mean(line["local"]))) for number, line in lines.items()] for lines in own],
    )


def _pairs(outcomes: Sequence[Outcome]) -> Floats:
    """(mean local, global) accuracy of every round of every seed [n, 2]."""
    pairs = []
    for outcome in outcomes:
        local = dict(values(outcome, "local_accuracy"))
        pairs += [(local[number], accuracy) for number, accuracy in outcome.curve() if number in local]
    return np.array(pairs).reshape(-1, 2)


def _all(here: dict[str, Floats]) -> Floats:
    return np.concatenate(list(here.values()))
