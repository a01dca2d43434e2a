"""The configuration: typed, complete, the same from TOML, the command line and Python.

Nothing runs before all of it is valid; an unknown or ill-typed key is refused by name, with the nearest valid one.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, ValidationError, model_validator

from fedrecall.config.choices import NamedChoice
from fedrecall.config.tables import Tables, _reason, apply_overrides, merge_tables, read_toml
from fedrecall.config.validation import find_conflict, to_user_error
from fedrecall.core.method import Method
from fedrecall.core.optim import AdaptiveServer, ClientSGD, ServerOptimiser, ServerSGD
from fedrecall.core.privacy import PRIVACY, GaussianMechanism
from fedrecall.core.robust import AGGREGATION_RULES, AggregationRule
from fedrecall.core.training import LocalTraining
from fedrecall.data.catalog import DATASETS, load_named
from fedrecall.data.custom import from_folder
from fedrecall.data.dataset import Dataset
from fedrecall.data.partitioners import PARTITIONERS, Partitioner
from fedrecall.data.tabular import from_table
from fedrecall.errors import UserError, unknown_name
from fedrecall.methods import METHODS
from fedrecall.methods.presets import PRESETS
from fedrecall.models import MODELS, Model
from fedrecall.simulation.attacks import ATTACKS, Attack
from fedrecall.simulation.availability import STRAGGLER_MODELS, StragglerModel

PROBE_NAMES = ("confusion", "local", "local_confusion", "cohort", "shift", "distillation", "own_data", "features")

Positive = Annotated[int, Field(ge=1)]

Rate = Annotated[float, Field(ge=0)]

Fraction = Annotated[float, Field(gt=0, le=1)]

CHOICES = {
    "method": NamedChoice("method", METHODS, default="fedavg", does="loss", presets=PRESETS),
    "model": NamedChoice("model", MODELS, default=None, does="build"),
    "partition": NamedChoice("partition", PARTITIONERS, default="dirichlet", does="assign", section="federation"),
    "straggler": NamedChoice(
        "straggler", STRAGGLER_MODELS, default="lognormal", does="response_time", section="federation"
    ),
    "attack": NamedChoice("attack", ATTACKS, default=None, does="poison_data", section="federation"),
    "robust": NamedChoice("robust", AGGREGATION_RULES, default=None, does="apply", section="server"),
    "privacy": NamedChoice("privacy", PRIVACY, default="gaussian", does="delta", section="server"),
}

CHOSEN = {  # section -> what is chosen by name in it
    section: tuple(kind for kind, choice in CHOICES.items() if choice.section == section)
    for section in ("federation", "server")
}


T = TypeVar("T")


def _or(value: T | None, default: T) -> T:
    return default if value is None else value


class Section(BaseModel):
    """One table of the configuration."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


class DataSection(Section):
    """Which examples."""

    name: str = "digits"  # a named data set, "folder" or "table"; "own" in the record of a run on data given in Python
    root: Annotated[Path, Field(strict=False)] | None = None  # folder of data sets, offline; else FEDRECALL_DATA
    path: Annotated[Path, Field(strict=False)] | None = None  # of a folder of images or a table
    label: str | None = None  # the table's label column
    client: str | None = None  # the table's client column; for a folder, any value means <client>/<class>/<image>
    classes: Positive | None = None  # femnist: 10, 26 or 62
    size: Positive | None = None  # resize images to size x size when they are decoded
    limit: Positive | None = None  # training examples kept per group (office-caltech-10: 62)
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2  # share held out where the data has no test set of its own
    augment: str | dict[str, Any] = "none"  # a preset, or a table of transforms
    aux: Literal["overlap", "holdout"] = "overlap"  # whether clients keep the auxiliary examples
    aux_per_class: Annotated[int, Field(ge=0)] = 32  # the server's auxiliary set, for the methods that need one

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if self.name not in (valid := (*DATASETS, "folder", "table")) and self.name != "own":
            raise unknown_name("data set", self.name, valid, key="data.name")
        idle = {"folder": ("root", "label", "classes", "limit"), "table": ("root", "classes", "size", "limit")}
        for key in idle.get(self.name, ("path", "label", "client")):
            if getattr(self, key) is not None:
                raise _unused(f"data.{key}", getattr(self, key), "data.name", self.name)
        return self


