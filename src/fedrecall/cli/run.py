"""`fedrecall run`."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli import output
from fedrecall.cli.options import ConfigArgument, JsonOption, SetOption
from fedrecall.errors import UserError


def run(
    config: ConfigArgument = None,
    overrides: SetOption = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Run directory; default: a new one in runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume the interrupted run in DIR.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With --resume: ignore changed settings.")] = False,
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
    from fedrecall.config.experiment import Experiment
    from fedrecall.runs.directory import new_run_directory, remove_if_unused
    from fedrecall.runs.result import run_title

    experiment = Experiment.load(config or (resume and resume / "config.toml"), overrides or [])
    directory = out or resume or new_run_directory(run_title(experiment).replace(" on ", "-"))
    console = output.make_console(as_json)
    try:
        result = api.run(experiment, out=directory, resume=resume is not None, force=force, progress=console)
    except UserError:
        if directory not in (out, resume):
            remove_if_unused(directory)
        raise
    except KeyboardInterrupt:
        hint = f": resume with fedrecall run --resume {directory}" if directory.exists() else ""
        output.print_line(console, f"interrupted{hint}")
        raise SystemExit(130) from None
    if as_json:
        output.print_json({"directory": directory, "summary": result.summary})
    else:
        output.print_line(console, str(result))
