"""A grid that nobody measured, for the tests of its report."""

from __future__ import annotations

from outrider.cli.bench.grid_cells import Answer, Grid, Scope

TASKS = ("chat", "code", "translate")
SETTINGS = ("off", "ngram k=4", "ngram k=8", "suffix k=4", "eagle2 k=4", "eagle2 k=8", "layer_skip k=2", "medusa k=8")


def made_grid() -> Grid:
    """Two answers in each cell; more is accepted with colder answers and more drafts."""
    scope = Scope(
        model="toy", prompts="a1", temperatures=[0.0, 0.7], settings=list(SETTINGS), max_tokens=8, drafters={}
    )
    grid = Grid(
        scope=scope, runs=[{"command": "outrider bench grid", "num_cores": 2}], num_planned=len(SETTINGS) * 12
    )
    for at, task in enumerate(TASKS):
        for heat in scope.temperatures:
            for name in SETTINGS:
                for prompt in ("one", "two"):
                    grid.answers.append(made_answer(task, f"{task}-{prompt}", heat, name, num_accepted=4 - at))
    return grid


def made_answer(task: str, prompt: str, heat: float, setting: str, num_accepted: int = 2) -> Answer:
    """Of ten steps, each with `k` drafts, of which so many are accepted in all; k times as fast as off."""
    drafter, _, k = setting.partition(" k=")
    count = int(k or 0)
    histogram = [10 - num_accepted, num_accepted] if count else []
    return Answer(
        task=task, prompt=prompt, temperature=heat, drafter=drafter, k=count, round=0, token_ids=[1, 2, 3],
        tokens_per_s=10.0 * max(1, count), draft_s=0.0, histogram=histogram, num_proposed=10 * count,
        num_accepted=num_accepted if count else 0,
    )  # fmt: skip