class FederationSection(Section):
    """Who has which examples, and how many take part in a round."""

    clients: Positive = 10  # how many there are
    sample: Positive | None = None  # clients a round; None: what fraction says
    fraction: Fraction | None = None  # their share of all clients, instead of sample; neither: all of them
    partition: Annotated[Partitioner, SkipValidation, BeforeValidator(CHOICES["partition"].build)] = PARTITIONERS[
        "dirichlet"
    ]()
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # the chance that a client asked does not answer
    straggler: Annotated[StragglerModel, SkipValidation, BeforeValidator(CHOICES["straggler"].build)] | None = None
    attack: Annotated[Attack, SkipValidation, BeforeValidator(CHOICES["attack"].build)] | None = None
    max_norm: Annotated[float, Field(gt=0)] | None = None  # of an update; longer ones are refused; None: a generous one
    max_examples: Positive | None = None  # a client says to have; None: what the largest has

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.sample is not None and self.fraction is not None:
            raise UserError(
                "config.conflict",
                f"federation.fraction = {self.fraction}: federation.sample = {self.sample} is set too",
                "federation.fraction",
                "remove federation.sample or federation.fraction",
            )
        if self.sample is not None and self.sample > self.clients:
            raise UserError(
                "config.conflict",
                f"federation.sample = {self.sample}: more than federation.clients = {self.clients}",
                "federation.sample",
                f"set at most {self.clients}",
            )
        if self.straggler is not None and self.clients_sampled > self.clients:
            raise UserError(
                "config.conflict",
                f"federation.straggler.over = {self.straggler.over}: a round would need {self.clients_sampled} clients, more "
                f"than federation.clients = {self.clients}",
                "federation.straggler.over",
                f"set at most {self.clients - self.clients_per_round}, or a smaller federation.sample",
            )
        return self

    @property
    def clients_per_round(self) -> int:
        """Clients a round."""
        if self.sample is not None:
            return self.sample
        return max(1, int((self.fraction or 1.0) * self.clients + 1e-9))  # 0.29 * 100 is 28.999...

    @property
    def clients_sampled(self) -> int:
        """Clients a round, with those asked in case others are late."""
        return self.clients_per_round + (self.straggler.over if self.straggler is not None else 0)


class LocalSection(Section):
    """How every client trains."""

    epochs: Positive = 5  # passes over its data in a round
    batch: Positive = 50  # examples a step
    lr: Annotated[float, Field(gt=0)] = 0.01  # learning rate of SGD
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # begins anew in every round
    weight_decay: Rate = 0.0  # L2 penalty, added to the gradient
    lr_decay: Annotated[float, Field(gt=0)] = 1.0  # factor a round
    prox: Rate = 0.0  # mu of FedProx, added to whatever method runs
    drop_last: bool = False  # leave out a last batch that is not full


class ServerSection(Section):
    """What the server does with the replies."""

    optimiser: Literal["average", "adagrad", "adam", "yogi"] = "average"  # of the mean update
    lr: Annotated[float, Field(gt=0)] | None = None  # 1 for averaging, 0.01 for the adaptive ones
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # of averaging: FedAvgM
    damped: bool = False  # momentum: the new update times 1 - momentum
    nesterov: bool = False  # momentum: look ahead
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9  # of the adaptive ones
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99  # of adam and yogi
    tau: Annotated[float, Field(gt=0)] = 1e-3  # added to the root: how adaptive they are
    weights: Literal["size", "uniform"] = "size"  # what a reply counts: by examples, or all alike
    robust: Annotated[AggregationRule, SkipValidation, BeforeValidator(CHOICES["robust"].build)] | None = (
        None  # None: all count
    )
    privacy: Annotated[GaussianMechanism, SkipValidation, BeforeValidator(CHOICES["privacy"].build)] | None = None

    @model_validator(mode="after")
    def _meant(self) -> Self:
        if self.optimiser != "average" and (self.momentum or self.damped or self.nesterov):
            key = next(name for name in ("momentum", "damped", "nesterov") if getattr(self, name))
            raise UserError(
                "config.conflict",
                f"server.{key} = {str(getattr(self, key)).lower()}: no effect with "
                f'server.optimiser = "{self.optimiser}"',
                f"server.{key}",
                f'remove server.{key}, or set server.optimiser = "average"',
            )
        if (self.damped or self.nesterov) and not self.momentum:
            key = "damped" if self.damped else "nesterov"
            message = f"server.{key} = true: a variant of momentum, and server.momentum = {self.momentum}"
            raise UserError("config.conflict", message, f"server.{key}", f"set server.momentum, or remove server.{key}")
        return self


