"""Configuration of a run: typed sections with defaults, the same for TOML, the command line and Python.

A configuration is validated completely before anything runs. An unknown or ill-typed key is an error with the key and
the nearest valid name.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from fedrecall.config.choices import NamedChoice, PythonObject, resolved
from fedrecall.config.data_section import IMBALANCE_CHOICE, DataSection
from fedrecall.config.local_section import SCHEDULE_CHOICE, LocalSection
from fedrecall.config.overrides import apply_overrides
from fedrecall.config.run_section import RunSection
from fedrecall.config.section import BelowOne, Fraction, Positive, Section, unused_key
from fedrecall.config.tables import Scalar, Tables, flatten, lookup, read_toml
from fedrecall.config.validation import find_conflict, to_user_error
from fedrecall.constraints import PositiveFloat
from fedrecall.core.method import Method
from fedrecall.core.optim import AdaptiveServer, ServerOptimiser, ServerSGD
from fedrecall.core.preaggregation import PREAGGREGATIONS
from fedrecall.core.privacy import PRIVACY, GaussianMechanism
from fedrecall.core.robust import AGGREGATION_RULES, AggregationRule
from fedrecall.core.types import ReplyWeighting
from fedrecall.data.partitioners import PARTITIONERS, Partitioner
from fedrecall.errors import UserError, unknown_name
from fedrecall.methods import METHODS
from fedrecall.methods.presets import PRESETS
from fedrecall.models import MODELS, Model
from fedrecall.simulation.attacks import ATTACKS, Attack
from fedrecall.simulation.availability import STRAGGLER_MODELS, StragglerModel


def _require_device_name(device: Any) -> Any:
    if isinstance(device, str) and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        raise unknown_name("engine.device", device, ["auto", "cpu", "cuda", "cuda:0"], key="engine.device")
    return device


DeviceName = Annotated[
    str,
    BeforeValidator(
        _require_device_name, json_schema_input_type=Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]
    ),
]

CHOICES = {
    choice.kind: choice
    for choice in (
        NamedChoice("method", METHODS, Method, default="fedavg", presets=PRESETS, importable=True),
        NamedChoice("model", MODELS, Model, importable=True),
        SCHEDULE_CHOICE,
        NamedChoice("partition", PARTITIONERS, Partitioner, "dirichlet", "federation", importable=True),
        IMBALANCE_CHOICE,
        NamedChoice("straggler", STRAGGLER_MODELS, StragglerModel, default="lognormal", section="federation"),
        NamedChoice("attack", ATTACKS, Attack, section="federation"),
        NamedChoice("robust", AGGREGATION_RULES, AggregationRule, section="server"),
        NamedChoice("preaggregation", PREAGGREGATIONS, AggregationRule, section="server"),
        NamedChoice("privacy", PRIVACY, GaussianMechanism, default="gaussian", section="server"),
    )
}


PRIVATE_PARTS = ("head", "body", "norm")


def _require_known_part(part: Any) -> Any:
    if isinstance(part, str) and part not in PRIVATE_PARTS:
        raise unknown_name("private part", part, PRIVATE_PARTS, key="federation.private")
    if part is None or isinstance(part, str):
        return part
    if not isinstance(part, list | tuple) or not part or not all(isinstance(name, str) for name in part):
        message = f"federation.private = {part}: neither a part of the model nor a list of patterns"
        hint = 'set "head", "body", "norm", or patterns of names such as ["features.*"]'
        raise UserError("config.invalid_value", message, "federation.private", hint)
    return tuple(part)


PrivatePartName = Annotated[
    Literal["head", "body", "norm"] | tuple[str, ...] | None, BeforeValidator(_require_known_part)
]


class FederationSection(Section):
    """Clients, their data and their participation."""

    clients: Positive = 10
    """Number of clients. Your own data may name its clients: then their number, if no partition is set."""
    sample: Positive | None = None
    """Number of clients per round. None: federation.fraction decides."""
    fraction: Fraction | None = None
    """Fraction of the clients per round, instead of federation.sample. Neither: all clients."""
    partition: Annotated[Partitioner | PythonObject, CHOICES["partition"]] = PARTITIONERS["dirichlet"]()
    """Partitioner that assigns the examples to the clients. Not set, and your own data names its clients: "groups"."""
    private: PrivatePartName = None
    """Part that stays at each client: the last layer, all other layers, normalisation layers, or patterns of names."""
    dropout: BelowOne | None = None
    """Probability that a sampled client does not reply. None: 0."""
    straggler: Annotated[StragglerModel, CHOICES["straggler"]] | None = None
    """Model of the clients' response times. None: every reply arrives in time."""
    attack: Annotated[Attack, CHOICES["attack"]] | None = None
    """Attack of the malicious clients. None: all clients are honest."""
    max_norm: PositiveFloat | None = None
    """Maximum L2 norm of an update. Longer updates are rejected. None: a generous bound from the weights."""
    max_examples: Positive | None = None
    """Maximum number of examples that a reply may report. None: the number of the largest client."""
    max_examples_ratio: Annotated[float, Field(ge=1)] | None = None
    """Maximum weight of a reply by its number of examples, as a multiple of the median of the round's replies.
    Larger numbers are lowered to it. None: no limit, because honest sites may be large."""

    @model_validator(mode="after")
    def _check_sample_size(self) -> Self:
        if self.sample is not None and self.fraction is not None:
            message = f"federation.fraction = {self.fraction}: federation.sample = {self.sample} is set too"
            hint = "remove federation.sample or federation.fraction"
            raise UserError("config.conflict", message, "federation.fraction", hint)
        if "clients" in self.model_fields_set:  # else the data may name its clients
            self.check_number_of_clients()
        return self

    def check_number_of_clients(self) -> None:
        """Raise an error if a round needs more clients than there are."""
        if self.sample is not None and self.sample > self.clients:
            message = f"federation.sample = {self.sample}: more than federation.clients = {self.clients}"
            raise UserError("config.conflict", message, "federation.sample", f"set at most {self.clients}")
        if self.straggler is not None and self.clients_sampled > self.clients:
            raise UserError(
                "config.conflict",
                f"federation.straggler.over = {self.straggler.over}: a round would sample {self.clients_sampled} "
                f"clients, more than federation.clients = {self.clients}",
                "federation.straggler.over",
                f"set at most {self.clients - self.clients_per_round}, or a smaller federation.sample",
            )

    @property
    def clients_per_round(self) -> int:
        """Number of replies that a round uses."""
        if self.sample is not None:
            return self.sample
        return max(1, int((self.fraction or 1.0) * self.clients + 1e-9))  # 0.29 * 100 is 28.999...

    @property
    def clients_sampled(self) -> int:
        """Number of clients that a round samples: those of `clients_per_round`, and a surplus for stragglers."""
        return self.clients_per_round + (self.straggler.over if self.straggler is not None else 0)


