"""Which layers of the target self-speculation leaves out: the stored set with what it is worth, or a default set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from outrider.core import MAX_K
from outrider.errors import ModelError


class Worth(BaseModel):
    """What drafting with a set was measured to be worth, on texts that had no part in finding it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    k: Annotated[int, Field(ge=1, le=MAX_K)]
    """Draft tokens per step in that run: the number expected to be the best."""
    accept_length: float
    speedup: float
    """Tokens per second over those of the same engine without speculation, one request at a time."""
    step_cost: float
    """A draft step, in steps of the whole model."""
    num_tokens: int
    """How many tokens that was measured on."""


class Trial(BaseModel):
    """The best set of one size that the search found."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    skip: tuple[int, ...]
    num_head_tokens: int | None
    k: int
    expected_speedup: float
    """From agreement on the search's texts and measured costs; of the best k and head."""


class LayerSet(BaseModel):
    """Layers that drafting leaves out, as stored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[2] = 2
    num_layers: Annotated[int, Field(ge=1)]
    """Of the model that it is for."""
    skip: tuple[int, ...]
    num_head_tokens: Annotated[int, Field(ge=1)] | None = None
    """Only tokens below this id are drafted, which spares most of the output matrix; None drafts any."""
    key: dict[str, str] = {}
    """Hardware, model and build that it was found on; empty for one written by hand."""
    worth: Worth | None = None
    """None when it was not measured."""
    trials: tuple[Trial, ...] = ()

    @model_validator(mode="after")
    def _fits(self) -> LayerSet:
        if not all(0 <= layer < self.num_layers for layer in self.skip):
            raise ValueError(f"skip must list layers between 0 and {self.num_layers - 1}")
        if len(set(self.skip)) < len(self.skip):
            raise ValueError("skip must list each layer once")
        if len(self.skip) == self.num_layers:
            raise ValueError("skip must leave a layer to draft with")
        return self

    @property
    def warning(self) -> str | None:
        """Why a request may not want this set; None when it was measured to pay."""
        if self.worth is None:
            return "what layer_skip is worth on this machine is not known; `outrider profile` finds its layers"
        if self.worth.speedup >= 1:
            return None
        return (
            f"layer_skip writes {self.worth.speedup:.2f} times as many tokens per second as no speculation here, "
            f"with the best layers found (accept length {self.worth.accept_length:.2f} at k {self.worth.k})"
        )


def default_set(num_layers: int) -> LayerSet:
    """Every second layer of the middle half; first and last layers stay. What it is worth is unknown."""
    margin = max(1, num_layers // 4)
    return LayerSet(num_layers=num_layers, skip=tuple(range(margin, num_layers - margin, 2)))


def write_layer_set(path: Path, layers: LayerSet) -> None:
    """As JSON, which `read_layer_set` reads."""
    path.write_text(layers.model_dump_json(indent=1) + "\n", encoding="utf-8")


def read_layer_set(path: Path, num_layers: int) -> LayerSet:
    """ModelError when the file is not a set of layers of a model of this depth."""
    try:
        layers = LayerSet.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ModelError(f"{path} is no layer set: {where}: {first['msg']}; profile again") from error
    if layers.num_layers != num_layers:
        raise ModelError(f"{path} is for a model of {layers.num_layers} layers, not {num_layers}")
    return layers
