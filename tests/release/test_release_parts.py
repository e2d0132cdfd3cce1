"""What the lock brings: known vulnerabilities, licences, and a list of all parts in CycloneDX's form."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from not_run import not_run
from outrider.version import __version__
from release.conftest import ROOT
from release.environment import TOOLS

pytestmark = pytest.mark.release

LOCK = ROOT / "requirements.lock"
_AUDIT = "where it is: pip-audit --requirement requirements.lock --no-deps --disable-pip"
#: Licences that may be used together with ours, Apache-2.0, by the names that packages give them, without brackets:
#: they ask for their notices to be kept.
PERMISSIVE = {
    "0BSD", "3-Clause BSD License", "Apache 2.0 License", "Apache Software License", "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception", "BSD License", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0",
    "CNRI-Python", "ISC", "ISC License ISCL", "MIT", "MIT License", "PSF-2.0", "Python Software Foundation License",
    "Zlib",
}  # fmt: skip
#: They ask for the source of their own files (MPL) or of the font (OFL) where those are changed; here they are not.
UNCHANGED = {"MPL-2.0", "Mozilla Public License 2.0 MPL 2.0", "SIL Open Font License 1.1 OFL-1.1"}
#: Debian's word, which is no licence; it stands beside one.
ALLOWED = PERMISSIVE | UNCHANGED | {"DFSG approved"}
#: Packages that say it in a file only: its first words and the licence.
IN_A_FILE = {"resvg-py": ("Permission is hereby granted, free of charge, to any person", "MIT")}


def locked() -> dict[str, str]:
    """Normalised name -> version."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return {normal(line.split("==")[0]): line.split("==")[1] for line in lines}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def is_allowed(licence: str) -> bool:
    """An expression in SPDX's words or a list of classifiers: all parts, and of alternatives one."""
    parts = re.split(r" AND |; ", re.sub(r"[()]", "", licence))
    return all(any(one in ALLOWED for one in part.split(" OR ")) for part in parts)


def licence_of(name: str, said: str) -> str:
    """What the package says, by its file where it says nothing else."""
    if name not in IN_A_FILE:
        return said
    words, licence = IN_A_FILE[name]
    assert words in " ".join((distribution(name).read_text("licenses/LICENSE") or "").split()), name
    return licence


async def test_known_vulnerabilities(dist: Path) -> None:
    """None in any locked package, as far as the service of vulnerabilities is reached."""
    report = dist / "vulnerabilities.json"
    report.unlink(missing_ok=True)
    _, out = await TOOLS.run(
        "pip-audit", "--requirement", str(LOCK), "--no-deps", "--disable-pip", "--progress-spinner", "off",
        "--format", "json", "--output", str(report),
    )  # fmt: skip
    if not report.is_file():
        why = out.strip().splitlines()[-1][:120]
        not_run(f"known vulnerabilities, whose service is not reached: {why}; {_AUDIT}")
    found = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
    unknown = [one["name"] for one in found if "skip_reason" in one]
    assert [one for one in found if one.get("vulns")] == []
    if unknown:
        report.unlink()
        count = f"{len(unknown)} of {len(found)} locked packages"
        not_run(f"known vulnerabilities, as the service that is reached here knows nothing of {count}; {_AUDIT}")


@pytest.mark.parametrize(
    ("licence", "expected"),
    [
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("GPL-2.0-only OR MIT", True),
        ("DFSG approved; MIT License", True),
        ("MIT AND GPL-3.0-only", False),
        ("GNU General Public License v3 (GPLv3)", False),
        ("Apache-2.0 with commercial terms", False),
        ("UNKNOWN", False),
        ("", False),
    ],
)
def test_the_check_of_licences_itself(licence: str, expected: bool) -> None:
    """Every part must be known to be allowed; of alternatives one."""
    assert is_allowed(licence) == expected


async def test_licences(dist: Path) -> None:
    """Every locked package has one that goes with ours; the list is part of the release."""
    status, out = await TOOLS.run(
        "pip-licenses", "--python", sys.executable, "--from", "mixed", "--format", "json", "--with-urls",
    )  # fmt: skip
    assert status == 0, out
    packages = {normal(one["Name"]): one for one in json.loads(out) if normal(one["Name"]) in locked()}
    assert packages.keys() == locked().keys(), locked().keys() - packages.keys()
    for name, one in packages.items():
        one["License"] = licence_of(name, one["License"])
    assert {name: one["License"] for name, one in packages.items() if not is_allowed(one["License"])} == {}
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
