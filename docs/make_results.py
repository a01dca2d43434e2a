"""Writer of docs/results.md, the ledger of the papers' tables and figures, from the records in results/.

`python docs/make_results.py` writes the page. `python docs/make_results.py FOLDER` first copies the records of finished
runs from a folder of studies into results/: configurations, rounds, summaries, probes and predictions on the test set,
no weights and no machine.
"""

import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from fedrecall.reporting.figures import draw_all
from fedrecall.reporting.figures.before_after import client_rounds
from fedrecall.reporting.figures.series import MissingData
from fedrecall.reporting.tables import paper_tables
from fedrecall.reporting.tables.cells import RunGroup, paired_example_interval, run_group
from fedrecall.reporting.tables.paper import printed_value
from fedrecall.reporting.tables.render import to_markdown
from fedrecall.runs.predictions import PREDICTIONS_FILE
from fedrecall.studies import papers
from fedrecall.studies.cost import cost, estimated_gpu_hours, format_estimate
from fedrecall.studies.definitions import experiment_ids
from fedrecall.studies.results import StudyResults, load_results
from fedrecall.studies.statistics import paired_difference
from fedrecall.studies.study import Study

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "results"
RECORD_FILES = ("config.toml", "summary.json", "rounds.jsonl", "partition.json")
NORMAL_95 = 1.96
TEST_EXAMPLES = 10_000  # of CIFAR-10, the data of everything that was run

# The method of each paper and the row that it is compared with.
CLAIMS = {
    "fedcad": ("FedCAD", "FedAvg"),
    "fedcad-sa": ("FedCAD", "FedAvg"),
    "fedssd": ("FedSSD", "FedAvg"),
    "fedcsd": ("FedCSD", "FedAvg"),
    "fedlmd": ("FedLMD", "FedAvg"),
}
# Studies whose claim is about other rows.
OTHER_CLAIMS = {
    "fedlmd-table-2": ("FedLMD-Tf", "FedAvg"),
    "fedlmd-table-5": ("FedLMD+AvgM", "FedLMD"),
    "fedlmd-fig-4": ("FedAvg+KD", "FedAvg"),
    "fedlmd-fig-5": ("FedLMD-Tf", "FedAvg"),
    "fedssd-fig-4": ("FedSSD", "plain training"),
    "fedssd-table-3": ("SSD", "KL"),
    "fedcsd-table-4": ("adaptive mask", "hard mask"),
}
# Figures of one client's round: the claim is about the client's model after its training.
CLIENT_FIGURES = ("fedcad-fig-1", "fedcad-sa-fig-2", "fedssd-fig-4")
# Figures that only draw: partitions, or the behaviour of one method.
WITHOUT_CLAIM = {
    "fedcad-fig-3": "draws the partitions",
    "fedssd-fig-6": "draws the partitions",
    "fedssd-fig-2": "the gap between global and local accuracy grows with the skew",
    "fedssd-fig-3": "class-wise accuracy of FedAvg changes from round to round",
    "fedcsd-fig-1": "local models drift from the global one",
    "fedcsd-fig-3": "sensitivity to mu and tau",
    "fedcsd-fig-4": "sensitivity to alpha",
    "fedcsd-fig-5": "share of the teacher's errors that the mask filters",
    "fedcsd-fig-7": "t-SNE of features",
    "fedlmd-fig-2": "labels of the participants and labels predicted",
    "fedlmd-fig-8": "rounds without a teacher",
    "fedlmd-fig-9": "sensitivity to beta and tau",
}
MISSING_DATA = {
    "cinic10": "CINIC-10 is not there",
    "tiny-imagenet": "Tiny-ImageNet is there with 20 of its 200 classes",
    "femnist": "FEMNIST is there with 376 of its 3,597 writers",
    "office-caltech-10": "Office-Caltech-10 is there at 128 pixels, lossy",
}
GPU_MODELS = ("resnet50", "mobilenet")

