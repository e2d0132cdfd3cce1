"""Layer sets: the default, what is said of one that does not pay, and the file that keeps one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.engine.attention import Segment
from outrider.engine.drafters.layer_skip import (
    LayerSet,
    Trial,
    Worth,
    default_set,
    read_layer_set,
    write_layer_set,
)
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError
from random_llama import write_random_llama


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(1, set()), (2, set()), (3, {1}), (8, {2, 4}), (30, {7, 9, 11, 13, 15, 17, 19, 21})],
)
def test_the_default_drops_every_second_middle_layer(num_layers: int, expected: set[int]) -> None:
    """First and last layers stay, however few there are."""
    assert set(default_set(num_layers).skip) == expected


def worth(speedup: float) -> Worth:
    return Worth(k=2, accept_length=1.75, speedup=speedup, step_cost=0.5, num_tokens=100)


def test_a_set_warns_unless_it_was_measured_to_pay() -> None:
    """With the ratio where it is known, and with what to do where it is not."""
    assert "`outrider profile`" in (default_set(8).warning or "")
    losing = LayerSet(num_layers=8, skip=(3,), worth=worth(0.834))
    assert "writes 0.83 times as many tokens per second" in (losing.warning or "")
    assert "accept length 1.75 at k 2" in (losing.warning or "")
    assert LayerSet(num_layers=8, skip=(3,), worth=worth(1.2)).warning is None


def test_skipped_layers_are_not_run(tmp_path: Path) -> None:
    """Leaving out every layer gives the head on the embedding alone, whatever came before."""
    write_random_llama(tmp_path, num_layers=3)
    model = LlamaModel(tmp_path)

    def last(tokens: tuple[int, ...], skip: frozenset[int]) -> list[float]:
        return model.forward([Segment(SequenceCache(model.config, 8), tokens, 1)], skip)[0].tolist()

    everything = frozenset(range(3))
    assert last((1, 2, 3), everything) == pytest.approx(last((9, 8, 3), everything))
    assert last((1, 2, 3), frozenset({1})) != pytest.approx(last((9, 8, 3), frozenset({1})))
    assert last((1, 2, 3), frozenset({1})) != pytest.approx(last((1, 2, 3), frozenset()))


def test_a_set_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With all its numbers; the file names the depth that it is for."""
    trial = Trial(skip=(4,), num_head_tokens=None, k=1, expected_speedup=0.7)
    layers = LayerSet(
        num_layers=30, skip=(4, 9), num_head_tokens=8192, key={"cpu": "x"}, worth=worth(0.9), trials=(trial,)
    )
    write_layer_set(tmp_path / "set.json", layers)
    assert read_layer_set(tmp_path / "set.json", 30) == layers
    with pytest.raises(ModelError, match="for a model of 30 layers, not 12"):
        read_layer_set(tmp_path / "set.json", 12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no layer set: the file"),
        ("[]", "no layer set: the file"),
        (json.dumps({"version": 1, "num_layers": 4, "skip": [1]}), "no layer set: version.*profile again"),
        (json.dumps({"num_layers": 4, "skip": [4]}), "between 0 and 3"),
        (json.dumps({"num_layers": 4, "skip": ["x"]}), "skip.0"),
        (json.dumps({"num_layers": 4, "skip": [1, 1, 2]}), "each layer once"),
        (json.dumps({"num_layers": 4, "skip": [0, 1, 2, 3]}), "leave a layer"),
    ],
)
def test_files_that_are_no_layer_set(tmp_path: Path, text: str, message: str) -> None:
    """Each is refused with what is wrong."""
    (tmp_path / "set.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_layer_set(tmp_path / "set.json", 4)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The path stands in the error."""
    with pytest.raises(ModelError, match=r"none\.json cannot be read"):
        read_layer_set(tmp_path / "none.json", 4)
