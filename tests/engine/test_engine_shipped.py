"""Heads that come with the project go to the model that they were made for."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.drafters.eagle_checkpoint import write_head
from outrider.engine.drafters.medusa import write_medusa
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.shipped import Heads, Worth, heads_for, record, shipped_heads
from outrider.errors import ModelError
from random_heads import random_head, random_medusa
from random_llama import write_random_llama

WORTH = Worth(drafts="eagle2 dynamic k=4", accept_length=1.5, against_off=1.2, num_answers=9, machine="a machine")


def test_heads_are_found_by_the_models_name(tmp_path: Path) -> None:
    """One of each kind that pays; none for another model, and none where nothing is shipped; an engine drafts."""
    model, shipped = tmp_path / "toy-1f2e", tmp_path / "heads"
    write_random_llama(model, num_layers=4)
    assert heads_for(model, shipped) == Heads()
    for kind in ("eagle", "eagle3"):
        write_head(shipped / kind, random_head(model, kind), {"kind": kind, "base_model": model.name})
    write_medusa(shipped / "medusa", random_medusa(model), model.name, {"kind": "medusa", "base_model": model.name})
    assert heads_for(model, shipped) == Heads(), "none was measured"
    for kind in ("eagle", "eagle3", "medusa"):
        record(shipped / kind, WORTH)
    write_head(shipped / "another", random_head(model, "eagle"), {"kind": "eagle", "base_model": "toy-3a4b"})
    found = heads_for(model, shipped)
    assert found == Heads((shipped / "eagle", shipped / "eagle3"), shipped / "medusa")
    assert heads_for(tmp_path / "toy-5c6d", shipped) == Heads()
    before = (shipped / "eagle" / "config.json").read_text()
    record(shipped / "eagle", WORTH.model_copy(update={"against_off": 0.9}))
    assert heads_for(model, shipped).eagle == (shipped / "eagle3",), "what loses is off"
    lines = {head.kind: head.summary for head in shipped_heads(model, shipped)}
    assert "0.90 times off" in lines["eagle"] and "does not pay" in lines["eagle"]
    assert lines["medusa"] == "1.20 times off with eagle2 dynamic k=4 on a machine"
    (shipped / "eagle" / "config.json").write_text(before)
    engine = Engine(model, EngineLimits(max_total_tokens=512), DraftOptions(eagle=found.eagle, medusa=found.medusa))
    assert {"eagle2", "eagle3", "medusa", "hybrid"} <= set(engine.drafters.makers)
    assert engine.drafters.info["eagle2"]["weight_bytes"] > 0


def test_a_worth_that_says_nothing_is_refused(tmp_path: Path) -> None:
    """By file, rather than taken for one that pays."""
    model, shipped = tmp_path / "toy", tmp_path / "heads"
    write_random_llama(model, num_layers=4)
    note = {"kind": "eagle", "base_model": "toy", "worth": {"against_off": 3}}
    write_head(shipped / "eagle", random_head(model, "eagle"), note)
    with pytest.raises(ModelError, match=r"config\.json: outrider\.worth: Field required"):
        heads_for(model, shipped)
