"""A recurrent network for texts as token ids."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor, nn

from fedrecall.constraints import PositiveInt, check_constraints
from fedrecall.errors import UserError
from fedrecall.models.base import FeatureClassifier

PADDING = 0  # token id of positions after the end of a text


class TokenClassifier(FeatureClassifier):
    """Classifier of token ids, int64 [B, L]."""

    takes_integers: ClassVar[bool] = True


@dataclass(frozen=True)
class Rnn:
    """GRU or LSTM over token ids, 0 for padding; h is the mean state over the tokens. Train it with adam or adamw."""

    cell: Literal["gru", "lstm"] = "gru"
    """Kind of recurrent layer."""
    vocabulary: PositiveInt | None = None
    """Number of token ids, 0 included. None: that of the data."""
    embedding: PositiveInt = 64
    """Number of dimensions of a token's embedding."""
    width: PositiveInt = 128
    """Number of dimensions of the state, and of h."""
    layers: PositiveInt = 1
    """Number of recurrent layers."""

    def __post_init__(self) -> None:
        check_constraints(self, "model")

    def sized_for(self, values: Mapping[str, tuple[int, ...]]) -> "Rnn":
        """Return the model with the vocabulary of the data, where it is not set."""
        largest = max((n for columns in values.values() for n in columns), default=None)
        if self.vocabulary is None or largest is None:
            return replace(self, vocabulary=self.vocabulary or largest)
        if largest > self.vocabulary:
            message = f"model.vocabulary = {self.vocabulary}: the largest token id of the data is {largest - 1}"
            raise UserError("config.conflict", message, "model.vocabulary", f"set at least {largest}")
        return self

    def build(self, shape: tuple[int, ...], classes: int) -> FeatureClassifier:
        """Build the module for texts of this number of tokens."""
        if len(shape) != 1 or self.vocabulary is None:
            raise UserError(
                "model.unsupported_input",
                f'model.name = "rnn": the model needs token ids, int64 [length], but a sample is {list(shape)}'
                + ("" if self.vocabulary is not None else " and has no integers"),
                "model.name",
                "convert texts to token ids of one length, 0 for padding",
            )
        return TokenClassifier(TokenStates(self, self.vocabulary), self.width, classes)


class TokenStates(nn.Module):
    """Mean state of a recurrent layer over the tokens of a text."""

    def __init__(self, model: Rnn, vocabulary: int) -> None:
        super().__init__()
        kind = nn.GRU if model.cell == "gru" else nn.LSTM
        self.embedding = nn.Embedding(vocabulary, model.embedding, padding_idx=PADDING)
        self.recurrent = kind(model.embedding, model.width, model.layers, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids [B, L] to features [B, D]. Padding changes nothing; a text without tokens has features 0."""
        states, _ = self.recurrent(self.embedding(tokens))
        present = (tokens != PADDING).unsqueeze(-1).to(states.dtype)
        mean: Tensor = (states * present).sum(1) / present.sum(1).clamp(min=1)
        return mean
