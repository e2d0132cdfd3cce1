"""What the policy looks at: cheap features of one request body. Reads no clock, no load, no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.core import Hints, Priority, Surface
from outrider.policy.classify import classify
from outrider.policy.lookup import split_text, told_share

#: What SGLang and OpenAI sample with when a request names no temperature.
DEFAULT_TEMPERATURE = 1.0
#: The dry run looks at this much of the prompt's end, which bounds its time.
_DRY_RUN_CHARS, _DRY_RUN_IDS = 3072, 512
#: A message no longer than this that shows no task ("can you parallelise it?") continues the one before it.
_FOLLOW_UP_MAX_CHARS = 200
_PRIORITIES: Mapping[Priority, int] = {"interactive": 1, "default": 0, "bulk": -1}


@dataclass(slots=True)
class Features:
    """One request as the policy sees it."""

    temperature: float
    """1.0 when the request names none."""
    task: str
    """One of `core.TASKS`."""
    is_task_given: bool
    """True when the request named the task, False when it was guessed."""
    num_prompt_chars: int
    """Characters of text; token ids, images and tool definitions do not count."""
    num_prompt_tokens: int
    """An estimate: characters / 4, rounded up; exact when the prompt was given as token ids."""
    dry_run: float
    """0..1: share of the tokens at the prompt's end that look-up in the prompt itself would have drafted rightly."""
    num_messages: int
    """Messages of a chat body; 0 for a completions body."""
    is_stream: bool
    has_prediction: bool = False
    """The request carries OpenAI's `prediction`, a text that the answer is expected to resemble."""
    surfaces: Mapping[Surface, str] = field(default_factory=dict)
    """What of sampling and content not every lane honours, each with the field that asks for it."""
    priority: int = 0
    """Above 0 is high, below is low: SGLang's `priority`, else that of the queue."""
    max_tokens: int | None = None
    tenant: str | None = None
    """A name that keeps one customer's texts from another's, never a secret: the tenant of its key, which no body can
    change; without keys the request's `cache_salt`."""


@dataclass(slots=True)
class _Prompt:
    """The text of a body, sorted by who said it."""

    texts: list[str] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    system: str = ""
    user: list[str] = field(default_factory=list)
    num_messages: int = 0
    has_images: bool = False


def extract_features(
    body: Mapping[str, Any], hints: Hints, tenant: str | None = None, priority: Priority = "default"
) -> Features:
    """Features of an OpenAI chat body (`messages`) or completions body (`prompt`), from this tenant's key.

    Raises nothing on a body that the gateway's schema lets pass; what is not text or token ids is left out.
    """
    messages = body.get("messages")
    prompt = _read_messages(messages) if isinstance(messages, list) else _read_prompt(body.get("prompt"))
    num_chars = sum(map(len, prompt.texts))
    temperature = _temperature(body.get("temperature"))
    return Features(
        temperature=temperature,
        task=hints.task or _guess_task(prompt),
        is_task_given=hints.task is not None,
        num_prompt_chars=num_chars,
        num_prompt_tokens=-(-num_chars // 4) + len(prompt.ids),
        dry_run=_dry_run(prompt),
        num_messages=prompt.num_messages,
        is_stream=body.get("stream") is True,
        has_prediction=isinstance(body.get("prediction"), dict),
        surfaces=_surfaces(body, temperature, has_images=prompt.has_images),
        priority=_whole(body.get("priority")) or _PRIORITIES[priority],
        max_tokens=_whole(body.get("max_completion_tokens")) or _whole(body.get("max_tokens")),
        tenant=tenant or _name(body.get("cache_salt")),
    )


def text_of(body: Mapping[str, Any]) -> str:
    """The text of a body's prompt."""
    messages = body.get("messages")
    prompt = _read_messages(messages) if isinstance(messages, list) else _read_prompt(body.get("prompt"))
    return "\n".join(prompt.texts)


def _temperature(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else DEFAULT_TEMPERATURE  # type: ignore[arg-type]


def _read_messages(messages: Sequence[Any]) -> _Prompt:
    prompt = _Prompt(num_messages=len(messages))
    for message in messages:
        if not isinstance(message, dict):
            continue
        content = message.get("content")
        if isinstance(content, str):
            text = content
        else:
            text = "\n".join(_content_texts(content))
            prompt.has_images = prompt.has_images or _has_image(content)
        prompt.texts.append(text)
        role = message.get("role")
        if role == "user":
            prompt.user.append(text)
        elif role in ("system", "developer"):
            prompt.system = text
    return prompt


def _content_texts(content: Any) -> list[str]:
    """Texts of a message's content that is a list of parts."""
    parts = content if isinstance(content, list) else []
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [text for text in texts if isinstance(text, str)]


def _has_image(content: Any) -> bool:
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("type") == "image_url" for part in parts)


def _read_prompt(value: Any) -> _Prompt:
    """A string, a list of strings, a list of token ids, or a list of lists of token ids."""
    prompt = _Prompt()
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str):
            prompt.texts.append(item)
        elif isinstance(item, list):
            prompt.ids.extend(item)
        elif item is not None:
            prompt.ids.append(item)
    prompt.user.append("\n".join(prompt.texts))
    return prompt


