"""`fedrecall compare`."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli import completion
from fedrecall.cli.options import (
    AlphaOption,
    ClientsOption,
    DataOption,
    JsonOption,
    ModelOption,
    OutOption,
    RoundsOption,
    SampleOption,
    SeedOption,
    SetOption,
)


def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD",
            help="Names, with settings if desired: fedlmd fedlmd:tau=3,beta=2; or package.module:Class. "
            "Default: six methods.",
            autocompletion=completion.complete_methods,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="CONFIG.toml",
            help="Configuration. Default: 40 clients with two digits each, four per round.",
        ),
    ] = None,
    data: DataOption = None,
    model: ModelOption = None,
    clients: ClientsOption = None,
    sample: SampleOption = None,
    alpha: AlphaOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    seeds: Annotated[int | None, typer.Option(metavar="N", help="Repetitions of every method. Default: 5.")] = None,
    baselines: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Baselines: central, local, majority; none. Default: central,majority for your own data.",
        ),
    ] = None,
    overrides: SetOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on the same federation.

    Each method runs with several seeds; the first one is the reference of the others.
    """
    from fedrecall import api
    from fedrecall.cli import output
    from fedrecall.runs.directory import new_run_directory
    from fedrecall.studies.compare import DEFAULT_SEEDS, NO_BASELINES

    console = output.make_console(as_json)
    try:
        comparison = api.compare(
            methods or [],
            config=config,
            data=data,
            model=model,
            clients=clients,
            sample=sample,
            alpha=alpha,
            rounds=rounds,
            seed=seed,
            overrides=overrides or [],
            seeds=DEFAULT_SEEDS if seeds is None else seeds,
            baselines=None if baselines is None else [n for n in baselines.split(",") if n not in ("", NO_BASELINES)],
            out=out or (lambda study: new_run_directory(study.id)),
            progress=console,
            partial=True,
        )
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    document = output.print_comparison(comparison, console, as_json)
    if as_json:
        output.print_json(document)
