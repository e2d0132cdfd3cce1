"""`outrider policy simulate | replay | tune | speed`: on models of lanes, on records, and on a gateway's store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from policy_commands import CODE, LANES, request, run
from policy_world import features

from outrider.core import Hints, LaneAbility, LaneLoad, LaneView, Outcome, SpecStats
from outrider.cost import ClosedCost
from outrider.dispatch.learning import LearningStore
from outrider.policy.learning import Learner
from outrider.policy.loader import Source, load_policies


def test_simulate_replay_and_tune_follow_each_other(tmp_path: Path) -> None:
    """Simulated requests are recorded, decided anew, and turned into files that are valid."""
    records, out = tmp_path / "records.jsonl", tmp_path / "out"
    code, stdout, _ = run("simulate", "--requests", "120", "--rate", "0.2", "--records", str(records))
    assert code == 0 and "quote" in stdout and "all" in stdout
    code, stdout, _ = run("replay", str(records), "--plan", "off")
    assert code == 0 and "extract" in stdout
    code, stdout, _ = run("tune", str(records), "--out", str(out))
    assert code == 0 and "expected gain 1." in stdout
    files = [str(path) for path in sorted(out.glob("*.yaml"))]
    assert len(files) == 5
    assert run("validate", *files)[0] == 0
    assert "match: {tasks: [chat]}" in (out / "chat.yaml").read_text(encoding="utf-8").splitlines()
    (out / "chat.yaml").unlink()
    code, _, stderr = run("tune", str(records), "--policies", str(out))
    assert code == 1 and "no policy file for workload 'chat', only for code" in stderr


def test_a_store_tells_what_its_lanes_could_do(tmp_path: Path) -> None:
    """A head that ran there is replayed and tuned by that lane's costs, without a word of it on the command line; and
    decisions are explained and files are checked for the same lanes."""
    policy = "version: 1\nworkload: default\ndrafters: {eagle2: {max_k: 8}}\n"
    (tmp_path / "default.yaml").write_text(policy, encoding="utf-8")
    policies, path = load_policies(Source([tmp_path])), tmp_path / "learnt.sqlite"
    ability = LaneAbility.embedded("lane-a", ("ngram", "eagle2"), ClosedCost(0.01, 64))
    store = LearningStore(path)
    for task in ("code", "chat") * 5:
        view = LaneView(ability, LaneLoad(0, 0, 16, 0.0))
        decision = policies.decide(features(task), Hints(), [view], 0.0)
        assert decision.plan.drafter == "eagle2"
        stats = SpecStats(10, 10 * decision.plan.k, (*[0] * decision.plan.k, 10))
        store.record(decision, Outcome(200, stats=stats, num_completion_tokens=10 * decision.plan.k + 11))
    asyncio.run(store.save(Learner(), {}))
    store.close()
    own = ("--policies", str(tmp_path))
    code, stdout, _ = run("replay", str(path), *own, "--plan", "off")
    assert code == 0 and " 100.0 " in stdout, "plain rounds of a hundredth of a second"
    code, stdout, _ = run("tune", str(path), *own)
    assert code == 0 and "eagle2: {" in stdout
    code, stdout, _ = run("explain", request(tmp_path, CODE), *own, "--requests", "0", "--lanes", str(path))
    assert code == 0 and "eagle2 with k" in stdout and "on lane-a, " in stdout
    assert run("validate", str(tmp_path / "default.yaml"), "--lanes", str(path))[0] == 0
    (tmp_path / "lanes.json").write_text(LANES, encoding="utf-8")
    code, _, stderr = run("tune", str(path), *own, "--lanes", str(tmp_path / "lanes.json"))
    assert code == 1 and "record 1 ran eagle2 on lane lane-a, which lane one does not have" in stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("replay", "gone.jsonl"), "gone.jsonl: cannot be read"),
        (("tune", "{bad}"), "not a record file"),
        (("tune", "{odd}"), "odd: record 1: not a recorded request: 'histogram'"),
        (("tune", "{empty}"), "no recorded requests"),
        (("simulate", "--lanes", "gone.json"), "gone.json: cannot be read"),
        (("simulate", "--lanes", "{none}"), "none: expected at least one lane"),
        (("simulate", "--lanes", "{hasty}"), "no lane can run"),
        (("simulate", "--lanes", "{vague}"), "vague: lane one: drafters: unknown key, did you mean 'ngram'?"),
        (("simulate", "--lanes", "{beyond}"), "beyond: 0.drafters.0.ks.1: Input should be less than or equal to 16"),
        (("simulate", "--lanes", "{more}"), "more: 0.kost: Unexpected keyword argument"),
        (("simulate", "--lanes", "{tight}"), "tight: 0.max_running: Input should be greater than or equal to 1"),
        (("simulate", "--requests", "1", "--records", "{empty}/here"), "here: cannot be written"),
        (("tune", "{good}", "--out", "{empty}"), ".yaml: cannot be written"),
        (("replay", "{good}", "--plan", "eagle3:4"), "--plan: lane embedded has no eagle3 with k 4"),
    ],
)
def test_records_and_lanes_that_cannot_be_used(tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    """One line each."""
    texts = {
        "bad": "{",
        "odd": "{}\n",
        "empty": "",
        "none": "[]",
        "hasty": '[{"name": "one", "drafters": [], "has_plain": false}]',
        "vague": LANES.replace('"ngram"', '"ngrm"'),
        "beyond": LANES.replace("2]", "17]"),
        "more": LANES.replace('"cost"', '"kost"'),
        "tight": LANES.replace('"cost"', '"max_running": 0, "cost"'),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    names = {name: str(tmp_path / name) for name in (*texts, "good")}
    assert run("simulate", "--requests", "20", "--records", names["good"])[0] == 0
    code, _, stderr = run(*(arg.format(**names) for arg in args))
    assert code == 1 and message in stderr and stderr.count("\n") == 1


def test_speed_prints_median_and_p99() -> None:
    """Of decisions with and without learning; the bound is far above what a free core needs."""
    code, stdout, _ = run("speed", "--decisions", "2000")
    assert code == 0
    medians = [int(line.split("median ")[1].split(" us")[0]) for line in stdout.splitlines()]
    assert len(medians) == 2 and max(medians) < 2000
