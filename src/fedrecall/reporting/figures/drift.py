"""How far local models go from the global one: by epoch, by round, and by partition."""

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedrecall.reporting.figures.curves import draw_line, format_axes, legend_handle
from fedrecall.reporting.figures.layout import (
    PERCENT,
    TICK_STEPS,
    add_title_legend_notes,
    bottom_axes,
    new_figure,
    panels,
    set_panel_title,
    text_width,
    truncate_text,
)
from fedrecall.reporting.figures.series import (
    Floats,
    MissingData,
    Selection,
    accuracy_over_seeds,
    column_positions,
    finished_runs,
    mean_over_seeds,
    probe_records,
    run_curve,
    scale_note,
    seeds_note,
    select,
)
from fedrecall.reporting.figures.style import (
    DASHED,
    MUTED_COLOUR,
    PAGE_WIDTH,
    SMALL,
    SOLID,
    TEXT_COLOUR,
    LineStyle,
    category_colours,
    distinct_styles,
)
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.statistics import Curve

SHIFT_LABELS = {"kl": "KL from the received model", "features": "distance of features", "accuracy": "test accuracy (%)"}

# Colour says on which data, line and marker whose model.
MODEL_STYLES = {
    "global model, test set": LineStyle("#0072B2", SOLID, "o"),
    "local models, test set": LineStyle("#0072B2", DASHED, "s"),
    "global model, own data": LineStyle("#D55E00", SOLID, "o"),
    "local models, own data": LineStyle("#D55E00", DASHED, "s"),
}


