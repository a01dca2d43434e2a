"""Heat maps: their parts, accuracy by class and round, and label shares by round."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from fedrecall.reporting.figures.layout import (
    PERCENT,
    TICK_STEPS,
    add_title_legend_notes,
    new_figure,
    set_panel_title,
    text_width,
    tick_positions,
    truncate_text,
    wrap_text,
)
from fedrecall.reporting.figures.series import (
    Floats,
    Selection,
    finished_runs,
    label_counts,
    missing_probe,
    participants,
    pick_client,
    probe_records,
    recall,
    runs_to_average,
    safe_divide,
)
from fedrecall.reporting.figures.style import (
    DATA_COLOUR,
    DIFFERENCE,
    MAX_NAME_WIDTH,
    MUTED_COLOUR,
    NORMAL,
    PAGE_WIDTH,
    SEQUENTIAL,
    SMALL,
    text_colour_on,
)
from fedrecall.studies.results import FinishedRun, StudyResults

EMPTY_CELL_COLOUR = "#dfe3e8"  # a cell without a value


ROUNDS_HEIGHT = 2.1  # inches of a row of panels

CONFUSION_HEIGHT = 2.4  # inches of a row of confusion matrices

Limits = tuple[float, float]


def heatmap(
    axes: Axes,
    table: Floats,
    *,
    limits: Limits = (0.0, 1.0),
    colours: str | Colormap = SEQUENTIAL,
    write: Callable[[float], str] | None = None,
    cell: tuple[float, float] = (0.0, 0.0),
) -> AxesImage:
    """Draw a table [rows, columns] as a heat map.

    `write` makes the text of a cell; no cell has text if the widest does not fit into `cell` (width, height in inches).
    """
    image = axes.imshow(
        np.ma.masked_invalid(table),
        vmin=limits[0],
        vmax=limits[1],
        cmap=colours,
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_facecolor(EMPTY_CELL_COLOUR)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=2)
    if write is not None:
        texts = {at: write(float(value)) for at, value in np.ndenumerate(table) if np.isfinite(value)}
        # The upper limit must fit, too: maps that share a scale then all have numbers or none.
        widest = max(text_width(text, SMALL) for text in {write(limits[1]), *texts.values()})
        if cell[0] >= widest + 0.03 and cell[1] >= 1.3 * SMALL / 72:
            for (row, column), text in texts.items():
                colour = text_colour_on(tuple(image.cmap(image.norm(table[row, column]))))
                axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=colour)
    return image


def heatmap_over_rounds(
    axes: Axes,
    columns: Mapping[int, Floats],
    rounds: int,
    *,
    limits: Limits = (0.0, 1.0),
    colours: str | Colormap = SEQUENTIAL,
) -> AxesImage:
    """Draw classes by rounds from one column [C] per round; missing rounds stay blank."""
    classes = len(next(iter(columns.values())))
    table = np.full((classes, rounds), np.nan)
    for number, column in columns.items():
        table[:, number - 1] = column
    image = heatmap(axes, table, limits=limits, colours=colours)
    image.set_extent((0.5, rounds + 0.5, classes - 0.5, -0.5))
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=TICK_STEPS, min_n_ticks=1))
    return image


def label_shares(axes: Axes, shares: Floats, length: float, names: Sequence[str]) -> None:
    """Draw a client's label shares, one bar per class, downwards as in the heat maps beside it."""
    classes = len(shares)
    axes.barh(range(classes), shares, color=DATA_COLOUR, height=0.8 if classes <= 50 else 1.0)
    axes.set_ylim(classes - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=TICK_STEPS))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("data share (%)")
    label_classes(axes, names, length, across=False)


def label_classes(axes: Axes, names: Sequence[str], length: float, *, across: bool, name: str = "class") -> None:
    """Label an axis of `length` inches with the names of classes, skipping some where they would overlap.

    Names that are too wide to lie beside each other stand upright; numbers are rather skipped.
    """
    texts = [truncate_text(text, MAX_NAME_WIDTH, SMALL) for text in names]
    upright = across and needs_upright_names(texts, length)
    space = max(text_width(text, SMALL) for text in texts) + 0.06 if across and not upright else 1.3 * SMALL / 72
    ticks = list(tick_positions(len(names), length, space))
    labels = [texts[i] for i in ticks]
    if across:
        axes.set_xticks(ticks, labels, rotation=90 if upright else 0)
        axes.set_xlabel(name)
    else:
        axes.set_yticks(ticks, labels)
        axes.set_ylabel(name)


