"""Figures of client drift: local models against the global model, by epoch, by round and by partition."""

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

# Colour encodes the data, line and marker the model.
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
    """Draw how far local models move from the received model during a round, by local epoch.

    The panels are KL divergence of the outputs, distance of the features and test accuracy, averaged over the clients
    of the last round. The accuracy of the averaged model is measured at the end of a round: `x` is the number of epochs
    after which that is, for each column of the study.
    """
    columns = list(results.study.columns)
    column = select(columns, [column], "column")[0] if column else columns[-1]
    found = {row: runs for (row, _), runs in finished_runs(results, rows, [column]).items()}
    tables = {row: {key: _last_shifts(runs, key) for key in SHIFT_LABELS} for row, runs in found.items()}
    styles = {row: style._replace(line=SOLID) for row, style in distinct_styles(found).items()}
    ends = column_positions(columns, None, x) if x else {column: next(iter(tables.values()))["kl"].shape[1]}
    figure, axes = panels(3)
    for panel, (key, label) in zip(axes, SHIFT_LABELS.items(), strict=True):
        for i, row in enumerate(found):
            epochs = range(1, tables[row][key].shape[1] + 1)
            line = mean_over_seeds([list(zip(epochs, client, strict=True)) for client in tables[row][key].tolist()])
            assert line is not None
            dashes = DASHED if key == "accuracy" else SOLID
            draw_line(panel, line, styles[row]._replace(line=dashes), offset=i / len(found))
            if key == "accuracy":
                finals = {
                    end: accuracy_over_seeds(results.finished_runs(row, name), "final") for name, end in ends.items()
                }
                points = sorted((end, spread.mean) for end, spread in finals.items() if spread is not None)
                panel.plot(*zip(*points, strict=True), color=styles[row].colour, marker="*", markersize=6)
        format_axes(panel, share=key == "accuracy", zero=False)
        panel.set(xlabel=xlabel, title=label)
    legend: list[tuple[str, Artist]] = [(row, legend_handle(styles[row])) for row in found]
    legend.append(("averaged model", Line2D([], [], color=TEXT_COLOUR, marker="*", markersize=6)))
    legend.append(("local models", Line2D([], [], color=TEXT_COLOUR, linestyle=DASHED)))
    clients = max(len(table["kl"]) for table in tables.values())
    notes = [f"mean and standard deviation over the local models of {clients} clients", *results.study.scale_note()]
    return add_title_legend_notes(figure, title=title, legend=legend, notes=notes)


def drift_accuracy(
    results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None
) -> Figure:
    """Draw the accuracy of global and local models by round, on the test set and on the clients' own data."""
    found = finished_runs(results, rows, columns)
    figure, axes = panels(len(found))
    for panel, ((row, column), runs) in zip(axes, found.items(), strict=True):
        for i, (style, curves) in enumerate(zip(MODEL_STYLES.values(), _model_curves(runs), strict=True)):
            line = mean_over_seeds(curves, any(run.diverged for run in runs))
            if line is not None:
                draw_line(panel, line, style, offset=i / len(MODEL_STYLES))
        format_axes(panel, share=True, zero=False)
        panel.set_ylabel("accuracy (%)")
        if len(found) > 1:
            set_panel_title(panel, row if len(results.study.columns) == 1 else f"{row}, {column}")
    for panel in bottom_axes(axes):
        panel.set_xlabel("round")
    legend = [(name, legend_handle(style)) for name, style in MODEL_STYLES.items()]
    return add_title_legend_notes(
        figure, title=title, legend=legend, notes=[seeds_note(found.values()), *results.study.scale_note()]
    )


def local_global(
    results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None
) -> Figure:
    """Draw global against mean local accuracy, one dot per round and one colour per column, and their differences."""
    found = {key: _pairs(runs) for key, runs in finished_runs(results, rows, columns).items()}
    found = {key: pairs for key, pairs in found.items() if len(pairs)}
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
        by_column = {column: found[row, column] for column in settings if (row, column) in found}
        for column, pairs in by_column.items():
            left.scatter(pairs[:, 0], pairs[:, 1], s=9, color=colours[column], alpha=0.75, linewidths=0)
        accuracies = np.concatenate(list(by_column.values()))
        low, high = float(accuracies.min()), float(accuracies.max())
        left.plot([low, high], [low, high], color=MUTED_COLOUR, linewidth=0.8, linestyle=DASHED)
        left.set(xlabel="mean local accuracy (%)", ylabel="global accuracy (%)")
        left.xaxis.set_major_formatter(PERCENT)
        right.axhline(0, color=MUTED_COLOUR, linewidth=0.8)
        boxes = right.boxplot(
            [pairs[:, 1] - pairs[:, 0] for pairs in by_column.values()],
            widths=0.6,
            patch_artist=True,
            medianprops={"color": TEXT_COLOUR, "linewidth": 1.0},
            whiskerprops={"color": MUTED_COLOUR, "linewidth": 0.8},
            capprops={"color": MUTED_COLOUR, "linewidth": 0.8},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": MUTED_COLOUR},
        )
        for box, column in zip(boxes["boxes"], by_column, strict=True):
            box.set(facecolor=colours[column], edgecolor=MUTED_COLOUR, linewidth=0.6)
        rotation = {"rotation": 30, "ha": "right"} if crowded else {}
        right.set_xticks(
            range(1, len(by_column) + 1), [truncate_text(column, 1.0, SMALL) for column in by_column], **rotation
        )
        right.set_ylabel("global less local (points)")
        for panel in (left, right):
            panel.yaxis.set_major_formatter(PERCENT)
            panel.yaxis.set_major_locator(MaxNLocator(5, steps=TICK_STEPS, min_n_ticks=3))
            if len(names) > 1:
                panel.set_title(row)
    legend = [(c, Line2D([], [], color=colours[c], marker="o", linestyle="")) for c in settings]
    notes = ["a dot is a round", "a box is the middle half of the rounds", *results.study.scale_note()]
    return add_title_legend_notes(figure, title=title, legend=legend, notes=notes)


def _last_shifts(runs: Sequence[FinishedRun], key: str) -> Floats:
    """Return a measure of the last round by client and local epoch [clients, epochs], of all seeds.

    Clients with fewer epochs than others, such as one that made no training step, are left out.
    """
    lines = [max(probe_records(run, "shift").items())[1] for run in runs]
    clients = [client for line in lines for client in line[key]]
    epochs = max(map(len, clients))
    return np.array([client for client in clients if len(client) == epochs], dtype=np.float64)


def _model_curves(runs: Sequence[FinishedRun]) -> tuple[list[Curve], list[Curve], list[Curve], list[Curve]]:
    """Return the curves in the order of MODEL_STYLES; the clients of round t receive the global model of t - 1."""
    own = [probe_records(run, "own_data") for run in runs]
    return (
        [run.curve() for run in runs],
        [run_curve(run, "local_accuracy") for run in runs],
        [[(number - 1, float(np.mean(line["global"]))) for number, line in lines.items()] for lines in own],
        [[(number, float(np.mean(line["local"]))) for number, line in lines.items()] for lines in own],
    )


def _pairs(runs: Sequence[FinishedRun]) -> Floats:
    """Return (mean local, global) accuracy of every round of every seed [n, 2]."""
    pairs = []
    for run in runs:
        local = dict(run_curve(run, "local_accuracy"))
        pairs += [(local[number], accuracy) for number, accuracy in run.curve() if number in local]
    return np.array(pairs).reshape(-1, 2)