class EngineSection(Section):
    """Where the clients run."""

    name: Literal["flower", "pool", "ray", "serial"] = "pool"  # real clients, processes, a cluster, or this process
    workers: Positive | None = None  # processes of the pool, actors on Ray; None: as many as there are cores (or GPUs)
    min_replies: Positive | None = None  # replies that a round needs; None: all, so a client that fails ends the run
    timeout: Annotated[float, Field(gt=0)] | None = None  # seconds that a task may take on a Flower node; None: 600

    @model_validator(mode="after")
    def _meant(self) -> Self:
        for key, engines in (("workers", ("pool", "ray")), ("timeout", ("flower",))):
            if self.name not in engines and getattr(self, key) is not None:
                raise _unused(f"engine.{key}", getattr(self, key), "engine.name", self.name)
        return self


class RaySection(Section):
    """Where Ray is, for engine.name = "ray"."""

    address: str | None = None  # "auto", "HOST:PORT" or "ray://HOST:PORT"; None: one is started for the run


class RunSection(Section):
    """How long, and from which seeds."""

    rounds: Positive = 20  # how long
    seed: int = 0  # everything random comes from it
    partition_seed: int | None = None  # who gets which examples; None: seed
    init_seed: int | None = None  # the first weights; None: seed
    sample_seed: int | None = None  # who takes part in which round; None: seed
    evaluate_every: Positive = 1  # rounds between two tests of the global model
    local_accuracy: bool = False  # score every client's model on the test set too, before aggregation
    targets: Annotated[tuple[Fraction, ...], Field(strict=False)] = ()  # accuracies whose first round is reported
    probes: Annotated[tuple[str, ...], Field(strict=False)] = ()  # what else to look at: see `fedrecall show probes`
    start: Annotated[Path, Field(strict=False)] | None = None  # a run directory or model file to begin with
    track: Literal["tensorboard", "mlflow", "wandb"] | None = None  # who else hears of every round
    checkpoint_every: Positive = 1  # rounds between two checkpoints

    @model_validator(mode="after")
    def _known(self) -> Self:
        for name in self.probes:
            if name not in PROBE_NAMES:
                raise unknown_name("probe", name, PROBE_NAMES, key="run.probes")
        return self


