"""What a run has done so far, line by line in its folder, so that nothing is lost when it stops and it can go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, ConfigDict

from outrider.errors import ConfigError
from outrider.workloads.figures import Key
from outrider.workloads.files import parsed_line
from outrider.workloads.results import Arm, Record, Stretch

LEDGER = "records.jsonl"


class _Line(BaseModel):
    """One of these: what the run is, a job that ended, a stretch that ended."""

    model_config = ConfigDict(extra="forbid")

    head: Head | None = None
    job: list[Record] | None = None
    stretch: Stretch | None = None


class Head(BaseModel):
    """What a run must agree in to be continued; more rounds may be added to it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    suite: str
    digest: str
    arms: tuple[Arm, ...]
    models: dict[str, str] = {}
    """By target."""


class Ledger:
    """`with Ledger(folder, head) as ledger:` makes the folder or takes up what is in it; lines are written at once.

    ConfigError when another run lies there, or what lies there cannot be read.
    """

    def __init__(self, folder: Path, head: Head) -> None:
        self._path = folder / LEDGER
        self.head = head
        self.records: list[Record] = []
        self.stretches: list[Stretch] = []
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lines = self._path.read_bytes().split(b"\n") if self._path.exists() else [b""]
            self._take_up(head, lines[:-1])
            self._file = self._path.open("ab")
        except OSError as error:
            raise ConfigError(f"--out {folder}: {error.strerror}") from error
        if lines[-1]:  # cut off where the process was killed
            self._file.truncate(self._path.stat().st_size - len(lines[-1]))
        if lines[:-1] == []:
            self._write(_Line(head=head))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._file.close()

    def job_ended(self, records: Sequence[Record]) -> None:
        """Write down its exchanges."""
        self.records += records
        self._write(_Line(job=list(records)))

    def stretch_ended(self, stretch: Stretch) -> None:
        """Write down the stretch."""
        self.stretches.append(stretch)
        self._write(_Line(stretch=stretch))

    def done(self, arm: str) -> set[Key]:
        """Jobs of an arm that have ended."""
        return {(one.round, one.number) for one in self.records if one.arm == arm}

    def _take_up(self, head: Head, lines: Sequence[bytes]) -> None:
        for number, raw in enumerate(lines, 1):
            line = parsed_line(self._path, number, raw, _Line)
            if line.head is not None and line.head != head:
                raise ConfigError(
                    f"{self._path.parent} holds another run ({_difference(line.head, head)}); name a new folder"
                )
            self.records += line.job or ()
            if line.stretch is not None:
                self.stretches.append(line.stretch)

    def _write(self, line: _Line) -> None:
        self._file.write(line.model_dump_json(exclude_unset=True).encode() + b"\n")
        self._file.flush()


def _difference(there: Head, here: Head) -> str:
    for name, mine in here:
        other = getattr(there, name)
        if other != mine:
            return f"{name} {_shown(other)} instead of {_shown(mine)}"
    return "the same"


def _shown(value: object) -> str:
    return ", ".join(f"{arm.name} at {arm.target}" for arm in value) if isinstance(value, tuple) else str(value)
