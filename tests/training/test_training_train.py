"""The training loop: a run that is killed and started again ends where one that was not killed does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
import torch

from outrider.engine.engine import Engine, EngineLimits
from outrider.errors import ModelError
from outrider.training import Kind
from outrider.training.corpus import Corpus
from outrider.training.features import cache_features, windows
from outrider.training.gather import gather
from outrider.training.job import Job, output_for, recipe_for
from outrider.training.selection import restore, select
from outrider.training.train import Trainer, TrainSettings, read_state
from random_llama import write_random_llama

NUM_STEPS = 30


class Killed(BaseException):
    """The end of a process in the middle of a run: nothing is saved on the way out."""


def quiet(what: str, fraction: float) -> None:
    """Progress that nobody reads."""


def killed_at(step: int) -> Callable[[str, float], None]:
    def progress(what: str, fraction: float) -> None:
        if what.startswith(f"step {step},"):
            raise Killed

    return progress


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "llama"
    write_random_llama(folder, num_layers=3, seed=3)
    return folder


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return Engine(model, EngineLimits(max_running=32, max_total_tokens=16384))


@pytest.fixture(scope="module")
def corpus(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    corpus = Corpus(tmp_path_factory.mktemp("data"))
    gather(engine.model, engine.tokenizer, corpus, corpus.path.parent / "states", (3_000, 60.0), quiet)
    return corpus


def trainer_of(
    kind: Kind, model: Path, engine: Engine, corpus: Corpus, folder: Path, num_training: int | None = None
) -> Trainer:
    """As a new process makes it, with a clock by which every step takes a second; on all windows or on so many."""
    stored = read_state(folder)
    selection = select(corpus.texts, 40, 64) if stored is None else restore(stored["selection"], corpus.texts)
    job = Job(kind, model, folder, corpus.path.parent)
    recipe = recipe_for(job, engine, output_for(job, engine, selection.token_ids))
    paths = cache_features(engine.model, selection.written, corpus.path.parent / "states", quiet)
    pieces = windows(selection.written, paths, recipe.columns, 64)
    if num_training is not None:
        held_out = [one for one in pieces if one.text.index in selection.held_out]
        pieces = held_out + [one for one in pieces if one not in held_out][:num_training]
    ticks = count()
    settings = TrainSettings(NUM_STEPS, batch_tokens=128, clock=lambda: float(next(ticks)))
    trainer = Trainer(recipe, selection, pieces, folder, settings)
    if stored is not None:
        trainer.restore(stored)
    return trainer


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_a_killed_run_ends_as_one_that_was_not(
    model: Path, engine: Engine, corpus: Corpus, tmp_path: Path, kind: Kind
) -> None:
    """Killed before anything was saved and twice between two saves: parameters, optimiser, curves and scores of the
    uninterrupted run, number for number."""
    whole = trainer_of(kind, model, engine, corpus, tmp_path / "whole")
    expected = whole.run(quiet)
    assert whole.state.step == NUM_STEPS
    for step in (2, 13, 29):
        killed = trainer_of(kind, model, engine, corpus, tmp_path / "killed")
        with pytest.raises(Killed):
            killed.run(killed_at(step))
    last = trainer_of(kind, model, engine, corpus, tmp_path / "killed")
    assert 13 < last.state.step < 29, "it goes on from a save, not from the start"
    assert last.run(quiet) == expected
    assert last.state == whole.state
    one, other = (read_state(tmp_path / name) for name in ("whole", "killed"))
    assert one is not None and other is not None
    torch.testing.assert_close(other["optimizer"]["state"], one["optimizer"]["state"], rtol=0, atol=0)
    for name, tensor in whole.recipe.parameters.items():
        assert torch.equal(tensor, last.recipe.parameters[name]) and torch.equal(tensor, one["parameters"][name])
    assert all(moments["step"] == NUM_STEPS for moments in one["optimizer"]["state"].values())


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_a_head_learns_what_it_sees(model: Path, engine: Engine, corpus: Corpus, tmp_path: Path, kind: Kind) -> None:
    """Of the same few words again and again the loss falls."""
    trainer = trainer_of(kind, model, engine, corpus, tmp_path, num_training=2)
    trainer.run(quiet)
    losses = [loss for _, loss in trainer.state.losses]
    assert losses[-1] < 0.99 * losses[0]


def test_a_state_that_says_nothing_is_refused(tmp_path: Path) -> None:
    """Damaged, or of another version; none is none."""
    assert read_state(tmp_path) is None
    (tmp_path / "state.pt").write_bytes(b"PK half a file")
    with pytest.raises(ModelError, match=r"state\.pt cannot be read"):
        read_state(tmp_path)
    torch.save({"state": "{}", "optimizer": {}, "parameters": {}}, tmp_path / "state.pt")
    with pytest.raises(ModelError, match=r"state\.pt is of another version: expected .*selection"):
        read_state(tmp_path)
