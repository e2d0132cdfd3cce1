"""Heads that come with the project go to the model that they were made for."""

from __future__ import annotations

from pathlib import Path

from outrider.engine.drafters.eagle_checkpoint import write_head
from outrider.engine.drafters.medusa import write_medusa
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.shipped import Heads, heads_for
from random_heads import random_head, random_medusa
from random_llama import write_random_llama


def test_heads_are_found_by_the_models_name(tmp_path: Path) -> None:
    """One of each kind; none for another model, and none where nothing is shipped; an engine drafts with them."""
    model, shipped = tmp_path / "toy-1f2e", tmp_path / "heads"
    write_random_llama(model, num_layers=4)
    assert heads_for(model, shipped) == Heads()
    for kind in ("eagle", "eagle3"):
        write_head(shipped / kind, random_head(model, kind), {"kind": kind, "base_model": model.name})
    write_medusa(shipped / "medusa", random_medusa(model), model.name, {"kind": "medusa", "base_model": model.name})
    write_head(shipped / "another", random_head(model, "eagle"), {"kind": "eagle", "base_model": "toy-3a4b"})
    found = heads_for(model, shipped)
    assert found == Heads((shipped / "eagle", shipped / "eagle3"), shipped / "medusa")
    assert heads_for(tmp_path / "toy-5c6d", shipped) == Heads()
    engine = Engine(model, EngineLimits(max_total_tokens=512), DraftOptions(eagle=found.eagle, medusa=found.medusa))
    assert {"eagle2", "eagle3", "medusa"} <= set(engine.drafters.makers)
    assert engine.drafters.info["eagle2"]["weight_bytes"] > 0