REPRODUCED, SUPPORTED = "reproduced", "supported, one seed"
CONTRADICTED, NO_DIFFERENCE = "contradicted", "no difference shown"
DRAWN, NOT_RUN, CANNOT = "drawn", "not run", "cannot be run here"
CLASSES = (REPRODUCED, SUPPORTED, CONTRADICTED, NO_DIFFERENCE, DRAWN, NOT_RUN, CANNOT)

INTRODUCTION = f"""# Results

The ledger of the papers' {{count}} tables and figures, written by `python docs/make_results.py` from the records in
`results/`. `make results` runs what is planned and missing, and writes this page. Only runs at full length are here:
all rounds, complete data, 32-bit floats. A part of a study is named by its columns.

The criterion of a row is the paper's claim: its method against the row that it is compared with, by the accuracy that
the paper reports; in figures of one client's round, by the accuracy on all classes of that client's model after its
training. The classes are

- **{REPRODUCED}**: at least three seeds, the difference has the printed sign, and its 95 % interval over seeds (paired,
  Student's t) excludes zero;
- **{SUPPORTED}**: the same with one seed and the interval over test examples;
- **{CONTRADICTED}**: the interval excludes zero on the other side;
- **{NO_DIFFERENCE}**: the interval contains zero;
- **{DRAWN}**: the figure has no claim that a number tests;
- **{NOT_RUN}**; **{CANNOT}**: it needs a GPU, or data that are not there.

An interval marked e is over test examples, of the seeds whose predictions are kept: the examples of both rows are drawn
together (paired bootstrap). Where a run of one seed has no kept predictions, and in figures of one client's round, it
is the normal approximation, which is not paired and so too wide.

"Printed inside" counts the printed accuracies that are inside the 95 % interval of the measured ones. Costs are those
of the complete study: millions of sample passes (an example in one epoch of one client), and an estimate of hours on
one GPU that sustains 10 TFLOP/s. Seconds are not shown: the machine was busy with other work."""


class Interval(NamedTuple):
    """A measured value and its 95 % interval."""

    value: float
    low: float
    high: float
    seeds: int
    examples: str = ""  # the interval over test examples, where the other one is over seeds

    def __str__(self) -> str:
        mark = "e" if self.seeds == 1 else ""
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]{mark}{self.examples}"


@dataclass(frozen=True)
class Finding:
    """The outcome of a study's claim in one column."""

    column: str
    verdict: str
    measured: Interval
    printed: float | None  # difference

    def __str__(self) -> str:
        printed = "" if self.printed is None else f", printed {self.printed:+.2f}"
        seeds = "one seed" if self.measured.seeds == 1 else f"{self.measured.seeds} seeds"
        return f"{self.column}: {self.measured} ({seeds}{printed})"


def classify(measured: Interval, printed: float) -> str:
    """Return the class of a difference whose printed counterpart has a sign."""
    if measured.low <= 0 <= measured.high:
        return NO_DIFFERENCE
    if (measured.value > 0) != (printed > 0):
        return CONTRADICTED
    if measured.seeds == 1:
        return SUPPORTED
    return REPRODUCED if measured.seeds >= 3 else NO_DIFFERENCE


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Interval | None:
    """Return the difference of accuracies in per cent, over seeds or, of one seed, over test examples."""
    shared = sorted(ours.keys() & theirs.keys())
    if not shared:
        return None
    found = paired_difference({s: ours[s] for s in shared}, {s: theirs[s] for s in shared})
    assert found is not None
    if found.low is not None and found.high is not None:
        return Interval(found.mean, found.low, found.high, found.seeds)
    return _binomial(found.mean, [ours[shared[0]], theirs[shared[0]]])


