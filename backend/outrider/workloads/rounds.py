"""Which jobs make a round of a suite, how long they are and when they are due."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.workloads.arrivals import due_times, trace_entries
from outrider.workloads.filler import Filler
from outrider.workloads.stretch import Due
from outrider.workloads.suite import Job, Suite


class Rounds:
    """The same jobs at the same times for all arms, but for the text that makes prompts longer.

    That differs by arm and round, so that none finds in a cache what another had read.
    """

    def __init__(self, suite: Suite) -> None:
        self._suite = suite
        self._filler = Filler([job.text for job in suite.jobs])

    @property
    def is_lengthened(self) -> bool:
        """Whether prompts get other lengths than their own."""
        return self._suite.prompt_tokens is not None or self._suite.arrivals.kind == "trace"

    def dues(self, arm: str, number: int) -> list[Due]:
        """Of one round, ascending in time."""
        suite, arrivals = self._suite, self._suite.arrivals
        jobs = [suite.jobs[i % len(suite.jobs)] for i in range(suite.num_requests)]
        times: Sequence[float | None] = [None] * len(jobs)
        lengths: Sequence[int | None] = [suite.prompt_tokens] * len(jobs)
        if arrivals.kind == "trace":
            entries = trace_entries(arrivals, len(jobs), number)
            limits = [max(entry.num_generated, 1) for entry in entries]
            jobs = [job.model_copy(update={"max_tokens": num}) for job, num in zip(jobs, limits, strict=False)]
            times, lengths = [entry.at_s for entry in entries], [entry.num_context for entry in entries]
        elif arrivals.kind != "closed":
            times = due_times(arrivals, len(jobs), f"{suite.seed} {number}")
        return [
            Due(i, self._lengthened(job, length, f"{suite.seed} {arm} {number} {i}"), at_s)
            for i, (job, length, at_s) in enumerate(zip(jobs, lengths, times, strict=True))
        ]

    def _lengthened(self, job: Job, num_tokens: int | None, seed: str) -> Job:
        if num_tokens is None:
            return job
        return job.model_copy(update={"text": self._filler.lengthened(job.text, num_tokens, seed)})