class ServerSection(Section):
    """Aggregation and server optimiser."""

    optimiser: Literal["average", "adagrad", "adam", "yogi"] = "average"
    """Server optimiser, which applies the mean update to the global model."""
    lr: PositiveFloat | None = None
    """Server learning rate. None: 1 for averaging, 0.01 for the adaptive optimisers."""
    momentum: BelowOne = 0.0
    """Server momentum of averaging (FedAvgM)."""
    damped: bool = False
    """Variant of momentum: multiply the new update by 1 - momentum."""
    nesterov: bool = False
    """Variant of momentum: Nesterov's look-ahead."""
    beta1: BelowOne = 0.9
    """First moment's decay of the adaptive optimisers."""
    beta2: BelowOne = 0.99
    """Second moment's decay of adam and yogi."""
    tau: PositiveFloat = 1e-3
    """Degree of adaptivity: constant added to the root of the second moment."""
    weights: Literal["size", "uniform"] | None = None
    """Weight of a reply in the mean: its number of examples, or the same for all.
    None: "uniform" with server.robust, otherwise "size"."""
    preaggregation: Annotated[AggregationRule, CHOICES["preaggregation"]] | None = None
    """Mixing of the replies before the robust aggregation rule, against skewed data. None: no mixing."""
    robust: Annotated[AggregationRule, CHOICES["robust"]] | None = None
    """Robust aggregation rule, applied to the replies before the method sees them. None: no rule."""
    privacy: Annotated[GaussianMechanism, CHOICES["privacy"]] | None = None
    """Differential privacy for clients. None: no noise."""

    @model_validator(mode="after")
    def _check_momentum(self) -> Self:
        if self.optimiser != "average" and (self.momentum or self.damped or self.nesterov):
            key = next(name for name in ("momentum", "damped", "nesterov") if getattr(self, name))
            value = str(getattr(self, key)).lower()
            message = f'server.{key} = {value}: no effect with server.optimiser = "{self.optimiser}"'
            hint = f'remove server.{key}, or set server.optimiser = "average"'
            raise UserError("config.conflict", message, f"server.{key}", hint)
        if (self.damped or self.nesterov) and not self.momentum:
            key = "damped" if self.damped else "nesterov"
            message = f"server.{key} = true: a variant of momentum, and server.momentum = {self.momentum}"
            raise UserError("config.conflict", message, f"server.{key}", f"set server.momentum, or remove server.{key}")
        return self

    @property
    def reply_weighting(self) -> ReplyWeighting:
        """Weights of replies in a mean, with the default resolved."""
        return self.weights or ("size" if self.robust is None else "uniform")

    def to_optimiser(self) -> ServerOptimiser:
        """Return the server optimiser with its settings."""
        if self.optimiser == "average":
            return ServerSGD(1.0 if self.lr is None else self.lr, self.momentum, self.damped, self.nesterov)
        lr = 0.01 if self.lr is None else self.lr
        return AdaptiveServer(self.optimiser, lr, self.beta1, self.beta2, self.tau)


