"""The parts of a step: they add up, name what ran, and leave the engine idle."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.engine.anatomy import read_time_s, step_anatomy
from outrider.engine.engine import Engine, EngineLimits


def test_the_parts_of_a_step_add_up(attentive_folder: Path) -> None:
    """Operators and Python make up the step, the engine's operators are named, and nothing stays behind."""
    engine = Engine(attentive_folder, EngineLimits(max_total_tokens=1024))
    anatomy = step_anatomy(engine, (5, 9, 2, 44), 8)
    assert anatomy.step_s == pytest.approx(anatomy.operators_s + anatomy.python_s)
    assert anatomy.operators_s >= 0 and 0 < anatomy.python_share <= 1
    assert anatomy.python_share == pytest.approx(anatomy.python_s / anatomy.step_s)
    assert any("linear" in name for name, _ in anatomy.top)
    assert [s for _, s in anatomy.top] == sorted((s for _, s in anatomy.top), reverse=True)
    assert not engine.has_work and engine.pool.num_used_tokens == 0


def test_reading_takes_time_in_proportion_to_the_matrices(attentive_folder: Path) -> None:
    """What a step reads is every matrix but the embedding, of which it takes single rows."""
    model = Engine(attentive_folder, EngineLimits(max_total_tokens=1024)).model
    c = model.config
    heads = c.num_heads + 2 * c.num_kv_heads
    layer = c.hidden_size * ((heads + c.num_heads) * c.head_dim + 3 * c.intermediate_size)
    numbers = c.num_layers * layer + c.vocab_size * c.hidden_size
    assert model.packed_bytes in (2 * numbers, 4 * numbers)
    assert read_time_s(model) > 0
