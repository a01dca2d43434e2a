"""Comparison: the results of a study, as `compare`, `reproduce` and `load` return them."""

import shutil
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from torch import nn

from fedrecall.config.experiment import Experiment
from fedrecall.config.sources import import_own_model
from fedrecall.config.tables import read_toml
from fedrecall.errors import UserError, unknown_name
from fedrecall.reporting.tables import ReportTable, client_tables, comparison_table, paper_tables, write_tables
from fedrecall.reporting.tables.render import print_table, to_latex, to_markdown
from fedrecall.runs.directory import CONFIG_FILE, require_empty
from fedrecall.runs.inference import DeployedModel, ExportFormat, default_export_path
from fedrecall.runs.result import no_best_model
from fedrecall.runs.setup import BEST_MODEL_FILE, MODEL_FILE
from fedrecall.studies.compare import StudyObjects
from fedrecall.studies.results import FinishedRun, StudyResults, load_results
from fedrecall.studies.study import FigureSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class Comparison:
    """The runs of several methods: printed as a table, with figures and data frames.

    >>> import fedrecall as fr
    >>> comparison = fr.compare(["fedavg", "fedlmd"], data="digits", rounds=2, seeds=2, progress=False)
    >>> comparison.methods, len(comparison.runs)
    (['fedavg', 'fedlmd'], 4)
    >>> table = comparison.to_dataframe()
    >>> sorted(table["round"].unique().tolist())
    [1, 2]
    """

    def __init__(
        self,
        results: StudyResults,
        objects: StudyObjects | None = None,
        rejected: Mapping[str, UserError] | None = None,
        trust_code: bool = False,
    ) -> None:
        self._results, self._objects = results, objects or StudyObjects()
        self._rejected, self._trust_code = dict(rejected or {}), trust_code

    @property
    def study_results(self) -> StudyResults:
        """The study and its finished runs, as tables, figures and reports read them."""
        return self._results

    @property
    def folder(self) -> Path:
        """The folder of the run directories; without `out` it is removed with this object, unless `save` is called."""
        return self._results.folder

    @property
    def methods(self) -> list[str]:
        """The names of the methods; the first one is the reference of the others."""
        return self._results.study.methods

    @property
    def baselines(self) -> list[str]:
        """The names of the rows that are baselines."""
        return self._results.study.baselines

    @property
    def runs(self) -> list[FinishedRun]:
        """Every finished run, with its `summary`, `records`, `path` and `curve(key)`."""
        return self._results.finished_runs()

    @property
    def rejected(self) -> dict[str, UserError]:
        """The error of every run that cannot be made, by the folder of its cell."""
        return self._rejected

    def tables(self, *, brief: bool = False) -> list[ReportTable]:
        """Return one table per column, with the differences to the first row, or beside a paper's printed values."""
        if self._results.study.paper is not None:
            return paper_tables(self._results)
        tables = [comparison_table(self._results, column, brief=brief) for column in self._results.study.columns]
        return tables + client_tables(self._results)

    def model(
        self, method: str | None = None, seed: int | None = None, *, plain: bool = False, best: bool = False
    ) -> nn.Module:
        """Return the final global model of a run; its forward returns (features, logits).

        The training data is not needed. With `plain` it is your own module as it was, without the hooks of this
        library. With `best` it is the model of the best round by validation.
        """
        run = self._run(method, seed)
        if best and not (run.path / BEST_MODEL_FILE).exists():
            raise no_best_model(str(run.path))
        trained = self._trained(run, BEST_MODEL_FILE if best else MODEL_FILE)
        return trained.plain() if plain else trained.module

    def predict(self, data: Any, method: str | None = None, seed: int | None = None) -> "DataFrame":
        """Return the predicted class of raw examples, and the probability of each class.

        `data` is a table (DataFrame, CSV or Parquet file) with the columns of the training data, a folder of images or
        one image, or an array of inputs.
        """
        return self._trained(self._run(method, seed)).predict(data)

    def export(
        self,
        kind: ExportFormat = "onnx",
        path: str | Path | None = None,
        method: str | None = None,
        seed: int | None = None,
    ) -> Path:
        """Write the final global model of a run as "onnx", "torch.export" or "safetensors"; return the file."""
        run = self._run(method, seed)
        return self._trained(run).export(kind, default_export_path(kind, run.path) if path is None else path)

    def _run(self, method: str | None, seed: int | None) -> FinishedRun:
        """Return the finished run of a method and a seed; raise an error if it has no global model."""
        method = self.methods[0] if method is None else method
        if method not in self._results.study.rows:
            raise unknown_name("method of this comparison", method, self._results.study.rows, key="method")
        runs = [run for run in self._results.finished_runs(method) if seed is None or run.cell.seed == seed]
        if not runs or not (runs[0].path / MODEL_FILE).exists():
            which = method if seed is None else f"{method}, seed = {seed}"
            raise UserError(
                "study.no_model",
                f"method = {which}: {self.folder} has no global model of it",
                "method" if seed is None else "seed",
                "choose a method and a seed of a finished run",
            )
        return runs[0]

    def _trained(self, run: FinishedRun, weights: str = MODEL_FILE) -> DeployedModel:
        """Load a global model of a run with its preprocessing."""
        experiment = Experiment(**read_toml(run.path / CONFIG_FILE))
        if self._trust_code:
            experiment = import_own_model(experiment)
        return DeployedModel.load(run.path, experiment, self._objects.model, weights)

    def plot(self, y: str = "accuracy", *, title: str | None = None) -> "Figure":
        """Plot curves over rounds with a band of one standard deviation over seeds.

        `y` is accuracy, loss, local_accuracy, forgetting or one of `run.metrics`.
        """
        from fedrecall.reporting.figures import draw
        from fedrecall.reporting.figures.layout import for_display
        from fedrecall.reporting.figures.style import figure_style

        with figure_style():
            title = self._results.study.title if title is None else title
            return for_display(draw(self._results, FigureSpec(form="curves", title=title, options={"y": y})))

    def to_dataframe(self, of: Literal["rounds", "runs"] = "rounds") -> "DataFrame":
        """Return a pandas DataFrame with one line per round of every run, or one line per run."""
        from pandas import DataFrame

        if of not in ("rounds", "runs"):
            raise unknown_name("kind of line", of, ["rounds", "runs"], key="of")
        columns = len(self._results.study.columns) > 1
        lines = []
        for run in self.runs:
            name = {"method": run.cell.row, **({"column": run.cell.column} if columns else {}), "seed": run.cell.seed}
            lines += [{**name, **record} for record in (run.records if of == "rounds" else [run.summary])]
        return DataFrame(lines)

    def to_dict(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Return the numbers of the complete tables by method and measure; JSON can store them."""
        tables, study = self.tables(), self._results.study
        single = len(tables) == 1 or (len(study.columns) == 1 and study.paper is None)
        return {
            row: {
                title if single else f"{table.title}: {title}": dict(entry.numbers)
                for table in tables
                for title, entry in zip(table.header[1:], dict(table.rows)[row], strict=True)
            }
            for row in self._results.study.rows
        }

    def to_markdown(self) -> str:
        """Return the complete tables as Markdown."""
        return "\n".join(map(to_markdown, self.tables()))

    def to_latex(self) -> str:
        """Return the complete tables as LaTeX."""
        return "\n".join(map(to_latex, self.tables()))

    def save(self, folder: str | Path | None = None) -> Path:
        """Copy the runs to a new folder, if one is passed, and write tables and figures; return the folder."""
        from fedrecall.reporting.figures import draw_all

        if folder is not None and Path(folder) != self.folder:
            require_empty(Path(folder))
            try:
                shutil.copytree(self.folder, folder, dirs_exist_ok=True)
            except OSError as error:
                message = f"{folder}: cannot copy the runs to this folder: {error.strerror or error}"
                raise UserError("study.cannot_write", message, str(folder), "choose another folder") from None
            self._results = load_results(Path(folder))
        write_tables(self._results)
        draw_all(self._results)
        return self.folder

    def report(self, file: str | Path) -> Path:
        """Write an HTML page of the study, with its tables beside it; return the path of the page."""
        from fedrecall.reporting.html import write_report

        return write_report([self.folder], Path(file))[0]

    def __str__(self) -> str:
        console = Console(file=StringIO(), width=Console().width, force_jupyter=False, color_system=None)
        for table in self.tables(brief=True):
            print_table(table, console)
        assert isinstance(console.file, StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from fedrecall.reporting.html import notebook_table

        return "".join(notebook_table(table) for table in self.tables(brief=True))
