"""Heads trained on a toy target: unrolled steps are drafting's own, runs go on after a kill, and heads get better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from outrider.engine.attention import Segment
from outrider.engine.drafters.eagle_checkpoint import read_head
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.medusa import MedusaHeads, read_medusa
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.model import LlamaModel
from outrider.errors import ModelError
from outrider.training import Kind
from outrider.training.corpus import Corpus, natural_texts
from outrider.training.features import cache_features, collate, windows
from outrider.training.job import Job, draft_vocabulary, output_for, recipe_for, run
from outrider.training.prompts import HELD_OUT_EVERY, prompts
from outrider.training.recipes import DEPTH, score
from random_llama import write_random_llama

LIMITS = EngineLimits(max_running=32, max_total_tokens=16384)


def quiet(what: str, fraction: float) -> None:
    """Progress that nobody reads."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "llama"
    write_random_llama(folder, num_layers=5, seed=3)
    return folder


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of the target, of which some are held out."""
    folder = tmp_path_factory.mktemp("data")
    Corpus(folder).extend(Engine(model, LIMITS), 6_000, 60.0, quiet)
    return folder


def test_prompts_are_of_all_kinds_and_come_again() -> None:
    """The same seed gives the same prompts; each kind has its share, held out and not, greedy and warm."""
    source, again = prompts(1), prompts(1)
    found = [next(source) for _ in range(400)]
    assert found == [next(again) for _ in range(400)]
    tasks = {prompt.task for prompt in found}
    assert tasks == {"chat", "code", "maths", "translate", "summarise", "extract", "tools", "creative"}
    held_out = [prompt for prompt in found if prompt.is_held_out]
    assert len(held_out) == 400 // HELD_OUT_EVERY
    assert {prompt.temperature for prompt in found} == {0.0, 0.8}
    assert len({prompt.text for prompt in found}) > 350


def test_a_killed_corpus_goes_on(model: Path, data: Path) -> None:
    """A half-written last line is cut off, no prompt is answered twice, and answers are the target's own."""
    before = Corpus(data)
    with before.path.open("a") as file:
        file.write('{"index": 9')
    corpus = Corpus(data)
    assert corpus.texts == before.texts
    corpus.extend(Engine(model, LIMITS), corpus.num_tokens + 1, 60.0, quiet)
    indices = [text.index for text in Corpus(data).texts]
    assert len(indices) == len(set(indices)) > len(before.texts)
    greedy = next(text for text in corpus.texts if text.temperature == 0.0)
    loaded = LlamaModel(model)
    logits = loaded.forward([Segment(loaded.new_cache(len(greedy.token_ids)), greedy.token_ids, 40)])
    expected = torch.tensor(greedy.token_ids[-39:])
    assert float((logits[:-1].argmax(dim=-1) == expected).float().mean()) > 0.95


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_unrolled_steps_are_those_of_drafting(model: Path, data: Path, tmp_path: Path, kind: Kind) -> None:
    """Step d at a position gives the logits that the stored head gives after d drafted tokens there."""
    engine, texts = Engine(model, LIMITS), Corpus(data).texts[:8]
    job = Job(kind, model, tmp_path / "head", data, draft_vocab=50)
    recipe = recipe_for(job, engine, output_for(job, engine, texts))
    with torch.no_grad():
        for tensor in recipe.parameters.values():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(2)))
            tensor.copy_(tensor.half().float())
    paths = cache_features(engine.model, texts, tmp_path / "states", quiet)
    window = replace(windows(texts, paths, recipe.columns, 48)[0], num_prompt=0)
    batch = collate([window], torch.device("cpu"))
    with torch.no_grad():
        depths = recipe.depths(batch)
    recipe.write(tmp_path / "head", {}, score(recipe, [batch]))
    head = EagleHead(tmp_path / "head", engine.model)
    tokens = window.token_ids.tolist()
    start = 20
    cache = head.new_cache(64)
    features = batch.states[0, : start + 1, : len(head.points)].flatten(1)
    states = head.read(cache, tokens[1 : start + 2], features)[-1:]
    for step in range(DEPTH):
        found = head.logits(states)[0]
        # Row `step` is the first of a depth, so row `start` is of the chain that begins at `start`.
        torch.testing.assert_close(found, depths[step].logits[start], atol=5e-3, rtol=5e-3)
        visible = torch.ones(1, cache.length + 1, dtype=torch.bool)
        states = head.step(cache, [tokens[start + 2 + step]], states, [cache.length], visible)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_a_run_ends_with_a_better_head_and_goes_on(model: Path, data: Path, tmp_path: Path, kind: Kind) -> None:
    """The loss falls; a second run with more time starts where the first ended; what is written can draft."""
    job = Job(kind, model, tmp_path / kind, data, minutes=0.05, num_tokens=1000, draft_vocab=64, command="train")
    first = run(job, quiet)
    assert len(first.state.losses) >= 2
    second = run(replace(job, minutes=0.1), quiet)
    assert second.state.step > first.state.step
    assert second.state.losses[: len(first.state.losses)] == first.state.losses
    assert second.state.losses[-1][1] < first.state.losses[0][1]
    target = LlamaModel(model)
    if kind == "medusa":
        stored = read_medusa(job.out, target.config)
        assert stored.num_heads == 4 and MedusaHeads(job.out, target).accuracy == stored.accuracy
    else:
        assert read_head(job.out, target.config).config.kind == kind
    card = (job.out / "README.md").read_text()
    assert Corpus(data).digest in card and "`train`" in card


def test_the_draft_vocabulary_takes_what_occurs_first(data: Path) -> None:
    """Then the lowest ids; never more than there are."""
    texts = Corpus(data).texts
    assert draft_vocabulary([], 5, 64).tolist() == [0, 1, 2, 3, 4]
    few = draft_vocabulary(texts, 10, 64)
    assert len(few) == len(set(few.tolist())) == 10 and few.tolist() == sorted(few.tolist())
    assert draft_vocabulary(texts, 100, 64).tolist() == list(range(64))


def test_natural_text_comes_in_pieces_and_is_never_held_out(model: Path, tmp_path: Path) -> None:
    """Files of a folder in order, up to a number of tokens; what is no text is refused by name."""
    tokenizer = Engine(model, LIMITS).tokenizer
    (tmp_path / "b.txt").write_text("B" * 700)
    (tmp_path / "a.txt").write_text("A" * 300)
    texts = natural_texts(tokenizer, tmp_path, 100_000)
    assert [len(text.token_ids) for text in texts] == [256, 44, 256, 256, 188]
    assert texts[0].token_ids[0] != texts[2].token_ids[0] and all(text.is_natural for text in texts)
    assert not any(text.is_held_out for text in texts)
    assert len(natural_texts(tokenizer, tmp_path, 500)) == 2
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match=r"a\.txt cannot be read as text"):
        natural_texts(tokenizer, tmp_path, 500)
