"""Models: `MODELS` maps a name to a frozen dataclass, the model's configuration, whose `build` makes the module.

A module's `forward` returns (h, z): the features that enter the last linear layer, and the logits. Initial weights are
drawn from torch's global generator, which the caller seeds. `adapt` makes a user's module return the same pair.
"""

from dataclasses import Field
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import nn

from fedrecall.models.adapt import adapt
from fedrecall.models.alexnet import AlexNet
from fedrecall.models.cnn import Cnn, Cnn3264
from fedrecall.models.huggingface import HuggingFace
from fedrecall.models.mlp import Mlp
from fedrecall.models.mobilenet import MobileNet
from fedrecall.models.resnet import ResNet8, ResNet18, ResNet20, ResNet50
from fedrecall.models.rnn import Rnn
from fedrecall.models.tabular import TabularMlp
from fedrecall.models.vit import Vit


@runtime_checkable
class Model(Protocol):
    """Interface of a model's configuration, a frozen dataclass.

    A model for several inputs by name has `takes_names = True`; its `build` receives their shapes by name. A model with
    embeddings has a method `sized_for(values)`, which returns the configuration with sizes that were not set: `values`
    maps the name of every integer input ("" for a single one) to the number of values 0..n-1 of each of its columns.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def build(self, shape: Any, classes: int) -> nn.Module:
        """Build the module for samples of this shape (without the batch). Raises a UserError for others."""
        ...


MODELS: dict[str, type[Model]] = {
    "cnn": Cnn,
    "cnn-32-64": Cnn3264,
    "resnet50": ResNet50,
    "resnet8": ResNet8,
    "resnet18": ResNet18,
    "resnet20": ResNet20,
    "mobilenet": MobileNet,
    "alexnet": AlexNet,
    "vit": Vit,
    "mlp": Mlp,
    "tabular": TabularMlp,
    "rnn": Rnn,
    "huggingface": HuggingFace,
}

__all__ = [
    "MODELS",
    "AlexNet",
    "Cnn",
    "Cnn3264",
    "HuggingFace",
    "Mlp",
    "MobileNet",
    "Model",
    "ResNet8",
    "ResNet18",
    "ResNet20",
    "ResNet50",
    "Rnn",
    "TabularMlp",
    "Vit",
    "adapt",
]
