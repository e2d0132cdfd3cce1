"""Answer bodies of /generate, in SGLang's shape."""

from __future__ import annotations

import time
from typing import Any

from outrider.engine.choices import choice_id
from outrider.engine.logprobs import generate_logprobs
from outrider.engine.replies import Answer, event
from outrider.engine.sequence import Finish


def generate_event(answer: Answer) -> bytes:
    """A step of one choice of /generate; with several, it says of which."""
    body = generate_body(answer)
    return event(body | {"index": answer.index} if answer.parsed.num_choices > 1 else body)


def generate_body(answer: Answer) -> dict[str, Any]:
    """/generate: text and ids are cumulative; `spec_*` fields only on the finished answer of a verified request."""
    meta: dict[str, Any] = {
        "id": choice_id(answer.parsed.request.rid, answer.index),
        "finish_reason": None if answer.finish is None else finish_reason(answer.finish, len(answer.token_ids)),
        "prompt_tokens": len(answer.parsed.request.prompt_ids),
        "completion_tokens": len(answer.token_ids),
        "cached_tokens": answer.num_cached,
        "num_near_ties": answer.num_near_ties,
        "e2e_latency": time.monotonic() - answer.started_s,
    }
    meta |= answer.spec_details or {}
    if answer.num_drafter_failures:
        meta["num_drafter_failures"] = answer.num_drafter_failures
    num_top = answer.parsed.request.num_top_logprobs
    if num_top is not None:
        text = answer.parsed.token_text if answer.parsed.has_logprob_texts else None
        meta |= generate_logprobs(answer.logprobs, text, has_top=num_top > 0)
    return {"text": answer.text, "output_ids": answer.token_ids, "meta_info": meta}


def finish_reason(finish: Finish, num_tokens: int) -> dict[str, Any]:
    """As SGLang's `/generate` tells it."""
    if finish.kind == "length":
        return {"type": "length", "length": num_tokens}
    if finish.kind == "abort":
        return {"type": "abort", "message": finish.message, "status_code": finish.status, "err_type": None}
    return {"type": "stop", "matched": finish.matched}
