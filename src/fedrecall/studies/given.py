"""What a Python user gives that no configuration can hold: data, a model, a partition, methods of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedrecall.config.experiment import Experiment
from fedrecall.core.method import Method
from fedrecall.data.catalog import Dataset
from fedrecall.errors import UserError
from fedrecall.runs.directory import RunDirectory
from fedrecall.runs.setup import Setup, UserModel, prepare_run
from fedrecall.studies.study import Cell


@dataclass(frozen=True)
class PythonObjects:
    """The objects behind a study whose tables name them "own"; nothing, for a study that needs none."""

    data: Dataset | None = None
    model: UserModel | None = None
    partition: object = None
    methods: Mapping[str, Method] = field(default_factory=dict)  # by row

    def setup(self, cell: Cell, experiment: Experiment) -> Setup:
        """Everything that a cell's run needs."""
        if cell.row in self.methods:
            experiment = experiment.model_copy(update={"method": self.methods[cell.row]})
        return prepare_run(experiment, data=self.data, model=self.model, partition=self.partition)

    def require_unchanged(self, cell: Cell, path: Path) -> None:
        """Refuse a finished run that was made with other objects under the same names."""
        if self == NO_OBJECTS:
            return
        if differences := RunDirectory(path).differences(self.setup(cell, Experiment(**cell.config))):
            raise UserError(
                "study.other_settings",
                f"{path}: the finished run has other settings: {'; '.join(differences)}",
                str(path),
                "set another out, or remove it",
            )


NO_OBJECTS = PythonObjects()
