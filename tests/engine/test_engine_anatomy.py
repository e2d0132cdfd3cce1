"""The parts of a step: they add up, name what ran, and leave the engine idle."""

from __future__ import annotations

from pathlib import Path

from outrider.engine.anatomy import step_anatomy
from outrider.engine.engine import Engine, EngineLimits


def test_the_parts_of_a_step(attentive_folder: Path) -> None:
    """The best of turns is under their median, the engine's operators are named, and nothing stays behind."""
    engine = Engine(attentive_folder, EngineLimits(max_total_tokens=1024))
    anatomy = step_anatomy(engine, (5, 9, 2, 44), 8)
    assert 0 < anatomy.step_s <= anatomy.median_step_s and 0 < anatomy.read_s <= anatomy.median_read_s
    assert 0 < anatomy.operators_s < anatomy.median_step_s and 0 <= anatomy.python_share < 1
    assert anatomy.num_operators > 20 * engine.model.config.num_layers
    assert any("linear" in name for name, _ in anatomy.top)
    assert [s for _, s in anatomy.top] == sorted((s for _, s in anatomy.top), reverse=True)
    assert not engine.has_work and engine.pool.num_used_tokens == 0


def test_what_a_step_reads_is_every_matrix(attentive_folder: Path) -> None:
    """But the embedding, of which it takes single rows."""
    model = Engine(attentive_folder, EngineLimits(max_total_tokens=1024)).model
    c = model.config
    heads = c.num_heads + 2 * c.num_kv_heads
    layer = c.hidden_size * ((heads + c.num_heads) * c.head_dim + 3 * c.intermediate_size)
    numbers = c.num_layers * layer + c.vocab_size * c.hidden_size
    assert model.packed_bytes in (2 * numbers, 4 * numbers)
