"""Dockerfiles as instructions, and what .dockerignore lets through to a builder."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from typer.testing import CliRunner

from outrider.cli.main import app

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, its flags apart."""

    keyword: str
    flags: tuple[str, ...]
    value: str

    @property
    def argv(self) -> list[str]:
        """Of the exec form. ValueError for the other, in which a shell would keep signals to itself."""
        found = json.loads(self.value.removeprefix("CMD ") if self.keyword == "HEALTHCHECK" else self.value)
        return [str(part) for part in found]


@dataclass(frozen=True, slots=True)
class Stage:
    """A FROM and what follows it."""

    instructions: tuple[Instruction, ...]

    def all(self, keyword: str) -> list[Instruction]:
        return [one for one in self.instructions if one.keyword == keyword]

    def one(self, keyword: str) -> Instruction:
        (found,) = self.all(keyword)
        return found


def stages(path: Path) -> list[Stage]:
    """In the order of the file."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    found: list[list[Instruction]] = []
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        if not line.strip():
            continue
        keyword, rest = line.split(maxsplit=1)
        flags = re.match(r"(?:--\S+\s+)*", rest)
        assert flags
        if keyword == "FROM":
            found.append([])
        found[-1].append(Instruction(keyword, tuple(flags[0].split()), rest[flags.end() :].strip()))
    return [Stage(tuple(one)) for one in found]


@cache
def _rules() -> tuple[tuple[bool, re.Pattern[str]], ...]:
    rules = []
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern = re.escape(line.removeprefix("!")).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
            rules.append((line.startswith("!"), re.compile(pattern)))
    return tuple(rules)


def is_sent(path: str) -> bool:
    """Whether a file of the tree goes to the builder: the last rule that fits it, or a folder of it, decides."""
    parts = path.split("/")
    folders = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    sent = True
    for is_kept, pattern in _rules():
        if any(pattern.fullmatch(folder) for folder in folders):
            sent = is_kept
    return sent


def sources(instruction: Instruction) -> list[str]:
    """Of a COPY from the tree; none of one from another stage."""
    return [] if any(flag.startswith("--from=") for flag in instruction.flags) else instruction.value.split()[:-1]


def is_command(arguments: list[str]) -> bool:
    """Whether `outrider` has that command and its flags; nothing is run, and values are not looked at."""
    return CliRunner().invoke(app, [*arguments, "--help"]).exit_code == 0


def words(argv: list[str]) -> list[str]:
    """Of a command in exec form, those of a shell that replaces itself included."""
    return shlex.split(argv[2]) + argv[4:] if argv[:2] == ["/bin/sh", "-c"] else argv