class EngineSection(Section):
    """Engine that runs the clients."""

    name: Literal["flower", "pool", "ray", "serial"] = "pool"
    """Engine: real clients on Flower, worker processes, a Ray cluster, or this process."""
    workers: Positive | None = None
    """Number of processes of the pool or actors on Ray. None: the number of cores, or of GPUs if they are used."""
    device: DeviceName = "auto"
    """Device of the clients: "cpu", "cuda" (all in turn), "cuda:1" (one of them), or "auto", CUDA where it exists."""
    min_replies: Positive | None = None
    """Minimum number of replies per round. None: all, so a client that fails ends the run."""
    timeout: PositiveFloat | None = None
    """Timeout of a task in seconds: a Flower node has failed, a worker process of the pool is replaced.
    None: 600 on Flower; on the pool there is no timeout, and a worker process that is stopped is reported."""

    @model_validator(mode="after")
    def _check_keys_of_engine(self) -> Self:
        for key, engines in (("workers", ("pool", "ray")), ("timeout", ("flower", "pool"))):
            if self.name not in engines and getattr(self, key) is not None:
                raise unused_key(f"engine.{key}", getattr(self, key), "engine.name", self.name)
        if ":" in self.device and self.name == "ray":
            message = f'engine.device = "{self.device}": Ray assigns GPUs to its actors'
            raise UserError("config.conflict", message, "engine.device", 'set engine.device = "cuda"')
        return self


class RaySection(Section):
    """Ray cluster, for engine.name = "ray"."""

    address: str | None = None
    """Address of the cluster: "auto", "HOST:PORT" or "ray://HOST:PORT". None: start a cluster for the run."""


class Experiment(Section):
    """Complete configuration of one run. Every section has defaults: `Experiment()` is the quickstart on digits.

    >>> Experiment(method={"name": "fedlmd", "tau": 3.0}, federation={"clients": 100, "sample": 10}).method
    FedLMD(beta=1.0, tau=3.0)
    """

    data: DataSection = DataSection()
    federation: FederationSection = FederationSection()
    model: Annotated[Model | PythonObject, CHOICES["model"]] | None = None
    """Network. None: "cnn" for images of at least 16 x 16 pixels, "tabular" for tables with categories as integers,
    otherwise "mlp"."""
    local: LocalSection = LocalSection()
    method: Annotated[Method | PythonObject, CHOICES["method"]] = METHODS["fedavg"]()
    """Federated learning method with its hyper-parameters."""
    server: ServerSection = ServerSection()
    engine: EngineSection = EngineSection()
    ray: RaySection = RaySection()
    run: RunSection = RunSection()

    def __init__(self, **sections: Any) -> None:
        """Create from sections as tables, e.g. `Experiment(method={"name": "fedprox", "mu": 0.1})`."""
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise to_user_error(error, type(self)) from None

    @classmethod
    def load(cls, path: str | Path | None = None, overrides: Iterable[str] = ()) -> Self:
        """Read a TOML file (None: the quickstart) and apply overrides such as "method.mu=0.1"."""
        tables: Tables = {} if path is None else read_toml(Path(path))
        apply_overrides(tables, overrides)
        return cls(**tables)

    @property
    def known_method(self) -> Method | None:
        """The method; None if it was passed in Python to another run, or if its code is not imported."""
        return resolved(self.method)

    @model_validator(mode="after")
    def _check_conflicts(self) -> Self:
        if (conflict := find_conflict(self)) is not None:
            raise conflict
        return self

    def to_tables(self) -> Tables:
        """Return the complete configuration as plain tables, as in config.toml; `Experiment(**tables)` reads them."""
        tables = self.model_dump(mode="json", exclude_none=True, fallback=str)
        return {section: table for section, table in tables.items() if table}


def default_settings(tables: Mapping[str, Any]) -> dict[str, Scalar]:
    """Return the defaults of all keys as flat settings; of a method, a model and the like, those of the one in use."""
    defaults = flatten(Experiment().to_tables())
    for choice in CHOICES.values():
        defaults = {key: value for key, value in defaults.items() if not key.startswith(f"{choice.key}.")}
        cls = choice.classes.get(lookup(tables, f"{choice.key}.name"))
        if cls is not None:
            known = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
            defaults |= flatten({choice.key: {k: v for k, v in known.items() if v is not None}})
    return defaults
