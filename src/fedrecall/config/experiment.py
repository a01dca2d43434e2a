"""Configuration of a run: typed sections with defaults, the same for TOML, the command line and Python.

A configuration is validated completely before anything runs. An unknown or ill-typed key is an error with the key and
the nearest valid name.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from fedrecall.config.choices import Augmentation, NamedChoice, PythonObject, resolved
from fedrecall.config.local_training import SCHEDULE_CHOICE, LocalSection
from fedrecall.config.overrides import apply_overrides
from fedrecall.config.own_code import is_code_path, untrusted
from fedrecall.config.section import BelowOne, Fraction, Positive, Section, unused_key
from fedrecall.config.tables import Tables, read_toml
from fedrecall.config.validation import find_conflict, to_user_error, unknown_key
from fedrecall.constraints import PositiveFloat
from fedrecall.core.method import Method
from fedrecall.core.optim import AdaptiveServer, ServerOptimiser, ServerSGD
from fedrecall.core.preaggregation import PREAGGREGATIONS
from fedrecall.core.privacy import PRIVACY, GaussianMechanism
from fedrecall.core.robust import AGGREGATION_RULES, AggregationRule
from fedrecall.core.types import ReplyWeighting
from fedrecall.data.catalog import DATASETS, load_named
from fedrecall.data.custom import as_dataset, from_folder
from fedrecall.data.dataset import Dataset
from fedrecall.data.imbalance import IMBALANCES, Imbalance
from fedrecall.data.partitioners import PARTITIONERS, Partitioner
from fedrecall.data.tabular import from_table
from fedrecall.data.text import MAX_TOKENS
from fedrecall.errors import UserError, unknown_name
from fedrecall.methods import METHODS
from fedrecall.methods.presets import PRESETS
from fedrecall.models import MODELS, Model
from fedrecall.simulation.attacks import ATTACKS, Attack
from fedrecall.simulation.availability import STRAGGLER_MODELS, StragglerModel

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

LaxPath = Annotated[Path, Field(strict=False)]  # TOML has no paths, only strings

DATA_KINDS = (*DATASETS, "folder", "table", "own")
SOURCE_KEYS = ("root", "path", "label", "client", "classes", "size", "limit")  # of data.*: they depend on data.name
DataName = Annotated[str, Field(json_schema_extra={"enum": list(DATA_KINDS)})]


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
        NamedChoice("imbalance", IMBALANCES, Imbalance, default="exponential", section="data"),
        NamedChoice("straggler", STRAGGLER_MODELS, StragglerModel, default="lognormal", section="federation"),
        NamedChoice("attack", ATTACKS, Attack, section="federation"),
        NamedChoice("robust", AGGREGATION_RULES, AggregationRule, section="server"),
        NamedChoice("preaggregation", PREAGGREGATIONS, AggregationRule, section="server"),
        NamedChoice("privacy", PRIVACY, GaussianMechanism, default="gaussian", section="server"),
    )
}

T = TypeVar("T")


class DataSection(Section):
    """Data set, augmentation and the server's auxiliary examples."""

    model_config = ConfigDict(extra="allow")  # the arguments of own code; the other kinds have none

    name: DataName = "digits"
    """A named data set, "folder" (images), "table" (CSV, Parquet), or "package.module:function", whose arguments are
    further keys. "own": data passed in Python."""
    root: LaxPath | None = None
    """Folder of the named data sets, to work offline. None: the environment variable FEDRECALL_DATA."""
    path: LaxPath | None = None
    """Path of the folder of images or of the table."""
    label: str | None = None
    """Label column of the table."""
    client: str | None = None
    """Client column of the table. For a folder, any value means the layout <client>/<class>/<image>."""
    text: str | None = None
    """Text column of the table: the inputs are its texts, and other columns are ignored."""
    tokenizer: str | None = None
    """Folder of a tokenizer of transformers, for data.text. None: that of the model, or words."""
    max_tokens: Positive | None = None
    """Number of tokens at which texts are cut. None: 64."""
    classes: Positive | None = None
    """Number of classes of femnist: 10, 26 or 62."""
    size: Positive | None = None
    """Side in pixels to which images are resized when they are decoded."""
    limit: Positive | None = None
    """Maximum number of training examples per group (office-caltech-10: 62)."""
    writers: Positive | None = None
    """Number of femnist's writers, drawn at random. None: all."""
    partial: bool = False
    """Accept files that have only a part of a named data set; its results compare with no paper's numbers."""
    test: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Fraction held out for testing if the data has no test set."""
    augment: Augmentation = "none"
    """Training transforms: a preset, or a table of transforms."""
    imbalance: Annotated[Imbalance, CHOICES["imbalance"]] | None = None
    """Rule by which labels are rare everywhere, applied before the partition. None: the data as they are."""
    aux: Literal["overlap", "holdout"] = "overlap"
    """Auxiliary examples: copies of examples that clients have too, or examples held out from the clients."""
    aux_per_class: Annotated[int, Field(ge=0)] = 32
    """Number of the server's auxiliary examples per class, for the methods that need them."""

    _loader: Callable[[], object] | None = PrivateAttr(None)  # own code, once it is imported

    @model_validator(mode="after")
    def _check_keys_of_kind(self) -> Self:
        if is_code_path(self.name):
            return self
        for key in self.model_extra or ():
            raise unknown_key(f"data.{key}", "key in [data]", type(self).model_fields)
        if self.name not in DATA_KINDS:
            raise unknown_name("data set", self.name, DATA_KINDS[:-1], key="data.name")
        text = ("text", "tokenizer", "max_tokens")
        unused = {
            "folder": ("root", "label", "classes", "limit", "writers", *text),
            "table": ("root", "classes", "size", "limit", "writers"),
        }
        for key in unused.get(self.name, ("path", "label", "client", *text)):
            if getattr(self, key) is not None:
                raise unused_key(f"data.{key}", getattr(self, key), "data.name", self.name)
        if self.text is None and (self.tokenizer is not None or self.max_tokens is not None):
            key = "tokenizer" if self.tokenizer is not None else "max_tokens"
            message = f"data.{key} = {getattr(self, key)}: it is for texts, and data.text is not set"
            raise UserError("config.conflict", message, f"data.{key}", f"set data.text, or remove data.{key}")
        if self.partial and self.name not in DATASETS:
            raise unused_key("data.partial", "true", "data.name", self.name)
        return self

    @property
    def may_name_clients(self) -> bool:
        """True if the data is the user's own and can have the client of every example."""
        return self.name in ("table", "folder", "own") or is_code_path(self.name)

    def load(self, model: object = None) -> Dataset:
        """Load the data set that the section names. Texts have by default the tokenizer of the model, if it has one."""
        tokenizer = self.tokenizer or getattr(model, "path", None)
        if self.name == "own":
            message = 'data.name = "own": the configuration refers to data passed in Python'
            raise UserError("config.needs_python_object", message, "data", "pass it again: run(..., data=...)")
        if is_code_path(self.name):
            if self._loader is None:
                raise untrusted([self.name], "data.name")
            return as_dataset(self._loader())

        if self.name == "folder":
            path = self._required("path", self.path)
            return from_folder(path, size=self.size, client=self.client is not None, test=self.test)
        if self.name == "table":
            path, label = self._required("path", self.path), self._required("label", self.label)
            options: dict[str, Any] = {"client": self.client, "test": self.test, "text": self.text}
            return from_table(path, label, tokenizer=tokenizer, max_tokens=self.max_tokens or MAX_TOKENS, **options)
        return load_named(
            self.name,
            root=self.root,
            classes=self.classes,
            size=self.size,
            limit=self.limit,
            writers=self.writers,
            partial=self.partial,
        )

    def _required(self, key: str, value: T | None) -> T:
        if value is None:
            message = f'data.{key}: the key is missing, which data.name = "{self.name}" needs'
            raise UserError("config.missing_key", message, f"data.{key}", f"set data.{key}")
        return value


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


