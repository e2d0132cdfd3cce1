"""`outrider policy`: what it prints and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from policy_commands import CODE, LANES, request, run

from outrider.config import packaged_data


def test_validate_names_good_files() -> None:
    """A line per file."""
    files = [str(packaged_data("policies") / name) for name in ("code.yaml", "off.yaml")]
    assert run("validate", *files) == (0, f"{files[0]}: ok\n{files[1]}: ok\n", "")


def test_validate_lists_problems_and_fails(tmp_path: Path) -> None:
    """Each problem is a line; one bad file among good ones fails the command."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("version: 1\nworkload: bad\ndraftrs: {}\n", encoding="utf-8")
    good = str(packaged_data("policies") / "off.yaml")
    code, stdout, _ = run("validate", str(bad), good)
    assert code == 1
    assert stdout.splitlines() == [
        f"{bad}:1:1: drafters: is missing, expected a mapping of allowed drafters to their limits;"
        " an empty one never speculates",
        f"{bad}:3:1: draftrs: unknown key, did you mean 'drafters'?",
        f"{good}: ok",
    ]


def test_validate_against_lanes(tmp_path: Path) -> None:
    """What no lane can do is a problem at its place."""
    lanes = tmp_path / "lanes.json"
    lanes.write_text(LANES, encoding="utf-8")
    code, stdout, _ = run("validate", str(packaged_data("policies") / "creative.yaml"), "--lanes", str(lanes))
    assert code == 1
    assert "drafters.ngram.max_k: expected at most 2" in stdout
    lanes.write_text(LANES.replace('"ks"', '"kz"'), encoding="utf-8")
    code, _, stderr = run("validate", str(packaged_data("policies") / "off.yaml"), "--lanes", str(lanes))
    assert code == 1 and stderr.startswith(f"{lanes}: 0.drafters.0.ks: ")


def test_validate_sees_the_whole_folder(tmp_path: Path) -> None:
    """A trial of what no file defines, and a second file of one name; those of all folders given may be tried."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    text = "version: 1\nworkload: {}\ndrafters: {{}}\n"
    a, b, c = first / "a.yaml", first / "b.yaml", second / "c.yaml"
    a.write_text(text.format("a") + "trial: {workload: c, mode: shadow}\n", encoding="utf-8")
    b.write_text(text.format("a"), encoding="utf-8")
    c.write_text(text.format("c"), encoding="utf-8")
    code, stdout, _ = run("validate", str(a), str(b))
    assert code == 1
    assert stdout.splitlines() == [
        f"{a}:4:19: trial.workload: expected a known workload, one of a, found 'c'",
        f"{b}:2:11: workload: expected a name of its own, 'a' is used by a.yaml",
    ]
    assert run("validate", str(a), str(c)) == (0, f"{a}: ok\n{c}: ok\n", "")


def test_explain_prints_plan_and_reasons(tmp_path: Path) -> None:
    """A person reads the plan, the rule, each reason and each feature."""
    code, stdout, _ = run("explain", request(tmp_path, CODE), "--requests", "0")
    assert code == 0
    assert stdout.splitlines()[:3] == ["plan      suffix, k 5", "workload  code", "rule      best-rate"]
    assert "  - 0 other requests on lane embedded" in stdout.splitlines()
    assert "  task: code" in stdout.splitlines()


def test_explain_fills_the_lane_before_requests_wait(tmp_path: Path) -> None:
    """An embedded engine runs sixteen at once; the request that is decided is one of them."""
    for others, waiting in [("15", ""), ("16", ", 1 of them waiting"), ("20", ", 5 of them waiting")]:
        _, stdout, _ = run("explain", request(tmp_path, CODE), "--requests", others)
        assert f"  - {others} other requests on lane embedded{waiting}" in stdout.splitlines()


def test_explain_json(tmp_path: Path) -> None:
    """A program reads the same, and every candidate; load that is not given is unknown."""
    code, stdout, _ = run("explain", request(tmp_path, CODE), "--json")
    found = json.loads(stdout)
    assert code == 0
    assert (found["plan"], found["requests"]) == ({"drafter": "off", "k": 0}, None)
    assert (found["workload"], found["rule"], found["lane"]) == ("code", "plain", "embedded")
    assert found["features"]["task"] == "code"
    assert {candidate["drafter"] for candidate in found["candidates"]} == {"off", "ngram", "suffix", "prediction"}
    assert any("is unknown" in reason for reason in found["reasons"])


def test_explain_reads_stdin_hints_and_other_policies(tmp_path: Path) -> None:
    """`-` is stdin, the request's own hints count, and the policies can be one's own."""
    policy = "version: 1\nworkload: mine\ndrafters: {ngram: {max_k: 2, prior: 0.9}}\n"
    (tmp_path / "mine.yaml").write_text(policy, encoding="utf-8")
    options = ("--policies", str(tmp_path), "--default", "mine", "--requests", "0")
    assert run("explain", "-", *options, stdin='{"prompt": "x", "temperature": 0}')[1].startswith(
        "plan      ngram, k 2\n"
    )
    hinted = '{"prompt": "x", "outrider": {"k": 7}}'
    assert run("explain", "-", *options, stdin=hinted)[1].startswith("plan      ngram, k 7\n")


def test_explain_looks_at_where_a_request_comes_from(tmp_path: Path) -> None:
    """All that workloads match on: the model that it names, its key's tenant, its headers."""
    for name, match in (
        ("mine", "{models: [m], tenants: [t], headers: {X-Tier: gold}}"),
        ("default", "{models: [x]}"),
    ):
        text = f"version: 1\nworkload: {name}\ndrafters: {{}}\nmatch: {match}\n"
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    path, found = request(tmp_path, CODE | {"model": "m"}), []
    for tenant, tier in (("t", "x-tier: gold"), ("u", "x-tier: gold"), ("t", "x-tier:tin")):
        args = (path, "--policies", str(tmp_path), "--tenant", tenant, "--header", tier, "--json")
        found.append(json.loads(run("explain", *args)[1])["workload"])
    assert found == ["mine", "default", "default"]