def compare(ours: RunGroup, theirs: RunGroup, measure: str) -> Interval | None:
    """Return the difference of two rows with its interval over seeds and, from kept predictions, over test examples."""
    found = difference(ours.accuracy(measure), theirs.accuracy(measure))
    seeds = sorted(ours.predictions().keys() & theirs.predictions().keys())
    kept = [replace(g, outcomes=tuple(run for run in g.outcomes if run.cell.seed in seeds)) for g in (ours, theirs)]
    examples = paired_example_interval(kept[0], kept[1], measure)
    if found is None or examples is None:
        return found
    if found.seeds == 1:
        return Interval(examples.mean, examples.low, examples.high, 1)
    which = "" if len(seeds) == found.seeds else f" of {'seed' if len(seeds) == 1 else 'seeds'} {_join(seeds)}"
    return found._replace(examples=f", {examples.mean:+.2f} [{examples.low:+.2f}, {examples.high:+.2f}]e{which}")


def _join(seeds: Sequence[int]) -> str:
    return " and ".join(map(str, seeds))


def _binomial(value: float, accuracies: Sequence[float]) -> Interval:
    half = NORMAL_95 * sqrt(sum(a * (100 - a) for a in accuracies) / TEST_EXAMPLES)
    return Interval(value, value - half, value + half, 1)


def claim_of(study: Study) -> tuple[str, str] | None:
    """Return the row that a study's claim is about, and the row that it is compared with."""
    if study.id in WITHOUT_CLAIM or study.paper is None:
        return None
    return OTHER_CLAIMS.get(study.id, CLAIMS[study.paper])


def findings(results: StudyResults) -> list[Finding]:
    """Return the outcome of a study's claim in every column that was run."""
    claim = claim_of(results.study)
    if claim is None:
        return []
    method, reference = claim
    if results.study.id in CLIENT_FIGURES:
        return _client_findings(results, method, reference)
    found = []
    for column in results.study.columns:
        if method not in results.study.rows or reference not in results.study.rows:
            continue
        measure = results.study.measure
        ours, theirs = (run_group(results, row, column) for row in claim)
        if (measured := compare(ours, theirs, measure)) is not None:
            printed = _printed_difference(results.study, method, reference, column)
            found.append(Finding(column, classify(measured, 1.0 if printed is None else printed), measured, printed))
    return found


def _client_findings(results: StudyResults, method: str, reference: str) -> list[Finding]:
    """Compare the accuracy on all classes of the shown client's model after two ways of training."""
    options = results.study.figures[0].options
    arguments = {"rows": None, "columns": None, "start": options["start"], "client": options["client"]}
    try:
        rounds = client_rounds(results, **arguments, matrices=results.study.id == "fedssd-fig-4")
    except MissingData:
        return []
    found = []
    for column, client in rounds.items():
        accuracy = {stage.label: 100 * float(np.mean(stage.recall)) for stage in client.stages}
        ours, theirs = accuracy.get(f"{method} local"), accuracy.get(f"{reference} local")
        if ours is not None and theirs is not None:
            measured = _binomial(ours - theirs, [ours, theirs])
            found.append(Finding(f"client {client.client}, {column}", classify(measured, 1.0), measured, None))
    return found


def _printed_difference(study: Study, method: str, reference: str, column: str) -> float | None:
    values = [_printed(study, row, column) for row in (method, reference)]
    return None if values[0] is None or values[1] is None else values[0] - values[1]


def _printed(study: Study, row: str, column: str) -> float | None:
    """Return the number that the paper prints for a cell, corrected by the errata; None for text and empty cells."""
    for erratum in study.errata:
        if (erratum.row, erratum.column, erratum.measure) == (row, column, study.measure):
            return erratum.consistent
    value = printed_value(study, row, column, study.measure)
    return None if value is None else value.number


def printed_inside(results: StudyResults) -> tuple[int, int]:
    """Count the printed accuracies inside the interval of the measured ones, and the printed ones that were run."""
    inside = total = 0
    for row in results.study.rows:
        for column in results.study.columns:
            values = run_group(results, row, column).accuracy(results.study.measure)
            printed = _printed(results.study, row, column)
            if not values or printed is None:
                continue
            found = difference(values, dict.fromkeys(values, 0.0))
            interval = found if len(values) > 1 and found else _binomial(fmean(values.values()), [*values.values()])
            inside, total = inside + (interval.low <= printed <= interval.high), total + 1
    return inside, total


