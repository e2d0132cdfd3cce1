"""Requests of the engine's routes: their bodies turned into a GenerateRequest that fits the model."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from outrider.engine.bodies import (
    CompletionBody,
    GenerateBody,
    OpenAIBody,
    SamplingFields,
    joined,
    refuse,
    validated,
)
from outrider.engine.chat_body import ChatBody
from outrider.engine.engine import Engine
from outrider.engine.grammar import Grammar, GrammarKind
from outrider.engine.sequence import GenerateRequest
from outrider.engine.tools import for_template, forced_grammar
from outrider.errors import ContextLengthExceeded, InvalidRequest
from outrider.policy.plan import PLAN_OFF, Plan

#: Milliseconds from the request's arrival; SGLang has no field for it.
DEADLINE_HEADER = "x-outrider-deadline-ms"
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,11}")
_RID = re.compile(r"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A request ready to run, and how its answer is to be written."""

    request: GenerateRequest
    is_stream: bool = False
    has_usage_chunk: bool = False
    has_spec_details: bool = False
    has_unused_prediction: bool = False
    """It cannot change the text, but is not passed over in silence."""
    has_logprob_texts: bool = False
    """Whether /generate writes tokens as text beside their ids."""
    token_text: Callable[[int], str] = str
    warning: str | None = None
    """Why the plan's drafter may not pay on this machine."""
    num_choices: int = 1
    has_tools: bool = False
    """Whether calls of tools are read from the answer."""
    has_running_usage: bool = False
    """Whether every chunk of a stream counts its tokens so far."""


def parse_chat(data: object, engine: Engine) -> Parsed:
    """The body of `/v1/chat/completions`; InvalidRequest names the field that is wrong."""
    body = validated(ChatBody, data)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs", param="top_logprobs")
    messages, tools = for_template(body, knows_tools=engine.tokenizer.knows_tools)
    prompt_ids = engine.tokenizer.encode_chat(messages, tools)
    options = _Options(
        "messages", body.max_completion_tokens or body.max_tokens, body.seed, body.rid,
        body.top_logprobs if body.logprobs else None,
    )  # fmt: skip
    return _with_tools(_openai(body, prompt_ids, options, engine), body, engine)


def _with_tools(parsed: Parsed, body: ChatBody, engine: Engine) -> Parsed:
    forced = forced_grammar(body)
    if not body.tools or body.tool_choice == "none":
        return parsed
    request = parsed.request
    if forced is not None:
        if request.grammar is not None:
            raise InvalidRequest("one grammar per request: the answer's format is fixed already", param="tool_choice")
        request = replace(request, grammar=_compiled("ebnf", forced, "tools", engine))
    elif not body.parallel_tool_calls:
        request = replace(request, ends_with_call=True)
    return replace(parsed, request=request, has_tools=True)


def parse_completion(data: object, engine: Engine) -> Parsed:
    """The body of `/v1/completions`; InvalidRequest names the field that is wrong."""
    body = validated(CompletionBody, data)
    prompt: Any = body.prompt
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise InvalidRequest("several prompts in one request are not supported", param="prompt")
        prompt = prompt[0]
    prompt_ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    options = _Options("prompt", body.max_tokens, body.seed, body.rid, body.logprobs)
    return _openai(body, prompt_ids, options, engine)


def parse_generate(data: object, engine: Engine) -> Parsed:
    """The body of SGLang's `/generate`; InvalidRequest names the field that is wrong."""
    body = validated(GenerateBody, data)
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequest("exactly one of text and input_ids is needed", param="text")
    params = body.sampling_params
    refuse(params, "sampling_params.")
    refuse(body)
    prompt_ids = engine.tokenizer.encode(body.text) if body.text is not None else body.input_ids or []
    options = _Options(
        "text" if body.text is not None else "input_ids", params.max_new_tokens, params.sampling_seed, body.rid,
        body.top_logprobs_num if body.return_logprob else None, "sampling_params.",
    )  # fmt: skip
    request = replace(_request(params, prompt_ids, options, engine), cache_salt=body.salt)
    engine.check(request, options.prompt_param)
    return Parsed(
        request,
        body.stream,
        has_spec_details=True,
        has_logprob_texts=body.return_text_in_logprobs,
        token_text=engine.tokenizer.token_text,
        warning=engine.drafters.warning(request.plan.drafter),
        num_choices=params.n,
    )


