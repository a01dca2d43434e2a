"""Pretrained transformers of Hugging Face: trained completely, by adapters (LoRA), or with a new head only.

Only weights that are trained are sent, averaged and stored. The others are the base: one copy in memory, which the
student and the teachers share.
"""

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from fedrecall.constraints import PositiveInt, UnitInterval, check_constraints
from fedrecall.errors import UserError, first_line, missing_extra, unknown_name
from fedrecall.models.adapt import adapt
from fedrecall.tensor_dict import POSITIONS, TensorDict

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]  # of a model and its tokenizer, without pickled weights


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters.

    "LoRA: Low-Rank Adaptation of Large Language Models", Hu et al., ICLR 2022.
    """

    r: PositiveInt = 8
    """Rank."""
    alpha: PositiveInt = 16
    """Scale: the adapter's output is multiplied by alpha / r."""
    dropout: UnitInterval = 0.0
    """Probability of dropout at the adapter's input."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that have an adapter, or ends of them. Empty: those that PEFT has for the model."""


@dataclass(frozen=True)
class HuggingFace:
    """Transformer from a folder, or from the hub, for texts with its tokenizer. Needs the extra `text`."""

    path: str = ""
    """Folder of the pretrained model (config.json, *.safetensors, tokenizer.json), or its name on the hub."""
    train: Literal["full", "lora", "head"] | None = None
    """Weights to train: all, adapters and the head, or the head. None: "lora" if model.lora is set, else "full"."""
    lora: Lora | None = None
    """Adapters, as a table. None: with model.train = "lora" those of the default settings."""
    pooling: Literal["model", "mean"] = "model"
    """Head: that of the model's class for classification, or a linear layer on the mean of the last hidden states."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the base. Weights that are trained are float32."""
    download: bool = False
    """Download the model from the hub if it is not on this machine."""
    checksum: str | None = None
    """SHA-256 of the base's files. None: computed, and recorded with the run."""

    takes_names: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_constraints(self, "model")
        if self.lora is not None and self.train not in (None, "lora"):
            message = f'model.lora: no effect with model.train = "{self.train}"'
            raise UserError("config.conflict", message, "model.lora", 'remove it, or set model.train = "lora"')
        if self.dtype != "float32" and self.part == "full":
            message = f'model.dtype = "{self.dtype}": weights that are trained are float32, and all are trained'
            raise UserError("config.conflict", message, "model.dtype", 'set model.train = "lora" or "head"')

    @property
    def part(self) -> Literal["full", "lora", "head"]:
        """Weights to train."""
        return self.train or ("full" if self.lora is None else "lora")

    def sized_for(self, values: Mapping[str, tuple[int, ...]]) -> "HuggingFace":
        """Return the model with the checksum of its base; raise an error if the tokenizer has more tokens than it."""
        folder, largest = self.folder(), max((n for name in values for n in values[name]), default=0)
        from transformers import AutoConfig

        known = getattr(AutoConfig.from_pretrained(folder).get_text_config(), "vocab_size", largest)
        if "input_ids" not in values or largest > known:
            found = f"token ids up to {largest - 1}" if "input_ids" in values else "no input_ids"
            raise UserError(
                "model.unsupported_input",
                f"model.path = {self.path}: the model takes token ids up to {known - 1}, and the data has {found}",
                "data.tokenizer",
                "use the tokenizer of the model",
            )
        return self.with_checksum()

    def with_checksum(self) -> "HuggingFace":
        """Return the model with the checksum of its base; raise an error if it has that of another one."""
        checksum = _checksum(self.folder())
        if self.checksum not in (None, checksum):
            raise UserError(
                "model.other_base",
                f"model.checksum = {self.checksum}: the model in {self.path} is another one ({checksum})",
                "model.checksum",
                "use the same files on all machines, or remove model.checksum",
            )
        return replace(self, checksum=checksum)

    def build(self, shape: Mapping[str, tuple[int, ...]], classes: int) -> nn.Module:
        """Build the module. A new head and adapters have random weights of torch's global generator."""
        module, heads = self._load(self.folder(), classes, of_tokens=POSITIONS in shape)
        if self.part == "lora":
            module = self._with_adapters(module, heads, of_tokens=POSITIONS in shape)
        elif self.part == "head":
            for name, p in module.named_parameters():
                p.requires_grad_(any(name.startswith(f"{head}.") for head in heads))
        for layer in module.modules():
            own = [p for p in layer.parameters(recurse=False) if p.requires_grad and p.dtype != torch.float32]
            for p in own:
                p.data = p.data.float()
            if own and isinstance(layer, nn.Linear):  # the base gives it another type
                layer.register_forward_pre_hook(_to_type_of_weights)
        types = {POSITIONS: torch.bool}
        sample = TensorDict({n: torch.ones(2, *size, dtype=types.get(n, torch.int64)) for n, size in shape.items()})
        return adapt(module, sample, classes, copy=False)

    def _load(self, folder: str, classes: int, *, of_tokens: bool) -> tuple[nn.Module, list[str]]:
        """Return the module and the names of its modules with new weights: the head, and what the files lack."""
        from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification

        if of_tokens and self.pooling != "model":
            message = f'model.pooling = "{self.pooling}": tokens have labels here, and pooling gives one output a text'
            raise UserError("config.conflict", message, "model.pooling", 'set model.pooling = "model"')
        options: dict[str, Any] = {"dtype": getattr(torch, self.dtype), "use_safetensors": True}
        try:
            with _quiet():
                if self.pooling == "model":
                    kind: Any = AutoModelForTokenClassification if of_tokens else AutoModelForSequenceClassification
                    options |= {"num_labels": classes, "output_loading_info": True}
                    loaded, found = kind.from_pretrained(folder, **options)
                    return loaded, _head_modules(loaded, found["missing_keys"])
                return PooledClassifier(AutoModel.from_pretrained(folder, **options), classes), ["classifier"]
        except (OSError, ValueError, KeyError) as error:
            raise self._not_found(error) from None

    def _with_adapters(self, module: nn.Module, heads: list[str], *, of_tokens: bool) -> nn.Module:
        try:
            from peft import LoraConfig, TaskType, get_peft_model
        except ImportError:
            raise missing_extra("peft", "text") from None
        lora = self.lora or Lora()
        ends = {name.rpartition(".")[2] for name in _matrix_layers(module) if name not in heads}
        for target in lora.targets:
            if target.rpartition(".")[2] not in ends:
                raise unknown_name("layer", target, ends, key="model.lora.targets")
        task = TaskType.TOKEN_CLS if of_tokens else TaskType.SEQ_CLS
        settings = LoraConfig(
            r=lora.r,
            lora_alpha=lora.alpha,
            lora_dropout=lora.dropout,
            target_modules=list(lora.targets) or None,
            modules_to_save=heads,
            task_type=task if self.pooling == "model" else None,
        )
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "fan_in_fan_out is set to False")  # PEFT sets it by itself
                warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")  # PEFT's call
                adapted: nn.Module = get_peft_model(module, settings)
        except ValueError as error:  # PEFT has no default for this kind of model
            message = f"model.lora.targets: {first_line(error)}"
            hint = f"use some of {', '.join(sorted(ends))}"
            raise UserError("config.missing_key", message, "model.lora.targets", hint) from None
        return adapted

    def folder(self) -> str:
        """Return the folder of the model's files: the given one, or that of the hub's cache (see `download`)."""
        try:
            from transformers.utils.hub import cached_file
        except ImportError:
            raise missing_extra("transformers", "text") from None
        if not self.path:
            raise UserError("config.missing_key", "model.path: the key is missing", "model.path", "set model.path")
        try:
            path = str(Path(self.path).expanduser())
            if self.download and not Path(path).is_dir():  # all files at once: the checksum is that of all
                return str(import_module("huggingface_hub").snapshot_download(path, allow_patterns=HUB_FILES))
            return str(Path(str(cached_file(path, "config.json", local_files_only=True))).parent)
        except (OSError, ValueError) as error:
            raise self._not_found(error) from None

    def _not_found(self, error: Exception) -> UserError:
        hint = "use a folder with config.json and *.safetensors, or set model.download = true for a model of the hub"
        message = f"model.path = {self.path}: there is no model that can be loaded ({first_line(error)})"
        return UserError("model.base_not_found", message, "model.path", hint)