def obstacle(study: Study) -> str | None:
    """Return why no column of a study can be run here; None if one can."""
    reasons = {}
    for cell in study.cells():
        experiment = study.experiment(cell)
        name = str(experiment.to_tables()["model"]["name"])
        reason = MISSING_DATA.get(experiment.data.name) or (f"{name} needs a GPU" if name in GPU_MODELS else None)
        reasons[cell.column] = reason
    return "; ".join(dict.fromkeys(map(str, reasons.values()))) if all(reasons.values()) else None


def ledger_row(study: Study, results: StudyResults | None) -> tuple[str, ...]:
    """Return the cells of a study's row of the ledger."""
    complete = cost(study)
    passes, hours = format_estimate(complete.passes / 1e6), format_estimate(estimated_gpu_hours(study))
    claim = claim_of(study)
    criterion = WITHOUT_CLAIM[study.id] if claim is None else f"{claim[0]} above {claim[1]}"
    link = study.id if results is None else f"[{study.id}](#{study.id})"
    if results is None:
        reason = obstacle(study)
        verdict = NOT_RUN if reason is None else CANNOT
        return link, verdict, criterion, reason or f"`fedrecall reproduce {study.id}`", "", passes, hours
    found = findings(results)
    verdicts = dict.fromkeys(finding.verdict for finding in found) or {DRAWN: None}
    inside, total = printed_inside(results)
    counted = f"{inside} of {total}" if total else ""
    return link, ", ".join(verdicts), criterion, "; ".join(map(str, found)), counted, passes, hours


def section(results: StudyResults) -> str:
    """Return the section of one study: what was run, tables, outcome, figures."""
    study = results.study
    current = papers.load_definition(study.id)
    parts = [f"## {study.id}", f"**{study.title}**", current.about.strip(), f"```sh\n{command(study, current)}\n```"]
    if study.printed:
        # a table has headings of level 3, which are of level 4 on the page
        parts += [to_markdown(table).strip().replace("### ", "#### ", 1) for table in paper_tables(results)]
    claim = claim_of(study)
    for finding in findings(results):
        assert claim is not None
        what = f"{claim[0]} minus {claim[1]}, {finding}"
        parts.append(f"**{finding.verdict.capitalize()}.** {what}.")
    if study.id in CLIENT_FIGURES and "printed" in study.figures[0].options:
        parts.append(kept_and_learned(results))
    for name, drawing in draw_all(results).figures.items():
        source = next(path for path in drawing.paths if path.suffix == ".png")
        target = DOCS / "images" / f"results-{study.id}-{name}.png"
        shutil.copyfile(source, target)
        parts.append(f"![{drawing.title}](images/{target.name})")
    shutil.rmtree(results.folder / "figures", ignore_errors=True)
    return "\n\n".join(parts)


def command(study: Study, complete: Study) -> str:
    """Return the command that runs the part of a study that the records have."""
    words = ["fedrecall", "reproduce", study.id]
    if len(study.columns) < len(complete.columns):
        words += ["--cells", ",".join(study.columns)]
    if study.rows.keys() < complete.rows.keys():
        words += ["--methods", ",".join(study.rows)]
    if study.seeds != complete.seeds:
        words += ["--seeds", str(len(study.seeds))]
    return shlex.join(words)


