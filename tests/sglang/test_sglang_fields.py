"""Every field that SGLang's own route takes is known: it is open to clients, or refused as internal."""

from __future__ import annotations

import ast

from outrider.gateway.access import INTERNAL_FIELDS
from outrider.runtimes import sglang_env

#: Looked at one by one; `rid` is replaced and `background` refused, the salts are made the tenant's own.
OPEN = frozenset({
    "audio_data", "background", "cache_salt", "conversation_id", "custom_labels", "extra_key", "image_data",
    "image_max_dynamic_patch", "images_config", "input_ids", "logprob_start_len", "lora_path", "max_dynamic_patch",
    "max_thinking_tokens", "min_dynamic_patch", "mm_processor_kwargs", "modalities", "multi_item_delimiter_indices",
    "no_logs", "require_reasoning", "return_entropy", "return_flat_raw_output_top_logprobs",
    "return_flat_raw_top_logprobs", "return_flat_raw_top_logprobs_b64", "return_indexer_topk", "return_logprob",
    "return_prompt_token_ids", "return_routed_experts", "return_sampling_mask", "return_text_in_logprobs", "rid",
    "routed_experts_start_len", "sampling_logprobs_mode", "sampling_params", "session_id", "stream", "text",
    "token_ids_logprob", "token_indices_to_pool", "top_logprobs_num", "use_audio_in_video", "video_config",
    "video_data", "video_max_dynamic_patch", "watermark",
})  # fmt: skip


def test_every_field_of_the_pinned_version_is_open_or_internal() -> None:
    """A field that a new version brings has to be looked at before it can pass."""
    (source,) = sglang_env.environment().glob("lib/python3*/site-packages/sglang/srt/managers/io_struct.py")
    classes = {one.name: one for one in ast.parse(source.read_text()).body if isinstance(one, ast.ClassDef)}
    members = classes["GenerateReqInput"].body
    fields = {one.target.id for one in members if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    assert fields - INTERNAL_FIELDS == OPEN
    assert fields >= INTERNAL_FIELDS
