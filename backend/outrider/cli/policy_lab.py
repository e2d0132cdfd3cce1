"""`outrider policy simulate | replay | tune | speed`: what policies are worth, on models of lanes and on records."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from outrider.core import DRAFTERS, DrafterAbility, Hints, LaneAbility, LaneLoad, LaneView, Outcome
from outrider.cost import ClosedCost
from outrider.dispatch.learning import LANES, LearningStore, record_of
from outrider.errors import ConfigError
from outrider.policy.decide import PolicySet
from outrider.policy.evaluate import Record, Replayed, speed_of
from outrider.policy.limits import WorkloadPolicy
from outrider.policy.plan import Plan
from outrider.policy.simulate import Served, constant_truth, serve, simulate, traffic, usual_truth
from outrider.policy.wording import unknown_key

if TYPE_CHECKING:
    from rich.table import Table


def read_lanes(path: Path | None) -> tuple[LaneAbility, ...]:
    """Lanes from a JSON list of `core.LaneAbility`, or those of a learning store's records; None is one embedded
    engine. ConfigError names the key."""
    if path is None:
        return (LaneAbility.embedded("embedded"),)
    try:
        if _is_store(path):
            return tuple({one.lane: one.ability for one in read_records(path) if one.ability is not None}.values())
        found = LANES.validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc'])) or 'the file'}: {first['msg']}") from error
    if not found:
        raise ConfigError(f"{path}: expected at least one lane")
    for name, drafter in [(lane.name, one.drafter) for lane in found for one in lane.drafters]:
        if drafter not in DRAFTERS:
            raise ConfigError(f"{path}: lane {name}: drafters: {unknown_key(drafter, DRAFTERS)}")
    return found


def recorded_lanes(path: Path | None) -> tuple[LaneAbility, ...]:
    """What stands above the lanes that records themselves tell of."""
    return () if path is None else read_lanes(path)


def lane_views(path: Path | None, num_requests: int | None) -> list[LaneView]:
    """The lanes, each with so many requests, of which those that it cannot run wait; None: of unknown load."""
    views = []
    for ability in read_lanes(path):
        running = min(num_requests or 0, ability.max_running)
        load = LaneLoad(running, (num_requests or 0) - running, ability.max_running, read_at_s=0.0)
        views.append(LaneView(ability, None if num_requests is None else load))
    return views


def can_run(lane: LaneAbility, plan: Plan) -> bool:
    """Whether the lane has the plan's drafter with its k."""
    return plan.is_off or any(one.drafter == plan.drafter and plan.k in one.ks for one in lane.drafters)


def read_records(path: Path) -> list[Record]:
    """Recorded requests, of a learning store or one JSON object a line. ConfigError when there are none."""
    try:
        rows = _stored(path) if _is_store(path) else _lines(path)
        records = [_record(path, number, *row) for number, row in enumerate(rows, 1)]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not a record file: {error}") from error
    if not records:
        raise ConfigError(f"{path}: no recorded requests")
    return records


