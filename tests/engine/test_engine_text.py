"""Text in and out: stop strings, characters that span tokens, chat templates."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.stops import StopStrings
from outrider.engine.tokenizer import Detokenizer, Tokenizer
from outrider.errors import InvalidRequest, ModelError


@given(
    text=st.text("ab", max_size=20),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 20), max_size=6),
)
def test_stop_strings_do_not_depend_on_how_text_arrives(text: str, stops: list[str], cuts: list[int]) -> None:
    """The shown text ends before the earliest stop string, and never contains a part of one that came true."""
    edges = sorted({0, len(text), *(c for c in cuts if c <= len(text))})
    watcher = StopStrings(stops)
    shown = ""
    for a, b in itertools.pairwise(edges):
        shown += watcher.append(text[a:b])
        assert not any(stop in shown for stop in stops)
    shown += watcher.flush()
    positions = [text.find(stop) for stop in stops if stop in text]
    # A longer stop string may begin earlier but end later; whichever is complete first ends the answer.
    if positions and watcher.matched is not None:
        assert text.startswith(shown + watcher.matched)
    else:
        assert shown == text and not positions


@pytest.mark.model
@pytest.mark.parametrize(
    "text", ["naïve café", "日本語のテキスト", "👩‍👩‍👧‍👦 and 🏳️‍🌈", "Ω≈ç√∫˜µ≤≥÷", "\u202eabc\n\ttabs  "]
)
def test_characters_are_never_split(model_folder: Path, text: str) -> None:
    """Each piece is valid text, pieces add up, and a character appears only when all its bytes are there."""
    tokenizer = Tokenizer(model_folder)
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.append(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.model
def test_the_chat_template_is_the_model_s(model_folder: Path) -> None:
    """The rendered conversation decodes to the template's text, special tokens being single tokens."""
    tokenizer = Tokenizer(model_folder)
    ids = tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert ids[0] == 1 and ids.count(1) == 3 and ids.count(2) == 2
    assert tokenizer.decode(ids).endswith("user\nHi\nassistant\n")


def test_a_folder_without_tokenizer_or_template(tmp_path: Path, toy_folder: Path) -> None:
    """A missing file is named; a model without a template refuses chats and says what to use."""
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((toy_folder / "tokenizer.json").read_bytes())
    with pytest.raises(InvalidRequest, match="no chat template") as caught:
        Tokenizer(tmp_path).encode_chat([{"role": "user", "content": "A"}])
    assert caught.value.param == "messages"
