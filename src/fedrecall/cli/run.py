"""`fedrecall run`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrecall.cli import output
from fedrecall.cli.options import (
    AlphaOption,
    ClientsOption,
    ConfigArgument,
    DataOption,
    JsonOption,
    MethodOption,
    ModelOption,
    RoundsOption,
    SampleOption,
    SeedOption,
    SetOption,
    TrustOption,
)
from fedrecall.errors import UserError

if TYPE_CHECKING:
    from fedrecall.config.experiment import Experiment


def run(
    config: ConfigArgument = None,
    method: MethodOption = None,
    data: DataOption = None,
    model: ModelOption = None,
    clients: ClientsOption = None,
    sample: SampleOption = None,
    alpha: AlphaOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run directory; default: a new one in runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume the interrupted run in DIR.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With --resume: ignore changed settings.")] = False,
    trust_code: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Train a federation and write its results to a run directory."""
    if resume is not None and out is not None:
        text = f"--out {out} conflicts with --resume {resume}, which continues in its own directory"
        raise UserError("cli.conflicting_options", text, "--out", "remove --out")
    if force and resume is None:
        text = "--force has no effect without --resume DIR"
        raise UserError("cli.conflicting_options", text, "--force", "add --resume DIR or remove --force")

    from fedrecall import api
    from fedrecall.runs.directory import new_run_directory, remove_if_unused
    from fedrecall.runs.result import run_title

    console, directory = output.make_console(as_json), out or resume

    def new_directory(experiment: "Experiment") -> Path:
        nonlocal directory
        directory = new_run_directory(run_title(experiment).replace(" on ", "-"))
        return directory

    try:
        result = api.run(
            config,
            method=method,
            data=data,
            model=model,
            clients=clients,
            sample=sample,
            alpha=alpha,
            rounds=rounds,
            seed=seed,
            overrides=overrides or [],
            out=directory or new_directory,
            resume=resume is not None,
            force=force,
            trust_code=trust_code,
            progress=console,
        )
    except UserError:
        if directory is not None and directory not in (out, resume):
            remove_if_unused(directory)
        raise
    except KeyboardInterrupt:
        hint = f": resume with fedrecall run --resume {directory}" if directory and directory.exists() else ""
        output.print_line(console, f"interrupted{hint}")
        raise SystemExit(130) from None
    if as_json:
        output.print_json({"directory": directory, "summary": result.summary})
    else:
        output.print_line(console, str(result))
