"""What the lock brings: known vulnerabilities, licences, and a list of all parts in CycloneDX's form."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from not_run import not_run
from outrider.version import __version__
from release.conftest import ROOT
from release.environment import TOOLS

pytestmark = pytest.mark.release

LOCK = ROOT / "requirements.lock"
#: Licences that allow what is done with the packages: nothing of them is changed, and some are only used by tests.
ALLOWED = re.compile(
    r"MIT|BSD|Apache|Python|PSF|ISC|Zlib|CC0|0BSD|Unlicense|MPL|Mozilla|CNRI|HPND|LLVM|BSL|Boost|"
    r"The Unlicense|Public Domain",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(r"A?GPL|General Public|SSPL|BUSL|proprietary|commercial", re.IGNORECASE)


def locked() -> dict[str, str]:
    """Normalised name -> version."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return {normal(line.split("==")[0]): line.split("==")[1] for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


async def test_known_vulnerabilities(dist: Path) -> None:
    """None in any locked package, as far as the service of vulnerabilities is reached."""
    report = dist / "vulnerabilities.json"
    report.unlink(missing_ok=True)
    _, out = await TOOLS.run(
        "pip-audit", "--requirement", str(LOCK), "--no-deps", "--disable-pip", "--progress-spinner", "off",
        "--format", "json", "--output", str(report),
    )  # fmt: skip
    if not report.is_file():
        not_run(f"known vulnerabilities, whose service is not reached: {out.strip().splitlines()[-1][:120]}")
    found = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
    unknown = [one["name"] for one in found if "skip_reason" in one]
    assert [one for one in found if one.get("vulns")] == []
    if unknown:
        report.unlink()
        not_run(f"known vulnerabilities: of {len(unknown)} of {len(found)} locked packages the service says nothing")


async def test_licences(dist: Path) -> None:
    """Every locked package has one that is allowed; the list is part of the release."""
    status, out = await TOOLS.run(
        "pip-licenses", "--python", sys.executable, "--from", "mixed", "--format", "json", "--with-urls",
    )  # fmt: skip
    assert status == 0, out
    packages = {normal(one["Name"]): one for one in json.loads(out) if normal(one["Name"]) in locked()}
    assert packages.keys() == locked().keys(), locked().keys() - packages.keys()
    wrong = {
        name: one["License"]
        for name, one in packages.items()
        if FORBIDDEN.search(one["License"]) or not ALLOWED.search(one["License"])
    }
    assert wrong == {}
    lines = [f"{one['Name']} {one['Version']}\t{one['License']}\t{one['URL']}" for one in packages.values()]
    (dist / "licences.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


async def test_bill_of_materials(dist: Path) -> None:
    """Valid, with every locked package in its version and ours as the whole."""
    file = dist / "outrider.cdx.json"
    status, out = await TOOLS.run(
        "cyclonedx-py", "requirements", str(LOCK), "--pyproject", str(ROOT / "pyproject.toml"),
        "--output-reproducible", "--validate", "--output-format", "JSON", "--output-file", str(file),
    )  # fmt: skip
    assert status == 0, out
    bill = json.loads(file.read_text(encoding="utf-8"))
    # Our version is no part of pyproject.toml, which the tool reads.
    bill["metadata"]["component"]["version"] = __version__
    file.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    assert {normal(one["name"]): one["version"] for one in bill["components"]} == locked()
    assert bill["metadata"]["component"]["name"] == "outrider"
