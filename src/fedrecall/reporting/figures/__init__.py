"""Figures of a study in the forms of the papers, written as SVG, PDF and PNG to `figures/` in its folder.

The package imports matplotlib: import it inside the function that draws.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from keyword import iskeyword
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from pydantic import TypeAdapter, ValidationError

from fedrecall.errors import UserError, unknown_name
from fedrecall.reporting.figures.before_after import confusion, forgetting
from fedrecall.reporting.figures.by_setting import accuracy_bars, accuracy_by_number, accuracy_grid
from fedrecall.reporting.figures.curves import curves, filter_rate
from fedrecall.reporting.figures.drift import drift_accuracy, local_global, local_shift
from fedrecall.reporting.figures.heatmaps import classwise, global_confusion, labels_over_rounds
from fedrecall.reporting.figures.layout import save
from fedrecall.reporting.figures.partition import has_counts, partition
from fedrecall.reporting.figures.presence import presence
from fedrecall.reporting.figures.series import run_curve
from fedrecall.reporting.figures.style import figure_style
from fedrecall.reporting.figures.tsne import tsne
from fedrecall.reporting.tables.federation import federated_runs
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import FigureSpec, slug

FIGURES_FOLDER = "figures"

FIGURES: Mapping[str, Callable[..., Figure]] = {
    "curves": curves,
    "against": accuracy_by_number,
    "bars": accuracy_bars,
    "partition": partition,
    "presence": presence,
    "forgetting": forgetting,
    "local-global": local_global,
    "classwise": classwise,
    "confusion": confusion,
    "global-confusion": global_confusion,
    "labels-over-rounds": labels_over_rounds,
    "shift": local_shift,
    "drift-accuracy": drift_accuracy,
    "filter-rate": filter_rate,
    "tsne": tsne,
    "grid": accuracy_grid,
}


class SavedFigure(NamedTuple):
    """Figure that was drawn."""

    title: str
    paths: list[Path]  # one per format: svg, pdf, png


class DrawReport(NamedTuple):
    """Figures of a study that were drawn, and errors of the others."""

    figures: dict[str, SavedFigure]  # by file stem
    skipped: dict[str, UserError]  # file stem -> error

    @property
    def paths(self) -> list[Path]:
        """All written files."""
        return [path for saved in self.figures.values() for path in saved.paths]


def draw_all(results: StudyResults) -> DrawReport:
    """Draw the figures that the study lists, or else the default ones; collect the errors of the others."""
    report = DrawReport({}, {})
    for name, spec in figure_names(results.study.figures or default_figures(results)).items():
        try:
            with figure_style():
                figure = draw(results, spec)
                paths = save(figure, results.folder / FIGURES_FOLDER, name)
        except UserError as error:
            report.skipped[name] = error
        else:
            report.figures[name] = SavedFigure(spec.title, paths)
    return report


def draw(results: StudyResults, spec: FigureSpec) -> Figure:
    """Draw one figure in the current matplotlib style."""
    options = {f"{key}_" if iskeyword(key) else key: value for key, value in validated_options(spec).items()}
    return FIGURES[spec.form](results, title=spec.title, **options)


def validated_options(spec: FigureSpec) -> dict[str, Any]:
    """Validate the options of a figure: its form exists, every option is known and valid, none is missing."""
    if spec.form not in FIGURES:
        raise unknown_name("form of a figure", spec.form, FIGURES, "report.unknown_form", "form")
    parameters = {key.rstrip("_"): each for key, each in signature(FIGURES[spec.form]).parameters.items()}
    parameters = {key: each for key, each in parameters.items() if key not in ("results", "title")}
    found = {}
    for key, value in spec.options.items():
        if key not in parameters:
            raise unknown_name(f"option of the figure form {spec.form}", key, parameters, "report.invalid_option", key)
        try:
            found[key] = TypeAdapter(parameters[key].annotation).validate_python(value)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            text = f"{key} = {value!r}: invalid option of the figure form {spec.form}: {reason}"
            raise UserError("report.invalid_option", text, key) from None
    for key, each in parameters.items():
        if each.default is Parameter.empty and key not in found:
            text = f"the figure form {spec.form} requires the option {key}"
            raise UserError("report.invalid_option", text, key, f"set {key} in the options of the figure")
    return found


def default_figures(results: StudyResults) -> tuple[FigureSpec, ...]:
    """Return the figures of a study that lists none: its curves, its partition, and the replies of a federation."""
    specs = [FigureSpec(form="curves", title="Test accuracy of the global model")]
    if any(run_curve(run, "local_accuracy") for run in results.finished_runs()):
        local = FigureSpec(
            form="curves", title="Mean test accuracy of the local models", options={"y": "local_accuracy"}
        )
        gap = FigureSpec(form="curves", title="Global minus mean local accuracy", options={"y": "forgetting"})
        specs += [local, gap]
    if any(run_curve(run, "forgotten") for run in results.finished_runs()):
        keys = ["forgotten", "forgotten_absent"]
        specs.append(FigureSpec(form="curves", title="Forgotten by the clients in a round", options={"y": keys}))
    if has_counts(results):
        specs.append(FigureSpec(form="partition", title="Samples by client and class"))
    if federated_runs(results):
        specs.append(FigureSpec(form="presence", title="Replies by client and round"))
    return tuple(specs)


def figure_names(specs: tuple[FigureSpec, ...]) -> dict[str, FigureSpec]:
    """Choose file stems: the form, and where several figures have one form, the title or else the number."""
    forms = Counter(spec.form for spec in specs)
    out: dict[str, FigureSpec] = {}
    for number, spec in enumerate(specs, 1):
        name = spec.form if forms[spec.form] == 1 else slug(f"{spec.form} {spec.title or number}")
        out[name if name not in out else f"{name}-{number}"] = spec
    return out
