"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli import completion

CONFIG_HELP = "Configuration; default: the quickstart, 10 clients on digits."

ConfigArgument = Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help=CONFIG_HELP)]

ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="CONFIG.toml", help=CONFIG_HELP)]

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key, e.g. method.mu=0.1; repeatable.",
        autocompletion=completion.complete_settings,
    ),
]

MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        metavar="NAME",
        help="Method, with settings: fedlmd:tau=3; or your own, package.module:Class.",
        autocompletion=completion.complete_methods,
    ),
]

DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME|PATH",
        help="Named data, a folder of images, or a .csv or .parquet file with --set data.label=COLUMN.",
        autocompletion=completion.complete_datasets,
    ),
]

ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Network.", autocompletion=completion.complete_models),
]

ClientsOption = Annotated[int | None, typer.Option("--clients", metavar="N", help="Number of clients.")]

SampleOption = Annotated[int | None, typer.Option("--sample", metavar="N", help="Clients per round.")]

AlphaOption = Annotated[float | None, typer.Option("--alpha", metavar="A", help="Dirichlet partition with this alpha.")]

RoundsOption = Annotated[int | None, typer.Option("--rounds", metavar="N", help="Number of rounds.")]

SeedOption = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed; of a comparison, the first one.")]

TrustOption = Annotated[
    bool, typer.Option("--trust-code", help="Import the package.module:Class that DIR names.", show_default=False)
]

OutOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the runs; runs that it has are resumed.")
]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, other text to standard error.", show_default=False)
]
