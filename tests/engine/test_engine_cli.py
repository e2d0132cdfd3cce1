"""`outrider profile`: stores what the engine reads at its start, and shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.engine.drafters.eagle_checkpoint import write_head
from outrider.engine.drafters.layer_skip import read_layer_set
from outrider.engine.drafters.medusa import write_medusa
from outrider.engine.drafters.sources import DraftOptions
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.profile import layers_for, read_table, table_path
from outrider.errors import ConfigError
from random_heads import random_head, random_medusa
from random_llama import write_random_llama

PROMPTS = """
version: 1
prompts:
  - {name: a, task: chat, temperature: 0, max_tokens: 8, text: ABCABCABC}
  - {name: b, task: chat, temperature: 0, max_tokens: 8, text: XYZXYZ}
"""


def profile(*options: str) -> str:
    done = CliRunner().invoke(app, ["profile", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_profile_is_stored_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table and layer set lie where the engine looks; the search can be left out, and then the set stays."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    folder, prompts = tmp_path / "model", tmp_path / "prompts.yaml"
    write_random_llama(folder, num_layers=4)
    prompts.write_text(PROMPTS)
    assert layers_for(folder, tmp_path / "cache") is None
    shown = profile("--model", str(folder), "--prompts", str(prompts))
    table = read_table(table_path(folder, tmp_path / "cache"))
    path = layers_for(folder, tmp_path / "cache")
    assert table is not None and path is not None
    layers = read_layer_set(path, 4)
    assert layers.key == table.key and layers.worth is not None and len(layers.trials) == 2
    for name in ("ngram", "suffix", "prediction", "layer_skip"):
        assert re.search(rf"^{name} +first draft token +[\d.]+ ms, each further", shown, re.MULTILINE), shown
    assert shown.count("ms of a round") == len(table.contexts) and "⠤" in shown and "\x1b" not in shown
    assert f"{layers.worth.speedup:.2f} times the speed of none" in shown
    assert ("does not pay here" in shown) == (layers.worth.speedup < 1)

    again = profile("--model", str(folder), "--no-layer-search")
    assert "times the speed" not in again and read_layer_set(path, 4) == layers
    assert layers_for(folder, tmp_path / "cache", prompts) == prompts
    engine = Engine(folder, EngineLimits(max_total_tokens=512))
    assert "`outrider profile`" in (engine.drafters.warning("layer_skip") or "")


def test_heads_and_weights_in_8_bits_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they cost is known to an engine that drafts with the same, and to no other."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    folder, eagle, medusa = (tmp_path / name for name in ("model", "eagle", "medusa"))
    write_random_llama(folder, num_layers=4)
    write_head(eagle, random_head(folder, "eagle"))
    write_medusa(medusa, random_medusa(folder), "model")
    options = ("--model", str(folder), "--eagle", str(eagle), "--medusa", str(medusa), "--int8", "--no-layer-search")
    shown = profile(*options)
    assert re.search(r"^eagle2 .* ms, each further", shown, re.MULTILINE) and "medusa" in shown
    table = read_table(table_path(folder, tmp_path / "cache"))
    assert table is not None and table.drafters["eagle2"].weight_bytes > 0
    for is_int8 in (True, False):
        drafting = DraftOptions(eagle=(eagle,), medusa=medusa, is_int8=is_int8)
        engine = Engine(folder, EngineLimits(max_total_tokens=512), drafting)
        known = table.with_drafters(engine.drafters.digests).drafters
        assert ({"eagle2", "hybrid", "medusa"} <= known.keys()) is is_int8
    own = {"weight_bytes": 0, "bytes_per_token": 0}
    assert table.drafters["hybrid"] == table.drafters["eagle2"].model_copy(update=own), "where it finds nothing"


def test_one_prompt_is_too_few_to_search_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said before anything is measured: nothing would be left to check the set with."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    write_random_llama(tmp_path / "model", num_layers=4)
    (tmp_path / "prompts.yaml").write_text(PROMPTS.partition("  - {name: b")[0])
    done = CliRunner().invoke(
        app, ["profile", "--model", str(tmp_path / "model"), "--prompts", str(tmp_path / "prompts.yaml")]
    )
    assert isinstance(done.exception, ConfigError) and "one prompt finds no layers" in str(done.exception)


def test_prompts_without_a_search_are_refused(tmp_path: Path) -> None:
    """By name: they would change nothing."""
    done = CliRunner().invoke(app, ["profile", "--model", str(tmp_path), "--no-layer-search", "--prompts", "p.yaml"])
    assert isinstance(done.exception, ConfigError) and "--prompts" in str(done.exception)
