"""Log probabilities of emitted tokens: values against the chain's closed form, and the three shapes."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch

from markov import ALPHABET, EOS, chain_law, write_ending_checkpoint
from outrider.engine import generate_replies, replies
from outrider.engine.engine import Engine, EngineLimits, Output
from outrider.engine.logprobs import TokenLogprob, chat_logprobs, completion_logprobs, token_logprobs
from outrider.engine.protocol import Parsed, parse_chat, parse_completion, parse_generate
from outrider.sse import SSEDecoder

PROMPT = "ABCDABDCACBD"
NGRAM = {"outrider": {"drafter": "ngram", "k": 4}}
SUFFIX = {"outrider": {"drafter": "suffix", "k": 8}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, chain: np.ndarray) -> Engine:
    folder = tmp_path_factory.mktemp("logprobs") / "toy"
    write_ending_checkpoint(folder, chain)
    return Engine(folder, EngineLimits(context_length=512))


def outputs(engine: Engine, parsed: Parsed) -> list[Output]:
    engine.add(parsed.request)
    found: list[Output] = []
    while engine.has_work:
        found += engine.step()
    return found


def answer_of(engine: Engine, parsed: Parsed) -> replies.Answer:
    answer = replies.Answer(parsed, "toy")
    for output in outputs(engine, parsed):
        answer.add(output)
    return answer


def chat(**fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 40, "seed": 3, "logprobs": True}
    return body | fields


def generate(**fields: Any) -> dict[str, Any]:
    params = {"max_new_tokens": 40, "sampling_seed": 3, **fields.pop("sampling_params", {})}
    return {"text": PROMPT, "return_logprob": True, "sampling_params": params} | fields


@pytest.mark.parametrize(
    "fields", [{}, {"custom_params": NGRAM}, {"custom_params": SUFFIX}], ids=["off", "chain", "tree"]
)
@pytest.mark.parametrize("law", [{}, {"temperature": 0.3, "top_p": 0.9}, {"temperature": 0}], ids=str)
def test_each_token_has_the_model_s_own_log_probability(
    engine: Engine, chain: np.ndarray, fields: dict[str, Any], law: dict[str, Any]
) -> None:
    """Whatever the temperature, filters and drafts: log P(token | token before) of the chain, and the row's best."""
    body = generate(top_logprobs_num=3, sampling_params=fields | law)
    answer = answer_of(engine, parse_generate(body, engine))
    meta = generate_replies.generate_body(answer)["meta_info"]
    if fields:
        assert answer.stats is not None and answer.stats.num_accepted > 0, "the drafts say nothing"
    expected = np.log(chain_law(chain, 1.0)[:, :4])
    triples = meta["output_token_logprobs"]
    assert [token for _, token, _ in triples] == answer.token_ids
    assert len(triples) == meta["output_token_logprobs_length"] == meta["completion_tokens"] == 40
    before = ALPHABET.index(PROMPT[-1])
    for (logprob, token, text), top in zip(triples, meta["output_top_logprobs"], strict=True):
        assert text is None
        assert logprob == pytest.approx(expected[before, token], abs=1e-4)
        best = np.argsort(-expected[before])[:3]
        assert [t for _, t, _ in top] == best.tolist()
        assert [value for value, _, _ in top] == pytest.approx(expected[before, best], abs=1e-4)
        before = token


def test_a_grammar_and_a_bias_do_not_change_what_the_model_thinks(engine: Engine, chain: np.ndarray) -> None:
    """Tokens that the request forces keep the raw log probability."""
    body = generate(sampling_params={"regex": "DDDD", "temperature": 0, "logit_bias": {"3": 5}})
    answer = answer_of(engine, parse_generate(body, engine))
    assert answer.text == "DDDD"
    expected = np.log(chain_law(chain, 1.0)[3, 3])
    assert [t.logprob for t in answer.logprobs] == pytest.approx([expected] * 4, abs=1e-4)


def test_generate_writes_texts_when_asked_to(engine: Engine) -> None:
    """Triples hold the token's text with `return_text_in_logprobs`, and nothing is there without `return_logprob`."""
    answer = answer_of(engine, parse_generate(generate(return_text_in_logprobs=True), engine))
    meta = generate_replies.generate_body(answer)["meta_info"]
    assert "".join(text for _, _, text in meta["output_token_logprobs"]) == answer.text
    assert "output_top_logprobs" not in meta
    plain = answer_of(engine, parse_generate(generate(return_logprob=False, top_logprobs_num=2), engine))
    assert not [key for key in generate_replies.generate_body(plain)["meta_info"] if "logprob" in key]
    assert plain.logprobs == []


