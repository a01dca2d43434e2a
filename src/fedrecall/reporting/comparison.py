"""What a study gave, as Python users hold it: it prints as a table, draws its curves, and is data for more."""

import shutil
import weakref
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from torch import nn

from fedrecall.config.experiment import ConfigLike, Experiment, load_tables
from fedrecall.config.tables import Tables, merge_tables
from fedrecall.errors import UserError, unknown_name
from fedrecall.reporting.tables import ReportTable, comparison_table, paper_tables, write_tables
from fedrecall.reporting.tables.render import print_table, to_latex, to_markdown
from fedrecall.runs.directory import require_empty
from fedrecall.runs.setup import MODEL_FILE, build_model, load_weights
from fedrecall.studies import compare as comparing
from fedrecall.studies.compare import DEFAULT_SEEDS, NO_OBJECTS, MethodLike, ModelLike, PythonObjects
from fedrecall.studies.notebook import study_progress
from fedrecall.studies.reproduce import reproduction_study
from fedrecall.studies.results import FinishedRun, StudyResults
from fedrecall.studies.results import load_results as load_results
from fedrecall.studies.runner import run_study
from fedrecall.studies.study import FigureSpec, Study

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


class Comparison:
    """The runs of some methods, side by side; `compare`, `reproduce` and `load` give one.

    >>> import fedrecall as fr
    >>> side = fr.compare(["fedavg", "fedlmd"], data="digits", rounds=2, seeds=2, progress=False)
    >>> side.methods, len(side.runs)
    (['fedavg', 'fedlmd'], 4)
    >>> table = side.to_dataframe()
    >>> sorted(table["round"].unique().tolist())
    [1, 2]
    """

    def __init__(self, results: StudyResults, given: PythonObjects = NO_OBJECTS) -> None:
        self._results, self._given = results, given

    @property
    def study_results(self) -> StudyResults:
        """The study and its finished runs, as tables, figures and reports read them."""
        return self._results

    @property
    def folder(self) -> Path:
        """Where the run directories are; without `out=`, it goes when this object does: `save` keeps it."""
        return self._results.folder

    @property
    def methods(self) -> list[str]:
        """The names of the rows; the first is what the others are compared with."""
        return list(self._results.study.rows)

    @property
    def runs(self) -> list[FinishedRun]:
        """Every finished run: its `summary`, its `records` round by round, its `path`, its `curve(key)`."""
        return self._results.finished_runs()

    def tables(self, *, brief: bool = False) -> list[ReportTable]:
        """Rows compared with the first, a table a column; of a paper's experiment, beside what it printed."""
        if self._results.study.paper is not None:
            return paper_tables(self._results)
        return [comparison_table(self._results, column, brief=brief) for column in self._results.study.columns]

    def model(self, method: str | None = None, seed: int | None = None) -> nn.Module:
        """The global model that a run ended with; its forward gives (features, logits)."""
        method = self.methods[0] if method is None else method
        if method not in self.methods:
            raise unknown_name("method of this comparison", method, self.methods, key="method")
        runs = [run for run in self._results.finished_runs(method) if seed is None or run.cell.seed == seed]
        if not runs or not (runs[0].path / MODEL_FILE).exists():
            which = method if seed is None else f"{method}, seed = {seed}"
            raise UserError(
                "study.no_model",
                f"method = {which}: {self.folder} has no global model of it",
                "method" if seed is None else "seed",
                "choose a method and a seed of a finished run",
            )
        tables = runs[0].cell.config if not self._results.is_single_run else load_tables(runs[0].path / "config.toml")
        ready = self._given.setup(runs[0].cell, Experiment(**tables))
        module = build_model(ready.experiment, ready.data.dataset, self._given.model)
        load_weights(module, runs[0].path)
        return module

    def plot(self, y: str = "accuracy", *, title: str | None = None) -> "Figure":
        """Curves over rounds with a band of one deviation over seeds: accuracy, loss, local_accuracy, forgetting."""
        from fedrecall.reporting.figures import draw
        from fedrecall.reporting.figures.layout import for_display
        from fedrecall.reporting.figures.style import figure_style

        with figure_style():
            title = self._results.study.title if title is None else title
            return for_display(draw(self._results, FigureSpec(form="curves", title=title, options={"y": y})))

    def to_dataframe(self, of: Literal["rounds", "runs"] = "rounds") -> "DataFrame":
        """A pandas DataFrame with one line a round of every run, or one line a run."""
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
        """The complete table as numbers: method, measure, then mean, deviation and so on. It can be written as JSON."""
        return {
            row: {
                title if len(tables) == 1 else f"{table.title}: {title}": dict(entry.numbers)
                for table in tables
                for title, entry in zip(table.header[1:], dict(table.rows)[row], strict=True)
            }
            for tables in [self.tables()]
            for row in self.methods
        }

    def to_markdown(self) -> str:
        """The complete tables as Markdown."""
        return "\n".join(map(to_markdown, self.tables()))

    def to_latex(self) -> str:
        """The complete tables for a paper."""
        return "\n".join(map(to_latex, self.tables()))

    def save(self, folder: str | Path | None = None) -> Path:
        """Keep the runs in a new folder (or where they are), with tables and figures in files; returns the folder."""
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
        """Write one HTML page of all of it, and its tables beside it; returns the page."""
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