def _guess_task(prompt: _Prompt) -> str:
    if not prompt.user:
        return classify("", prompt.system)
    last = prompt.user[-1]
    task = classify(last, prompt.system)
    if task == "chat" and len(prompt.user) > 1 and len(last) <= _FOLLOW_UP_MAX_CHARS:
        return classify(prompt.user[-2], prompt.system)
    return task


def _dry_run(prompt: _Prompt) -> float:
    if prompt.ids:
        return told_share([str(token) for token in prompt.ids[-_DRY_RUN_IDS:]])
    return told_share(split_text("\n".join(prompt.texts)[-_DRY_RUN_CHARS:]))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _surfaces(body: Mapping[str, Any], temperature: float, *, has_images: bool) -> dict[Surface, str]:
    """What the request's law and content use. A greedy law is not changed by what only cuts or draws."""
    wanted = {} if _ASKING.isdisjoint(body) else _always_wanted(body)
    if has_images:
        wanted["images"] = "messages"
    if temperature > 0:
        wanted["temperature"] = "temperature"
        wanted |= _wanted(body, _DRAWN)
        if body.get("top_k") not in (None, -1) and body.get("top_p") not in (None, 1):
            wanted["top_k_top_p"] = "top_p"
    return wanted


def _always_wanted(body: Mapping[str, Any]) -> dict[Surface, str]:
    wanted = _wanted(body, _ASKED)
    # 0 asks for those of the written tokens, and in Python it equals False.
    if body.get("logprobs") is not None and body["logprobs"] is not False:
        wanted["logprobs"] = "logprobs"
    return wanted | _grammars(body)


_Asked = tuple[tuple[str, Surface, tuple[object, ...]], ...]


def _wanted(body: Mapping[str, Any], asked: _Asked) -> dict[Surface, str]:
    return {surface: name for name, surface, nothing in asked if name in body and body[name] not in nothing}


#: Fields, the surface that each asks for, and the values that ask for nothing; the last ones matter to draws only.
_ASKED: _Asked = (
    ("frequency_penalty", "penalties", (None, 0)),
    ("presence_penalty", "penalties", (None, 0)),
    ("repetition_penalty", "penalties", (None, 1)),
    # SGLang counts verify steps for these, as for its other penalties, where plain decoding counts tokens.
    ("min_tokens", "penalties", (None, 0)),
    ("min_new_tokens", "penalties", (None, 0)),
    ("logit_bias", "logit_bias", (None, {})),
    ("custom_logit_processor", "logit_processor", (None,)),
    ("lora_path", "lora", (None, "")),
    ("image_data", "images", (None, "", [])),
)
_DRAWN: _Asked = (
    ("min_p", "min_p", (None, 0)),
    ("seed", "seed", (None,)),
)


_GRAMMARS: tuple[Surface, ...] = ("json_schema", "regex", "ebnf", "structural_tag")


def _grammars(body: Mapping[str, Any]) -> dict[Surface, str]:
    """By kind, the field that asks for it."""
    wanted: dict[Surface, str] = {key: key for key in _GRAMMARS if body.get(key)}
    if body.get("tool_choice") not in (None, "auto", "none"):
        wanted["json_schema"] = "tool_choice"
    form = body.get("response_format")
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in (None, "text"):
        wanted["structural_tag" if kind == "structural_tag" else "json_schema"] = "response_format"
    return wanted


#: Without any of these a body wants nothing always.
_ASKING = frozenset([*(name for name, *_ in _ASKED), "logprobs", "response_format", "tool_choice", *_GRAMMARS])
