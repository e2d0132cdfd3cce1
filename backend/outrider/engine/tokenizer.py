"""Text to tokens and back: encoding, chat template, and decoding that never splits a character."""

from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers.decoders import DecodeStream

from outrider.errors import InvalidRequest, ModelError


class Tokenizer:
    """Reads tokenizer.json and the chat template of a Hugging Face folder."""

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{path} is missing")
        try:
            # Of bytes: of a file, the library raises nothing narrower than Exception.
            self._tokenizer = tokenizers.Tokenizer.from_buffer(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ModelError(f"{path} cannot be read: {error}") from error
        self._settings = _settings(folder)
        source = _template_source(folder, self._settings)
        self._template = None if source is None else _template(folder, source)
        #: Whether the chat template tells the model of tools itself, in the format that answers are read in.
        self.knows_tools = "<tool_call>" in (source or "") and "tools" in (source or "")

    @property
    def vocab_size(self) -> int:
        """With the tokens that were added to the vocabulary."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by text, added tokens too."""
        return self._tokenizer.get_vocab(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of the text; with the tokens that the model puts around it, unless told otherwise."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def to_json(self) -> str:
        """The whole tokenizer, as tokenizer.json has it."""
        return self._tokenizer.to_str()

    def decode(self, token_ids: Seq[int]) -> str:
        """Text of the ids, without special tokens."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def token_text(self, token_id: int) -> str:
        """One token alone, special ones too; U+FFFD stands for a part of a character."""
        return self._tokenizer.decode([token_id], skip_special_tokens=False)

    def encode_chat(self, messages: Seq[dict[str, Any]], tools: Seq[dict[str, Any]] = ()) -> list[int]:
        """Tokens of a conversation up to where the assistant's answer begins; InvalidRequest when it cannot be."""
        if self._template is None:
            raise InvalidRequest("this model has no chat template; use /v1/completions", param="messages")
        named = {k: v for k, v in self._settings.items() if k.endswith("_token") and isinstance(v, str)}
        try:
            text = self._template.render(
                messages=messages, tools=list(tools) or None, add_generation_prompt=True, **named
            )
        except (jinja2.TemplateError, TypeError) as error:
            raise InvalidRequest(
                f"the model's chat template refuses the messages: {error}", param="messages"
            ) from error
        return self.encode(text, add_special_tokens=False)


class Detokenizer:
    """Decodes one answer token by token; a character whose bytes are not complete yet is held back."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer._tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)

    def append(self, token_id: int) -> str:
        """The text that this token completes, possibly empty."""
        return self._stream.step(self._tokenizer, token_id) or ""


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    return data if isinstance(data, dict) else {}


def _template_source(folder: Path, settings: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else settings.get("chat_template")
    return source if isinstance(source, str) else None


def _template(folder: Path, source: str) -> jinja2.Template:
    # Templates come with models, so they are not trusted.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise_template_error
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(f"{folder}: the chat template cannot be read: {error}") from error


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)
