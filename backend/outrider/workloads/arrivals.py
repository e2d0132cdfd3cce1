"""When requests are due: as soon as another ends, at random, in bursts, or as a trace of production has it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from outrider.workloads.traces import Entry, read_trace


class _Arrivals(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Closed(_Arrivals):
    """Always so many at once: each ends before the next is asked, so a slow target is asked less."""

    kind: Literal["closed"] = "closed"
    concurrency: Annotated[int, Field(ge=1)] = 1

    def __str__(self) -> str:
        return f"closed loop of {self.concurrency}"


class Poisson(_Arrivals):
    """Independent users: the pauses between requests are exponential."""

    kind: Literal["poisson"]
    per_s: Annotated[float, Field(gt=0)]

    def __str__(self) -> str:
        return f"Poisson, {self.per_s:g}/s"


class Bursts(_Arrivals):
    """So many in one moment, again and again."""

    kind: Literal["bursts"]
    size: Annotated[int, Field(ge=1)]
    every_s: Annotated[float, Field(gt=0)]

    def __str__(self) -> str:
        return f"bursts of {self.size} every {self.every_s:g} s"


class Trace(_Arrivals):
    """Times and lengths of a trace, from its beginning; rounds follow one another in it."""

    kind: Literal["trace"]
    file: Path
    speed: Annotated[float, Field(gt=0)] = 1.0
    """2 replays it in half the time."""
    length: Annotated[float, Field(gt=0)] = 1.0
    """2 makes prompts and answers twice as long."""

    def __str__(self) -> str:
        return f"trace {self.file.name}, speed {self.speed:g}, length {self.length:g}"


Arrivals = Annotated[Closed | Poisson | Bursts | Trace, Field(discriminator="kind")]


def due_times(arrivals: Poisson | Bursts, num: int, seed: str) -> list[float]:
    """Seconds from the beginning, ascending; the same for the same seed."""
    if isinstance(arrivals, Bursts):
        return [i // arrivals.size * arrivals.every_s for i in range(num)]
    rng, now_s, times = random.Random(seed), 0.0, []
    for _ in range(num):
        now_s += rng.expovariate(arrivals.per_s)
        times.append(now_s)
    return times


def trace_entries(arrivals: Trace, num: int, round_number: int) -> list[Entry]:
    """The round's `num` requests of the trace, scaled, the first at 0; from its beginning again behind its end."""
    trace = read_trace(arrivals.file)
    whole_s = trace[-1].at_s - trace[0].at_s
    part = []
    for i in range(round_number * num, (round_number + 1) * num):
        again, at = divmod(i, len(trace))
        entry = trace[at]
        part.append(Entry(entry.at_s + again * whole_s, entry.num_context, entry.num_generated))
    scaled = [entry.scaled(arrivals.speed, arrivals.length) for entry in part]
    return [Entry(entry.at_s - scaled[0].at_s, entry.num_context, entry.num_generated) for entry in scaled]
