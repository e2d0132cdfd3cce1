"""What the policy looks at: cheap features of one request body. Reads no clock, no load, no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.core import Hints
from outrider.policy.classify import classify

#: What SGLang and OpenAI sample with when a request names no temperature.
DEFAULT_TEMPERATURE = 1.0
#: Repetition is looked for in this much of each end of a prompt, which bounds the time.
_WINDOW_CHARS = 4096
_WINDOW_IDS = 1024
_GRAM = 4
#: A message no longer than this that shows no task ("can you parallelise it?") continues the one before it.
_FOLLOW_UP_MAX_CHARS = 200


@dataclass(frozen=True, slots=True)
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
    self_repetition: float
    """0..1: share of the prompt's 4-grams (words, or token ids) that occur more than once in it. Of a prompt over
    8,192 characters only the two ends are looked at; text without spaces counts as one word."""
    num_messages: int
    """Messages of a chat body; 0 for a completions body."""
    is_stream: bool
    has_prediction: bool = False
    """The request carries OpenAI's `prediction`, a text that the answer is expected to resemble."""


@dataclass(slots=True)
class _Prompt:
    """The text of a body, sorted by who said it."""

    texts: list[str] = field(default_factory=list)
    ids: list[Any] = field(default_factory=list)
    system: str = ""
    user: list[str] = field(default_factory=list)
    num_messages: int = 0


def extract_features(body: Mapping[str, Any], hints: Hints) -> Features:
    """Features of an OpenAI chat body (`messages`) or completions body (`prompt`).

    Raises nothing on a body that the gateway's schema lets pass; what is not text or token ids is left out.
    """
    messages = body.get("messages")
    prompt = _read_messages(messages) if isinstance(messages, list) else _read_prompt(body.get("prompt"))
    num_chars = sum(map(len, prompt.texts))
    return Features(
        temperature=_temperature(body.get("temperature")),
        task=hints.task or _guess_task(prompt),
        is_task_given=hints.task is not None,
        num_prompt_chars=num_chars,
        num_prompt_tokens=-(-num_chars // 4) + len(prompt.ids),
        self_repetition=_self_repetition(prompt),
        num_messages=prompt.num_messages,
        is_stream=body.get("stream") is True,
        has_prediction=isinstance(body.get("prediction"), Mapping),
    )


def _temperature(value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else DEFAULT_TEMPERATURE  # type: ignore[arg-type]


def _read_messages(messages: Sequence[Any]) -> _Prompt:
    prompt = _Prompt(num_messages=len(messages))
    for message in messages:
        if not isinstance(message, Mapping):
            continue
        text = "\n".join(_content_texts(message.get("content")))
        prompt.texts.append(text)
        role = message.get("role")
        if role == "user":
            prompt.user.append(text)
        elif role in ("system", "developer"):
            prompt.system = text
    return prompt


def _content_texts(content: Any) -> Iterator[str]:
    """Text of a message's content: a string, or a list of parts."""
    parts = content if isinstance(content, list) else [content]
    for part in parts:
        text = part.get("text") if isinstance(part, Mapping) else part
        if isinstance(text, str):
            yield text


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


def _self_repetition(prompt: _Prompt) -> float:
    if prompt.ids:
        return _repeated_share([str(token) for token in _ends(prompt.ids, _WINDOW_IDS)])
    return _repeated_share(_ends("\n".join(prompt.texts), _WINDOW_CHARS).split())


def _ends(items: Any, size: int) -> Any:
    return items if len(items) <= 2 * size else items[:size] + items[-size:]


def _repeated_share(words: Sequence[str]) -> float:
    total = len(words) - _GRAM + 1
    if total < 1:
        return 0.0
    # Counting hashes rather than tuples halves the time; a collision among 64 bits would not matter.
    grams = Counter(map(hash, zip(*(words[start:] for start in range(_GRAM)), strict=False)))
    return 1 - list(grams.values()).count(1) / total