def needs_upright_names(names: Sequence[str], length: float) -> bool:
    """Return True if names, not numbers, are too wide for a horizontal axis of `length` inches."""
    widest = max(text_width(name, SMALL) for name in names)
    return not all(name.isdigit() for name in names) and length / len(names) < widest + 0.06


def colour_bar(figure: Figure, image: AxesImage, axes: Sequence[Axes], label: str, lines: int = 1) -> None:
    """Draw a colour bar in percent beside axes that fill `lines` rows of the figure."""
    bar = figure.colorbar(image, ax=list(axes), format=PERCENT, pad=0.015, aspect=25 * lines)
    bar.ax.spines[:].set_visible(False)
    bar.ax.tick_params(length=2)
    bar.set_label(label, fontsize=SMALL)


def percent(value: float) -> str:
    """Format a share as a whole percentage."""
    return f"{100 * value:.0f}"


def outline(axes: Axes) -> None:
    """Draw a thin frame around a heat map whose lowest values are almost white."""
    axes.spines[:].set_visible(True)
    axes.spines[:].set(color=MUTED_COLOUR, linewidth=0.4)


def classwise(
    results: StudyResults,
    *,
    title: str = "",
    client: int | str = 0,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Draw accuracy by class and round: global model, one client's local model, and their difference.

    The local model of a round is compared with the global model of the round before, from which it started.
    """
    found = finished_runs(results, rows, columns)
    figure = new_figure(PAGE_WIDTH, ROUNDS_HEIGHT * len(found))
    grid = figure.subplots(len(found), 4, squeeze=False, gridspec_kw={"width_ratios": [0.4, 1, 1, 1]})
    notes = []
    for axes, ((row, column), (first, *_)) in zip(grid, found.items(), strict=True):
        counts, after = label_counts(first), probe_records(first, "local")
        chosen = pick_client(client, participants(after), counts)
        before = {number: recall(line["confusion"]) for number, line in probe_records(first, "confusion").items()}
        local = {
            number: safe_divide(line["correct"][line["clients"].index(chosen)], line["test"])
            for number, line in after.items()
            if chosen in line["clients"]
        }
        change = {number: local[number] - before[number - 1] for number in local if number - 1 in before}
        change = change or {1: np.full(counts.shape[1], np.nan)}  # the run has one round only
        rounds = max(*before, *local)
        shares = safe_divide(counts[chosen], counts[chosen].sum())
        label_shares(axes[0], shares, ROUNDS_HEIGHT - 0.7, first.class_names)
        heatmap_over_rounds(axes[1], before, rounds)
        image = heatmap_over_rounds(axes[2], local, rounds)
        changes = heatmap_over_rounds(axes[3], change, rounds, limits=(-1, 1), colours=DIFFERENCE)
        client_title = truncate_text(f"client {first.client_name(chosen)}", MAX_NAME_WIDTH, NORMAL)
        titles = (client_title, "global model", "local model", "local less global")
        for panel, name in zip(axes, titles, strict=True):
            panel.set_title(name)
        for panel in axes[1:]:
            panel.set_yticks([])
        if len(found) > 1:
            axes[0].set_ylabel("\n".join((*wrap_text(f"{row}, {column}", ROUNDS_HEIGHT - 0.5, NORMAL), "class")))
        colour_bar(figure, image, axes[1:3], "accuracy (%)")
        colour_bar(figure, changes, axes[3:], "change (points)")
        notes.append(f"seed {first.cell.seed}")
    return add_title_legend_notes(figure, title=title, notes=[*dict.fromkeys(notes), *results.study.scale_note()])


def labels_over_rounds(
    results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None
) -> Figure:
    """Draw by class and round the labels of the cohort's training data and the predictions of each global model."""
    found = finished_runs(results, rows, columns)
    by_column = {column: [o[0] for (_, c), o in found.items() if c == column] for _, column in found}
    across = 1 + max(len(firsts) for firsts in by_column.values())
    per_line = across if across <= 3 else 2 if across == 4 else 3
    lines = -(-across // per_line)
    figure = new_figure(PAGE_WIDTH, ROUNDS_HEIGHT * lines * len(by_column))
    grid = figure.subplots(lines * len(by_column), per_line, squeeze=False).reshape(len(by_column), -1)
    for axes, (column, firsts) in zip(grid, by_column.items(), strict=True):
        cohort = {number: np.asarray(line["labels"]) for number, line in probe_records(firsts[0], "cohort").items()}
        counts = {"cohort's training data": cohort}
        for first in firsts:
            tables = probe_records(first, "confusion").items()
            counts[f"{first.cell.row} predicts"] = {n: np.sum(line["confusion"], axis=0) for n, line in tables}
        shares = {
            name: {n: safe_divide(count, count.sum()) for n, count in by_round.items()}
            for name, by_round in counts.items()
        }
        top = max(float(np.nanmax(share)) for by_round in shares.values() for share in by_round.values())
        rounds = max(number for by_round in shares.values() for number in by_round)
        for number, (panel, (name, by_round)) in enumerate(zip(axes, shares.items(), strict=False)):
            image = heatmap_over_rounds(panel, by_round, rounds, limits=(0, top))
            if number % per_line == 0:
                label_classes(panel, firsts[0].class_names, ROUNDS_HEIGHT - 0.7, across=False)
            else:
                panel.set_yticks([])
            set_panel_title(panel, f"{column}: {name}" if len(by_column) > 1 else name)
        for spare in axes[len(shares) :]:
            spare.remove()
        colour_bar(figure, image, list(axes[: len(shares)]), "share of the labels (%)", lines)
    seeds = dict.fromkeys(f"seed {runs[0].cell.seed}" for runs in found.values())
    return add_title_legend_notes(figure, title=title, notes=[*seeds, *results.study.scale_note()])


def global_confusion(
    results: StudyResults, *, title: str = "", rows: Selection = None, columns: Selection = None
) -> Figure:
    """Draw the confusion matrix of each final global model: of the test examples of a class, shares predicted as each.

    The counts of all seeds that did not diverge are added. The matrix is that of the probe "confusion", or of the
    metric of this name.
    """
    chosen = results.study.methods if rows is None else rows
    groups = finished_runs(results, chosen, columns)
    found = {key: _final_confusion(runs_to_average(runs)) for key, runs in groups.items()}
    matrices = {key: matrix for key, matrix in found.items() if matrix is not None}
    if not matrices:
        raise missing_probe(", ".join(dict.fromkeys(row for row, _ in found)), "confusion")
    across = min(3, len(matrices))
    down = -(-len(matrices) // across)
    first = groups[next(iter(matrices))][0]
    names, length = first.class_names, CONFUSION_HEIGHT - 0.8
    upright = MAX_NAME_WIDTH if needs_upright_names(names, PAGE_WIDTH / across - 1.1) else 0.0
    figure = new_figure(PAGE_WIDTH, down * (CONFUSION_HEIGHT + upright))
    grid = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in grid[len(matrices) :]:
        spare.remove()
    for number, (panel, ((row, column), matrix)) in enumerate(zip(grid, matrices.items(), strict=False)):
        classes, side = len(matrix), (PAGE_WIDTH / across - 1.1, length)
        cell = (side[0] / classes, side[1] / classes)
        shares = safe_divide(matrix, matrix.sum(axis=1, keepdims=True))
        image = heatmap(panel, shares, write=percent, cell=cell)
        label_classes(panel, names, side[0], across=True, name="predicted")
        label_classes(panel, names, side[1], across=False, name="true" if number % across == 0 else "")
        set_panel_title(panel, row if len(results.study.columns) == 1 else f"{row}, {column}")
    colour_bar(figure, image, grid[: len(matrices)], "share of the class (%)", down)
    notes = ["test examples of all seeds", *results.study.scale_note()]
    notes += ["diverged runs are excluded"] if any(len(runs_to_average(g)) < len(g) for g in groups.values()) else []
    return add_title_legend_notes(figure, title=title, notes=notes)


def _final_confusion(runs: Sequence[FinishedRun]) -> Floats | None:
    """Return the counts [C, C] after the last evaluated round, added over the runs; None if no run has them."""
    matrices = []
    for run in runs:
        recorded = [line["confusion"] for line in run.probe_records("confusion")]
        recorded = recorded or [line["confusion"] for line in run.records if line.get("confusion") is not None]
        if recorded:
            matrices.append(np.asarray(recorded[-1], dtype=np.float64))
    return np.sum(matrices, axis=0) if matrices else None