class RunSection(Section):
    """Duration, seeds, measurements and checkpoints."""

    rounds: Positive = 20
    """Number of communication rounds."""
    seed: int = 0
    """Seed of all random numbers."""
    partition_seed: int | None = None
    """Seed of the partition and the auxiliary set. None: run.seed."""
    init_seed: int | None = None
    """Seed of the initial weights. None: run.seed."""
    sample_seed: int | None = None
    """Seed of the sampling of clients. None: run.seed."""
    evaluate_every: Positive = 1
    """Number of rounds between two evaluations of the global model."""
    local_accuracy: bool = False
    """Evaluate every client's model on the test set too, before aggregation."""
    targets: Annotated[tuple[Fraction, ...], Field(strict=False)] = ()
    """Accuracies for which the first round that reaches them is reported."""
    probes: Annotated[tuple[ProbeName, ...], Field(strict=False)] = ()
    """Additional measurements; `fedrecall show probes` lists them."""
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


class Experiment(Section):
    """Complete configuration of one run. Every section has defaults: `Experiment()` is the quickstart on digits.

    >>> Experiment(method={"name": "fedlmd", "tau": 3.0}, federation={"clients": 100, "sample": 10}).method
    FedLMD(beta=1.0, tau=3.0)
    """

    data: DataSection = DataSection()
    federation: FederationSection = FederationSection()
    model: Annotated[Model | PythonObject, CHOICES["model"]] | None = None
    """Network. None: "cnn" for images of at least 16 pixels, otherwise "mlp"."""
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
