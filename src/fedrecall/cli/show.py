"""`fedrecall show`."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedrecall.cli import output
from fedrecall.cli.options import ConfigArgument, JsonOption, SetOption

MAX_CLIENTS_LISTED = 20  # rows of the table; the figure has all clients

MAX_CLASS_COLUMNS = 10  # more do not fit into 80 columns

app = typer.Typer(help="Show the available choices, and the data of every client.", no_args_is_help=True)


@app.command()
def methods(as_json: JsonOption = False) -> None:
    """List the methods and their hyper-parameters."""
    show_registry("method", as_json)


@app.command()
def models(as_json: JsonOption = False) -> None:
    """List the models and their settings."""
    show_registry("model", as_json)


@app.command()
def partitions(as_json: JsonOption = False) -> None:
    """List the data partitioners and their settings."""
    show_registry("partition", as_json)


@app.command("rules")
def aggregation_rules(as_json: JsonOption = False) -> None:
    """List the robust aggregation rules (server.robust)."""
    show_registry("robust", as_json)


@app.command()
def attacks(as_json: JsonOption = False) -> None:
    """List the simulated attacks (federation.attack)."""
    show_registry("attack", as_json)


@app.command()
def datasets(as_json: JsonOption = False) -> None:
    """List the named data sets."""
    from fedrecall.data.catalog import DATASETS

    if as_json:
        output.print_json(
            {n: {"about": s.about, "examples": s.sizes, "classes": s.num_classes} for n, s in DATASETS.items()}
        )
        return
    table = output.new_table("data set", "description", "examples", "classes")
    for name, spec in DATASETS.items():
        table.add_row(name, spec.about, " + ".join(f"{size:,}" for size in spec.sizes), str(spec.num_classes))
    table.add_row("folder", "your images: data.path/<class>/<image>", "", "")
    table.add_row("table", "your CSV or Parquet file: data.path, data.label", "", "")
    output.make_console().print(table)


@app.command()
def probes(as_json: JsonOption = False) -> None:
    """List the probes (run.probes), and the cost of each."""
    from fedrecall.runs.probes import PROBES

    if as_json:
        output.print_json({name: {"about": probe.about, "cost": probe.cost} for name, probe in PROBES.items()})
        return
    table = output.new_table("probe", "measures", "cost per round, beside the training")
    for name, probe in PROBES.items():
        table.add_row(name, probe.about, probe.cost)
    output.make_console().print(table)


@app.command("partition")
def show_partition(
    config: ConfigArgument = None,
    overrides: SetOption = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The figure: PNG, SVG or PDF.")] = Path("partition.png"),
    as_json: JsonOption = False,
) -> None:
    """Show the classes of every client; save them as a figure."""
    from fedrecall.config.experiment import Experiment
    from fedrecall.reporting.figures.partition import save_partition_figure
    from fedrecall.runs.setup import load_and_partition

    data = load_and_partition(Experiment.load(config, overrides or []))
    dataset, partition, labels = data.dataset, data.partition, data.client_examples.y.numpy()
    counts = partition.counts(labels, dataset.num_classes)
    name, *settings = partition.partitioner.items()
    described = " ".join([str(name[1]), *(f"{k} = {v}" for k, v in settings[:1])])  # the first one is the skew
    title = f"{dataset.name}, {described}, {len(counts)} clients"
    names = data.client_names
    save_partition_figure(counts, out, class_names=dataset.classes, client_names=names, title=title)
    if as_json:
        manifest = partition.manifest(labels, dataset.num_classes)
        output.print_json({"picture": out, "classes": dataset.classes, "client_names": names or ()} | manifest)
        return
    class_columns = dataset.num_classes <= MAX_CLASS_COLUMNS
    table = output.new_table("client", "samples", "classes", "largest", *(dataset.classes if class_columns else ()))
    for client, row in enumerate(counts[:MAX_CLIENTS_LISTED]):
        largest = f"{100 * row.max() / max(row.sum(), 1):.0f} %"
        cells = [str(n) if n else "." for n in row] if class_columns else []
        table.add_row(names[client] if names else str(client), str(row.sum()), str((row > 0).sum()), largest, *cells)
    console = output.make_console()
    output.print_line(console, title)
    console.print(table)
    if len(counts) > MAX_CLIENTS_LISTED:
        output.print_line(console, f"... and {len(counts) - MAX_CLIENTS_LISTED} more clients")
    for note in partition.notes:
        output.print_line(console, f"note: {note}")
    output.print_line(console, f"figure in {out}")


def show_registry(kind: Literal["method", "model", "partition", "robust", "attack"], as_json: bool) -> None:
    """Print the names that a configuration key accepts, with their settings and defaults; methods by purpose."""
    from fedrecall.config.experiment import CHOICES
    from fedrecall.methods import METHOD_GROUPS

    choices: dict[str, dict[str, Any]] = {
        name: {"about": (cls.__doc__ or "").splitlines()[0], "settings": {f.name: f.default for f in fields(cls)}}
        for name, cls in CHOICES[kind].classes.items()
    }
    if kind == "method":
        for group, names in METHOD_GROUPS.items():
            for name in names:
                choices[name]["group"] = group
    if as_json:
        output.print_json(choices)
        return
    console = output.make_console()
    groups = METHOD_GROUPS if kind == "method" else {"": tuple(choices)}
    for group, names in groups.items():
        table = output.new_table(kind, "description", "settings")
        for name in names:
            choice = choices[name]
            settings = ", ".join(f"{key}={format_default(value)}" for key, value in choice["settings"].items())
            table.add_row(name, choice["about"], settings)
        if group:
            output.print_line(console, f"\n{group}")
        console.print(table)


def format_default(value: object) -> str:
    """Return a default as a configuration has it; without spaces, so that no line breaks inside."""
    return json.dumps(value, separators=(",", ":")) if value is not None else "none"
