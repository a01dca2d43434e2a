"""Who has which classes: the partition of each column, clients by classes."""

from matplotlib.figure import Figure

from fedrecall.reporting.figures.draw import MAX_CLIENTS_DRAWN, THOUSANDS, partition_heatmap
from fedrecall.reporting.figures.layout import add_title_legend_notes, new_figure, set_panel_title, text_width
from fedrecall.reporting.figures.series import Ints, Selection, finished_runs, label_counts, partition_manifest
from fedrecall.reporting.figures.style import NORMAL, PAGE_WIDTH, SMALL
from fedrecall.studies.results import StudyResults

HEIGHT = 2.2


def partition(results: StudyResults, *, title: str = "", columns: Selection = None) -> Figure:
    """Heat maps of sample counts, of the first seed; columns with the same partition share one."""
    found: dict[str, tuple[list[str], Ints, int]] = {}
    for (_, column), (first, *_) in finished_runs(results, None, columns).items():
        names = found.setdefault(partition_manifest(first)["hash"], ([], label_counts(first), first.cell.seed))[0]
        if column not in names:
            names.append(column)
    across = {1: 1, 2: 2, 4: 2}.get(len(found), 3)
    down = -(-len(found) // across)
    figure = new_figure(PAGE_WIDTH, down * HEIGHT)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[len(found) :]:
        spare.remove()
    wide, high = PAGE_WIDTH / across - 1.0, HEIGHT - 0.6
    notes = {f"partition of seed {seed}" for _, _, seed in found.values()} if len(results.study.seeds) > 1 else set()
    numbered = all(_fits(counts, wide, high) for _, counts, _ in found.values())  # in all maps or in none
    for place, (names, counts, _) in zip(axes[: len(found)], found.values(), strict=True):
        shown, classes = counts[:MAX_CLIENTS_DRAWN], counts.shape[1]
        if len(counts) > MAX_CLIENTS_DRAWN:
            notes.add(f"the first {MAX_CLIENTS_DRAWN:,} of {len(counts):,} clients")
        most = (max(1, int(wide / (text_width(str(len(shown)), SMALL) + 0.1))), 10)
        image = partition_heatmap(place, shown, [str(k) for k in range(classes)], numbered=numbered, labels=most)
        place.grid(visible=False)
        place.tick_params(labelsize=SMALL)
        for axis in (place.xaxis, place.yaxis):
            axis.label.set_fontsize(NORMAL)
        if len(results.study.columns) > 1:
            every = len(names) == len(results.study.columns)
            set_panel_title(place, "all columns" if every else ", ".join(names))
        bar = figure.colorbar(image, ax=place, format=THOUSANDS, pad=0.02, aspect=30)
        bar.ax.spines[:].set_visible(False)
        bar.ax.tick_params(length=2)
        bar.set_label("samples", fontsize=SMALL)
    return add_title_legend_notes(figure, title=title, notes=sorted(notes))


def _fits(counts: Ints, wide: float, high: float) -> bool:
    """Whether the numbers can be read in the cells of a map of so many inches."""
    clients, classes = counts[:MAX_CLIENTS_DRAWN].shape
    widest = text_width(str(int(counts.max())), SMALL)
    return bool(wide / clients > widest + 0.04 and high / classes > 1.3 * SMALL / 72)
