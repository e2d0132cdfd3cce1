"""Writes a Hugging Face tokenizer from the vocabulary, merges and chat template inside a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from outrider.errors import ModelError

_CONTROL = 3  # GGUF's token type of special tokens


def write_tokenizer(meta: dict[str, Any], out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja into `out`."""
    kind = (meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ModelError(f"tokenizer {kind[0]!r} with pre-tokenizer {kind[1]!r} is not known, expected gpt2, smollm")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in meta["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, t in zip(tokens, meta["tokenizer.ggml.token_type"], strict=True) if t == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    (out / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    named = {kind: tokens[meta[f"tokenizer.ggml.{long}_token_id"]] for kind, long in _NAMED}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": meta["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": special,
        "chat_template": meta["tokenizer.chat_template"],
        **{f"{kind}_token": token for kind, token in named.items()},
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


_NAMED = (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
