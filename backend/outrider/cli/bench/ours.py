"""The arms of our engine: one request at a time or a batch, in this process, its proposals timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.bench import timed
from outrider.cli.bench.decider import Decider
from outrider.cli.bench.samples import Case, Sample, Setting
from outrider.config import cache_dir, packaged_data
from outrider.policy.plan import PLAN_OFF, Plan

if TYPE_CHECKING:
    from outrider.cost import CostTable
    from outrider.engine.drafters import Drafter
    from outrider.engine.scheduler import Scheduler
    from outrider.engine.sequence import GenerateRequest

#: The noise of sampled prompts; the same for all arms, so that they write the same text.
SEED = 20
#: One token in so many of an answer is changed to make a prediction of it.
CHANGED_EVERY = 10
#: Steps of a batch that are timed, and tokens that no request of it reaches by then.
BATCH_STEPS, BATCH_TOKENS = 32, 512


def plan_of(setting: Setting) -> Plan:
    """The plan that a setting stands for; k = 0 is none."""
    return Plan(setting.arm, setting.k) if setting.k else PLAN_OFF


def spoilt(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """An answer as a prediction of itself that is 90 % right: every tenth token is the next one of the vocabulary."""
    return tuple(
        (token + 1) % vocab_size if i % CHANGED_EVERY == CHANGED_EVERY - 1 else token
        for i, token in enumerate(token_ids)
    )


class EngineArm:
    """Our engine as `outrider engine` serves it: with the heads that come with the model and pay, and the layers that
    `outrider profile` found to skip, where it has.

    Without a cost table every k is run as asked; with one, drafts that do not pay are not verified.
    """

    def __init__(self, folder: Path, draft_model: Path | None = None, cost: CostTable | None = None) -> None:
        from outrider.engine.drafters.sources import DraftOptions
        from outrider.engine.engine import Engine, EngineLimits
        from outrider.engine.profile import layers_for
        from outrider.engine.shipped import heads_for

        self.folder, self.limits = folder, EngineLimits()
        heads = heads_for(folder, packaged_data("heads"))
        layers = layers_for(folder, cache_dir())
        options = DraftOptions(draft_model, layers, heads.eagle, heads.medusa)
        self.engine = Engine(folder, self.limits, options, cost)
        self.decider = Decider(self)

    def facts(self, *, is_learning: bool) -> dict[str, object]:
        """What decisions of this engine's were made from, for the conditions of a run."""
        measured = self.engine.cost is not None
        return {
            "cost table": "measured on this machine"
            if measured
            else "none: the closed form, and every draft is verified",
            "learning": "from nothing, in this run" if is_learning else "none: what policies take before any answer",
        }

    def encode(self, case: Case) -> tuple[int, ...]:
        """The case's prompt, which every arm is given in these tokens."""
        return tuple(self.engine.tokenizer.encode_chat(case.messages))

    def run(
        self, case: Case, setting: Setting, plan: Plan, number: int = 0, answer: Sequence[int] | None = None
    ) -> Sample:
        """Answer a case; with `answer`, spoilt, as the request's prediction.

        All runs share one empty salt: the prompt is read once, and no drafter learns from an earlier answer.
        """
        prediction = None if answer is None else spoilt(answer, self.engine.tokenizer.vocab_size)
        request = self._request(case, plan, prediction_ids=prediction)
        drafter = None if plan.is_off else self.engine.drafters.makers[plan.drafter](request)
        return timed.answer(self.engine, request, drafter, (setting, case, number))

    def batch(self, cases: Sequence[Case], setting: Setting) -> float:
        """Tokens per second of all cases at once, over steps in which every one of them decodes."""
        from outrider.engine.sequence import Finish

        for i, case in enumerate(cases):
            long = replace(case, max_tokens=BATCH_TOKENS)
            self._add(self._request(long, plan_of(setting), rid=f"bench-{i}", stop_token_ids=frozenset()))
        while any(sequence.num_output == 0 for sequence in self.engine.scheduler):
            self.engine.step()
        start = time.perf_counter()
        num_tokens = sum(len(output.token_ids) for _ in range(BATCH_STEPS) for output in self.engine.step())
        seconds = time.perf_counter() - start
        for i in range(len(cases)):
            self.engine.abort(f"bench-{i}", Finish("abort"))
        return num_tokens / seconds

    def scheduler(self, *, is_trimmed: bool) -> Scheduler:
        """Another queue for this engine, over the same cache; the engine runs the one that it is given.

        Trimmed, it verifies only the drafts that pay by the engine's cost table, if that has one.
        """
        from outrider.engine.scheduler import Scheduler

        rows = self.limits.max_prefill_rows, self.limits.max_step_rows
        return Scheduler(self.engine.pool, self.limits.max_running, *rows, self.engine.cost if is_trimmed else None)

    def start(self, rid: str, case: Case, plan: Plan, seed: int, drafter: Drafter | None = None) -> None:
        """Queue a case, with the plan's drafter unless another is given; the caller runs the steps."""
        self._add(self._request(case, plan, rid=rid, seed=seed), None if plan.is_off else drafter)

    def _request(self, case: Case, plan: Plan, **others: Any) -> GenerateRequest:
        """Checked: it fits this engine and its context."""
        request = timed.request_of(self.engine, case, plan, **{"seed": SEED} | others)
        self.engine.check(request, "case")
        return request

    def _add(self, request: GenerateRequest, drafter: Drafter | None = None) -> None:
        from outrider.engine.drafters.guarded import GuardedDrafter

        vocab_size = self.engine.model.config.vocab_size
        self.engine.add(request, None if drafter is None else GuardedDrafter(lambda: drafter, vocab_size))