class Experiment(Section):
    """One run, completely described. Every section has defaults: `Experiment()` is the quickstart on digits.

    >>> Experiment(method={"name": "fedlmd", "tau": 3.0}, federation={"clients": 100, "sample": 10}).method
    FedLMD(beta=1.0, tau=3.0)
    """

    data: DataSection = DataSection()
    federation: FederationSection = FederationSection()
    model: Annotated[Model, SkipValidation, BeforeValidator(CHOICES["model"].build)] | None = (
        None  # None: what suits the data
    )
    local: LocalSection = LocalSection()
    method: Annotated[Method, SkipValidation, BeforeValidator(CHOICES["method"].build)] = METHODS["fedavg"]()
    server: ServerSection = ServerSection()
    engine: EngineSection = EngineSection()
    ray: RaySection = RaySection()
    run: RunSection = RunSection()

    def __init__(self, **sections: Any) -> None:
        """Sections as tables, e.g. `Experiment(method={"name": "fedprox", "mu": 0.1}, run={"rounds": 5})`."""
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise to_user_error(error, type(self)) from None

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> Self:
        """Read a TOML file (none: the quickstart), then apply overrides such as "method.mu=0.1"."""
        tables: dict[str, Any] = {}
        if path is not None:
            try:
                tables = tomllib.loads(Path(path).read_text())
            except (OSError, UnicodeDecodeError) as error:
                raise UserError("config.unreadable_file", f"{path}: {_reason(error)}", str(path)) from None
            except (tomllib.TOMLDecodeError, RecursionError) as error:
                raise UserError("config.invalid_toml", f"{path}: not valid TOML: {error}", str(path)) from None
        apply_overrides(tables, overrides)
        return cls(**tables)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if (wrong := find_conflict(self)) is not None:
            raise wrong
        return self

    def to_tables(self) -> dict[str, Any]:
        """The complete configuration as plain tables: what config.toml holds, and `Experiment(**tables)` reads."""
        out: dict[str, Any] = {}
        for name in type(self).model_fields:
            section = getattr(self, name)
            if name == "method":
                out[name] = CHOICES["method"].dump(section)
            elif name == "model":
                out[name] = CHOICES["model"].dump(section) if section is not None else None
            else:
                out[name] = {
                    k: v
                    for k, v in section.model_dump(mode="json", exclude=set(CHOSEN.get(name, ()))).items()
                    if v is not None
                }
                for key in CHOSEN.get(name, ()):
                    if getattr(section, key) is not None:
                        out[name][key] = CHOICES[key].dump(getattr(section, key))
        return {name: table for name, table in out.items() if table}


def _unused(key: str, value: object, name: str, chosen: str) -> UserError:
    """Return the error for a key that has no effect with the chosen name."""
    return UserError("config.conflict", f'{key} = {value}: no effect with {name} = "{chosen}"', key, f"remove {key}")


def read(data: DataSection) -> Dataset:
    """The examples that a configuration names."""
    if data.name == "own":
        raise UserError(
            "config.needs_python_object",
            'data.name = "own": the configuration refers to data passed in Python',
            "data",
            "pass it again: run(..., data=...)",
        )
    if data.name == "folder":
        return from_folder(
            _required(data.path, "path", data), size=data.size, client=data.client is not None, test=data.test
        )
    if data.name == "table":
        return from_table(
            _required(data.path, "path", data), _required(data.label, "label", data), client=data.client, test=data.test
        )
    return load_named(data.name, root=data.root, classes=data.classes, size=data.size, limit=data.limit)


def training(experiment: Experiment) -> LocalTraining:
    """How every client trains."""
    local = experiment.local
    sgd = ClientSGD(local.lr, local.momentum, local.weight_decay, local.prox, local.lr_decay)
    return LocalTraining(local.epochs, local.batch, sgd, local.drop_last)


def server_optimiser(server: ServerSection) -> ServerOptimiser:
    """How the server moves towards the clients' mean."""
    if server.optimiser == "average":
        return ServerSGD(_or(server.lr, 1.0), server.momentum, server.damped, server.nesterov)
    return AdaptiveServer(server.optimiser, _or(server.lr, 0.01), server.beta1, server.beta2, server.tau)


def _required(value: T | None, key: str, data: DataSection) -> T:
    if value is None:
        raise UserError(
            "config.missing_key",
            f'data.{key}: the key is missing, which data.name = "{data.name}" needs',
            f"data.{key}",
            f"set data.{key}",
        )
    return value


# Forgetting at work in a minute or two: each of 40 clients has two digits, and three of them train at a time.
COMPARE_DEFAULTS: Tables = {
    "data": {"name": "digits"},
    "federation": {"clients": 40, "sample": 3, "partition": {"name": "shards", "s": 2}},
    "local": {"epochs": 10, "batch": 16, "lr": 0.05},
    "run": {"rounds": 60, "local_accuracy": True, "checkpoint_every": 20},
}


ConfigLike = Experiment | Mapping[str, Any] | str | Path


def load_tables(config: ConfigLike) -> Tables:
    """A configuration as tables: a complete one, a part of one, or that of a file."""
    if isinstance(config, Experiment):
        return config.to_tables()
    return merge_tables(config) if isinstance(config, Mapping) else read_toml(Path(config))
