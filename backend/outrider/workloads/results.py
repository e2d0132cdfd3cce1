"""A result of `outrider bench run`: the typed file that reports and comparisons read.

Times are seconds from the beginning of the stretch that a request belongs to; durations in summaries are in ms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from outrider.core import Observed, WirePlan
from outrider.errors import ConfigError
from outrider.workloads.files import problem_of, write_whole

#: The file's name in the folder of a run.
RESULT = "result.json"

#: What is summed up, one value per request but for `gap_ms`, which has one per pause within an answer:
#: `ttft_ms` intended moment to the first token; `tpot_ms` time per token after the first event that brought some;
#: `latency_ms` intended moment to the end; `tokens_per_s` the inverse of the time per token; `tokens_per_step` tokens
#: per event that brought some; `queue_ms` at the gateway; `late_ms` intended moment to the real one.
Metric = Literal[
    "ttft_ms", "tpot_ms", "gap_ms", "latency_ms", "tokens_per_s", "tokens_per_step", "queue_ms", "late_ms"
]  # fmt: skip


#: Jobs that an interval needs.
MIN_JOBS = 6


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arm(_Part):
    """One way to answer the same requests; arms of a run take turns."""

    name: str
    target: str
    """Base URL up to and with `/v1`; `embedded` for the engine that the bench started by itself."""
    hints: dict[str, Any] = {}
    """The request's `outrider` object; empty for none, as for a target that is no Outrider."""


class Step(_Part):
    """One event that brought text: all that one step of the engine wrote, when the server sends as it goes."""

    at_s: float
    num_tokens: int | None
    """None where the server does not count as it goes."""


class Record(_Part):
    """One request."""

    arm: str
    round: int
    number: int
    """Of the job in its round, which is the same for all arms; a job of many turns has a record for each."""
    turn: int = 0
    prompt: str
    """Name of the prompt."""
    asked: str = ""
    """Digest of the messages sent: equal for requests that were asked the same."""
    task: str
    temperature: float
    max_tokens: int
    intended_s: float
    """When it was due: by the schedule; in a closed loop and from the second turn on when the answer before ended."""
    sent_s: float
    steps: list[Step] = []
    end_s: float
    """Of the answer or of the failure."""
    status: int | None = None
    """HTTP status; None when no answer began."""
    error: str | None = None
    """Why it failed; None when it did not."""
    num_prompt_tokens: int | None = None
    num_tokens: int | None = None
    """Tokens of the answer, by the server's count."""
    finish_reason: str | None = None
    queue_s: float | None = None
    """At the gateway, from arrival to a place; None where the target does not say."""
    requested: dict[str, Any] | None = None
    """The hints as the target understood them; None of a target that is no Outrider, as the next two."""
    effective: WirePlan | None = None
    observed: Observed | None = None
    """None when it was not speculated: missing is not zero."""
    text: str = ""
    """What was written, the JSON of tool calls included."""


class Estimate(_Part):
    """A figure and the interval that holds it with 95 %, from resampling jobs."""

    value: float
    low: float
    high: float
    num_jobs: int = 0
    """That were drawn from; 0 where it is not known."""

    @property
    def has_interval(self) -> bool:
        """False of so few jobs that the interval promises too much: of five, all lie on one side in 6 % of cases."""
        return self.num_jobs >= MIN_JOBS


class Distribution(_Part):
    """Of the values of one metric."""

    num: int
    p50: Estimate
    p90: Estimate
    p99: Estimate


class Cell(_Part):
    """The figures of one arm: of one task at one temperature, or of everything (both None)."""

    arm: str
    task: str | None = None
    temperature: float | None = None
    num_requests: int
    num_failed: int
    num_tokens: int
    metrics: dict[Metric, Distribution]
    """Without those that nothing was seen of."""
    num_slow_gaps: int
    """Pauses within an answer that a reader notices."""
    accept_length: Estimate | None = None
    """Tokens per verify step; None when nothing was speculated, as the next two."""
    num_accepted: int | None = None
    num_proposed: int | None = None
    """None also where a lane cannot count them."""
    accepted_histogram: list[int] = []
    """Entry i counts verify steps in which exactly i draft tokens were accepted."""
    plans: dict[str, int] = {}
    """Requests by effective plan, as `ngram k=4` or `off`."""
    share_within_slo: Estimate | None = None
    """Of all requests, the failed ones included; None without an SLO."""

    @property
    def num_wasted(self) -> int | None:
        """Draft tokens that were verified for nothing."""
        return None if self.num_proposed is None else self.num_proposed - (self.num_accepted or 0)


class Against(_Part):
    """An arm against another on the requests that both answered, of one task at one temperature or of all."""

    arm: str
    base: str
    task: str | None = None
    temperature: float | None = None
    num: int
    """Requests of each."""
    ratios: dict[Metric, Estimate]
    """Of the arm over the base: the median over pairs of the same request in the same round."""
    num_same_text: int | None = None
    num_compared_text: int = 0
    """Pairs at temperature 0 that were asked the same."""


class Stretch(_Part):
    """One arm's turn in one round; an interrupted one that was continued stands here in parts."""

    arm: str
    round: int
    seconds: float
    num_requests: int
    num_tokens: int | None
    """None where the target does not say."""
    good_per_s: float | None = None
    """Requests within the SLO, per second; None without an SLO."""
    lag_p99_ms: float = 0.0
    """As of `Generator`, in this stretch; so are the next two."""
    late_p99_ms: float = 0.0
    cpu_share: float = 0.0


class Slo(_Part):
    """What a request must keep to count as good; None asks for nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


class Generator(_Part):
    """What the load generator saw of itself; while it is the bottleneck the figures are its own, not the target's."""

    lag_p99_ms: float
    """How late its event loop wakes up."""
    late_p99_ms: float
    """How late requests of a schedule were sent."""
    cpu_share: float
    """Of one core, the most that any stretch used."""
    is_bottleneck: bool
    reasons: list[str] = []


class Result(_Part):
    """One run."""

    format: Literal[2] = 2
    suite: str
    suite_digest: str
    """Of prompts, arrivals and seed: runs of different ones cannot be compared."""
    arrivals: str
    """In words, as `poisson 2/s`."""
    seed: int
    is_complete: bool
    """False of a run that was interrupted and can be continued."""
    slo: Slo | None = None
    conditions: dict[str, Any]
    """Machine, versions, command, time."""
    arms: list[Arm]
    generator: Generator
    stretches: list[Stretch]
    cells: list[Cell]
    against: list[Against] = []
    """Every arm but the first, against the first."""
    records: Annotated[list[Record], Field(repr=False)]
    notes: list[str] = []

    def cell(self, arm: str, task: str | None = None, temperature: float | None = None) -> Cell | None:
        """None when nothing of it was measured."""
        wanted = (arm, task, temperature)
        return next((one for one in self.cells if (one.arm, one.task, one.temperature) == wanted), None)


def write_result(result: Result, folder: Path) -> Path:
    """`result.json` in the folder, whole or not at all."""
    write_whole(folder / RESULT, result)
    return folder / RESULT


def read_result(path: Path) -> Result:
    """From the file or from its folder. ConfigError names the file and what is wrong with it."""
    file = path / RESULT if path.is_dir() else path
    try:
        return Result.model_validate_json(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{file}: {problem_of(error)}") from error