def _openai(body: OpenAIBody, prompt_ids: list[int], options: _Options, engine: Engine) -> Parsed:
    refuse(body)
    request = replace(_request(body, prompt_ids, options, engine), cache_salt=body.salt)
    if body.prediction is not None and request.plan.drafter == "prediction":
        prediction = engine.tokenizer.encode(joined(body.prediction.content), add_special_tokens=False)
        request = replace(request, prediction_ids=tuple(prediction))
    engine.check(request, options.prompt_param)
    return Parsed(
        request,
        body.stream,
        body.stream_options.include_usage,
        body.return_spec_tokens_details,
        has_unused_prediction=body.prediction is not None and request.prediction_ids is None,
        token_text=engine.tokenizer.token_text,
        warning=engine.drafters.warning(request.plan.drafter),
        num_choices=body.n,
        has_running_usage=body.stream_options.continuous_usage_stats,
    )


def parse_deadline(value: str | None, arrived_s: float) -> float | None:
    """`DEADLINE_HEADER`'s milliseconds from arrival -> on the monotonic clock; None when there is none."""
    if value is None:
        return None
    if not _MILLISECONDS.fullmatch(value):
        raise InvalidRequest("the deadline must be a whole number of milliseconds, at least 1", param=DEADLINE_HEADER)
    return arrived_s + int(value) / 1000


@dataclass(frozen=True, slots=True)
class _Options:
    """What the routes name differently."""

    prompt_param: str
    max_tokens: int | None
    seed: int | None
    rid: str | None
    num_top_logprobs: int | None
    """None when logprobs were not asked for."""
    prefix: str = ""
    """Of the sampling fields' names."""


def _request(fields: SamplingFields, prompt_ids: list[int], options: _Options, engine: Engine) -> GenerateRequest:
    where, rid, seed = options.prompt_param, options.rid, options.seed
    _check_prompt(prompt_ids, engine, where)
    if rid is not None and not _RID.fullmatch(rid):
        raise InvalidRequest("rid must be 1 to 128 letters, digits, dots, underscores or dashes", param="rid")
    law = fields.law
    if law.logit_bias and law.logit_bias[-1][0] >= engine.model.config.vocab_size:
        raise InvalidRequest(f"the model has no token {law.logit_bias[-1][0]}", param=f"{options.prefix}logit_bias")
    grammar = _grammar(fields, options.prefix, engine)
    # Where a grammar ends, there is nothing that ignoring the end could lead to.
    eos = () if fields.ignore_eos and grammar is None else engine.model.config.eos_token_ids
    return GenerateRequest(
        rid=rid or uuid.uuid4().hex,
        prompt_ids=tuple(prompt_ids),
        law=law,
        max_new_tokens=options.max_tokens or engine.context_length - len(prompt_ids),
        plan=_plan(fields.custom_params),
        seed=secrets.randbits(64) if seed is None else seed,
        is_seeded=seed is not None,
        stop=tuple(fields.stop),
        stop_token_ids=frozenset((*eos, *fields.stop_token_ids)),
        grammar=grammar,
        num_top_logprobs=options.num_top_logprobs,
    )


def _grammar(fields: SamplingFields, prefix: str, engine: Engine) -> Grammar | None:
    found = fields.grammars
    if not found:
        return None
    param = f"{prefix}{found[-1].param}"
    if len(found) > 1:
        raise InvalidRequest(f"one grammar per request: {prefix}{found[0].param} is there already", param=param)
    return _compiled(found[0].kind, found[0].text, param, engine)


def _compiled(kind: GrammarKind, text: str, param: str, engine: Engine) -> Grammar:
    try:
        return engine.grammars.compile(kind, text)
    except ValueError as error:
        raise InvalidRequest(str(error), param=param) from error


def _check_prompt(prompt_ids: list[int], engine: Engine, where: str) -> None:
    if not prompt_ids:
        raise InvalidRequest("the prompt is empty", param=where)
    vocab = engine.model.config.vocab_size
    if not all(0 <= token < vocab for token in prompt_ids):
        raise InvalidRequest(f"token ids must be between 0 and {vocab - 1}", param=where)
    if len(prompt_ids) >= engine.context_length:
        raise ContextLengthExceeded(
            f"the prompt has {len(prompt_ids)} tokens, the context holds {engine.context_length}", param=where
        )


def _plan(custom_params: Mapping[str, Any]) -> Plan:
    wire = custom_params.get("outrider")
    if wire is None:
        return PLAN_OFF
    try:
        if not isinstance(wire, Mapping):
            raise ValueError("must be an object with drafter and k")
        return Plan.from_wire(wire)
    except ValueError as error:
        raise InvalidRequest(str(error), param="custom_params.outrider") from error
