"""When requests are due: rates, bursts, windows of a trace, and the jobs of a round with them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import mean, pstdev

import pytest

from outrider.workloads.arrivals import Bursts, Closed, Poisson, Trace, due_times, trace_entries
from outrider.workloads.filler import CHARS_PER_TOKEN
from outrider.workloads.rounds import Rounds
from outrider.workloads.suite import Job, Suite

JOBS = [
    Job(name=name, task="chat", temperature=0, max_tokens=32, text=text)
    for name, text in (("one", "Say yes and no."), ("two", "Say no to all of it."))
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Five requests, a second and a half apart."""
    rows = [f"2023-11-16 18:17:{1.5 * i + 10:010.7f},{100 * (i + 1)},{10 * (i + 1)}" for i in range(5)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def test_poisson_pauses_are_exponential() -> None:
    """Their mean is that of the rate and so is their deviation; a seed gives the same times."""
    times = due_times(Poisson(kind="poisson", per_s=20), 4000, "a")
    pauses = [after - before for before, after in pairwise(times)]
    assert mean(pauses) == pytest.approx(1 / 20, rel=0.06)
    assert pstdev(pauses) == pytest.approx(1 / 20, rel=0.08)
    assert (
        times
        == due_times(Poisson(kind="poisson", per_s=20), 4000, "a")
        != due_times(Poisson(kind="poisson", per_s=20), 4000, "b")
    )


def test_bursts_come_together() -> None:
    """So many in one moment."""
    assert due_times(Bursts(kind="bursts", size=2, every_s=3), 5, "") == [0, 0, 3, 3, 6]


def test_rounds_follow_one_another_in_a_trace(trace: Path) -> None:
    """Each begins at 0; behind the end it begins anew."""
    arrivals = Trace(kind="trace", file=trace, speed=3, length=0.1)
    first, second, third = (trace_entries(arrivals, 2, number) for number in range(3))
    assert [entry.at_s for entry in first] == pytest.approx([0, 0.5])
    assert [(one.num_context, one.num_generated) for one in second] == [(30, 3), (40, 4)]
    assert [entry.num_context for entry in third] == [50, 10]
    assert [entry.num_context for entry in trace_entries(arrivals, 2, 5)] == [10, 20]


def test_a_round_of_a_trace_has_its_lengths(trace: Path) -> None:
    """Prompts are about as long as its context, answers as long as its own; jobs take turns."""
    dues = Rounds(Suite(name="s", jobs=JOBS, arrivals=Trace(kind="trace", file=trace), requests=4)).dues("off", 0)
    assert [due.job.max_tokens for due in dues] == [10, 20, 30, 40]
    assert [len(due.job.text) / CHARS_PER_TOKEN for due in dues] == pytest.approx([100, 200, 300, 400], abs=6)
    assert [due.job.name for due in dues] == ["one", "two", "one", "two"]


def test_arms_are_asked_the_same_but_for_what_lengthens_prompts() -> None:
    """Plain prompts are the same for all; longer ones differ by arm and round and end alike."""
    plain, long = Rounds(Suite(name="s", jobs=JOBS)), Rounds(Suite(name="s", jobs=JOBS, prompt_tokens=80))
    assert plain.dues("off", 0) == plain.dues("policy", 1)
    texts = [long.dues(arm, number)[0].job.text for arm, number in (("off", 0), ("policy", 0), ("off", 1))]
    assert len(set(texts)) == 3
    assert all(text.endswith(JOBS[0].text) for text in texts)


def test_a_closed_loop_has_no_times() -> None:
    """As many jobs as asked for, whatever the number of prompts."""
    dues = Rounds(Suite(name="s", jobs=JOBS, arrivals=Closed(concurrency=3), requests=5)).dues("off", 0)
    assert [due.at_s for due in dues] == [None] * 5
    assert [due.number for due in dues] == list(range(5))


def test_times_of_a_round_are_those_of_the_seed() -> None:
    """The same for all arms, others in the next round."""
    rounds = Rounds(Suite(name="s", jobs=JOBS, arrivals=Poisson(kind="poisson", per_s=1), requests=9, seed=4))
    times = [[due.at_s for due in rounds.dues(arm, number)] for arm, number in (("a", 0), ("b", 0), ("a", 1))]
    assert times[0] == times[1] != times[2]
