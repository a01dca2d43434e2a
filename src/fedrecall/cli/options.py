"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli import completion

CONFIG_HELP = "Configuration; default: the quickstart on digits."

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

OutOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the runs; runs that it has are resumed.")
]

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the result as JSON, other text to standard error.", show_default=False)
]
