"""The training loop: batches for a time, and now and then all that a killed run needs to go on."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from outrider.errors import ModelError
from outrider.training.corpus import Progress
from outrider.training.features import Batch, Window, collate
from outrider.training.recipes import Recipe, Scores, copy_parameters, score
from outrider.training.selection import Selection

#: Gradients are cut to this value, after EAGLE's recipe.
CLIP = 0.5
WARM_UP = 0.05
#: Times in a run that it is evaluated and saved.
NUM_EVALUATIONS = 12
#: Windows that are evaluated during the run; at its end all are.
EVALUATED = 24
#: Share of the time after which natural text is left out: what the target writes itself matters most at the end.
NATURAL_UNTIL = 0.5
#: Windows among which a batch finds others of its length.
BUCKET = 256
_STATE = "state.pt"
_FIELDS = {"state", "optimizer", "parameters", "selection"}


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How long and how fast."""

    seconds: float
    """Of training, not counting data; what a killed run has used counts."""
    learning_rate: float = 6e-4
    batch_tokens: int = 512
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    """Seconds; what a run does depends on nothing else that changes."""


@dataclass(slots=True)
class TrainState:
    """Where a run is."""

    step: int = 0
    used_s: float = 0.0
    num_tokens: int = 0
    num_evaluated: int = 0
    epoch: int = -1
    place: int = 0
    """Batches of the epoch that are done."""
    has_natural: bool = True
    """Whether natural text is among them."""
    begun_with: dict[str, Any] | None = None
    """How the head was made that it began with; None when it began anew."""
    losses: list[tuple[int, float]] = field(default_factory=list)
    """Step and mean loss since the entry before."""
    agreements: list[tuple[int, tuple[float, ...]]] = field(default_factory=list)
    """Step and, by depth, how often the likeliest token was right on held-out texts."""


def read_state(folder: Path) -> dict[str, Any] | None:
    """What a run in this folder goes on from; None when none was started, ModelError when it cannot be read."""
    path = folder / _STATE
    if not path.is_file():
        return None
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, UnpicklingError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(stored, dict) or stored.keys() != _FIELDS:
        raise ModelError(f"{path} is of another version: expected {', '.join(sorted(_FIELDS))}")
    return stored


class Trainer:
    """One head, its optimiser, and where it is; `folder` keeps what `read_state` reads."""

    def __init__(
        self, recipe: Recipe, selection: Selection, windows: Sequence[Window], folder: Path, settings: TrainSettings
    ) -> None:
        self.recipe = recipe
        self.state = TrainState()
        self._selection = selection
        self._held_out = [window for window in windows if window.text.index in selection.held_out]
        self._training = [window for window in windows if window.text.index not in selection.held_out]
        if not self._held_out or not self._training:
            raise ModelError("no text is long enough to train on, or none to judge by")
        self._plan: list[list[Window]] = []
        self._path = folder / _STATE
        self._settings = settings
        self._device = next(iter(recipe.parameters.values())).device
        self._optimizer = torch.optim.AdamW(
            recipe.parameters.values(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def run(self, progress: Progress) -> Scores:
        """Until the time is used up; the scores of all held-out windows."""
        settings, state = self._settings, self.state
        losses: list[float] = []
        if state.step == 0:
            self.recipe.prepare(window for batch in self._planned() for window in batch)
        while state.used_s < settings.seconds:
            started = settings.clock()
            losses.append(self._train(self._next()))
            state.step += 1
            state.used_s += settings.clock() - started
            done = state.used_s / settings.seconds
            if done >= (state.num_evaluated + 1) / NUM_EVALUATIONS:
                self._evaluate(losses)
                losses = []
            loss = state.losses[-1][1] if state.losses else math.nan
            rate = state.num_tokens / state.used_s
            progress(f"step {state.step}, loss {loss:.3f}, {rate:.0f} tokens/s", min(done, 1.0))
        if losses:
            self._evaluate(losses)
        return score(self.recipe, self._batches(self._held_out), lambda part: progress("held-out texts", part))

    def _train(self, chosen: Sequence[Window]) -> float:
        fraction = self.state.used_s / self._settings.seconds
        warm = min(1.0, (fraction + 1e-3) / WARM_UP)
        for group in self._optimizer.param_groups:
            group["lr"] = self._settings.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * min(fraction, 1.0)))
        loss = self.recipe.loss(collate(chosen, self._device), self.state.step, fraction)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_value_(self.recipe.parameters.values(), CLIP)
        self._optimizer.step()
        self.state.num_tokens += sum(len(window.token_ids) for window in chosen)
        return float(loss.detach())

    def _next(self) -> list[Window]:
        """The next batch: of all windows once, in an order that the seed decides, then again in another."""
        state = self.state
        has_natural = state.used_s < NATURAL_UNTIL * self._settings.seconds
        if state.place == len(self._plan) or has_natural < state.has_natural:
            state.epoch, state.place, state.has_natural = state.epoch + 1, 0, has_natural
            self._plan = self._planned()
        state.place += 1
        return self._plan[state.place - 1]

    def _planned(self) -> list[list[Window]]:
        """Batches of this epoch, each of windows of about one length: what is filled up is computed for nothing."""
        pool = [window for window in self._training if self.state.has_natural or not window.text.is_natural]
        rng = random.Random(f"{self._settings.seed} {self.state.epoch}")
        rng.shuffle(pool)
        plan = [batch for start in range(0, len(pool), BUCKET) for batch in self._cut(pool[start : start + BUCKET])]
        rng.shuffle(plan)
        return plan

    def _cut(self, chosen: Sequence[Window]) -> Iterator[list[Window]]:
        """By length, in batches of at most `batch_tokens`, or of one window."""
        batch: list[Window] = []
        for window in sorted(chosen, key=lambda window: len(window.token_ids)):
            if batch and (len(batch) + 1) * len(window.token_ids) > self._settings.batch_tokens:
                yield batch
                batch = []
            batch.append(window)
        yield batch

    def _batches(self, chosen: Sequence[Window]) -> list[Batch]:
        return [collate(batch, self._device) for batch in self._cut(chosen)]

    def _evaluate(self, losses: Sequence[float]) -> None:
        state = self.state
        state.losses.append((state.step, sum(losses) / len(losses)))
        scores = score(self.recipe, self._batches(self._held_out[:EVALUATED]))
        state.agreements.append((state.step, scores.agreement))
        state.num_evaluated += 1
        self._save()

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".part")
        torch.save({
            "selection": self._selection.stored(), "state": json.dumps(asdict(self.state)),
            "optimizer": self._optimizer.state_dict(),
            "parameters": {name: tensor.detach() for name, tensor in self.recipe.parameters.items()},
        }, beside)  # fmt: skip
        os.replace(beside, self._path)

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Go on from what `read_state` gave: a run killed between two evaluations goes on from the former.

        ModelError when that is of a head with other parameters."""
        copy_parameters(self._path, stored["parameters"], self.recipe.parameters)
        self._optimizer.load_state_dict(stored["optimizer"])
        self.state = TrainState(**json.loads(stored["state"]))
        self._plan = self._planned()
        self.state.losses = [(step, loss) for step, loss in self.state.losses]
        self.state.agreements = [(step, tuple(rates)) for step, rates in self.state.agreements]
