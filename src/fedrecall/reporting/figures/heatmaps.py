"""Heat maps, with numbers in their cells where they fit."""

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
    wrap_text,
)
from fedrecall.reporting.figures.series import (
    Floats,
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
from fedrecall.reporting.figures.style import (
    DATA_COLOUR,
    DIFFERENCE,
    MUTED_COLOUR,
    NORMAL,
    PAGE_WIDTH,
    SEQUENTIAL,
    SMALL,
    text_colour_on,
)
from fedrecall.studies.results import StudyResults

EMPTY_CELL_COLOUR = "#dfe3e8"  # a cell without a value

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
    """Draw a table [rows, columns].

    `write` makes the text of a cell; there is none if the widest of them does not fit into a cell of so many inches.
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
        # That of the scale's upper end is wanted to fit too: of maps with one scale, all have numbers or none.
        widest = max(text_width(text, SMALL) for text in {write(limits[1]), *texts.values()})
        if cell[0] >= widest + 0.03 and cell[1] >= 1.3 * SMALL / 72:
            for (row, column), text in texts.items():
                shown = text_colour_on(tuple(image.cmap(image.norm(table[row, column]))))
                axes.text(column, row, text, ha="center", va="center", fontsize=SMALL, color=shown)
    return image


def heatmap_over_rounds(
    axes: Axes,
    columns: Mapping[int, Floats],
    rounds: int,
    *,
    limits: Limits = (0.0, 1.0),
    colours: str | Colormap = SEQUENTIAL,
) -> AxesImage:
    """Draw classes by rounds: what is known of each round is a column [C], the others are left blank."""
    classes = len(next(iter(columns.values())))
    table = np.full((classes, rounds), np.nan)
    for number, column in columns.items():
        table[:, number - 1] = column
    image = heatmap(axes, table, limits=limits, colours=colours)
    image.set_extent((0.5, rounds + 0.5, classes - 0.5, -0.5))
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=TICK_STEPS, min_n_ticks=1))
    return image


def label_shares(axes: Axes, shares: Floats, room: float) -> None:
    """A client's labels: one bar a class, downwards as in the heat maps beside it."""
    classes = len(shares)
    axes.barh(range(classes), shares, color=DATA_COLOUR, height=0.8 if classes <= 50 else 1.0)
    axes.set_ylim(classes - 0.5, -0.5)
    axes.xaxis.set_major_formatter(PERCENT)
    axes.xaxis.set_major_locator(MaxNLocator(3, steps=TICK_STEPS))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("data share (%)")
    label_classes(axes, classes, room, across=False)


def label_classes(axes: Axes, classes: int, room: float, *, across: bool, name: str = "class") -> None:
    """Class numbers along an axis of so many inches, thinned out where they would overlap."""
    widest = text_width(str(classes - 1), SMALL)
    shown = list(tick_positions(classes, room, widest + 0.06 if across else 1.3 * SMALL / 72))
    if across:
        axes.set_xticks(shown)
        axes.set_xlabel(name)
    else:
        axes.set_yticks(shown)
        axes.set_ylabel(name)


def colour_bar(figure: Figure, image: AxesImage, axes: Sequence[Axes], label: str, lines: int = 1) -> None:
    """A colour bar in per cent beside some axes that stand in so many lines."""
    made = figure.colorbar(image, ax=list(axes), format=PERCENT, pad=0.015, aspect=25 * lines)
    made.ax.spines[:].set_visible(False)
    made.ax.tick_params(length=2)
    made.set_label(label, fontsize=SMALL)


def percent(value: float) -> str:
    """A share in whole per cent."""
    return f"{100 * value:.0f}"


def outline(axes: Axes) -> None:
    """A thin line around a map whose lowest values are almost white."""
    axes.spines[:].set_visible(True)
    axes.spines[:].set(color=MUTED_COLOUR, linewidth=0.4)


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