def kept_and_learned(results: StudyResults) -> str:
    """Return a table of what a client's training keeps and learns, measured and printed, and the nearest variants.

    Kept is the change of accuracy on the classes of which the client has at most 5 % of its examples, learned that on
    the classes of which it has at least 10 %. Classes differ from the paper's client, so only such means compare.
    """
    options = results.study.figures[0].options
    rounds = client_rounds(
        results, rows=None, columns=None, start=options["start"], client=options["client"], matrices=False
    )
    client = next(iter(rounds.values()))
    measured = {stage.label.removesuffix(" local"): np.asarray(stage.recall) for stage in client.stages}
    printed = {name: np.asarray(values) for name, values in options["printed"].items()}
    ours = _changes(np.asarray(client.shares), measured.pop("global model"), measured)
    theirs = _changes(printed.pop("data share"), printed.pop("global model"), printed)
    lines = ["| row | kept | learned |", "| --- | ---: | ---: |"]
    for source, changes in (("measured", ours), ("printed", theirs)):
        lines += [f"| {row}, {source} | {kept:+.2f} | {learned:+.2f} |" for row, (kept, learned) in changes.items()]
    nearest = []
    for row, values in theirs.items():
        variants = {name: found for name, found in ours.items() if name.partition(" (")[0] == row}
        if len(variants) > 1:
            best = min(variants, key=lambda name: float(np.hypot(*np.subtract(variants[name], values))))
            nearest.append(f"the printed {row} is nearest to {best}")
    return "\n".join(lines) + (
        f"\n\n**Which form fits.** By these two numbers {'; '.join(nearest)}." if nearest else ""
    )


def _changes(shares: np.ndarray, before: np.ndarray, after: Mapping[str, np.ndarray]) -> dict[str, tuple[float, float]]:
    rare, common = shares <= 0.05, shares >= 0.1
    return {row: (float((a - before)[rare].mean()), float((a - before)[common].mean())) for row, a in after.items()}


def keep_records(folder: Path) -> None:
    """Copy the records of the finished runs of a folder of studies to results/, without the path of that folder."""
    for definition in sorted(folder.glob("*/study.toml")):
        study, target = definition.parent, RECORDS / definition.parent.name
        summaries = sorted(study.glob("cells/**/summary.json"))
        for summary in summaries:
            cell = target / summary.parent.relative_to(study)
            (cell / "probes").mkdir(parents=True, exist_ok=True)
            for name in RECORD_FILES:
                shutil.copyfile(summary.parent / name, cell / name)
            if (summary.parent / PREDICTIONS_FILE).exists():
                shutil.copyfile(summary.parent / PREDICTIONS_FILE, cell / PREDICTIONS_FILE)
            for probe in summary.parent.glob("probes/*.jsonl"):
                shutil.copyfile(probe, cell / "probes" / probe.name)
            environment = json.loads((summary.parent / "environment.json").read_text())
            environment.pop("platform", None)
            (cell / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")
            for file in (cell / "config.toml", cell / "environment.json"):  # of a run that starts from another one
                file.write_text(file.read_text().replace(f"{study.resolve()}/", ""))
        if summaries:
            shutil.copyfile(definition, target / definition.name)


def counts(classes: Sequence[str]) -> str:
    """Return a sentence with the number of tables and figures of each class."""
    found = [(name, classes.count(name)) for name in dict.fromkeys([*CLASSES, *classes])]
    return f"Tables and figures by class: {'; '.join(f'{name} {number}' for name, number in found)}."


def page() -> str:
    """Return the ledger and the sections of the studies that were run."""
    measured: dict[str, StudyResults] = {}
    rows = []
    for name in experiment_ids():
        folder = RECORDS / name
        results = load_results(folder) if (folder / "study.toml").exists() else None
        if results is not None and results.finished_runs():
            measured[name] = results
        rows.append(ledger_row(papers.load_definition(name), measured.get(name)))
    header = ("study", "class", "criterion", "measured difference, points", "printed inside", "M passes", "GPU hours")
    titles, *lines = (f"| {' | '.join(row)} |" for row in (header, *rows))
    table = "\n".join([titles, "|" + "---|" * len(header), *lines])
    parts = [
        INTRODUCTION.format(count=len(rows)),
        "## Ledger",
        counts([row[1] for row in rows]),
        table,
        *map(section, measured.values()),
    ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    for given in sys.argv[1:]:
        keep_records(Path(given))
    (DOCS / "results.md").write_text(page())
