"""Figures of a study, each in the form that the papers have: SVG, PDF and PNG in its folder's `figures/`.

Importing this package imports matplotlib, so do it where a figure is drawn.
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
from fedrecall.reporting.figures.heatmaps import classwise, labels_over_rounds
from fedrecall.reporting.figures.layout import save
from fedrecall.reporting.figures.partition import partition
from fedrecall.reporting.figures.series import run_curve
from fedrecall.reporting.figures.style import figure_style
from fedrecall.reporting.figures.tsne import tsne
from fedrecall.studies.results import StudyResults
from fedrecall.studies.study import FigureSpec, slug

FOLDER = "figures"

FIGURES: Mapping[str, Callable[..., Figure]] = {
    "curves": curves,
    "against": accuracy_by_number,
    "bars": accuracy_bars,
    "partition": partition,
    "forgetting": forgetting,
    "local-global": local_global,
    "classwise": classwise,
    "confusion": confusion,
    "labels-over-rounds": labels_over_rounds,
    "shift": local_shift,
    "drift-accuracy": drift_accuracy,
    "filter-rate": filter_rate,
    "tsne": tsne,
    "grid": accuracy_grid,
}


class SavedFigure(NamedTuple):
    """A figure that was drawn."""

    title: str
    paths: list[Path]  # the same in several formats: svg, pdf, png


class DrawReport(NamedTuple):
    """What came of drawing a study's figures."""

    figures: dict[str, SavedFigure]  # by the name of their files
    skipped: dict[str, UserError]  # name -> why it could not be drawn

    @property
    def paths(self) -> list[Path]:
        """All files that were written."""
        return [path for drawing in self.figures.values() for path in drawing.paths]


def draw_all(results: StudyResults) -> DrawReport:
    """Draw the figures that the study lists, or those that every study can have; collect the errors of the others."""
    drawn = DrawReport({}, {})
    for name, picture in figure_names(results.study.figures or default_figures(results)).items():
        try:
            with figure_style():
                figure = draw(results, picture)
                paths = save(figure, results.folder / FOLDER, name)
        except UserError as error:
            drawn.skipped[name] = error
        else:
            drawn.figures[name] = SavedFigure(picture.title, paths)
    return drawn


def draw(results: StudyResults, picture: FigureSpec) -> Figure:
    """One figure, in the style that is set."""
    options = {f"{key}_" if iskeyword(key) else key: value for key, value in validated_options(picture).items()}
    return FIGURES[picture.form](results, title=picture.title, **options)


def validated_options(picture: FigureSpec) -> dict[str, Any]:
    """A picture's options. A form that there is not, an option that it does not have or that is lacking, is refused."""
    if picture.form not in FIGURES:
        raise unknown_name("form of a figure", picture.form, FIGURES, "report.unknown_form", "form")
    taken = {key.rstrip("_"): each for key, each in signature(FIGURES[picture.form]).parameters.items()}
    taken = {key: each for key, each in taken.items() if key not in ("results", "title")}
    found = {}
    for key, value in picture.options.items():
        if key not in taken:
            raise unknown_name(f"option of the figure form {picture.form}", key, taken, "report.invalid_option", key)
        try:
            found[key] = TypeAdapter(taken[key].annotation).validate_python(value)
        except ValidationError as error:
            why = error.errors()[0]["msg"]
            text = f"{key} = {value!r}: invalid option of the figure form {picture.form}: {why}"
            raise UserError("report.invalid_option", text, key) from None
    for key, each in taken.items():
        if each.default is Parameter.empty and key not in found:
            text = f"the figure form {picture.form} requires the option {key}"
            raise UserError("report.invalid_option", text, key, f"set {key} in the options of the figure")
    return found


def default_figures(results: StudyResults) -> tuple[FigureSpec, ...]:
    """For a study that names no figures: its curves, and who had which classes."""
    pictures = [FigureSpec(form="curves", title="Test accuracy of the global model")]
    if any(run_curve(outcome, "local_accuracy") for outcome in results.finished_runs()):
        local = FigureSpec(
            form="curves", title="Mean test accuracy of the local models", options={"y": "local_accuracy"}
        )
        lost = FigureSpec(
            form="curves", title="Forgetting: global less mean local accuracy", options={"y": "forgetting"}
        )
        pictures += [local, lost]
    return (*pictures, FigureSpec(form="partition", title="Samples by client and class"))


def figure_names(pictures: tuple[FigureSpec, ...]) -> dict[str, FigureSpec]:
    """Names for the files: the form, and what tells figures of one form apart, their title or else their number."""
    forms = Counter(picture.form for picture in pictures)
    out: dict[str, FigureSpec] = {}
    for number, picture in enumerate(pictures, 1):
        name = picture.form if forms[picture.form] == 1 else slug(f"{picture.form} {picture.title or number}")
        out[name if name not in out else f"{name}-{number}"] = picture
    return out
