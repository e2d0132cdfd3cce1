"""Arms of `outrider bench engine`, and the table of their figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from outrider.config import packaged_data
from outrider.core import Hints, LaneAbility, LaneLoad, LaneView
from outrider.policy.features import extract_features
from outrider.policy.loader import Source, load_policies
from outrider.policy.plan import PLAN_OFF, Plan
from outrider.workloads.prompts import Prompt

if TYPE_CHECKING:
    from rich.table import Table

#: The noise of sampled prompts; the same for both of our arms, so that they write the same text.
SEED = 20


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer of one arm. Decode time runs from the first token to the last."""

    arm: str
    prompt: str
    task: str
    temperature: float
    round: int
    drafter: str
    k: int
    num_tokens: int
    first_token_s: float
    decode_s: float
    text: str
    accept_length: float | None = None
    num_proposed: int | None = None

    @property
    def num_decoded(self) -> int:
        return self.num_tokens - 1

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class EngineArm:
    """Our engine in this process, one request at a time."""

    def __init__(self, folder: Path) -> None:
        from outrider.engine.engine import Engine, EngineLimits

        self._engine = Engine(folder, EngineLimits())
        self._policies = load_policies(Source([packaged_data("policies")]))
        self._ability = LaneAbility.embedded("bench")

    def plan(self, prompt: Prompt) -> Plan:
        """What the shipped policy decides for this prompt on an idle engine."""
        body = {"messages": prompt.messages, "temperature": prompt.temperature}
        now = time.monotonic()
        view = LaneView(self._ability, LaneLoad(0, 0, 1, now))
        return self._policies.decide(extract_features(body, Hints()), Hints(), [view], now).plan

    def run(self, prompt: Prompt, arm: str, plan: Plan, number: int) -> Sample:
        from outrider.engine.sequence import GenerateRequest
        from outrider.speculation.target import SamplingLaw

        prompt_ids = tuple(self._engine.tokenizer.encode_chat(prompt.messages))
        eos = frozenset(self._engine.model.config.eos_token_ids)
        law = SamplingLaw(prompt.temperature)
        start = time.perf_counter()
        # A salt of its own keeps a run from finding its prompt in the cache of the one before.
        salt = f"{arm} {number}"
        request = GenerateRequest(
            "bench", prompt_ids, law, prompt.max_tokens, plan, SEED, stop_token_ids=eos, cache_salt=salt
        )
        self._engine.add(request)
        times, text, num_tokens, stats = [], "", 0, None
        while self._engine.has_work:
            for output in self._engine.step():
                times.append(time.perf_counter())
                text += output.text
                num_tokens += len(output.token_ids)
                stats = output.stats
        return Sample(
            arm, prompt.name, prompt.task, prompt.temperature, number, plan.drafter, plan.k, num_tokens,
            times[0] - start, times[-1] - times[0], text,
            None if stats is None else stats.accept_length, None if stats is None else stats.num_proposed,
        )  # fmt: skip


class HuggingFaceArm:
    """`generate` of the Hugging Face library in fp32, as most people would run the model."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        quiet: Any = logging  # the library's own annotations do not fit its behaviour
        quiet.disable_progress_bar()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._seed: Callable[[int], object] = torch.manual_seed

    def run(self, prompt: Prompt, num_tokens: int, number: int) -> Sample:
        inputs = self._tokenizer.apply_chat_template(
            prompt.messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        sampling = (
            {"do_sample": True, "temperature": prompt.temperature} if prompt.temperature else {"do_sample": False}
        )
        clock = _Clock()
        self._seed(SEED)
        start = time.perf_counter()
        limit = min(num_tokens, prompt.max_tokens)
        out = self._model.generate(**inputs, **sampling, max_new_tokens=limit, streamer=clock)
        new = out[0][inputs["input_ids"].shape[1] :]
        return Sample(
            "hf", prompt.name, prompt.task, prompt.temperature, number, "off", 0, len(new),
            clock.times[1] - start, clock.times[-1] - clock.times[1], self._tokenizer.decode(new),
        )  # fmt: skip


class _Clock:
    """A streamer of `generate` that notes when tokens come; the first call carries the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Part of the streamer's contract; the last token has been put by now."""


def measure(
    folder: Path, prompts: Sequence[Prompt], rounds: int, hf_tokens: int, progress: Callable[[str, float], None]
) -> list[Sample]:
    """Run all arms on all prompts, interleaved, so that a slow spell of the machine hits them alike."""
    progress("loading models", 0.0)
    ours = EngineArm(folder)
    theirs = HuggingFaceArm(folder) if hf_tokens else None
    ours.run(prompts[0], "warm-up", PLAN_OFF, 0)
    samples = []
    for number in range(rounds):
        for i, prompt in enumerate(prompts):
            progress(f"round {number + 1}: {prompt.name}", (number + i / len(prompts)) / rounds)
            arms = [("off", PLAN_OFF), ("policy", ours.plan(prompt))]
            for arm, plan in arms if (i + number) % 2 == 0 else reversed(arms):
                samples.append(ours.run(prompt, arm, plan, number))
            if theirs is not None and number == 0:  # slow, and its speed hardly depends on the text
                samples.append(theirs.run(prompt, hf_tokens, number))
    return samples


def summary(samples: Sequence[Sample]) -> tuple[list[dict[str, Any]], Table]:
    """One row per task, and all tasks: tokens/s of each arm, their ratios, and whether texts agree."""
    from rich.table import Table

    columns = ("task", "T", "drafter", "k", "accept length", "hf tok/s", "off tok/s", "policy tok/s", "off/hf",
               "policy/off", "same text")  # fmt: skip
    table = Table(*columns, title="decode speed, one request at a time")
    tasks = list(dict.fromkeys(sample.task for sample in samples))
    rows = [_row(task, [s for s in samples if s.task == task]) for task in tasks]
    rows.append(_row("all", samples))
    for row in rows:
        table.add_row(*(_shown(row[column]) for column in columns))
    return rows, table


def _row(task: str, samples: Sequence[Sample]) -> dict[str, Any]:
    policy = [s for s in samples if s.arm == "policy"]
    speed = {arm: _speed([s for s in samples if s.arm == arm]) for arm in ("hf", "off", "policy")}
    lengths = [s.accept_length for s in policy if s.accept_length is not None]
    return {
        "task": task,
        "T": _span([s.temperature for s in policy]),
        "drafter": "/".join(sorted({s.drafter for s in policy})),
        "k": _span([s.k for s in policy]),
        "accept length": sum(lengths) / len(lengths) if lengths else None,
        "hf tok/s": speed["hf"],
        "off tok/s": speed["off"],
        "policy tok/s": speed["policy"],
        "off/hf": _ratio(speed["off"], speed["hf"]),
        "policy/off": _ratio(speed["policy"], speed["off"]),
        "same text": _texts(samples, "off") == _texts(samples, "policy"),
    }


def _speed(samples: Sequence[Sample]) -> float | None:
    """Tokens per second over all prompts, each with the median decode time of its rounds."""
    prompts = {s.prompt: s.num_decoded for s in samples}
    seconds = [median(s.decode_s for s in samples if s.prompt == prompt) for prompt in prompts]
    return sum(prompts.values()) / sum(seconds) if seconds else None


def _texts(samples: Sequence[Sample], arm: str) -> dict[tuple[str, int], str]:
    return {(s.prompt, s.round): s.text for s in samples if s.arm == arm}


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a / b


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:g}" if low == high else f"{low:g}-{high:g}"


def _shown(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
