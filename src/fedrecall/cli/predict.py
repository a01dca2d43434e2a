"""`fedrecall predict`."""

from pathlib import Path
from typing import Annotated

import typer

from fedrecall.cli.options import TrustOption
from fedrecall.errors import UserError


def predict(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory, or the folder of a study.")],
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A .csv or .parquet file, or images.")],
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="The predictions, one line per example; it must not exist.")
    ] = Path("predictions.csv"),
    method: Annotated[
        str | None, typer.Option(metavar="NAME", help="Method, if DIR is a study. Default: the first.")
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed, if DIR is a study. Default: the first.")] = None,
    trust_code: TrustOption = False,
) -> None:
    """Predict the classes of new data with a trained model."""
    if out.exists():
        message = f"{out}: the file exists and is not overwritten"
        raise UserError("cli.file_exists", message, str(out), "choose another --out, or remove it")

    from fedrecall import api
    from fedrecall.files import write_atomic

    predictions = api.load(directory, trust_code=trust_code).predict(data, method, seed)
    try:
        write_atomic(out, predictions.to_csv(index=False).encode())
    except OSError as error:
        message = f"{out}: cannot write: {error.strerror}"
        raise UserError("cli.cannot_write", message, str(out), "choose another --out") from None
    counts = predictions["prediction"].value_counts()
    listed = ", ".join(f"{count} {name}" for name, count in counts.head(5).items())
    typer.echo(f"{len(predictions)} predictions in {out}: {listed}{', ...' if len(counts) > 5 else ''}")
