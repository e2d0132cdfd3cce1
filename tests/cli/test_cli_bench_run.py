"""`outrider bench run` and `bench compare` as they are typed: options, arms of targets, failures, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.bench.run import Reach, connected, hints_of, parse_arrivals
from outrider.cli.bench.servers import API_KEY, server
from outrider.cli.main import app
from outrider.errors import ConfigError, SetupError
from outrider.workloads.results import read_result
from paced_lane import pace, paced_lane

RUNNER = CliRunner()


def write(folder: Path, *texts: str, name: str = "own.yaml") -> Path:
    prompts = [
        {"name": f"p{i}", "task": "chat", "temperature": 0, "max_tokens": 16, "text": text}
        for i, text in enumerate(texts)
    ]
    path = folder / name
    path.write_text(json.dumps({"version": 1, "rounds": 1, "prompts": prompts}))  # JSON is YAML too
    return path


def bench(*options: object) -> str:
    done = RUNNER.invoke(app, ["bench", *map(str, options)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("text", "shown"),
    [("closed:8", "closed loop of 8"), ("poisson:2.5", "Poisson, 2.5/s"), ("bursts:4:10", "bursts of 4 every 10 s"),
     ("trace:a/b.csv.gz:2:0.1", "trace b.csv.gz, speed 2, length 0.1")],
)  # fmt: skip
def test_arrivals_are_typed_short(text: str, shown: str) -> None:
    """Kind and numbers with colons between."""
    assert str(parse_arrivals(text)) == shown


@pytest.mark.parametrize("text", ["waves:3", "closed:0", "poisson", "poisson:x", "bursts:4", "closed:1:2"])
def test_wrong_arrivals_say_what_was_expected(text: str) -> None:
    """With the text as it was typed."""
    with pytest.raises(ConfigError, match=rf"--arrivals {text}: .*bursts:SIZE:EVERY_S"):
        parse_arrivals(text)


def test_arms_become_hints() -> None:
    """A drafter that nobody has, or a k that is none, is refused."""
    assert (hints_of("policy"), hints_of("off")) == ({}, {"off": True})
    assert hints_of("ngram:4") == {"drafter": "ngram", "k": 4}
    for arm in ("grams:4", "ngram", "ngram:x", "ngram:99", "ngram:0"):
        with pytest.raises(ConfigError, match=f"--arm {arm}: "):
            hints_of(arm)


async def test_an_outrider_has_arms_and_tells_what_it_did(tmp_path: Path) -> None:
    """Every arm of every target; a lane without a gateway is one arm, and takes no hints."""
    with server("direct") as lane, server("outrider", lane.url) as gateway:
        reach = Reach((), None, API_KEY, 5.0)
        async with connected({"g": gateway.url, "l": lane.url}, reach, ()) as sides:
            names = [side.arm.name for side in sides]
        with pytest.raises(ConfigError, match="--arm off: l is no Outrider"):
            async with connected({"l": lane.url}, reach, ("off",)):
                pass
        with pytest.raises(ConfigError, match="--arm off: is given twice"):
            async with connected({"g": gateway.url}, reach, ("off", "off")):
                pass
        options = ["--target", gateway.url, "--out", tmp_path / "r", "--api-key-env", "BENCH_KEY"]
        os.environ["BENCH_KEY"] = API_KEY
        try:
            said = await asyncio.to_thread(
                bench, "run", write(tmp_path, "Say yes."), *options, "--arm", "off", "--arm", "ngram:4"
            )
        finally:
            del os.environ["BENCH_KEY"]
    assert names == ["off at g", "policy at g", "as it is at l"]
    result = read_result(tmp_path / "r")
    assert [(one.arm, one.effective.drafter, one.effective.k) for one in result.records] == [
        ("off", "off", 0), ("ngram:4", "ngram", 4),
    ]  # fmt: skip
    assert result.records[1].observed.num_proposed == 12 and result.records[0].observed is None
    assert result.records[1].requested == {"task": "chat", "drafter": "ngram", "k": 4}
    assert all(one.queue_s is not None and one.queue_s < 60 for one in result.records)
    assert API_KEY not in (tmp_path / "r" / "result.json").read_text()
    assert "| chat | 0 | ngram:4 |" in said and "| ngram k=4 ×1 | 12 | 10 |" in said
    assert (tmp_path / "r" / "report.html").is_file()


def test_without_a_target_it_starts_gateway_and_engine(tmp_path: Path, toy_folder: Path) -> None:
    """With the model named, off and policy, interleaved, with plans and counts; a missing model is said at once."""
    suite = write(tmp_path, "ABCDABDCACBD", "ABABABAB")
    said = bench("run", suite, "--model", toy_folder, "--out", tmp_path / "r", "--arm", "off", "--arm", "ngram:3")
    result = read_result(tmp_path / "r")
    assert [one.target for one in result.arms] == ["embedded", "embedded"]
    assert {(one.arm, one.effective.drafter) for one in result.records} == {("off", "off"), ("ngram:3", "ngram")}
    assert all(sum(step.num_tokens for step in one.steps) == one.num_tokens == 16 for one in result.records)
    assert result.against[0].num_same_text == 2 and "2 of 2" in said
    with pytest.raises(SetupError, match="none"):
        bench("run", suite, "--model", tmp_path / "none", "--out", tmp_path / "n")


def test_a_run_can_be_compared_with_another(tmp_path: Path) -> None:
    """By their ratio; what else differs is said; other suites are refused."""
    with paced_lane() as url:
        for name, options in (("a", ["--seed", 0]), ("b", ["--seed", 0]), ("c", ["--seed", 1])):
            suite = write(tmp_path, *(pace(20, 20, 3) + f" number {i}" for i in range(6)))
            bench("run", suite, "--target", url, "--out", tmp_path / name, *options)
    path = tmp_path / "b" / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"conditions": {"cpu": "another"}}))
    said = bench("compare", tmp_path / "a", tmp_path / "b")
    start = "| as it is of B | as it is of A | all |  | "
    assert start in said and "- cpu:" in said
    assert float(said.split(start)[1].split(" ")[0]) > 0
    with pytest.raises(ConfigError, match=r"different suites: own \(.*seed 0\) and own \(.*seed 1\)"):
        bench("compare", tmp_path / "a", tmp_path / "c")


def test_a_failed_request_is_an_exit_status(tmp_path: Path) -> None:
    """And stands in the result, which is written all the same."""
    with paced_lane() as url:
        options = ["--target", url, "--out", str(tmp_path / "r"), "--timeout-s", "1"]
        done = RUNNER.invoke(app, ["bench", "run", str(write(tmp_path, pace(3000, 1, 1))), *options])
    assert done.exit_code == 1
    assert [one.error for one in read_result(tmp_path / "r").records] == ["timeout"]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """Status 130 and a result that says it is not complete; afterwards it is, and nothing was asked twice."""
    suite = write(tmp_path, pace(5, 5, 2), pace(5, 5, 2) + " two", pace(6000, 5, 2))
    with paced_lane() as url:
        command = [sys.executable, "-m", "outrider", "bench", "run", str(suite), "--target", url]
        command += ["--out", str(tmp_path / "r")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            ledger, end_s = tmp_path / "r" / "records.jsonl", time.monotonic() + 60
            while time.monotonic() < end_s and (not ledger.exists() or ledger.read_bytes().count(b'"job"') < 2):
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            said, complaint = process.communicate(timeout=60)
        assert process.returncode == 130, complaint
        assert "1 jobs are missing" in said and "Traceback" not in complaint
        assert not read_result(tmp_path / "r").is_complete
        assert "jobs are missing" not in bench(*command[4:])
    result = read_result(tmp_path / "r")
    assert result.is_complete and sorted(one.prompt for one in result.records) == ["p0", "p1", "p2"]


def test_what_would_be_ignored_or_held_against_itself_is_refused(tmp_path: Path) -> None:
    """By the option's name, before anything is asked."""
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.0,10,2\n", encoding="utf-8")
    out = ("--out", str(tmp_path / "r"))
    with paced_lane() as url:
        for options, told in (
            (("--target", url, "--target", url), f"--target {url}: is given twice"),
            (("--target", url, "--target", f"{url}/"), f"--target {url}/: is given twice"),
            (("--target", f"{url}/v1/", "--target", url), f"--target {url}: is given twice"),
            (("--target", url, "--arrivals", f"trace:{trace}", "--prompt-tokens", "9"), "--prompt-tokens: the trace"),
        ):
            done = RUNNER.invoke(app, ["bench", "run", "smoke", *out, *options])
            assert isinstance(done.exception, ConfigError) and told in str(done.exception)
    assert not (tmp_path / "r").exists()
