"""Heads trained on a toy target: unrolled steps are drafting's own, runs go on after a kill, and heads get better."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import safetensors.torch
import torch

from outrider.engine.attention import Segment
from outrider.engine.drafters.eagle_checkpoint import read_head
from outrider.engine.drafters.eagle_head import EagleHead
from outrider.engine.drafters.medusa import MedusaHeads, read_medusa
from outrider.engine.engine import Engine, EngineLimits
from outrider.engine.model import LlamaModel
from outrider.engine.tokenizer import Tokenizer
from outrider.errors import ModelError
from outrider.training import Kind
from outrider.training.corpus import Corpus, natural_texts
from outrider.training.features import cache_features, collate, windows
from outrider.training.gather import gather
from outrider.training.job import Job, Trained, output_for, recipe_for, run
from outrider.training.recipes import DEPTH, score
from outrider.training.selection import draft_vocabulary, select
from random_llama import write_random_llama

LIMITS = EngineLimits(max_running=32, max_total_tokens=16384)


def quiet(what: str, fraction: float) -> None:
    """Progress that nobody reads."""


def trained(job: Job) -> Trained:
    """By a clock with which every step takes a second: two minutes are 60 steps."""
    ticks = count()
    return run(job, quiet, lambda: float(next(ticks)))


def fill(model: Path, corpus: Corpus, num_tokens: int) -> None:
    target, tokenizer = LlamaModel(model), Tokenizer(model)
    gather(target, tokenizer, corpus, corpus.path.parent / "states", (num_tokens, 60.0), quiet)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "llama"
    write_random_llama(folder, num_layers=5, seed=3)
    return folder


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of the target, of which some are held out."""
    folder = tmp_path_factory.mktemp("data")
    fill(model, Corpus(folder), 6_000)
    return folder


def test_a_killed_corpus_goes_on(model: Path, data: Path) -> None:
    """A half-written last line is cut off, no prompt is answered twice, and answers are the target's own."""
    before = Corpus(data)
    with before.path.open("a") as file:
        file.write('{"index": 9')
    corpus = Corpus(data)
    assert corpus.texts == before.texts
    fill(model, corpus, corpus.num_tokens + 1)
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
    recipe = recipe_for(job, engine, output_for(job, engine, torch.arange(5, 55)))
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
def test_a_run_ends_with_a_head_and_goes_on(model: Path, data: Path, tmp_path: Path, kind: Kind) -> None:
    """A second run with more time starts where the first ended; what is written can draft."""
    job = Job(kind, model, tmp_path / kind, data, minutes=0.5, num_tokens=1000, draft_vocab=64, command="train")
    first = trained(job)
    assert len(first.state.losses) >= 2
    second = trained(replace(job, minutes=1.0))
    assert second.state.step > first.state.step
    assert second.state.losses[: len(first.state.losses)] == first.state.losses
    target = LlamaModel(model)
    if kind == "medusa":
        stored = read_medusa(job.out, target.config)
        assert stored.num_heads == 4 and MedusaHeads(job.out, target).accuracy == stored.accuracy
    else:
        assert read_head(job.out, target.config).config.kind == kind
    card = (job.out / "README.md").read_text()
    texts = Corpus(data).texts
    assert select(texts, 64, 64).digest in card and "`train`" in card
    num_held_out, num_tokens = sum(text.is_held_out for text in texts), sum(len(text.token_ids) for text in texts)
    assert f"{len(texts)} texts of {num_tokens} tokens" in card and f"{num_held_out} of them held out" in card
    assert "Natural text" not in card and "Draft vocabulary: 64 tokens" in card


