"""The result of a run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedrecall.config.experiment import CHOICES, Experiment
from fedrecall.core.client_report import has_global_model
from fedrecall.core.types import Payload, Server
from fedrecall.data.preprocessing import Preprocessing
from fedrecall.errors import UserError
from fedrecall.models.adapt import without_hooks
from fedrecall.runs.inference import DeployedModel, ExportFormat, default_export_path
from fedrecall.runs.probe_context import ProbeRecord
from fedrecall.runs.records import RoundRecord, describe_privacy

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run: its rounds, a summary of them, and the global model.

    >>> import fedrecall as fr
    >>> result = fr.run(method="fedlmd", data="digits", rounds=2, progress=False)
    >>> 0 < result.summary["final"] < 1
    True
    >>> import torch
    >>> features, logits = result.model()(torch.zeros(1, 1, 8, 8))
    >>> logits.shape
    torch.Size([1, 10])
    """

    experiment: Experiment  # complete
    rounds: list[RoundRecord]  # one per round, as in rounds.jsonl
    summary: dict[str, Any]  # final, best, last10, ... as in summary.json
    directory: Path | None
    server: Server
    preprocessing: Preprocessing  # of raw examples, fitted on the training data
    probes: dict[str, list[ProbeRecord]] = field(default_factory=dict)  # by probe, as in probes/<name>.jsonl
    best_model: Payload = field(default_factory=dict)  # vectors of the best round by validation; empty without one

    @property
    def title(self) -> str:
        """Method and data of the run."""
        return run_title(self.experiment)

    def model(self, *, plain: bool = False, best: bool = False) -> nn.Module:
        """Return the global model after the last round; its forward returns (features, logits).

        With `plain` it is your own module as it was, without the hooks of this library. With `best` it is the model of
        the best round by validation.
        """
        method = self.experiment.known_method
        if method is not None and not has_global_model(method, self.server.f):
            raise UserError(
                "method.no_global_model",
                f"method = {type(method).__name__}: it trains personal models, which stay with their "
                "clients; there is no global model",
                "method",
            )
        f = self.server.f
        vectors = (*f.split(self.server.evaluated_state), self.server.int_buffers)
        if best:
            if not self.best_model:
                raise no_best_model("best = True")
            vectors = (self.best_model["w"], self.best_model["b"], self.best_model["counters"])
        module = f.to_module(*vectors)
        return without_hooks(module) if plain else module

    def predict(self, data: Any) -> "DataFrame":
        """Return the predicted class of raw examples, and the probability of each class.

        `data` is a table (DataFrame, CSV or Parquet file), a folder of images or one image, or an array of inputs.
        """
        return DeployedModel(self.model(), self.preprocessing).predict(data)

    def export(self, kind: ExportFormat = "onnx", path: str | Path | None = None) -> Path:
        """Write the global model as "onnx", "torch.export" or "safetensors"; return the file.

        The default path is model.onnx, model.pt2 or model.safetensors in the run directory, or in the current folder.
        """
        file = default_export_path(kind, self.directory) if path is None else path
        return DeployedModel(self.model(), self.preprocessing).export(kind, file)

    def save_adapter(self, folder: str | Path) -> Path:
        """Write the trained adapter and head in the format of PEFT, which loads it beside the same base; needs LoRA."""
        module: Any = self.model()
        if not hasattr(module, "peft_config"):
            raise UserError(
                "model.no_adapter",
                f"save_adapter: the model {type(module).__name__} has no adapter",
                "model.lora",
                'train one with model.name = "huggingface" and model.lora',
            )
        module.save_pretrained(str(folder), save_embedding_layers=False)
        return Path(folder)

    def plot(self, y: str = "accuracy") -> "Figure":
        """Plot a metric over rounds: accuracy, loss, train_loss, local_accuracy or one of `run.metrics`."""
        from fedrecall.reporting.figures.curves import single_curve
        from fedrecall.reporting.figures.layout import for_display
        from fedrecall.reporting.figures.style import figure_style

        name = CHOICES["method"].dump(self.experiment.method)["name"]
        values = [(record["round"], record.get(y, record.get("metrics", {}).get(y))) for record in self.rounds]
        curve = [(number, value) for number, value in values if value is not None]
        with figure_style():
            return for_display(single_curve(curve, y, name=name, title=self.title))

    def to_dataframe(self) -> "DataFrame":
        """Return the rounds as a pandas DataFrame, one row per round."""
        from pandas import DataFrame

        return DataFrame(self.rounds)

    def __repr__(self) -> str:
        measured = [name for name in ("final", "best", "last10") if self.summary[name] is not None]
        accuracy = "  ".join(f"{name} {100 * self.summary[name]:.2f} %" for name in measured)
        files = "" if self.directory is None else f", files in {self.directory}"
        rounds = f"{self.title}: {self.summary['rounds']} rounds, {self.summary['seconds']:.1f} s{files}"
        privacy = describe_privacy(self.summary)
        return f"{rounds}\naccuracy: {accuracy or 'not measured'}" + (f"\nprivacy: {privacy}" if privacy else "")


def no_best_model(where: str) -> UserError:
    """Return the error for a run that has kept no best model."""
    message = f"{where}: the best model was not kept, because no examples were held out for validation"
    return UserError("study.no_model", message, "best", "set data.validation, such as 0.2, and run it again")


def run_title(experiment: Experiment) -> str:
    """Return the method and the data of an experiment as a title."""
    method = CHOICES["method"].dump(experiment.method)
    return f"{method.get('of', method['name'])} on {experiment.data.title.replace('own', 'your data')}"