def compare(
    methods: Sequence[MethodLike] | Mapping[str, MethodLike] = (),
    *,
    data: object = None,
    model: ModelLike | None = None,
    partition: object = None,
    clients: int | None = None,
    sample: int | None = None,
    alpha: float | None = None,
    rounds: int | None = None,
    seeds: int = DEFAULT_SEEDS,
    config: ConfigLike | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Run methods side by side: the same federation, cohorts and first weights for all of them, seed by seed.

    `methods` are names, with settings if need be ("fedlmd:tau=3"), tables, or `Method` objects; a dictionary gives them
    names of your choice. The first is what the others are compared with.

    `data` is (x, y), (x, y, clients), a `Dataset`, a torch or Hugging Face dataset, a folder of images, or a name such
    as "digits". It is dealt out to `clients` with Dirichlet `alpha`, or by `partition`, a name, a table or an object;
    where the data names its clients and nothing else is said, they are the clients. `sample` of them train in a round.

    `model` is a name, a table, a module (all runs begin with its weights), or a class or function that makes one (each
    seed has its own). All other settings are in `config`: a file, tables or an `Experiment`, and in `overrides` such as
    "local.lr=0.1". With `out` the run directories are kept there, and a comparison that is there already goes on.

    >>> import fedrecall as fr
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]] * 40, ["left", "right", "both"] * 40
    >>> side = fr.compare(["fedavg", "fedlmd"], data=(x, y), clients=4, alpha=0.5, rounds=2, seeds=1, progress=False)
    >>> list(side.to_dict()["fedlmd"])[:3]
    ['final', 'best', 'last 10']
    """
    if alpha is not None and partition is not None:
        raise UserError(
            "config.conflict",
            f"alpha = {alpha}: it sets a Dirichlet partition, and partition is set too",
            "alpha",
            "remove alpha or partition",
        )
    federation: Tables = {"clients": clients, "sample": sample}
    if alpha is not None:
        federation["partition"] = {"name": "dirichlet", "alpha": alpha}
    sections = {"federation": federation, "run": {"rounds": rounds}}
    said = {key: {k: v for k, v in table.items() if v is not None} for key, table in sections.items()}
    study, given = comparing.own_study(
        methods,
        config,
        overrides,
        seeds,
        data=data,
        model=model,
        partition=partition,
        settings={key: table for key, table in said.items() if table},
    )
    return _run_study(study, given, out, progress)


def reproduce(
    which: str,
    *,
    fraction: float = 1.0,
    methods: Sequence[str] | None = None,
    cells: Sequence[str] | None = None,
    seeds: int | None = None,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool | None = None,
) -> Comparison:
    """Run a table or figure of a paper by its ID, or a part of it; its tables have what was printed beside it.

    >>> import fedrecall as fr
    >>> fr.reproduce("fedlmd-table-9")
    Traceback (most recent call last):
    ...
    fedrecall.errors.UserError: unknown experiment "fedlmd-table-9" (valid: ...): did you mean ...
    """
    rows, columns = (None if names is None else ",".join(names) for names in (methods, cells))
    study = reproduction_study(which, fraction=fraction, rows=rows, columns=columns, seeds=seeds, overrides=overrides)
    return _run_study(study, NO_OBJECTS, out, progress)


def _run_study(study: Study, given: PythonObjects, out: str | Path | None, progress: bool | None) -> Comparison:
    if out is None:  # nobody can go on with it: no checkpoints
        lengths = [study.experiment(cell).run.rounds for cell in study.cells()]
        changed = merge_tables(study.base, {"run": {"checkpoint_every": max(lengths)}})
        study = study.model_copy(update={"base": changed})
    folder = Path(mkdtemp(prefix="fedrecall-")) if out is None else Path(out)
    try:
        with study_progress(study, progress) as watch:
            refused = run_study(study, folder, watch, given)
        if refused.first is not None:
            raise refused.first
    except BaseException:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    found = Comparison(load_results(folder), given)
    if out is None:
        weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)
    return found
