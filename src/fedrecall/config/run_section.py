"""The section [run]: duration, seeds, measurements, early stopping and checkpoints."""

from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator

from fedrecall.config.section import Fraction, LaxPath, Positive, Section, Seed
from fedrecall.core.metrics import CONFUSION, METRICS
from fedrecall.errors import UserError, unknown_name

ProbeName = Literal[
    "confusion",
    "local",
    "forgotten",
    "pull",
    "local_confusion",
    "cohort",
    "shift",
    "distillation",
    "own_data",
    "features",
]
PROBE_NAMES: tuple[str, ...] = get_args(ProbeName)

METRIC_NAMES = (*METRICS, CONFUSION)


def _require_known_metric(metric: Any) -> Any:
    if not callable(metric) and metric not in METRIC_NAMES and ":" not in str(metric):
        raise unknown_name("metric", metric, METRIC_NAMES, key="run.metrics")
    return metric


def metric_reference(metric: Any) -> str:
    """Return the name of a metric; of a function or another callable object, "package.module:function"."""
    if isinstance(metric, str):
        return metric
    name = getattr(metric, "__name__", type(metric).__qualname__)
    return f"{metric.__module__}:{getattr(metric, '__qualname__', name)}"


MetricLike = Annotated[
    Any,
    BeforeValidator(_require_known_metric),
    PlainSerializer(metric_reference),
    WithJsonSchema({"anyOf": [{"enum": list(METRIC_NAMES)}, {"type": "string", "pattern": ":"}]}),
]
"""Name of a metric; a function of true labels [n] and probabilities [n, K], or its name "package.module:function"."""


class StopSection(Section):
    """Early stopping, by the validation examples or, without any, by the test set."""

    metric: str = "accuracy"
    """Metric that is monitored."""
    patience: Positive | None = None
    """Number of evaluations without a better value after which the run stops. None: no limit."""
    target: float | None = None
    """Value of the metric at which the run stops. None: no target."""

    @model_validator(mode="after")
    def _check_condition(self) -> Self:
        if self.patience is None and self.target is None:
            message = "run.stop: neither patience nor target is set, so the run would never stop early"
            raise UserError("config.conflict", message, "run.stop", "set run.stop.patience or run.stop.target")
        return self


class RunSection(Section):
    """Duration, seeds, measurements and checkpoints."""

    rounds: Positive = 20
    """Number of communication rounds."""
    seed: Seed = 0
    """Seed of all random numbers."""
    partition_seed: Seed | None = None
    """Seed of the partition and the auxiliary set. None: run.seed."""
    init_seed: Seed | None = None
    """Seed of the initial weights. None: run.seed."""
    sample_seed: Seed | None = None
    """Seed of the sampling of clients. None: run.seed."""
    evaluate_every: Positive = 1
    """Number of rounds between two evaluations of the global model."""
    local_accuracy: bool = False
    """Evaluate every client's model on the test set too, before aggregation."""
    metrics: Annotated[tuple[MetricLike, ...], Field(strict=False)] = ()
    """Metrics computed beside the accuracy, on the server's test set and on clients' held-out examples. A name with a
    colon is a function of your own, "package.module:function"."""
    stop: StopSection | None = None
    """Early stopping. None: all rounds are run."""
    targets: Annotated[tuple[Fraction, ...], Field(strict=False)] = ()
    """Accuracies for which the first round that reaches them is reported."""
    probes: Annotated[tuple[ProbeName, ...], Field(strict=False)] = ()
    """Additional measurements; `fedrecall show probes` lists them."""
    probe_every: Positive = 1
    """Number of rounds between two evaluations of the clients' models on the test set: for run.local_accuracy and for
    probes, of which those that need no test set are made in every round."""
    start: LaxPath | None = None
    """Run directory or model file with the initial weights. None: random weights."""
    track: Literal["tensorboard", "mlflow", "wandb"] | None = None
    """Experiment tracker that receives every round's metrics. None: no tracker."""
    checkpoint_every: Positive = 1
    """Number of rounds between two checkpoints."""

    def seed_for(self, part: Literal["partition", "init", "sample"]) -> int:
        """Return the seed of one part of the run: its own, or run.seed."""
        own: int | None = getattr(self, f"{part}_seed")
        return self.seed if own is None else own
