"""What is taken for what, before and after a client's training."""

from matplotlib.figure import Figure

from fedrecall.reporting.figures.before_after import client_rounds
from fedrecall.reporting.figures.heatmaps import colour_bar, heatmap, label_classes, label_shares, percent
from fedrecall.reporting.figures.layout import add_title_legend_notes, new_figure, set_panel_title
from fedrecall.reporting.figures.series import MOST_SKEWED, Selection, safe_divide, scale_note
from fedrecall.reporting.figures.style import PAGE_WIDTH
from fedrecall.studies.results import StudyResults


def confusion(
    results: StudyResults,
    *,
    title: str = "",
    start: str | None = None,
    client: int | str = MOST_SKEWED,
    rows: Selection = None,
    columns: Selection = None,
) -> Figure:
    """Confusion matrices in per cent of the true class: the global model, then a client's models after its training.

    Before them, the client's label shares.
    """
    found = client_rounds(results, rows=rows, columns=columns, start=start, client=client, matrices=True)
    places = [(name, part, stage) for name, part in found.items() for stage in (None, *part.stages)]
    numbers = all(len(part.shares) <= 12 for part in found.values())  # which need room
    across = 2 if len(places) <= 4 or (numbers and len(places) <= 6) else 3
    down = -(-len(places) // across)
    side = 2.5 if across == 2 else 1.7
    figure = new_figure(PAGE_WIDTH, down * (side + 0.45))
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[len(places) :]:
        spare.remove()
    for place, (name, part, stage) in zip(axes[: len(places)], places, strict=True):
        classes = len(part.shares)
        if stage is None or stage.confusion is None:
            label_shares(place, part.shares, side)
            what = f"data of client {part.client}"
        else:
            table = safe_divide(stage.confusion, stage.confusion.sum(axis=1, keepdims=True))
            cell = ((PAGE_WIDTH - 0.8) / across - 0.5) / classes, side / classes
            image = heatmap(place, table, write=percent, cell=cell)
            label_classes(place, classes, side, across=True, name="predicted class")
            label_classes(place, classes, side, across=False, name="true class")
            what = stage.label
        set_panel_title(place, f"{name}: {what}" if len(found) > 1 else what)
    colour_bar(figure, image, axes[: len(places)], "share of the true class (%)", down)
    notes = [f"seed {part.seed}" for part in found.values()]
    return add_title_legend_notes(figure, title=title, notes=[*dict.fromkeys(notes), *scale_note(results)])
