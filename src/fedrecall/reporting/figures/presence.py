"""Figure of a federation: which clients replied in which round."""

from itertools import chain

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from fedrecall.reporting.figures.layout import add_title_legend_notes, new_figure, tick_positions, truncate_text
from fedrecall.reporting.figures.series import MissingData, finished_runs
from fedrecall.reporting.figures.style import MAX_NAME_WIDTH, PAGE_WIDTH, SMALL
from fedrecall.reporting.tables.federation import federated_runs
from fedrecall.studies.results import StudyResults

# states of a client in a round, each with a colour that differs in brightness too
PRESENCE_COLOURS = {"not sampled": "#eef1f4", "reply": "#3b6ea5", "lost": "#d1495b", "rejected": "#e8b04a"}

MAX_ROWS_DRAWN = 200  # lines of more clients would be narrower than a pixel


def presence(results: StudyResults, *, title: str = "") -> Figure:
    """Draw rounds across and clients down, with the state of each client in each round.

    The run is the first one on Flower, or else the first one.
    """
    run = next(run for run in [*federated_runs(results), *chain(*finished_runs(results, None, None).values())])
    if not run.records:
        raise MissingData("report.missing_measurement", f"{run.path}: the run has no complete round", "presence")
    population = 1 + max(client for record in run.records for client in record["clients"])
    shown = min(population, MAX_ROWS_DRAWN)
    table = np.zeros((population, len(run.records)))
    for column, record in enumerate(run.records):
        table[record["clients"], column] = 1
        for key, state in (("lost", 2), ("refused", 3)):
            table[[entry["client"] for entry in record.get(key, ())], column] = state
    figure = new_figure(PAGE_WIDTH, min(6.0, 0.8 + 0.22 * shown))
    axes = figure.subplots()
    last = run.records[-1]["round"]
    axes.imshow(
        table[:shown],
        cmap=ListedColormap(list(PRESENCE_COLOURS.values())),
        vmin=0,
        vmax=len(PRESENCE_COLOURS) - 1,
        aspect="auto",
        interpolation="nearest",
        extent=(run.records[0]["round"] - 0.5, last + 0.5, shown - 0.5, -0.5),
    )
    for edge in range(1, shown if shown <= 40 else 0):
        axes.axhline(edge - 0.5, color="white", linewidth=1.0)
    for edge in range(1, len(table[0]) if len(table[0]) <= 60 else 0):
        axes.axvline(run.records[0]["round"] + edge - 0.5, color="white", linewidth=1.0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set(xlabel="round", ylabel="client")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if run.client_names != [str(client) for client in range(len(run.client_names))]:
        ticks = list(tick_positions(shown, figure.get_size_inches()[1] - 0.8, 1.3 * SMALL / 72))
        axes.set_yticks(ticks, [truncate_text(run.client_name(i), MAX_NAME_WIDTH, SMALL) for i in ticks])
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    seen = sorted({int(state) for state in np.unique(table)})
    names = list(PRESENCE_COLOURS)
    legend = [(names[state], Patch(color=PRESENCE_COLOURS[names[state]])) for state in seen]
    notes = [f"the first {shown} of {population} clients"] if shown < population else []
    return add_title_legend_notes(figure, title=title, legend=legend, notes=notes)