class PooledClassifier(nn.Module):
    """Encoder, the mean of its last hidden states over the tokens, and a linear layer."""

    def __init__(self, encoder: nn.Module, classes: int) -> None:
        super().__init__()
        self.encoder = encoder
        if hasattr(encoder, "pooler"):
            setattr(encoder, "pooler", None)  # noqa: B010  (its weights would be trained, and have no effect)
        config: Any = encoder.config
        self.classifier = nn.Linear(config.get_text_config().hidden_size, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Map token ids [B, L] to features [B, D] and logits [B, K]."""
        states: Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **inputs).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(self.classifier.weight.dtype)
        h = (states * mask).sum(1) / mask.sum(1).clamp(min=1)
        return h, self.classifier(h)


def _matrix_layers(module: nn.Module) -> Iterator[str]:
    """Yield the names of the layers that multiply by a matrix: linear ones, and those of GPT-2, which are its own."""
    for name, layer in module.named_modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(layer, nn.Embedding):
            yield name


def _head_modules(module: nn.Module, missing: Iterable[str]) -> list[str]:
    """Return the names of modules with new weights: those beside the base ("classifier"), and the owners of `missing`.

    A base without a pooler is an example of the latter: if its new weights were frozen, they would be random for ever.
    """
    base, parameters = str(getattr(module, "base_model_prefix", "")), dict(module.named_parameters())
    beside = [name for name, child in module.named_children() if name != base and list(child.parameters())]
    inside = {key.rpartition(".")[0] for key in missing if key in parameters and key.startswith(f"{base}.")}
    return [*beside, *sorted(inside)]


def _to_type_of_weights(layer: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return tuple(x.to(weight.dtype) for x in args)


@cache
def _checksum(folder: str) -> str:
    digest = hashlib.sha256()
    for file in sorted([Path(folder, "config.json"), *Path(folder).glob("*.safetensors")]):
        digest.update(f"\n{file.name}\n".encode())
        with file.open("rb") as f:
            digest.update(hashlib.file_digest(f, "sha256").digest())
    return digest.hexdigest()


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the messages of transformers: a new head is no cause for a warning."""
    messages: Any = import_module("transformers.utils.logging")
    verbosity, has_bar = messages.get_verbosity(), messages.is_progress_bar_enabled()
    messages.set_verbosity_error()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        messages.set_verbosity(verbosity)
        if has_bar:
            messages.enable_progress_bar()