def _is_store(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"


def _record(path: Path, number: int, row: dict[str, Any], ability: LaneAbility | None) -> Record:
    try:
        return Record.from_wire(row, ability)
    except ConfigError as error:
        raise ConfigError(f"{path}: record {number}: {error.message}") from error


def _lines(path: Path) -> Iterator[tuple[dict[str, Any], None]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line), None


def _stored(path: Path) -> Iterator[tuple[dict[str, Any], LaneAbility | None]]:
    """With what their lanes could do; lanes of one make and name are one, as decisions remember by them."""
    store = LearningStore(path)
    makes, lanes = store.makes(), dict[tuple[str, str], LaneAbility]()
    for row in store.records():
        key = digest, name = row.get("make", ""), row["lane"]
        if key not in lanes and digest in makes:
            lanes[key] = replace(makes[digest], name=name)
        yield row, lanes.get(key)
    store.close()


def run_simulation(
    policies: PolicySet, lanes: Sequence[LaneAbility], scene: tuple[int, float, float | None], seed: int
) -> list[Served]:
    """`scene` is the number of requests, arrivals a second, and the acceptance of every draft or None for priors."""
    num, rate, alpha = scene
    truth = usual_truth if alpha is None else constant_truth(alpha)
    return list(simulate(policies, lanes, traffic(Random(seed), num, rate), truth, Random(seed + 1)))


def write_records(path: Path, served: Iterable[Served]) -> None:
    """One JSON object a line, as the gateway's learning store keeps them."""
    lines = []
    for one in served:
        feedback = one.feedback
        outcome = Outcome(
            200, None, feedback.stats, num_completion_tokens=feedback.num_tokens, phases={"decode": one.seconds}
        )
        lines.append(json.dumps(record_of(one.decision, outcome)) + "\n")
    write_file(path, "".join(lines))


def write_file(path: Path, text: str) -> None:
    """With its folder; ConfigError when it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def simulation_table(served: Sequence[Served]) -> Table:
    """A row per task, and all of them."""
    from rich.table import Table

    table = Table("task", "requests", "speculated", "mean k", "plain s", "policy s", "gain", title="simulated")
    groups: dict[str, list[Served]] = defaultdict(list)
    for one in served:
        groups[one.arrival.features.task].append(one)
    for task, group in (*sorted(groups.items()), ("all", list(served))):
        ks = [one.decision.plan.k for one in group if not one.decision.plan.is_off]
        plain_s, taken_s = sum(one.plain_s for one in group), sum(one.seconds for one in group)
        mean_k = f"{fmean(ks):.1f}" if ks else "-"
        share = f"{len(ks) / len(group):.0%}"
        table.add_row(
            task, str(len(group)), share, mean_k, f"{plain_s:.1f}", f"{taken_s:.1f}", f"{plain_s / taken_s:.2f}"
        )
    return table


def replay_table(replayed: Sequence[Replayed]) -> Table:
    """A row per workload: expected tokens per second as recorded, anew and plain."""
    from rich.table import Table

    table = Table("workload", "requests", "changed", "recorded tok/s", "new tok/s", "plain tok/s", "new / old",
                  title="expected from recorded histograms and the lane's costs")  # fmt: skip
    groups: dict[str, list[Replayed]] = defaultdict(list)
    for one in replayed:
        groups[one.record.workload].append(one)
    for workload, group in (*sorted(groups.items()), ("all", list(replayed))):
        records = [one.record for one in group]
        speeds = [
            speed_of(records, rates)
            for rates in zip(*((one.recorded_rate, one.new_rate, one.plain_rate) for one in group), strict=True)
        ]
        changed = sum(one.plan != one.record.plan for one in group)
        shown = [f"{speed:.1f}" for speed in speeds]
        table.add_row(workload, str(len(group)), str(changed), *shown, f"{speeds[1] / speeds[0]:.3f}")
    return table


def decision_times(num: int, *, learns: bool) -> tuple[list[float], list[float]]:
    """CPU seconds of single decisions, and of learning from single answers, each ascending: 8 lanes of two makes with
    7 drafters, and load that drifts.

    With `learns`, every answer is learnt from before the next decision, as in a gateway; else learning took nothing.
    """
    names = (*DRAFTERS, *DRAFTERS)[:7]
    drafters = tuple(DrafterAbility(name, tuple(range(1, 17)), i >= len(DRAFTERS)) for i, name in enumerate(names))
    makes = [(drafters, ClosedCost(0.02)), (tuple(drafters), ClosedCost(0.03))]
    lanes = [LaneAbility(f"lane{i}", makes[i % 2][0], max_running=48, cost=makes[i % 2][1]) for i in range(8)]
    limits = {"version": 1, "workload": "speed", "drafters": {name: {"max_k": 8} for name in DRAFTERS}}
    policies = PolicySet([WorkloadPolicy.model_validate(limits)], "speed")
    random, loads, hints = Random(1), [6] * 8, Hints()
    times, learnt_s = [], []
    truth = constant_truth(0.6)
    arrivals = list(traffic(random, num, 1.0, ("code", "chat", "quote")))
    for i, arrival in enumerate(arrivals):
        lane = random.randrange(8)
        loads[lane] = min(20, max(0, loads[lane] + random.choice((-1, 1))))
        views = [LaneView(ability, LaneLoad(n, 0, 48, 0.0)) for ability, n in zip(lanes, loads, strict=True)]
        start_s = time.thread_time()
        decision = policies.decide(arrival.features, hints, views, 0.0)
        decided_s = time.thread_time() - start_s
        feedback = serve(decision, arrival, truth, random).feedback if learns else None
        start_s = time.thread_time()
        if feedback is not None:
            policies.learn(decision, feedback)
        if i >= num // 4:  # the first fill what decisions remember
            times.append(decided_s)
            learnt_s.append(time.thread_time() - start_s)
    return sorted(times), sorted(learnt_s)
