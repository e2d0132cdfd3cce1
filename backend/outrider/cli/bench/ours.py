"""The arms of our engine: one request at a time or a batch, in this process, its proposals timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli.bench.samples import Case, Sample, Setting
from outrider.config import cache_dir, packaged_data
from outrider.core import Hints, LaneAbility, LaneLoad, LaneView
from outrider.policy.features import extract_features
from outrider.policy.loader import Source, load_policies
from outrider.policy.plan import PLAN_OFF, Plan

if TYPE_CHECKING:
    from outrider.engine.drafters import Drafter
    from outrider.engine.sequence import GenerateRequest
    from outrider.speculation.proposal import Proposal

#: The noise of sampled prompts; the same for all arms, so that they write the same text.
SEED = 20
#: One token in so many of an answer is changed to make a prediction of it.
CHANGED_EVERY = 10
#: Steps of a batch that are timed, and tokens that no request of it reaches by then.
BATCH_STEPS, BATCH_TOKENS = 32, 512


def plan_of(setting: Setting) -> Plan:
    return Plan(setting.arm, setting.k) if setting.k else PLAN_OFF


def spoilt(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """An answer as a prediction of itself that is 90 % right: every tenth token is the next one of the vocabulary."""
    return tuple(
        (token + 1) % vocab_size if i % CHANGED_EVERY == CHANGED_EVERY - 1 else token
        for i, token in enumerate(token_ids)
    )


class _TimedDrafter:
    """Another drafter, with the seconds that its proposals take."""

    def __init__(self, inner: Drafter) -> None:
        self._inner = inner
        self.seconds = 0.0

    def observe(self, token_id: int) -> None:
        self._inner.observe(token_id)

    def propose(self, k: int) -> Proposal:
        start_s = time.perf_counter()
        proposal = self._inner.propose(k)
        self.seconds += time.perf_counter() - start_s
        return proposal

    def free(self) -> None:
        self._inner.free()


class EngineArm:
    """Our engine, without a cost table: every k is run as asked, none is trimmed. It skips the layers that
    `outrider profile` found, where it has."""

    def __init__(self, folder: Path, draft_model: Path | None = None) -> None:
        from outrider.engine.drafters.sources import DraftOptions
        from outrider.engine.engine import Engine, EngineLimits
        from outrider.engine.profile import layers_for

        self.engine = Engine(folder, EngineLimits(), DraftOptions(draft_model, layers_for(folder, cache_dir())))
        self._ability = LaneAbility.embedded("bench", tuple(self.engine.drafters.makers))
        self._policies = load_policies(Source([packaged_data("policies")]))

    def encode(self, case: Case) -> tuple[int, ...]:
        """The case's prompt, which every arm is given in these tokens."""
        return tuple(self.engine.tokenizer.encode_chat(case.messages))

    def policy_plan(self, case: Case) -> Plan:
        """What the shipped policy decides for this case on an idle engine."""
        body = {"messages": case.messages, "temperature": case.temperature}
        now = time.monotonic()
        view = LaneView(self._ability, LaneLoad(0, 0, self._ability.max_running, now))
        return self._policies.decide(extract_features(body, Hints()), Hints(), [view], now).plan

    def run(
        self, case: Case, setting: Setting, plan: Plan, number: int = 0, answer: Sequence[int] | None = None
    ) -> Sample:
        """Answer a case; with `answer`, spoilt, as the request's prediction.

        All runs share one empty salt: the prompt is read once, and no drafter learns from an earlier answer.
        """
        prediction = None if answer is None else spoilt(answer, self.engine.tokenizer.vocab_size)
        eos = frozenset(self.engine.model.config.eos_token_ids)
        request = self._request("bench", self.encode(case), case, plan, eos, prediction)
        drafter = self._add(request)
        token_ids: list[int] = []
        counts, times, stats = [], [], None
        start = time.perf_counter()
        while self.engine.has_work:
            for output in self.engine.step():
                times.append(time.perf_counter() - start)
                token_ids.extend(output.token_ids)
                counts.append(len(token_ids))
                stats = output.stats
        return Sample(
            setting, case, number, tuple(token_ids), tuple(counts), tuple(times), plan.drafter, plan.k, stats,
            drafter.seconds if drafter is not None else 0.0,
        )  # fmt: skip

    def batch(self, cases: Sequence[Case], setting: Setting) -> float:
        """Tokens per second of all cases at once, over steps in which every one of them decodes."""
        from outrider.engine.sequence import Finish

        for i, case in enumerate(cases):
            long = replace(case, max_tokens=BATCH_TOKENS)
            self._add(self._request(f"bench-{i}", self.encode(case), long, plan_of(setting), frozenset(), None))
        while any(sequence.num_output == 0 for sequence in self.engine.scheduler):
            self.engine.step()
        start = time.perf_counter()
        num_tokens = sum(len(output.token_ids) for _ in range(BATCH_STEPS) for output in self.engine.step())
        seconds = time.perf_counter() - start
        for i in range(len(cases)):
            self.engine.abort(f"bench-{i}", Finish("abort"))
        return num_tokens / seconds

    @staticmethod
    def _request(
        rid: str, prompt_ids: tuple[int, ...], case: Case, plan: Plan, eos: frozenset[int],
        prediction: tuple[int, ...] | None,
    ) -> GenerateRequest:  # fmt: skip
        from outrider.engine.sequence import GenerateRequest
        from outrider.speculation.target import SamplingLaw

        law = SamplingLaw(case.temperature)
        return GenerateRequest(
            rid, prompt_ids, law, case.max_tokens, plan, SEED, stop_token_ids=eos, prediction_ids=prediction
        )

    def _add(self, request: GenerateRequest) -> _TimedDrafter | None:
        from outrider.engine.drafters.guarded import GuardedDrafter

        self.engine.check(request, "case")
        if request.plan.is_off:
            self.engine.add(request)
            return None
        drafter = _TimedDrafter(self.engine.drafters.makers[request.plan.drafter](request))
        self.engine.add(request, GuardedDrafter(lambda: drafter, self.engine.model.config.vocab_size))
        return drafter
