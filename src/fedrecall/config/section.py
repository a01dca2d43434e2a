"""Base of the sections of a configuration, and the types that several of them use."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from fedrecall.constraints import LARGEST
from fedrecall.errors import UserError

Positive = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]  # numpy's generators take no negative seed
Rate = Annotated[float, Field(ge=0, le=LARGEST)]
Fraction = Annotated[float, Field(gt=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
LaxPath = Annotated[Path, Field(strict=False)]  # TOML has no paths, only strings


class Section(BaseModel):
    """Base of the sections: one table of the configuration, strict about types and keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def unused_key(key: str, value: object, name: str, chosen: str) -> UserError:
    """Return the error for a key that has no effect with the chosen name."""
    return UserError("config.conflict", f'{key} = {value}: no effect with {name} = "{chosen}"', key, f"remove {key}")
