"""The lanes that are tested, and their servers: at most two at a time, in the order of the tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from servers import Server


@dataclass(frozen=True)
class Lane:
    """How a lane is launched, and what follows for its answers."""

    name: str
    drafter: str
    max_k: int
    flags: tuple[str, ...]

    @property
    def has_steps(self) -> bool:
        """Whether it drafts as many steps as a batch wants."""
        return self.drafter != "ngram" and self.name.endswith("-1")


def _ngram(topk: int) -> Lane:
    flags = (
        "--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8",
        "--speculative-ngram-max-bfs-breadth", str(topk),
    )  # fmt: skip
    return Lane(f"ngram-{topk}", "ngram", 7, flags)


def _steps(drafter: str, algorithm: str, folder: str, num_steps: int, topk: int, num_nodes: int) -> Lane:
    flags = (
        "--speculative-algorithm", algorithm, "--speculative-draft-model-path", folder,
        "--speculative-num-steps", str(num_steps), "--speculative-eagle-topk", str(topk),
        "--speculative-num-draft-tokens", str(num_nodes),
    )  # fmt: skip
    return Lane(f"{drafter}-{topk}", drafter, num_steps, flags)


#: `DRAFT` and `HEAD` stand for folders that are made once the session runs.
LANES = (
    _ngram(1),
    _ngram(4),
    _steps("draft_model", "STANDALONE", "DRAFT", 4, 1, 5),
    _steps("draft_model", "STANDALONE", "DRAFT", 4, 4, 10),
    _steps("eagle2", "EAGLE", "HEAD", 4, 1, 5),
    _steps("eagle2", "EAGLE", "HEAD", 3, 4, 8),
)


@dataclass
class Fleet:
    """Starts a lane when it is asked for, and the next one with it; stops the ones before."""

    folders: dict[str, Path]
    logs: Path
    running: dict[str, Server] = field(default_factory=dict)

    def get(self, lane: Lane) -> Server:
        index = LANES.index(lane)
        wanted = LANES[index : index + 2]
        for name in set(self.running) - {one.name for one in wanted}:
            self.running.pop(name).stop()
        for one in wanted:
            if one.name not in self.running:
                flags = [str(self.folders.get(flag, flag)) for flag in one.flags]
                log = self.logs / f"{one.name}.log"
                self.running[one.name] = Server.start(self.folders["TARGET"], log, "--skip-tokenizer-init", *flags)
        self.running[lane.name].wait_ready()
        return self.running[lane.name]

    def stop(self) -> None:
        while self.running:
            self.running.popitem()[1].stop()
