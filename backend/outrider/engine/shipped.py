"""Heads that come with the project, found by the name of the model that they draft for, with what they are worth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.engine.checkpoint import read_json
from outrider.errors import ModelError


class Worth(BaseModel):
    """What `outrider bench heads --record` measured: the best way to draft with a head, greedily, over all tasks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drafts: str
    """The way to draft, and its draft tokens."""
    accept_length: float
    against_off: Annotated[float, Field(gt=0)]
    """Tokens per second over those without speculation in the same run, one request at a time."""
    num_answers: int
    machine: str


@dataclass(frozen=True, slots=True)
class ShippedHead:
    """One folder."""

    folder: Path
    kind: Literal["eagle", "eagle3", "medusa"]
    worth: Worth | None
    """None when it was not measured."""

    @property
    def pays(self) -> bool:
        """Whether it was measured to be faster than no speculation."""
        return self.worth is not None and self.worth.against_off > 1

    @property
    def summary(self) -> str:
        """A line for people."""
        if self.worth is None:
            return "not measured, so off unless it is named"
        measured = f"{self.worth.against_off:.2f} times off with {self.worth.drafts} on {self.worth.machine}"
        return measured if self.pays else f"{measured}: does not pay, so off unless it is named"


@dataclass(frozen=True, slots=True)
class Heads:
    """Folders of heads for one model."""

    eagle: tuple[Path, ...] = ()
    """Of EAGLE and EAGLE-3, at most one of each."""
    medusa: Path | None = None


def heads_for(model: Path, shipped: Path) -> Heads:
    """Of those in `shipped` for this model the ones that pay; the first by name of each kind."""
    found: dict[str, Path] = {}
    for head in shipped_heads(model, shipped):
        if head.pays:
            found.setdefault(head.kind, head.folder)
    return Heads(tuple(found[kind] for kind in ("eagle", "eagle3") if kind in found), found.get("medusa"))


def shipped_heads(model: Path, shipped: Path) -> Iterator[ShippedHead]:
    """Of the folders in `shipped`, by name, those whose config names this model's folder; ModelError when one says
    of its worth what cannot be read."""
    for path in sorted(shipped.glob("*/config.json")):
        note = read_json(path).get("outrider") or {}
        if note.get("base_model") == model.name and note.get("kind") in ("eagle", "eagle3", "medusa"):
            try:
                worth = None if note.get("worth") is None else Worth.model_validate(note["worth"])
            except ValidationError as error:
                raise ModelError(f"{path}: outrider.worth: {error.errors()[0]['msg']}") from error
            yield ShippedHead(path.parent, note["kind"], worth)


def record(folder: Path, worth: Worth) -> None:
    """Into the config of a head that was measured."""
    path = folder / "config.json"
    data = read_json(path)
    data["outrider"] = {**(data.get("outrider") or {}), "worth": worth.model_dump()}
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
