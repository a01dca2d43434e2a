"""Who has which classes: the partition of each column, clients by classes."""

from matplotlib.figure import Figure

from fedrecall.data.draw import MOST, THOUSANDS, cells
from fedrecall.experiment.figures.gather import Ints, Names, finished, label_counts, manifest
from fedrecall.experiment.figures.sheet import blank, finish, panels, short, text_width
from fedrecall.experiment.figures.style import PAGE, SMALL
from fedrecall.experiment.results import Results

HEIGHT = 2.3


def partition(results: Results, *, title: str = "", columns: Names = None) -> Figure:
    """Heat maps of sample counts, of the first seed; columns with the same partition share one."""
    found: dict[str, tuple[list[str], Ints, int]] = {}
    for (_, column), (first, *_) in finished(results, None, columns).items():
        about = manifest(first)
        names = found.setdefault(about["hash"], ([], label_counts(first), first.cell.seed))[0]
        if column not in names:
            names.append(column)
    if len(found) == 1:
        figure = blank(PAGE, HEIGHT)
        axes = [figure.subplots()]
    else:
        figure, axes = panels(len(found), across=2 if len(found) in (2, 4) else None, height=HEIGHT)
    room = float(figure.get_size_inches()[0]) / min(len(found), 2 if len(found) in (2, 4) else 3) - 1.0
    notes = {f"partition of seed {seed}" for _, _, seed in found.values()} if len(results.study.seeds) > 1 else set()
    for place, (names, counts, _) in zip(axes, found.values(), strict=True):
        shown, classes = counts[:MOST], counts.shape[1]
        if len(counts) > MOST:
            notes.add(f"the first {MOST:,} of {len(counts):,} clients")
        widest = text_width(str(int(counts.max())), SMALL)
        numbered = room / len(shown) > widest + 0.04 and (HEIGHT - 0.6) / classes > 1.3 * SMALL / 72
        image = cells(place, shown, [str(k) for k in range(classes)], numbered=numbered, labels=10)
        place.grid(visible=False)
        if len(results.study.columns) > 1:
            every = len(names) == len(results.study.columns)
            place.set_title("all columns" if every else short(", ".join(names), int(room / 0.075)))
        bar = figure.colorbar(image, ax=place, format=THOUSANDS, pad=0.02, aspect=30)
        bar.ax.spines[:].set_visible(False)
        bar.ax.tick_params(length=2)
        bar.set_label("samples", fontsize=SMALL)
    return finish(figure, title=title, notes=sorted(notes))
