"""Figures of a partition: samples by client and class."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FuncFormatter, MaxNLocator

from fedrecall.errors import UserError, first_line
from fedrecall.reporting.figures.layout import (
    add_title_legend_notes,
    new_figure,
    set_panel_title,
    text_width,
    truncate_text,
    without_control_characters,
)
from fedrecall.reporting.figures.series import Ints, Selection, finished_runs, label_counts, partition_manifest
from fedrecall.reporting.figures.style import MAX_NAME_WIDTH, NORMAL, PAGE_WIDTH, SMALL
from fedrecall.studies.results import FinishedRun, StudyResults, read_json

SUFFIXES = (".png", ".svg", ".pdf")

PANEL_HEIGHT = 2.2  # inches

MAX_CLIENTS_DRAWN = 1_000  # the columns of more clients would be narrower than a pixel

# One hue from light to dark is safe for colour-blind readers and grey printers. It starts above white, so that one
# sample differs from none.
SAMPLES_COLORMAP = LinearSegmentedColormap.from_list("samples", colormaps["Blues"](np.linspace(0.14, 1.0, 256)))

BAR, FRAME = "#4a6f9c", "#d5dae0"


THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")


def save_partition_figure(
    counts: Ints,
    path: Path,
    *,
    class_names: Sequence[str] | None = None,
    client_names: Sequence[str] | None = None,
    title: str | None = None,
) -> None:
    """Draw counts [N, K] to a file; its suffix selects PNG, SVG or PDF."""
    if path.suffix.lower() not in SUFFIXES:
        raise UserError(
            "report.unsupported_format",
            f'{path}: figures cannot be written as "{path.suffix}"',
            str(path),
            f"use a name that ends in {', '.join(SUFFIXES)}",
        )
    N, K = counts.shape
    shown = counts[:MAX_CLIENTS_DRAWN]
    if N > MAX_CLIENTS_DRAWN:
        title = f"{title + ': ' if title else ''}the first {MAX_CLIENTS_DRAWN:,} of {N:,} clients"
    columns = len(shown)
    numbered = columns <= 20 and K <= 20 and counts.max() < 100_000
    cell_x, cell_y = (0.52, 0.3) if numbered else (min(0.3, 9.0 / columns), min(0.26, 7.0 / K))
    width, height = max(2.6, columns * cell_x), max(1.2, K * cell_y)
    bars, gap, bar_width = 0.75, 0.08, 0.13  # inches

    figure = Figure(figsize=(width + 1.9, height + bars + 1.15), dpi=200)
    x, y = 0.85, 0.55
    total_x, total_y = figure.get_size_inches()

    def axes(left: float, bottom: float, width: float, height: float) -> Axes:
        return figure.add_axes((left / total_x, bottom / total_y, width / total_x, height / total_y))

    heat = axes(x, y, width, height)
    sizes = axes(x, y + height + gap, width, bars)
    scale = axes(x + width + 0.12, y, bar_width, height)
    classes = class_names or [str(k) for k in range(K)]
    image = partition_heatmap(heat, shown, classes, numbered=numbered, client_names=client_names)
    if client_names is not None:
        heat.tick_params(axis="x", labelrotation=90)  # names may be wider than a cell

    sizes.bar(np.arange(columns), shown.sum(axis=1), width=0.8 if columns <= 200 else 1.0, color=BAR, linewidth=0)
    sizes.set(xlim=heat.get_xlim(), xticks=[], ylabel="samples")
    sizes.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    sizes.yaxis.set_major_formatter(THOUSANDS)
    sizes.spines[["top", "right"]].set_visible(False)
    sizes.grid(axis="y", color=FRAME, linewidth=0.6)
    sizes.set_axisbelow(True)
    _style_axes(sizes)
    if title:
        sizes.set_title(title, fontsize=10, loc="left")

    figure.colorbar(image, cax=scale, format=THOUSANDS)
    scale.set_ylabel("samples of a class", fontsize=8)
    scale.tick_params(labelsize=7, length=2)
    scale.spines[:].set_visible(False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, bbox_inches="tight", pad_inches=0.06)
    except OSError as error:
        raise UserError(
            "report.cannot_write",
            f"{path}: cannot write the figure: {error.strerror or first_line(error)}",
            str(path),
            "choose another path",
        ) from error


def partition_heatmap(
    axes: Axes,
    counts: Ints,
    class_names: Sequence[str],
    *,
    numbered: bool,
    labels: tuple[int, int] = (20, 25),
    client_names: Sequence[str] | None = None,
) -> AxesImage:
    """Draw counts [N, K] with clients across and classes down; `labels` limits the labelled clients and classes."""
    # Square root: small counts stay visible beside large ones.
    image = axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        cmap=SAMPLES_COLORMAP,
        norm=PowerNorm(0.5, vmin=0, vmax=max(1, int(counts.max()))),
        aspect="auto",
        interpolation="nearest",
    )
    if numbered:
        _annotate_counts(axes, counts)
    _label_class_names(axes, class_names, labels[1])
    _style_axes(axes)
    axes.set(xlabel="client", ylabel="class")
    ticks = range(0, len(counts), -(-len(counts) // labels[0]))
    clients = None if client_names is None else [without_control_characters(client_names[i]) for i in ticks]
    axes.set_xticks(ticks, clients)
    return image


def _annotate_counts(axes: Axes, counts: Ints) -> None:
    """Write the counts into the cells, with thin lines between cells."""
    for axis, edges in ((axes.axvline, counts.shape[0]), (axes.axhline, counts.shape[1])):
        for edge in range(1, edges):
            axis(edge - 0.5, color="white", linewidth=1.0)
    dark = 0.3 * max(1, counts.max())
    for (client, k), count in np.ndenumerate(counts):
        if count:
            colour = "white" if count > dark else "#1d2733"
            axes.text(client, k, f"{count}", ha="center", va="center", fontsize=7, color=colour)


def _label_class_names(axes: Axes, names: Sequence[str], labels: int) -> None:
    """Label the classes, evenly subsampled to at most `labels`."""
    step = -(-len(names) // labels)
    ticks = range(0, len(names), step)
    axes.set_yticks(list(ticks), [without_control_characters(names[k]) for k in ticks])


def _style_axes(axes: Axes) -> None:
    axes.tick_params(labelsize=8, length=2, color=FRAME)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
    axes.spines[:].set_color(FRAME)


def has_counts(results: StudyResults) -> bool:
    """Return False if the data of all runs are on the nodes of a federation, so that their classes are not known."""
    paths = {run.path for run in results.finished_runs()}
    try:
        partitioners = [read_json(path / "partition.json").get("law") for path in paths]
    except UserError:  # a damaged file is reported where it is drawn
        return True
    return not paths or any(not isinstance(found, dict) or found.get("name") != "nodes" for found in partitioners)


def partition(results: StudyResults, *, title: str = "", columns: Selection = None) -> Figure:
    """Draw the sample counts of each column's first finished run; columns with the same partition share a panel."""
    found: dict[str, tuple[list[str], Ints, FinishedRun]] = {}
    for (_, column), (first, *_) in finished_runs(results, results.study.methods, columns).items():
        names = found.setdefault(partition_manifest(first)["hash"], ([], label_counts(first), first))[0]
        if column not in names:
            names.append(column)
    across = {1: 1, 2: 2, 4: 2}.get(len(found), 3)
    down = -(-len(found) // across)
    figure = new_figure(PAGE_WIDTH, down * PANEL_HEIGHT)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[len(found) :]:
        spare.remove()
    width, height = PAGE_WIDTH / across - 1.0, PANEL_HEIGHT - 0.6
    seeds = {run.cell.seed for _, _, run in found.values()}
    notes = {f"partition of seed {seed}" for seed in seeds} if len(results.study.seeds) > 1 else set()
    numbered = all(_counts_fit(counts, width, height) for _, counts, _ in found.values())  # in all panels or in none
    for panel, (names, counts, run) in zip(axes[: len(found)], found.values(), strict=True):
        shown = counts[:MAX_CLIENTS_DRAWN]
        clients = [truncate_text(name, MAX_NAME_WIDTH, SMALL) for name in run.client_names[: len(shown)]]
        classes = [truncate_text(name, MAX_NAME_WIDTH, SMALL) for name in run.class_names]
        if len(counts) > MAX_CLIENTS_DRAWN:
            notes.add(f"the first {MAX_CLIENTS_DRAWN:,} of {len(counts):,} clients")
        widest = max(text_width(name, SMALL) for name in clients)
        max_labels = (max(1, int(width / (widest + 0.1))), 10)
        image = partition_heatmap(panel, shown, classes, numbered=numbered, labels=max_labels, client_names=clients)
        panel.grid(visible=False)
        panel.tick_params(labelsize=SMALL)
        for axis in (panel.xaxis, panel.yaxis):
            axis.label.set_fontsize(NORMAL)
        if len(results.study.columns) > 1:
            is_shared = len(names) == len(results.study.columns)
            set_panel_title(panel, "all columns" if is_shared else ", ".join(names))
        bar = figure.colorbar(image, ax=panel, format=THOUSANDS, pad=0.02, aspect=30)
        bar.ax.spines[:].set_visible(False)
        bar.ax.tick_params(length=2)
        bar.set_label("samples", fontsize=SMALL)
    return add_title_legend_notes(figure, title=title, notes=sorted(notes))


def _counts_fit(counts: Ints, width: float, height: float) -> bool:
    """Return True if the counts are readable in the cells of a heat map of this size in inches."""
    clients, classes = counts[:MAX_CLIENTS_DRAWN].shape
    widest = text_width(str(int(counts.max())), SMALL)
    return bool(width / clients > widest + 0.04 and height / classes > 1.3 * SMALL / 72)
