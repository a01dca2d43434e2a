"""The section [data]: which data, and which of them are held out."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BeforeValidator, ConfigDict, Field, PositiveFloat, PrivateAttr, model_validator

from fedrecall.config.choices import Augmentation, NamedChoice
from fedrecall.config.own_code import is_code_path, untrusted
from fedrecall.config.section import BelowOne, LaxPath, Positive, Section, Seed, unused_key
from fedrecall.config.validation import unknown_key
from fedrecall.data.catalog import DATASETS, load_named
from fedrecall.data.custom import as_dataset, from_folder
from fedrecall.data.dataset import Dataset
from fedrecall.data.imbalance import IMBALANCES, Imbalance
from fedrecall.data.preprocessing import Categorical, ColumnEncoding, MissingRule, Preprocessing
from fedrecall.data.tabular import from_table
from fedrecall.data.text import MAX_TOKENS
from fedrecall.errors import UserError, unknown_name
from fedrecall.models.huggingface import HuggingFace

DATA_KINDS = (*DATASETS, "folder", "table", "own")
# keys of [data] that depend on data.name
SOURCE_KEYS = (
    *("root", "path", "test_path", "label", "client", "classes", "size", "limit", "group", "time", "drop"),
    *("missing", "categorical"),
)
TABLE_KEYS = ("columns", "group", "time", "drop", "missing", "categorical", "test_path", "label")  # of a table only
DataName = Annotated[str, Field(json_schema_extra={"enum": list(DATA_KINDS)})]

IMBALANCE_CHOICE = NamedChoice("imbalance", IMBALANCES, Imbalance, default="exponential", section="data")

T = TypeVar("T")


class FixedNumber(Section):
    """Column of numbers whose mean and standard deviation are given."""

    mean: float
    """Mean, which is subtracted."""
    std: PositiveFloat
    """Standard deviation, by which the difference is divided."""


ColumnChoice = Literal["number"] | FixedNumber | Annotated[tuple[str, ...], Field(strict=False, min_length=1)]
"""A column of numbers to standardise, one with given statistics, or the categories of a column of text."""


def _require_split_seed(seed: Any) -> Any:
    is_seed = isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0
    if not is_seed and seed not in ("run", None):
        message = f'data.split_seed = {seed!r}: neither a whole number from 0 nor "run"'
        raise UserError("config.invalid_value", message, "data.split_seed", 'set 0 or more, or "run"')
    return seed


SplitSeed = Annotated[Seed | Literal["run"], BeforeValidator(_require_split_seed)]


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
    test_path: LaxPath | None = None
    """Path of a table with the test rows. None: data.test holds out rows of data.path."""
    label: str | None = None
    """Label column of the table."""
    client: str | None = None
    """Client column of the table. For a folder, any value means the layout <client>/<class>/<image>."""
    columns: dict[str, ColumnChoice] | None = None
    """Features of the table, sorted by name; other columns are ignored. Each is "number", standardised by the training
    rows of all clients, { mean, std }, or the list of a text column's categories. None: all columns, fitted."""
    labels: Annotated[tuple[str, ...], Field(strict=False, min_length=2)] | None = None
    """Classes of the table or the folder, in their order; another label is refused. None: those of the data."""
    drop: Annotated[tuple[str, ...], Field(strict=False)] | None = None
    """Columns of the table that are not used, such as identifiers. None: none."""
    missing: MissingRule | None = None
    """Missing values of the table's features: "refuse"; "mean": the mean of the training rows, or no category;
    "category": a text has a category of its own, a number is the mean with a feature that marks it. None: "refuse"."""
    categorical: Categorical | None = None
    """Text columns of the table: "one-hot", or "integers" for the model tabular. None: "one-hot"."""
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
    test: BelowOne = 0.2
    """Fraction held out for testing if the data has no test set. 0: none, the server has no test set."""
    split_seed: SplitSeed | None = None
    """Seed that draws the test set, if the data has none of its own. "run": run.seed. None: 0."""
    group: str | None = None
    """Column of the table with the group of each row, such as a patient. No split divides a group."""
    time: str | None = None
    """Column of the table with the time of each row: the last rows are the test set. None: a random one."""
    client_test: BelowOne = 0.0
    """Fraction of every client's examples held out for testing on the client. 0: none."""
    validation: BelowOne = 0.0
    """Fraction of every client's remaining examples held out for validation. 0: none."""
    augment: Augmentation = "none"
    """Training transforms: a preset, or a table of transforms."""
    imbalance: Annotated[Imbalance, IMBALANCE_CHOICE] | None = None
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
            "folder": ("root", "classes", "limit", "writers", *TABLE_KEYS, *text),
            "table": ("root", "classes", "size", "limit", "writers"),
        }
        for key in unused.get(self.name, ("path", "client", "labels", *TABLE_KEYS, *text)):
            if getattr(self, key) is not None:
                raise unused_key(f"data.{key}", getattr(self, key), "data.name", self.name)
        if self.text is None and (self.tokenizer is not None or self.max_tokens is not None):
            key = "tokenizer" if self.tokenizer is not None else "max_tokens"
            message = f"data.{key} = {getattr(self, key)}: it is for texts, and data.text is not set"
            raise UserError("config.conflict", message, f"data.{key}", f"set data.text, or remove data.{key}")
        if self.test_path is not None and self.time is not None:
            message = f"data.time = {self.time}: data.test_path has the test rows, so none are held out by time"
            raise UserError("config.conflict", message, "data.time", "remove data.time or data.test_path")
        if self.partial and self.name not in DATASETS:
            raise unused_key("data.partial", "true", "data.name", self.name)
        return self

    @property
    def may_name_clients(self) -> bool:
        """True if the data is the user's own and can have the client of every example."""
        return self.name in ("table", "folder", "own") or is_code_path(self.name)

    @property
    def title(self) -> str:
        """Name of the data for titles: that of the file or folder, if the data is one."""
        return self.name if self.path is None else self.path.name

    @property
    def draws_test_set(self) -> bool:
        """True if the named data may have no test set of its own, so that one is drawn."""
        return self.name in ("folder", "table", "femnist") and self.test_path is None and self.time is None

    def split_again(self, dataset: Dataset, run_seed: int) -> Dataset:
        """Draw the test set of a user's data again, if its size or a seed for it is set.

        A recorded configuration has every key, so a share is set if it is not the default.
        """
        changes: dict[str, float] = {} if self.test == type(self).model_fields["test"].default else {"test": self.test}
        if self.split_seed is not None:
            changes["seed"] = self._split_seed(run_seed)
        return dataset if not changes or dataset.split_again is None else dataset.split_again(**changes)

    def _split_seed(self, run_seed: int) -> int:
        return run_seed if self.split_seed == "run" else self.split_seed or 0

    @property
    def column_encodings(self) -> dict[str, ColumnEncoding | None] | None:
        """Encodings of the features; None for numbers to fit. None: all columns are features."""
        if self.columns is None:
            return None
        missing, integers = self.missing or "refuse", self.categorical == "integers"
        out: dict[str, ColumnEncoding | None] = {}
        for name, choice in sorted(self.columns.items()):  # TOML does not keep the order of tables
            if isinstance(choice, tuple):
                categories = tuple(sorted(choice))
                out[name] = ColumnEncoding(name, categories, missing=missing, integers=integers)
            elif isinstance(choice, FixedNumber):
                flag = missing == "category"
                out[name] = ColumnEncoding(name, None, choice.mean, choice.std, missing, flag)
            else:
                out[name] = None
        return out

    @property
    def has_fixed_columns(self) -> bool:
        """True if the encoding of every column is given, so that no statistic of the data is used."""
        return self.columns is not None and "number" not in self.columns.values()

    def tokenizer_for(self, model: object) -> str | None:
        """Return the folder of the tokenizer of data.text: the one set, else that of the model; None for words."""
        if self.text is not None and self.tokenizer is None and isinstance(model, HuggingFace):
            return model.folder()
        return self.tokenizer

    def load(self, model: object = None, run_seed: int = 0, schema: Preprocessing | None = None) -> Dataset:
        """Load the data set that the section names. Texts have by default the tokenizer of the model, if it has one.

        `run_seed` draws the test set if data.split_seed is "run". `schema` has the columns and classes of a federation.
        """
        columns, classes = self.column_encodings, self.labels
        if schema is not None:
            columns = {column.name: column for column in schema.columns} or columns
            classes = schema.classes
        seed = self._split_seed(run_seed)
        if self.name == "own":
            message = 'data.name = "own": the configuration refers to data passed in Python'
            raise UserError("config.needs_python_object", message, "data", "pass it again: run(..., data=...)")
        if is_code_path(self.name):
            if self._loader is None:
                raise untrusted([self.name], "data.name")
            return self.split_again(as_dataset(self._loader()), run_seed)
        if self.name == "folder":
            path = self._required("path", self.path)
            client = self.client is not None
            return from_folder(path, size=self.size, client=client, classes=classes, test=self.test, seed=seed)
        if self.name == "table":
            path, label = self._required("path", self.path), self._required("label", self.label)
            return from_table(
                path,
                label,
                client=self.client,
                group=self.group,
                time=self.time,
                drop=self.drop or (),
                missing=self.missing or "refuse",
                categorical=self.categorical or "one-hot",
                text=self.text,
                tokenizer=self.tokenizer_for(model),
                max_tokens=self.max_tokens or MAX_TOKENS,
                fixed=columns,
                classes=classes,
                test=self.test if self.test_path is None else self.test_path,
                seed=seed,
            )
        return load_named(
            self.name,
            root=self.root,
            classes=self.classes,
            size=self.size,
            limit=self.limit,
            writers=self.writers,
            partial=self.partial,
            seed=seed,
        )

    def _required(self, key: str, value: T | None) -> T:
        if value is None:
            message = f'data.{key}: the key is missing, which data.name = "{self.name}" needs'
            raise UserError("config.missing_key", message, f"data.{key}", f"set data.{key}")
        return value