def test_chat_shape(engine: Engine) -> None:
    """OpenAI's objects: token, logprob, bytes, and the alternatives, of which the greedy token is the best."""
    answer = answer_of(engine, parse_chat(chat(top_logprobs=2, temperature=0, custom_params=NGRAM), engine))
    choice = replies.whole_body([answer], replies.CHAT)["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"] and len(content) == 40
    for entry in content:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["bytes"] == list(entry["token"].encode())
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0] == {key: entry[key] for key in ("token", "logprob", "bytes")}
    without = answer_of(engine, parse_chat(chat(logprobs=False), engine))
    assert replies.whole_body([without], replies.CHAT)["choices"][0]["logprobs"] is None


def test_completion_shape(engine: Engine) -> None:
    """Parallel lists, with offsets that cut the text into its tokens."""
    body = {"prompt": PROMPT, "logprobs": 2, "temperature": 0}
    answer = answer_of(engine, parse_completion(body, engine))
    choice = replies.whole_body([answer], replies.COMPLETION)["choices"][0]
    logprobs = choice["logprobs"]
    edges = [*logprobs["text_offset"], len(choice["text"])]
    assert [choice["text"][a:b] for a, b in itertools.pairwise(edges)] == logprobs["tokens"]
    assert [max(top.values()) for top in logprobs["top_logprobs"]] == logprobs["token_logprobs"]
    none = answer_of(engine, parse_completion(body | {"logprobs": 0}, engine))
    assert replies.whole_body([none], replies.COMPLETION)["choices"][0]["logprobs"]["top_logprobs"] == [{}] * 16


@pytest.mark.parametrize("shape", [replies.CHAT, replies.COMPLETION], ids=["chat", "completion"])
def test_a_stream_holds_the_same_log_probabilities(engine: Engine, shape: replies.Shape) -> None:
    """Pieces add up to the whole answer's lists, also for tokens whose text a stop string holds back."""
    stop = "ABCDABCD"
    if shape is replies.CHAT:
        parsed = parse_chat(chat(top_logprobs=1, custom_params=NGRAM, stop=stop), engine)
    else:
        body = {"prompt": PROMPT, "logprobs": 1, "seed": 3, "max_tokens": 40, "stop": stop, "custom_params": NGRAM}
        parsed = parse_completion(body, engine)
    answer = replies.Answer(parsed, "toy")
    events = b""
    for output in outputs(engine, parsed):
        answer.add(output)
        events += replies.delta_events(answer, shape, output)
    chunks = [json.loads(e.data)["choices"][0] for e in SSEDecoder().feed(events) if e.data]
    whole = replies.whole_body([answer], shape)["choices"][0]["logprobs"]
    for key in ("content",) if shape is replies.CHAT else whole:
        assert [item for chunk in chunks for item in chunk["logprobs"][key]] == whole[key]
    assert len(chunks) > 5


def test_the_end_token_counts_too(engine: Engine) -> None:
    """An emitted end token has a log probability and no text in the answer."""
    # The optional last character is none of the model's, so only the end can follow.
    answer = answer_of(engine, parse_generate(generate(sampling_params={"regex": "A{3}é?"}), engine))
    assert (answer.text, answer.token_ids) == ("AAA", [0, 0, 0, EOS])
    assert [t.token_id for t in answer.logprobs] == answer.token_ids


def test_rows_belong_to_their_tokens() -> None:
    """Log softmax of each row at its own token, alternatives best first, none when none are asked for."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 1.0]])
    expected = logits.log_softmax(-1)
    first, second = token_logprobs(logits, (1, 0), 2)
    assert (first.token_id, second.token_id) == (1, 0)
    assert [first.logprob, second.logprob] == pytest.approx([expected[0, 1].item(), expected[1, 0].item()])
    assert [token for token, _ in first.top] == [2, 1]
    assert token_logprobs(logits, (1, 0), 0)[0].top == ()
    assert token_logprobs(logits[:0], (), 2) == ()


def test_a_part_of_a_character_has_no_bytes() -> None:
    """What cannot be said exactly is null."""
    token = TokenLogprob(7, -0.5, ((7, -0.5), (8, -1.0)))
    texts = {7: "\ufffd", 8: "é"}
    entry = chat_logprobs([token], texts.__getitem__)["content"][0]
    assert entry["bytes"] is None and [top["bytes"] for top in entry["top_logprobs"]] == [None, [0xC3, 0xA9]]
    assert completion_logprobs([token, token], texts.__getitem__, 5)["text_offset"] == [5, 6]
