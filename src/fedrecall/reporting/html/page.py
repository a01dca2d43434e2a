"""Contents of a study's part of the HTML report, as data for the templates."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from fedrecall.config.tables import Scalar, flatten, read_toml
from fedrecall.reporting.figures.partition import has_counts
from fedrecall.reporting.html.charts import chart_data
from fedrecall.reporting.html.svg import PageFigure, inline_figure
from fedrecall.reporting.tables import ReportTable, TableNote, client_tables, comparison_table, paper_tables
from fedrecall.reporting.tables.breakdown import breakdown_tables, probe_table
from fedrecall.reporting.tables.cells import failed_runs, scope_notes
from fedrecall.reporting.tables.cost import cost_table
from fedrecall.reporting.tables.federation import federated_runs, federation_tables
from fedrecall.reporting.tables.forgetting import forgetting_table
from fedrecall.studies.results import RunCollection, StudyResults, read_json
from fedrecall.studies.study import FigureSpec

ACCURACY = FigureSpec(form="curves", title="Test accuracy by round")

FORGOTTEN = FigureSpec(form="curves", title="Forgotten by round", options={"y": ["forgotten", "forgotten_absent"]})
ACCURACY_GAP = FigureSpec(form="curves", title="Global minus local accuracy by round", options={"y": "forgetting"})

PRESENCE_FIGURE = FigureSpec(form="presence", title="Replies by client and round")

PARTITION = FigureSpec(form="partition", title="Samples by client and class")

NOT_MEASURED = 'Not measured: the runs have neither run.local_accuracy nor the probe "forgotten" (run.probes).'

# Figures of the probes; the others are shown as tables of means, and in the curves.
PROBE_FIGURES = {
    "confusion": FigureSpec(form="global-confusion", title="Confusion matrix of the final global model"),
    "local": FigureSpec(form="local-global", title="Local and global models"),
    "local_confusion": FigureSpec(
        form="confusion", title="One client's round: confusion before and after its training"
    ),
    "cohort": FigureSpec(form="labels-over-rounds", title="Labels of the cohorts and predictions, by round"),
    "shift": FigureSpec(form="shift", title="Distance of local models from the received one"),
    "features": FigureSpec(form="tsne", title="Features of test examples (t-SNE)"),
}

HASH_DIGITS = 12  # displayed digits of a hash; environment.json has all of them

MAX_LISTED = 6  # distinct values of a setting that are listed; the rest is counted

ENVIRONMENT_LABELS = {
    "fedrecall": "fedrecall",
    "python": "Python",
    "torch": "PyTorch",
    "numpy": "NumPy",
    "platform": "system",
    "cpu": "instructions",
    "cores": "cores",
    "parameters": "model parameters",
    "data": "data fingerprint",
    "partition": "partition hash",
}


class PageSection(NamedTuple):
    """Titled part of a study; `name` is its address on the page and selects what the template adds to it."""

    name: str
    title: str
    tables: tuple[ReportTable, ...] = ()
    figures: tuple[PageFigure, ...] = ()
    text: str = ""


class Listing(NamedTuple):
    """TOML text, line by line; True marks a line that differs between the listings."""

    title: str
    lines: list[tuple[str, bool]]


@dataclass(frozen=True)
class StudyPage:
    """Everything that the page shows of one study."""

    element_id: str
    title: str
    about: list[str]
    rows: list[str]
    columns: list[str]
    sections: list[PageSection]
    notes: list[TableNote]
    num_runs: int
    num_finished: int
    unfinished: list[str]
    failed: list[str]
    settings: dict[str, str]
    chart: dict[str, Any]
    command: str
    folder: str | None  # in which the command can complete the study; None if there is no such folder
    environment: dict[str, str]
    row_configurations: list[Listing]
    column_configurations: list[Listing]

    @property
    def tables(self) -> list[ReportTable]:
        """The tables of all sections."""
        return [table for section in self.sections for table in section.tables]


def build_study_page(results: StudyResults, element_id: str) -> StudyPage:
    """Collect what the page shows of a study; every address in it begins with `element_id`."""
    study = results.study
    chart, environment = chart_data(results), environment_table(results)
    named = {"study": study.id} | ({} if study.paper is None else {"paper": study.paper})
    for label, names in (("methods", study.methods), ("columns", list(study.columns))):
        if len(names) > 1:
            named[label] = join_limited(names)
    if study.baselines:
        named["baselines"] = join_limited(study.baselines)
    rows, columns = _configurations(results)
    return StudyPage(
        element_id=element_id,
        title=study.title,
        about=[paragraph for paragraph in study.about.split("\n\n") if paragraph.strip()],
        rows=list(study.rows),
        columns=list(study.columns),
        sections=list(_sections(results, element_id, chart, environment)),
        notes=scope_notes(results),
        num_runs=len(study.cells()),
        num_finished=len(results.finished_runs()),
        unfinished=[f"{cell.row}, {cell.column}, seed {cell.seed}" for cell in results.unfinished],
        failed=failed_runs(results),
        settings=named | main_settings(results),
        chart=chart,
        command=results.command,
        folder=str(results.folder) if results.unfinished and not isinstance(results, RunCollection) else None,
        environment=environment,
        row_configurations=rows,
        column_configurations=columns,
    )


def _sections(
    results: StudyResults, element_id: str, chart: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[PageSection]:
    """Yield the sections in reading order."""
    study, finished = results.study, results.finished_runs()
    forms = {figure.form for figure in study.figures}

    def draw(section: str, *specs: FigureSpec) -> tuple[PageFigure, ...]:
        prefix = f"{element_id}-{section}-figure"
        return tuple(inline_figure(results, spec, f"{prefix}-{number}") for number, spec in enumerate(specs, 1))

    yield PageSection("overview", "Overview")
    if study.paper is not None:
        yield PageSection("paper", "Comparison with the paper", tuple(paper_tables(results)))
    if finished:
        tables = tuple(comparison_table(results, column) for column in study.columns)
        yield PageSection("comparison", "Comparison" if len(study.rows) > 1 else "Result", tables)
    if chart["measures"]:
        yield PageSection("curves", "Curves", figures=() if "curves" in forms else draw("curves", ACCURACY))
    if study.figures:
        yield PageSection("figures", "Figures", figures=draw("figures", *study.figures))
    if (forgetting := forgetting_table(results)) is not None:
        shown = FORGOTTEN if "forgotten" in forgetting.header else ACCURACY_GAP
        yield PageSection("forgetting", "Forgetting", (forgetting,), draw("forgetting", shown))
    elif finished:
        yield PageSection("forgetting", "Forgetting", text=NOT_MEASURED)
    breakdown = [table for column in study.columns for table in breakdown_tables(results, column)]
    if breakdown := client_tables(results) + breakdown:
        yield PageSection("breakdown", "By class and client", tuple(breakdown))
    probes = recorded_probes(results)
    probe_tables = [probe_table(results, column, name) for name in probes for column in study.columns]
    specs = [PROBE_FIGURES[name] for name in probes if name in PROBE_FIGURES and PROBE_FIGURES[name].form not in forms]
    if probes:
        shown_tables = tuple(table for table in probe_tables if table is not None)
        yield PageSection("probes", "Probes", shown_tables, draw("probes", *specs))
    if finished:
        if federated_runs(results):
            figures = () if "presence" in forms else draw("federation", PRESENCE_FIGURE)
            yield PageSection("federation", "Federation", tuple(federation_tables(results)), figures)
        if "partition" not in forms and has_counts(results):
            yield PageSection("partition", "Partition", figures=draw("partition", PARTITION))
        yield PageSection("cost", "Cost", (cost_table(results),))
    yield PageSection("repeat", "Command")
    if environment:
        yield PageSection("environment", "Environment")
    yield PageSection("configuration", "Configuration")


def recorded_probes(results: StudyResults) -> list[str]:
    """Return the probes that some run has, and "confusion" if it is a metric, in the order of `run.probes`."""
    found: dict[str, None] = {}
    for path in dict.fromkeys(run.path for run in results.finished_runs()):
        run = read_toml(path / "config.toml").get("run", {})
        found |= dict.fromkeys(run.get("probes", ()))
        if "confusion" in run.get("metrics", ()):
            found["confusion"] = None
    return list(found)


def main_settings(results: StudyResults) -> dict[str, str]:
    """Return the settings that characterise a study; where runs differ, all their values."""
    paths = {run.path for row in results.study.methods for run in results.finished_runs(row)}
    configs = [read_toml(path / "config.toml") for path in sorted(paths)] or list(_row_tables(results).values())
    seen: dict[str, dict[str, None]] = {}
    for tables in configs:
        for name, text in _setting_texts(flatten(tables)):
            seen.setdefault(name, {})[text] = None
    return {name: join_limited(values) for name, values in seen.items()}


def _setting_texts(config: Mapping[str, Scalar]) -> Iterator[tuple[str, str]]:
    path = config.get("data.path")
    yield "data", str(config.get("data.name")) if path is None else Path(str(path)).name
    yield "model", str(config.get("model.name", "chosen for the data"))
    clients, fraction = config.get("federation.clients"), config.get("federation.fraction")
    share = f"{fraction:.3g} of them" if isinstance(fraction, float) else "all"
    yield "clients", f"{clients}, {config.get('federation.sample', share)} per round"
    prefix = "federation.partition."
    options = [f"{key.removeprefix(prefix)} {value}" for key, value in config.items() if key.startswith(prefix)]
    yield "partition", ", ".join(options[:2]).removeprefix("name ")  # the first option determines the skew
    epochs, batch, lr = (config.get(f"local.{key}") for key in ("epochs", "batch", "lr"))
    yield "local training", f"{epochs} epochs, batches of {batch}, learning rate {lr}"
    yield "rounds", str(config.get("run.rounds"))


def environment_table(results: StudyResults) -> dict[str, str]:
    """Return versions and machine as the runs recorded them, under readable labels."""
    seen: dict[str, dict[str, None]] = {}
    for path in dict.fromkeys(run.path for run in results.finished_runs()):
        file = path / "environment.json"
        for key, value in (read_json(file) if file.exists() else {}).items():
            if key != "config" and value is not None:  # the configuration has a section of its own
                text = str(value)[:HASH_DIGITS] if key in ("data", "partition") else str(value)
                seen.setdefault(key, {})[text] = None
    order = sorted(seen, key=[*ENVIRONMENT_LABELS, *seen].index)
    return {ENVIRONMENT_LABELS.get(key, key): join_limited(seen[key]) for key in order}


def _configurations(results: StudyResults) -> tuple[list[Listing], list[Listing]]:
    """Return each row's complete configuration, marked where rows differ, and the keys that each column sets."""
    texts = {row: tomli_w.dumps(tables).splitlines() for row, tables in _row_tables(results).items()}
    common = set.intersection(*map(set, texts.values()))
    rows = [Listing(row, [(line, line not in common) for line in lines]) for row, lines in texts.items()]
    columns = [
        Listing(column, [(line, False) for line in tomli_w.dumps(tables).splitlines()])
        for column, tables in results.study.columns.items()
        if tables
    ]
    return rows, columns


def _row_tables(results: StudyResults) -> dict[str, dict[str, Any]]:
    """Return the complete configuration of each row: of its first finished run, or of its first planned one."""
    out = {}
    for row in results.study.rows:
        finished = results.finished_runs(row)
        first = results.study.cell(row, next(iter(results.study.columns)), results.study.seeds[0])
        out[row] = (
            read_toml(finished[0].path / "config.toml") if finished else results.study.experiment(first).to_tables()
        )
    return out


def join_limited(values: Iterable[str]) -> str:
    """Join the first few values; count the rest.

    >>> join_limited("abcdefgh")
    'a; b; c; d; e; f; and 2 more'
    """
    values = list(values)
    more = f"; and {len(values) - MAX_LISTED} more" if len(values) > MAX_LISTED else ""
    return "; ".join(values[:MAX_LISTED]) + more
