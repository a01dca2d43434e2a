"""What the commands print."""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from fedrecall.cli import output
from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.data.catalog import DATASETS
from fedrecall.errors import UserError
from fedrecall.reporting.figures.partition import save_partition_figure
from fedrecall.runs.directory import new_run_path, require_empty
from fedrecall.runs.probes import PROBES
from fedrecall.runs.progress import RunProgress
from fedrecall.runs.run import Run
from fedrecall.runs.setup import load_and_partition, prepare_run

MAX_CLIENTS_LISTED = 20  # clients listed on the console; the picture has all

MAX_CLASS_COLUMNS = 10  # classes listed in columns


def run_and_show(
    config: Path | None,
    overrides: Sequence[str],
    out: Path | None,
    *,
    resume: Path | None = None,
    force: bool = False,
    as_json: bool = False,
) -> None:
    """Run a configuration with a live display, then print the summary and where the files are."""
    if resume is not None and out is not None:
        text = f"--out {out} conflicts with --resume {resume}, which continues in its own directory"
        raise UserError("cli.conflicting_options", text, "--out", "remove --out")
    if force and resume is None:
        text = "--force has no effect without --resume DIR"
        raise UserError("cli.conflicting_options", text, "--force", "add --resume DIR or remove --force")
    experiment = Experiment.load(config or (resume and resume / "config.toml"), overrides)
    method = CHOICES["method"].dump(experiment.method)["name"]
    title = f"{method} on {experiment.data.name}"
    out = out or resume or new_run_path(f"{method}-{experiment.data.name}")
    console = output.make_console(as_json)
    if resume is None:
        require_empty(out)
    try:
        ready = prepare_run(experiment)
        with (
            RunProgress(experiment.run.rounds, title, console) as progress,
            Run(ready, out, resume=resume is not None, force=force) as run,
        ):
            for record in run:
                progress(record)
    except KeyboardInterrupt:
        kept = f": resume with fedrecall run --resume {out}" if out.exists() else ""
        console.print(f"interrupted{kept}", highlight=False, soft_wrap=True)
        raise SystemExit(130) from None
    summary = run.result.summary
    if as_json:
        output.print_json({"directory": out, "summary": summary})
        return
    accuracy = "  ".join(f"{name} {100 * summary[name]:.2f} %" for name in ("final", "best", "last10"))
    console.print(f"accuracy: {accuracy}", highlight=False)
    done = f"{title}: {summary['rounds']} rounds, {summary['seconds']:.1f} s, files in {out}"
    console.print(done, highlight=False, soft_wrap=True)  # a path in two lines cannot be copied


def show_registry(kind: Literal["method", "model", "partition", "robust", "attack"], as_json: bool = False) -> None:
    """Names, what they are, and their settings with defaults."""
    known: dict[str, dict[str, Any]] = {
        name: {"about": (cls.__doc__ or "").splitlines()[0], "settings": {f.name: f.default for f in fields(cls)}}
        for name, cls in CHOICES[kind].classes.items()
    }
    if as_json:
        output.print_json(known)
        return
    grid = _grid(kind, "what it is", "settings")
    for name, one in known.items():
        settings = ", ".join(f"{key}={format_default(value)}" for key, value in one["settings"].items())
        grid.add_row(name, one["about"], settings)
    Console().print(grid)


def show_datasets(as_json: bool = False) -> None:
    """The named data sets, and what else can be given."""
    if as_json:
        known = DATASETS.items()
        output.print_json(
            {name: {"about": s.about, "examples": s.sizes, "classes": s.num_classes} for name, s in known}
        )
        return
    grid = _grid("data set", "what it is", "examples", "classes")
    for name, source in DATASETS.items():
        sizes = " + ".join(f"{n:,}" for n in source.sizes)
        grid.add_row(name, source.about, sizes, str(source.num_classes))
    grid.add_row("folder", "your images: data.path/<class>/<image>", "", "")
    grid.add_row("table", "your CSV or Parquet file: data.path, data.label", "", "")
    Console().print(grid)


def show_probes(as_json: bool = False) -> None:
    """The probes, and what each costs."""
    if as_json:
        output.print_json({name: {"about": probe.about, "cost": probe.cost} for name, probe in PROBES.items()})
        return
    grid = _grid("probe", "what it looks at", "cost a round, beside the training")
    for name, probe in PROBES.items():
        grid.add_row(name, probe.about, probe.cost)
    Console().print(grid)


def show_partition(config: Path | None, overrides: Sequence[str], out: Path, as_json: bool = False) -> None:
    """Who has which classes, as a table on the console and a picture in a file."""
    experiment = Experiment.load(config, overrides)
    dealt = load_and_partition(experiment)
    counts = dealt.partition.counts(dealt.client_examples.y.numpy(), dealt.dataset.num_classes)
    law, *settings = dealt.partition.partitioner.items()
    described = " ".join([str(law[1]), *(f"{k} = {v}" for k, v in settings[:1])])  # the first setting says how skewed
    title = f"{dealt.dataset.name}, {described}, {len(counts)} clients"
    save_partition_figure(counts, out, class_names=dealt.dataset.classes, title=title)
    if as_json:
        manifest = dealt.partition.manifest(dealt.client_examples.y.numpy(), dealt.dataset.num_classes)
        output.print_json({"picture": out, "classes": dealt.dataset.classes} | manifest)
        return
    console, few = Console(), dealt.dataset.num_classes <= MAX_CLASS_COLUMNS
    grid = _grid("client", "samples", "classes", "largest", *(dealt.dataset.classes if few else ()))
    for client, row in enumerate(counts[:MAX_CLIENTS_LISTED]):
        share = f"{100 * row.max() / max(row.sum(), 1):.0f} %"
        cells = [str(n) if n else "." for n in row] if few else []
        grid.add_row(str(client), str(row.sum()), str((row > 0).sum()), share, *cells)
    console.print(title, highlight=False)
    console.print(grid)
    if len(counts) > MAX_CLIENTS_LISTED:
        console.print(f"... and {len(counts) - MAX_CLIENTS_LISTED} more clients")
    for note in dealt.partition.notes:
        console.print(f"note: {note}", highlight=False)
    console.print(f"picture in {out}", highlight=False)


def format_default(value: object) -> str:
    """A default, as one would write it in a configuration; no space in it, so that no line breaks there."""
    return json.dumps(value, separators=(",", ":")) if value is not None else "none"


def _grid(*columns: str) -> Table:
    grid = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        grid.add_column(column, overflow="fold")
    return grid