def test_a_later_folders_workload_takes_the_place_of_an_earlier_ones(tmp_path: Path) -> None:
    """Over those of the package, which stay where the later folder has none of their name."""
    (tmp_path / "mine.yaml").write_text("version: 1\nworkload: code\ndrafters: {}\nmatch: {tasks: [code]}\n", "utf-8")
    bodies = ["Write a Python class Queue.", "Quote this text back: one two three one two three."]
    both = ("--policies", "shipped", "--policies", str(tmp_path))
    found = []
    for text in bodies:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0}
        found.append(json.loads(run("explain", request(tmp_path, body), *both, "--requests", "0", "--json")[1]))
    assert [(one["workload"], one["plan"]["k"] > 0) for one in found] == [("code", False), ("extract", True)]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"prompt": ', "not valid JSON"),
        ("[]", "expected a JSON object"),
        ({}, "messages: expected a list"),
        ({"prompt": "x", "temperature": "hot"}, "temperature: expected a number from 0, found 'hot'"),
        ({"prompt": "x", "temperature": -1}, "temperature: expected a number from 0, found -1"),
        ({"prompt": "x", "outrider": {"k": 99}}, "outrider.k: "),
        ({"prompt": "x", "outrider": {"drafter": "magic"}}, "outrider.drafter: "),
        ({"prompt": "x", "outrider": {"kk": 1}}, "outrider.kk: "),
        ({"prompt": "x", "outrider": {"off": True, "k": 3}}, "outrider: "),
        ({"prompt": "x", "outrider": []}, "outrider: "),
    ],
)
def test_explain_refuses_bad_requests(tmp_path: Path, body: Any, message: str) -> None:
    """One line on stderr names the field."""
    path = request(tmp_path, body)
    code, stdout, stderr = run("explain", path)
    assert (code, stdout) == (1, "")
    assert stderr.startswith(f"{path}: {message}")
    assert stderr.count("\n") == 1


def test_explain_refuses_what_the_gateway_would_refuse(tmp_path: Path) -> None:
    """A plan that no lane can run, where the workload takes no other for it; by the lanes that are given."""
    (tmp_path / "default.yaml").write_text(
        "version: 1\nworkload: default\nfallback: refuse\ndrafters: {ngram: {}}\n", encoding="utf-8"
    )
    (tmp_path / "lanes.json").write_text(LANES, encoding="utf-8")
    path = request(tmp_path, {"prompt": "x", "outrider": {"drafter": "suffix", "k": 3}})
    args = (path, "--policies", str(tmp_path))
    code, stdout, _ = run("explain", *args)
    assert code == 0 and "plan      suffix, k 3" in stdout
    code, stdout, stderr = run("explain", *args, "--lanes", str(tmp_path / "lanes.json"))
    assert (code, stdout, stderr) == (1, "", "no lane can run suffix with k 3\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("no.json",), "no.json: cannot be read"),
        (("-", "--default", "gone"), "unknown default workload 'gone', known: chat, code"),
        (("-", "--policies", "gone"), "gone: no policy files"),
        (("-", "--header", "gold"), "--header: expected NAME:VALUE, found 'gold'"),
    ],
)
def test_explain_refuses_bad_setups(args: tuple[str, ...], message: str) -> None:
    """A missing file, directory or default is one line too."""
    code, _, stderr = run("explain", *args, stdin='{"prompt": "x"}')
    assert code == 1
    assert message in stderr
    assert stderr.count("\n") == 1


def test_schema_prints_the_committed_schema() -> None:
    """Redirecting the command regenerates the file."""
    code, stdout, _ = run("schema")
    assert code == 0
    assert stdout == (packaged_data("policies") / "policy.schema.json").read_text(encoding="utf-8")


def test_command_needs_no_torch() -> None:
    """Policies can be checked where no engine is installed."""
    script = "import sys, outrider.cli.policy; print([m for m in ('torch', 'aiohttp', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
