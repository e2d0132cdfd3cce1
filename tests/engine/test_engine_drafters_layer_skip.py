"""Layer sets: the default, the greedy search on toys, and the file that keeps one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from random_llama import write_random_llama

from outrider.engine.attention import Segment
from outrider.engine.drafters.layer_skip import (
    default_skip,
    expected_speedup,
    find_skip,
    read_skip,
    search_skip,
    write_skip,
)
from outrider.engine.kv_cache import SequenceCache
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError


@pytest.mark.parametrize(
    ("num_layers", "expected"),
    [(1, set()), (2, set()), (3, {1}), (8, {2, 4}), (30, {7, 9, 11, 13, 15, 17, 19, 21})],
)
def test_the_default_drops_every_second_middle_layer(num_layers: int, expected: set[int]) -> None:
    """First and last layers stay, however few there are."""
    assert default_skip(num_layers) == expected


def test_the_search_finds_the_layers_that_matter_least() -> None:
    """Leaving out one layer alone does not pay; the search goes on to the set that does."""
    loss = {1: 0.3, 2: 0.05, 3: 0.2, 4: 0.06, 5: 0.05, 6: 0.4}

    def score(skip: frozenset[int]) -> float:
        return expected_speedup(max(0.0, 1 - sum(loss[layer] for layer in skip)), 1.1 - len(skip) / 8)

    found = search_skip(8, score)
    assert found == {2, 4, 5}
    assert score(frozenset({2})) < 1 < score(found)


def test_the_search_never_leaves_out_the_ends_or_more_than_half() -> None:
    """Also when every layer is useless."""
    found = search_skip(8, lambda skip: float(len(skip)))
    assert len(found) == 4 and not found & {0, 7}
    assert search_skip(2, lambda skip: 1.0) == frozenset()


def test_expected_speedup_is_the_published_formula() -> None:
    """Best k of two rows of the published table."""
    assert expected_speedup(0.7, 0.1) == pytest.approx(1.98, abs=0.005)
    assert expected_speedup(0.8, 0.2) == pytest.approx(1.87, abs=0.005)


def test_a_search_on_a_model_keeps_what_changes_its_choices(tmp_path: Path) -> None:
    """Layers that contribute nothing are left out before those that do."""
    write_random_llama(tmp_path, num_layers=6)
    model = LlamaModel(tmp_path)
    for idle in (2, 3, 4):
        model._layers[idle].output = lambda x: x.new_zeros(x.shape[0], 32)
        model._layers[idle].down = lambda x: x.new_zeros(x.shape[0], 32)
    found = find_skip(model, [tuple((7 * i + s) % 64 for i in range(24)) for s in range(3)])
    assert found and found <= {2, 3, 4}


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
    """The file names the depth that it is for."""
    write_skip(tmp_path / "set.json", 30, frozenset({9, 4}))
    assert read_skip(tmp_path / "set.json", 30) == {4, 9}
    with pytest.raises(ModelError, match="for a model of 30 layers, not 12"):
        read_skip(tmp_path / "set.json", 12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a layer set of version 1"),
        (json.dumps({"version": 2, "num_layers": 4, "skip": [1]}), "not a layer set of version 1"),
        (json.dumps({"version": 1, "num_layers": 4, "skip": [4]}), "between 0 and 3"),
        (json.dumps({"version": 1, "num_layers": 4, "skip": ["1"]}), "between 0 and 3"),
    ],
)
def test_files_that_are_no_layer_set(tmp_path: Path, text: str, message: str) -> None:
    """Each is refused with what is wrong."""
    (tmp_path / "set.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_skip(tmp_path / "set.json", 4)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    """The path stands in the error."""
    with pytest.raises(ModelError, match=r"none\.json cannot be read"):
        read_skip(tmp_path / "none.json", 4)
