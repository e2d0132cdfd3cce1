"""The load generator held against a lane in another process whose timing is known, and against its own limits."""

from __future__ import annotations

from statistics import mean, median

import pytest

from outrider.cli.console import run_async
from outrider.workloads.figures import tpot_ms, ttft_ms
from outrider.workloads.results import Arm, Record, Stretch
from outrider.workloads.stretch import Due, Turn, run_stretch
from outrider.workloads.suite import Job
from outrider.workloads.target import opened
from outrider.workloads.watch import Seen, judged, percentile
from paced_lane import STAMP, pace, paced_lane


def measured(text: str, num: int, per_s: float | None = None) -> tuple[list[Record], Turn, Seen]:
    """So many jobs against a paced lane: all at once, or so many a second."""
    job = Job(name="paced", task="chat", temperature=0, max_tokens=64, text=text)
    records: list[Record] = []
    seen, turns = Seen(), []

    async def main() -> None:
        async with opened(url) as target:
            turn = Turn(target, Arm(name="a", target=url), 0, 0, False, records.extend)
            turns.append(turn)
            dues = [Due(i, job, None if per_s is None else i / per_s) for i in range(num)]
            await run_stretch(turn, seen, dues, num if per_s is None else None)

    with paced_lane() as url:
        run_async(main())
    assert len(records) == num
    return records, turns[0], seen


def known(record: Record, began_s: float) -> tuple[float, float]:
    """Time to the first token and per token in ms, as the lane wrote them down."""
    stamps = [float(stamp) for stamp in STAMP.findall(record.text)]
    num_tokens = sum(step.num_tokens or 0 for step in record.steps[1:])
    return 1000 * (stamps[0] - began_s - record.intended_s), 1000 * (stamps[-1] - stamps[0]) / num_tokens


def summed(seen: Seen) -> Stretch:
    return Stretch(
        arm="a", round=0, seconds=1, num_requests=1, num_tokens=1, lag_p99_ms=seen.lag_p99_ms,
        late_p99_ms=seen.late_p99_ms, cpu_share=seen.cpu_share,
    )  # fmt: skip


@pytest.mark.parametrize(("num", "text"), [(8, pace(600, 120, 8, 2)), (1000, pace(3000, 1500, 4, 3))])
def test_it_reports_the_timing_of_the_lane(num: int, text: str) -> None:
    """Within 3 % and its own lag, means and medians, of eight streams and of a thousand at once; none fails, all
    counts are right.

    With `-rP` it prints both, and whether the generator would call itself the bottleneck.
    """
    records, turn, seen = measured(text, num)
    assert {one.error for one in records} == {None}
    truth, lag_ms = [known(one, turn.began_s) for one in records], 1000 * max(seen.lag_s)
    print(f"{num} streams: {judged([summed(seen)])}")
    for name, told, true in (
        ("first token", [ttft_ms(one) for one in records], [first for first, _ in truth]),
        ("each token", [tpot_ms(one) for one in records], [each for _, each in truth]),
    ):
        off = mean(told) / mean(true) - 1
        print(f"{name}: told {mean(told):.1f} ms, written after {mean(true):.1f} ms ({off:+.2%})")
        assert abs(mean(told) - mean(true)) < 0.03 * mean(true) + lag_ms
        assert abs(median(told) - median(true)) < 0.03 * median(true) + lag_ms
    assert {len(one.steps) for one in records} == {int(text.split()[3])}
    assert {step.num_tokens for one in records for step in one.steps} == {int(text.split()[4])}


def test_it_says_when_it_is_the_bottleneck() -> None:
    """Asked for more than it can send, it sends late, and says so; latencies count from when they were due."""
    records, _, seen = measured(pace(1, 1, 1), 1500, per_s=100_000)
    told = judged([summed(seen)])
    assert told.is_bottleneck and any("late" in why for why in told.reasons)
    good = [one for one in records if one.error is None]
    assert max(ttft_ms(one) for one in good) > 1000 * (1500 / 100_000) / 2


def test_it_does_not_cry_wolf() -> None:
    """A few requests a second are no load for it."""
    _, _, seen = measured(pace(5, 5, 2), 20, per_s=40)
    assert seen.cpu_share < 0.5


def test_percentiles():
    """The value at that share of the sorted list, the last one at the end."""
    assert (percentile([3, 1, 2], 0.5), percentile([1, 2], 0.99), percentile([5], 0.0)) == (2, 2, 5)
