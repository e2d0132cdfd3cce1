"""Heads that come with the project, found by the name of the model that they draft for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.engine.checkpoint import read_json


@dataclass(frozen=True, slots=True)
class Heads:
    """Folders of heads for one model."""

    eagle: tuple[Path, ...] = ()
    """Of EAGLE and EAGLE-3, at most one of each."""
    medusa: Path | None = None


def heads_for(model: Path, shipped: Path) -> Heads:
    """Of the folders in `shipped`, those whose config names this model's folder; the first by name of each kind."""
    found: dict[str, Path] = {}
    for path in sorted(shipped.glob("*/config.json")):
        note = read_json(path).get("outrider") or {}
        if note.get("base_model") == model.name:
            found.setdefault(str(note.get("kind")), path.parent)
    return Heads(tuple(found[kind] for kind in ("eagle", "eagle3") if kind in found), found.get("medusa"))
