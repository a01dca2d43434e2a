"""Features of test examples in two dimensions by t-SNE: one panel per model, one colour per class."""

import re
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedrecall.errors import first_line
from fedrecall.reporting.figures.layout import add_title_legend_notes, panels, set_panel_title, truncate_text
from fedrecall.reporting.figures.series import (
    MOST_SKEWED,
    Floats,
    Ints,
    MissingData,
    Selection,
    label_counts,
    missing_probe,
    no_finished_run,
    pick_client,
    select,
)
from fedrecall.reporting.figures.style import MAX_NAME_WIDTH, SMALL, category_colours
from fedrecall.studies.results import FinishedRun, StudyResults

FEATURES_FILE = "features.safetensors"

MAX_EXAMPLES = 1_000  # per panel

MAX_LEGEND_CLASSES = 30  # colours of more classes are not distinguishable


class _FeatureSet(NamedTuple):
    title: str
    features: Floats  # [n, D]
    y: Ints  # [n]


def tsne(
    results: StudyResults,
    *,
    title: str = "",
    global_: Selection = None,
    local: Selection = None,
    client: int | str = MOST_SKEWED,
    columns: Selection = None,
) -> Figure:
    """Draw test examples by their features: global models of some rows, then one client's local models of some rows.

    If neither is set, rows that start from another row's model have the local model, the others the global one.
    """
    study = results.study
    if global_ is None and local is None:
        local = [row for row, tables in study.rows.items() if "start" in tables]
        global_ = [row for row in study.rows if row not in local]
    models: list[_FeatureSet] = []
    notes, class_names = [], list[str]()
    names = select(study.columns, columns, "column")
    for column in names:
        for kind, wanted in (("global", global_), ("local", local)):
            for row in select(study.rows, wanted or (), "row"):
                runs = results.finished_runs(row, column)
                if not runs:
                    continue
                name = row if kind in row else f"{row}: {kind} model"
                model, chosen = _read(runs[0], kind, client, f"{column}, {name}" if len(names) > 1 else name)
                models.append(model)
                notes.append(f"seed {runs[0].cell.seed}")
                notes += [] if chosen is None else [f"local models of client {runs[0].client_name(chosen)}"]
                class_names = class_names or runs[0].class_names
    if not models:
        raise no_finished_run()
    classes = max(int(model.y.max()) for model in models) + 1
    colours = np.array(category_colours(classes))
    figure, axes = panels(len(models), across=2 if len(models) in (2, 4) else None, height=2.6)
    for panel, model in zip(axes, models, strict=True):
        points = embed(model.features)
        panel.scatter(points[:, 0], points[:, 1], s=5, c=colours[model.y], linewidths=0, alpha=0.8, rasterized=True)
        panel.set(xticks=[], yticks=[])
        set_panel_title(panel, model.title)
        panel.spines[:].set_visible(True)
        panel.set_aspect("equal", adjustable="datalim")
    labels = [*class_names, *map(str, range(len(class_names), classes))] if classes <= MAX_LEGEND_CLASSES else []
    legend = [
        (truncate_text(label, MAX_NAME_WIDTH, SMALL), Line2D([], [], color=colour, marker="o", linestyle=""))
        for label, colour in zip(labels, colours, strict=False)
    ]
    if not legend:
        notes.append(f"colour: class, from dark (0) to light ({classes - 1})")
    return add_title_legend_notes(
        figure, title=title, legend=legend, notes=[*dict.fromkeys(notes), *results.study.scale_note()]
    )


def embed(features: Floats) -> Floats:
    """Embed features in two dimensions [n, 2], deterministically."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(features) < 4:
        text = f"t-SNE requires at least 4 examples, the run stored {len(features)}"
        raise MissingData("report.missing_measurement", text, "features")
    perplexity = min(30.0, (len(features) - 1) / 3)
    # Initialised by principal components, not at random. One thread: sums have a fixed order, and for so little work
    # threads only wait for one another.
    with threadpool_limits(1):
        fit = TSNE(perplexity=perplexity, init="pca", random_state=0, n_jobs=1)
        found: Floats = fit.fit_transform(features).astype(np.float64)
    return found


def _read(run: FinishedRun, kind: str, client: int | str, title: str) -> tuple[_FeatureSet, int | None]:
    """Read the features of the global model, or of a client's local model, then with that client."""
    path = run.path / "probes" / FEATURES_FILE
    if not path.exists():
        raise missing_probe(run.cell.row, "features")
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError, RuntimeError) as error:
        text = f"{path}: cannot read the file: {first_line(error)}"
        raise MissingData(
            "report.unreadable_file", text, str(path), "remove the run directory and run it again"
        ) from None
    chosen = None
    if kind == "local":
        clients = sorted(int(name.removeprefix("local-")) for name in tensors if re.fullmatch(r"local-\d{1,9}", name))
        chosen = pick_client(client, clients, label_counts(run))
    name = kind if chosen is None else f"local-{chosen}"
    if name not in tensors or "y" not in tensors:
        raise MissingData(
            "report.missing_measurement", f"{path}: the file has no features of the {name} model", str(path)
        )
    features, y = tensors[name][:MAX_EXAMPLES].astype(np.float64), tensors["y"][:MAX_EXAMPLES].astype(np.int64)
    return _FeatureSet(title, features.reshape(len(features), -1), y), chosen