def local_shift(
    results: StudyResults,
    *,
    title: str = "",
    rows: Selection = None,
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
    column = select(columns, [column], "column")[0] if column else columns[-1]
    found = {row: outcomes for (row, _), outcomes in finished_runs(results, rows, [column]).items()}
    tables = {row: {key: _last_shifts(outcomes, key) for key in SHIFT_LABELS} for row, outcomes in found.items()}
    style = {row: look._replace(line=SOLID) for row, look in distinct_styles(found).items()}
    ends = column_positions(columns, None, x) if x else {column: next(iter(tables.values()))["kl"].shape[1]}
    figure, axes = panels(3)
    for place, (key, label) in zip(axes, SHIFT_LABELS.items(), strict=True):
        for i, row in enumerate(found):
            epochs = range(1, tables[row][key].shape[1] + 1)
            line = mean_over_seeds([list(zip(epochs, client, strict=True)) for client in tables[row][key].tolist()])
            assert line is not None
            whole = key != "accuracy"
            draw_line(place, line, style[row] if whole else style[row]._replace(line=DASHED), offset=i / len(found))
            if not whole:
                ended = {
                    end: accuracy_over_seeds(results.finished_runs(row, name), "final") for name, end in ends.items()
                }
                points = sorted((end, spread.mean) for end, spread in ended.items() if spread is not None)
                place.plot(*zip(*points, strict=True), color=style[row].colour, marker="*", markersize=6)
        format_axes(place, share=key == "accuracy", zero=False)
        place.set(xlabel=xlabel, title=label)
    legend: list[tuple[str, Artist]] = [(row, legend_handle(style[row])) for row in found]
    legend.append(("averaged model", Line2D([], [], color=TEXT_COLOUR, marker="*", markersize=6)))
    legend.append(("local models", Line2D([], [], color=TEXT_COLOUR, linestyle=DASHED)))
    clients = max(len(table["kl"]) for table in tables.values())
    notes = [f"mean and standard deviation over the local models of {clients} clients", *scale_note(results)]
    return add_title_legend_notes(figure, title=title, legend=legend, notes=notes)


def drift_accuracy(
    results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None
) -> Figure:
    """Over rounds, the accuracy of the global and the local models, on the test set and on the clients' own data."""
    found = finished_runs(results, rows, columns)
    figure, axes = panels(len(found))
    for place, ((row, column), outcomes) in zip(axes, found.items(), strict=True):
        for i, (look, curves) in enumerate(zip(MODEL_STYLES.values(), _model_curves(outcomes), strict=True)):
            line = mean_over_seeds(curves, any(outcome.diverged for outcome in outcomes))
            if line is not None:
                draw_line(place, line, look, offset=i / len(MODEL_STYLES))
        format_axes(place, share=True, zero=False)
        place.set_ylabel("accuracy (%)")
        if len(found) > 1:
            set_panel_title(place, row if len(results.study.columns) == 1 else f"{row}, {column}")
    for place in bottom_axes(axes):
        place.set_xlabel("round")
    legend = [(name, legend_handle(look)) for name, look in MODEL_STYLES.items()]
    return add_title_legend_notes(
        figure, title=title, legend=legend, notes=[seeds_note(found.values()), *scale_note(results)]
    )


def local_global(
    results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None
) -> Figure:
    """Global against mean local accuracy, a dot a round and a colour a column; beside it their differences."""
    found = {place: _pairs(outcomes) for place, outcomes in finished_runs(results, rows, columns).items()}
    found = {place: pairs for place, pairs in found.items() if len(pairs)}
    if not found:
        hint = "set run.local_accuracy = true and run it again"
        raise MissingData("report.missing_measurement", "no run has local accuracies", "run.local_accuracy", hint)
    names = list(dict.fromkeys(row for row, _ in found))
    settings = list(dict.fromkeys(column for _, column in found))
    colours = dict(zip(settings, category_colours(len(settings)), strict=True))
    figure = new_figure(PAGE_WIDTH, 2.6 * len(names))
    grid = figure.subplots(len(names), 2, squeeze=False)
    crowded = max(text_width(column, SMALL) for column in settings) > 2.6 / len(settings)
    for (left, right), row in zip(grid, names, strict=True):
        here = {column: found[row, column] for column in settings if (row, column) in found}
        for column, pairs in here.items():
            left.scatter(pairs[:, 0], pairs[:, 1], s=9, color=colours[column], alpha=0.75, linewidths=0)
        low, high = (float(edge(pairs)) for edge, pairs in ((np.min, _concatenate(here)), (np.max, _concatenate(here))))
        left.plot([low, high], [low, high], color=MUTED_COLOUR, linewidth=0.8, linestyle=DASHED)
        left.set(xlabel="mean local accuracy (%)", ylabel="global accuracy (%)")
        left.xaxis.set_major_formatter(PERCENT)
        right.axhline(0, color=MUTED_COLOUR, linewidth=0.8)
        boxes = right.boxplot(
            [pairs[:, 1] - pairs[:, 0] for pairs in here.values()],
            widths=0.6,
            patch_artist=True,
            medianprops={"color": TEXT_COLOUR, "linewidth": 1.0},
            whiskerprops={"color": MUTED_COLOUR, "linewidth": 0.8},
            capprops={"color": MUTED_COLOUR, "linewidth": 0.8},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": MUTED_COLOUR},
        )
        for box, column in zip(boxes["boxes"], here, strict=True):
            box.set(facecolor=colours[column], edgecolor=MUTED_COLOUR, linewidth=0.6)
        turned = {"rotation": 30, "ha": "right"} if crowded else {}
        right.set_xticks(range(1, len(here) + 1), [truncate_text(column, 1.0, SMALL) for column in here], **turned)
        right.set_ylabel("global less local (points)")
        for place in (left, right):
            place.yaxis.set_major_formatter(PERCENT)
            place.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS, min_n_ticks=3))
            if len(names) > 1:
                place.set_title(row)
    legend = [(c, Line2D([], [], color=colours[c], marker="o", linestyle="")) for c in settings]
    notes = ["a dot is a round", "boxes hold the middle half of the rounds", *scale_note(results)]
    return add_title_legend_notes(figure, title=title, legend=legend, notes=notes)


def _last_shifts(outcomes: Sequence[FinishedRun], key: str) -> Floats:
    """What was measured in the last round, of its clients after each epoch [clients, epochs], in all seeds."""
    lines = (max(probe_records(outcome, "shift").items())[1] for outcome in outcomes)
    return np.concatenate([np.asarray(line[key], dtype=np.float64) for line in lines])


def _model_curves(outcomes: Sequence[FinishedRun]) -> tuple[list[Curve], list[Curve], list[Curve], list[Curve]]:
    """Curves by the names of MODELS. The global model that a round's clients receive is that of the round before."""
    own = [probe_records(outcome, "own_data") for outcome in outcomes]
    return (
        [outcome.curve() for outcome in outcomes],
        [run_curve(outcome, "local_accuracy") for outcome in outcomes],
        [[(number - 1, float(np.mean(line["global"]))) for number, line in lines.items()] for lines in own],
        [[(number, float(np.mean(line["local"]))) for number, line in lines.items()] for lines in own],
    )


def _pairs(outcomes: Sequence[FinishedRun]) -> Floats:
    """(mean local, global) accuracy of every round of every seed [n, 2]."""
    pairs = []
    for outcome in outcomes:
        local = dict(run_curve(outcome, "local_accuracy"))
        pairs += [(local[number], accuracy) for number, accuracy in outcome.curve() if number in local]
    return np.array(pairs).reshape(-1, 2)


def _concatenate(here: dict[str, Floats]) -> Floats:
    return np.concatenate(list(here.values()))