def test_a_run_keeps_what_it_began_with(model: Path, data: Path, tmp_path: Path) -> None:
    """Texts that were written since change neither its draft tokens nor its parts; another job is refused."""
    shutil.copy(data / "texts.jsonl", tmp_path / "texts.jsonl")
    job = Job("eagle3", model, tmp_path / "head", tmp_path, minutes=0.2, num_tokens=1000, draft_vocab=30)
    trained(job)
    config = LlamaModel(model).config
    before = read_head(job.out, config).token_ids
    assert before is not None
    # Of all later texts one token that the run did not know is the commonest.
    new = next(token for token in range(64) if token not in before.tolist())
    lines = (tmp_path / "texts.jsonl").read_text().splitlines()
    more = [
        json.dumps(json.loads(lines[0]) | {"index": 5_000 + i, "prompt": f"new {i}", "answer_ids": [new] * 150})
        for i in range(60)
    ]
    (tmp_path / "texts.jsonl").write_text("\n".join([*lines, *more]) + "\n")
    assert new in select(Corpus(tmp_path).texts, 30, 64).token_ids.tolist(), "the texts would choose other tokens now"
    trained(replace(job, minutes=0.3))
    after = read_head(job.out, config).token_ids
    assert after is not None and after.tolist() == before.tolist()
    assert f"{len(lines)} texts" in (job.out / "README.md").read_text()
    with pytest.raises(ModelError, match=r"begun with 30 draft tokens .* go on with 40"):
        trained(replace(job, draft_vocab=40))
    with pytest.raises(ModelError, match="of another kind of head"):
        trained(replace(job, kind="medusa"))
    (tmp_path / "texts.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(ModelError, match="not all there as they were"):
        trained(job)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_a_head_is_trained_further(model: Path, data: Path, tmp_path: Path, kind: Kind) -> None:
    """A new run takes the parameters of another head, and says so; a head of another kind is refused."""
    first = Job(kind, model, tmp_path / "first", data, minutes=0.3, num_tokens=1000, draft_vocab=64, command="one")
    trained(first)
    engine = Engine(model, LIMITS)
    recipe = recipe_for(first, engine, output_for(first, engine, torch.arange(64)))
    recipe.begin_with(first.out, engine.model.config)
    recipe.prepare(iter(()))
    stored = safetensors.torch.load_file(next(first.out.glob("*.safetensors")))
    assert all(torch.equal(tensor.half(), stored[name]) for name, tensor in recipe.parameters.items())
    second = replace(first, out=tmp_path / "second", begin_with=first.out, command="two")
    trained(second)
    assert "Begun with a head of" in (second.out / "README.md").read_text()
    note = json.loads((second.out / "config.json").read_text())["outrider"]
    assert note["command"] == "two" and note["begun_with"]["command"] == "one"
    other = replace(second, kind="eagle" if kind == "medusa" else "medusa", out=tmp_path / "third")
    with pytest.raises(ModelError):
        trained(other)


def test_the_card_tells_of_natural_text(model: Path, data: Path, tmp_path: Path) -> None:
    """How much of which file ran, and as many draft tokens as the target has when more were asked for."""
    (tmp_path / "book.txt").write_text("the cat sat on the mat " * 60)
    job = Job("medusa", model, tmp_path / "head", data, 0.2, 1000, text=tmp_path / "book.txt")
    trained(job)
    num_tokens = len(Engine(model, LIMITS).tokenizer.encode((tmp_path / "book.txt").read_text()))
    card = (job.out / "README.md").read_text()
    assert f"Natural text: {min(num_tokens, 1024)} tokens of `book.txt`" in card
    assert "Draft vocabulary: 64 tokens" in card and str(job.draft_vocab) not in card


def test_states_are_of_the_texts_they_are_used_for(model: Path, data: Path, tmp_path: Path) -> None:
    """Another text with the same number has a file of its own; the same texts have the same file."""
    target, texts = LlamaModel(model), Corpus(data).texts[:2]
    first = cache_features(target, texts, tmp_path, quiet)
    written = first[0].stat().st_mtime_ns
    assert cache_features(target, texts, tmp_path, quiet) == first and first[0].stat().st_mtime_ns == written
    changed = replace(texts[0], answer_ids=texts[0].answer_ids[::-1])
    other = cache_features(target, [changed, texts[1]], tmp_path, quiet)
    old, new = (windows(each, paths, (3,), 256)[0] for each, paths in ((texts, first), ([changed, texts[1]], other)))
    assert other != first and not torch.equal(old.states, new.states)


def test_a_corpus_of_another_form_is_refused(tmp_path: Path) -> None:
    """By file and line, rather than mixed with new texts."""
    (tmp_path / "texts.jsonl").write_text('{"index": 0, "is_held_out": true, "prompt_ids": [1], "answer_ids": [2]}\n')
    with pytest.raises(ModelError, match=r"texts\.jsonl:1 is no text of this version"):
        Corpus(tmp_path)


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
