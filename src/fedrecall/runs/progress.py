"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedrecall.runs.records import RoundRecord


class RunProgress:
    """Shows every round of a run."""

    def __init__(self, rounds: int, title: str, console: Console | None = None) -> None:
        self._console = console or Console()
        self._rounds = rounds
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("accuracy {task.fields[accuracy]}"),
            TextColumn("{task.fields[seconds]} s/round"),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=self._console,
            disable=not is_interactive(self._console),
        )
        self._task = self._bar.add_task(title, total=rounds, accuracy="-", seconds="-")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, line: RoundRecord) -> None:
        """One more round is done."""
        accuracy = "-" if line["accuracy"] is None else f"{100 * line['accuracy']:.2f} %"
        if is_interactive(self._console):
            self._bar.update(self._task, advance=1, accuracy=accuracy, seconds=f"{line['seconds']:.2f}")
        else:
            width = len(str(self._rounds))
            self._console.print(
                f"round {line['round']:{width}}/{self._rounds}  accuracy {accuracy}  {line['seconds']:.2f} s",
                highlight=False,
            )


def is_interactive(console: Console) -> bool:
    """Whether it is a terminal that can draw a line anew; where it is not, every piece of news is a line of its own."""
    return console.is_terminal and not console.is_dumb_terminal
