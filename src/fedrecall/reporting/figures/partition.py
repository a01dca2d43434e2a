"""Who has which classes: the partition of each column, clients by classes."""

from matplotlib.figure import Figure

from fedrecall.reporting.figures.draw import MOST, THOUSANDS, cells
from fedrecall.reporting.figures.layout import blank, finish, name_panel, text_width
from fedrecall.reporting.figures.series import Ints, Names, finished, label_counts, manifest
from fedrecall.reporting.figures.style import NORMAL, PAGE, SMALL
from fedrecall.studies.results import Results

HEIGHT = 2.2


def partition(results: Results, *, title: str = "", columns: Names = None) -> Figure:
    """Heat maps of sample counts, of the first seed; columns with the same partition share one."""
    found: dict[str, tuple[list[str], Ints, int]] = {}
    for (_, column), (first, *_) in finished(results, None, columns).items():
        names = found.setdefault(manifest(first)["hash"], ([], label_counts(first), first.cell.seed))[0]
        if column not in names:
            names.append(column)
    across = {1: 1, 2: 2, 4: 2}.get(len(found), 3)
    down = -(-len(found) // across)
    figure = blank(PAGE, down * HEIGHT)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[len(found) :]:
        spare.remove()
    wide, high = PAGE / across - 1.0, HEIGHT - 0.6
    notes = {f"partition of seed {seed}" for _, _, seed in found.values()} if len(results.study.seeds) > 1 else set()
    numbered = all(_fits(counts, wide, high) for _, counts, _ in found.values())  # in all maps or in none
    for place, (names, counts, _) in zip(axes[: len(found)], found.values(), strict=True):
        shown, classes = counts[:MOST], counts.shape[1]
        if len(counts) > MOST:
            notes.add(f"the first {MOST:,} of {len(counts):,} clients")
        most = (max(1, int(wide / (text_width(str(len(shown)), SMALL) + 0.1))), 10)
        image = cells(place, shown, [str(k) for k in range(classes)], numbered=numbered, labels=most)
        place.grid(visible=False)
        place.tick_params(labelsize=SMALL)
        for axis in (place.xaxis, place.yaxis):
            axis.label.set_fontsize(NORMAL)
        if len(results.study.columns) > 1:
            every = len(names) == len(results.study.columns)
            name_panel(place, "all columns" if every else ", ".join(names))
        bar = figure.colorbar(image, ax=place, format=THOUSANDS, pad=0.02, aspect=30)
        bar.ax.spines[:].set_visible(False)
        bar.ax.tick_params(length=2)
        bar.set_label("samples", fontsize=SMALL)
    return finish(figure, title=title, notes=sorted(notes))


def _fits(counts: Ints, wide: float, high: float) -> bool:
    """Whether the numbers can be read in the cells of a map of so many inches."""
    clients, classes = counts[:MOST].shape
    widest = text_width(str(int(counts.max())), SMALL)
    return bool(wide / clients > widest + 0.04 and high / classes > 1.3 * SMALL / 72)
