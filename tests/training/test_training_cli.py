"""`outrider train` and `outrider bench heads` on a toy target: from nothing to a table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.errors import ConfigError
from outrider.plots.png import can_draw
from random_llama import write_random_llama


def outrider(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_head_is_trained_and_measured(tmp_path: Path) -> None:
    """Every way to draft has a row for each temperature; greedy texts are those of plain decoding."""
    model, out, data = tmp_path / "llama", tmp_path / "head", tmp_path / "data"
    write_random_llama(model, num_layers=4)
    sizes = ("--minutes", "0.1", "--num-tokens", "1500", "--draft-vocab", "64")
    shown = outrider("train", "eagle", "--model", str(model), "--out", str(out), "--data", str(data), *sizes)
    assert "agreement by depth" in shown and "accept length at k=4 and T 0.0" in shown
    assert [(out / name).is_file() for name in ("loss.png", "agreement.png")] == [can_draw()] * 2
    assert ("![loss.png](loss.png)" in (out / "README.md").read_text()) is can_draw()
    json_file = tmp_path / "bench.json"
    outrider(
        "bench", "heads", "--model", str(model), "--eagle", str(out), "--minutes", "0.1", "--max-tokens", "12",
        "--json", str(json_file), "--draft-model", str(model), "--record",
    )  # fmt: skip
    tables = json.loads(json_file.read_text())["tables"]
    rows = tables["drafts against off"]
    arms = {"ngram", "eagle2 dynamic", "eagle2 chain", "eagle2 static", "eagle2 hybrid", "eagle2", "eagle2 int8"}
    arms |= {"draft_model chain", "draft_model int8 chain"}
    assert {row["drafts"].partition(" k=")[0] for row in rows} == {"off", *arms}
    assert all(row["same text"] == 1.0 for row in rows if row["T"] == "0.0" and row["drafts"] != "off")
    assert all(1.0 <= row["accept length"] <= 11.0 for row in rows if "accept length" in row)
    assert tables["accept length by task"][0]["task"] == "tools"
    assert len(tables["aims"]) == 5
    lengths = {row["drafts"]: row.get("accept length") for row in rows if row["T"] == "0.0"}
    # The target drafts for itself, and all is accepted: after a first token 5, 5, and the one that is still wanted.
    assert lengths["draft_model chain k=4"] == pytest.approx(11 / 3)
    worth = json.loads((out / "config.json").read_text())["outrider"]["worth"]
    assert worth["drafts"].startswith("eagle2") and "int8" not in worth["drafts"] and worth["against_off"] > 0


def test_a_worth_without_greedy_answers_is_refused() -> None:
    """Before anything is loaded: nothing could be recorded."""
    done = CliRunner().invoke(app, ["bench", "heads", "--record", "--temperature", "1"])
    assert isinstance(done.exception, ConfigError) and "--temperature 0" in str(done.exception)


def test_two_heads_of_one_kind_are_refused(tmp_path: Path) -> None:
    """Before anything is loaded: what one of them gains would be said of the other too."""
    options = []
    for name, kind in (("a", "Eagle"), ("b", "Eagle"), ("c", "Eagle3")):
        (tmp_path / name).mkdir()
        config = json.dumps({"architectures": [f"LlamaForCausalLM{kind}"]})
        (tmp_path / name / "config.json").write_text(config, encoding="utf-8")
        options += ["--eagle", str(tmp_path / name)]
    done = CliRunner().invoke(app, ["bench", "heads", *options])
    assert isinstance(done.exception, ConfigError)
    assert f"--eagle {tmp_path / 'b'}: a second eagle2 head" in str(done.exception)


def test_ctrl_c_keeps_what_is_done(tmp_path: Path, toy_folder: Path) -> None:
    """The tables and the file are of the answers until then, and the status is that of an interrupted program."""
    json_file = tmp_path / "bench.json"
    command = [sys.executable, "-m", "outrider", "bench", "heads", "--model", str(toy_folder), "--minutes", "9"]
    ours, theirs = os.openpty()  # the bar says what is measured, on terminals only
    with subprocess.Popen([*command, "--json", str(json_file)], stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        told = b""
        while b"ngram k=10" not in told:
            told += os.read(ours, 1024)
        process.send_signal(signal.SIGINT)
        while process.poll() is None:
            with suppress(OSError):  # nobody writes any more
                os.read(ours, 1024)
        said = process.stdout.read() if process.stdout is not None else b""
    os.close(ours)
    assert process.returncode == 130, told
    samples = json.loads(json_file.read_text())["samples"]
    assert len(samples) >= 2 and b"drafts against off" in said
