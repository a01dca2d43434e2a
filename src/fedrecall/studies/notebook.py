"""A study's progress as Python users see it: live in a notebook or on a terminal, else only if it is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console

from fedrecall.runs.progress import LiveOutput, progress_console
from fedrecall.runs.records import RoundRecord
from fedrecall.studies.progress import StudyProgress
from fedrecall.studies.runner import Summary, Watch
from fedrecall.studies.study import Cell, Study


@contextmanager
def study_progress(study: Study, progress: bool | None) -> Iterator[Watch]:
    """Someone who shows how a study goes on; with None, only where it can be live."""
    console = progress_console(progress)
    if console.quiet:
        yield Watch()
    elif console.is_jupyter:
        with NotebookStudyProgress(study) as board:
            yield board
    else:
        with StudyProgress(study, console) as board:
            yield board


class NotebookStudyProgress(StudyProgress):
    """The table of a study's runs in a notebook's cell."""

    def __init__(self, study: Study) -> None:
        super().__init__(study, Console(force_terminal=True))  # the table is live, so no line for every run

    def __enter__(self) -> "NotebookStudyProgress":
        self._output = LiveOutput(self.__rich__, Console(force_jupyter=True))
        self._output.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._output.__exit__()

    def round(self, cell: Cell, record: RoundRecord) -> None:
        """A run has made another round."""
        super().round(cell, record)
        self._output.refresh()

    def ended(self, cell: Cell, summary: Summary, here: bool) -> None:
        """A cell is finished."""
        super().ended(cell, summary, here)
        self._output.refresh()
