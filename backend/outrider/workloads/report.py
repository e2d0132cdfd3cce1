"""The report of a run in files that a person reads: Markdown, one HTML page that works offline, and PNGs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outrider.plots.png import can_draw
from outrider.workloads.page import Page, Section, write_page
from outrider.workloads.report_plots import plots
from outrider.workloads.report_tables import error_rows, glance_rows, task_rows, wait_rows
from outrider.workloads.results import Result

_GLANCE = (
    "All requests of each arm. Medians, each with the interval that holds it with 95 %; of all together and of good "
    "ones, the median round, and from the slowest to the fastest."
)
_TASKS = (
    "Tokens per second of each request after its first token. Drafts that were verified for nothing are wasted. "
    "Texts are compared at temperature 0."
)
_WAITS = (
    "Milliseconds until the first token, for each further token, and of pauses between one event that brought text "
    "and the next."
)
_NO_PNG = "No PNGs were written: they need pip install 'outrider[plots]'"


def write_report(result: Result, folder: Path) -> list[Path]:
    """`report.html`, `report.md` and a PNG for each plot; the files that were written."""
    errors = error_rows(result)
    sections = [
        Section("At a glance", _GLANCE, glance_rows(result)),
        Section("Plots", plots=plots(result)),
        Section("By task and temperature", _TASKS, task_rows(result)),
        Section("How long a reader waits", _WAITS, wait_rows(result)),
        Section("What limited the run", _bottleneck(result)),
        Section("Errors", "The most frequent first." if errors else "None.", errors),
        Section("Notes", bullets=[*result.notes, *([] if can_draw() else [_NO_PNG])]),
        Section("Conditions", facts=_conditions(result)),
    ]
    title = f"{result.suite}: {', '.join(arm.name for arm in result.arms)}"
    return write_page(Page(title, _below(result), _warnings(result), sections), folder, "report")


def _below(result: Result) -> str:
    made = result.conditions
    return (
        f"{made.get('time', '')} on {made.get('num_cores', '?')} cores of {made.get('cpu', '?')}; {result.arrivals}"
    )


def _warnings(result: Result) -> list[str]:
    """What spoils the figures."""
    found = []
    if not result.is_complete:
        found.append("This run was interrupted; started again, it goes on. The figures are of what is done.")
    if result.generator.is_bottleneck:
        found.append("The load generator was the bottleneck, so figures are its own: " + "; ".join(_reasons(result)))
    num_failed = sum(one.error is not None for one in result.records)
    if num_failed:
        found.append(f"{num_failed} of {len(result.records)} requests failed; see Errors.")
    return found


def _reasons(result: Result) -> list[str]:
    return result.generator.reasons or ["no reason given"]


def _bottleneck(result: Result) -> str:
    seen = result.generator
    words = "was the bottleneck: " + "; ".join(_reasons(result)) if seen.is_bottleneck else "was not the bottleneck"
    return (
        f"The load generator {words}. Its event loop woke up at most {seen.lag_p99_ms:.1f} ms late in 99 % of cases, "
        f"requests of a schedule were sent at most {seen.late_p99_ms:.1f} ms late, and it used at most "
        f"{100 * seen.cpu_share:.0f} % of one core."
    )


def _conditions(result: Result) -> dict[str, object]:
    arms = {f"arm {one.name}": ", ".join([one.target, *_words(one.hints)]) for one in result.arms}
    slo = {} if result.slo is None else {"SLO": ", ".join(_words(result.slo.model_dump(exclude_none=True)))}
    run = {"suite": f"{result.suite} ({result.suite_digest})", "arrivals": result.arrivals, "seed": result.seed}
    return {**result.conditions, **run, **arms, **slo}


def _words(found: Mapping[str, object]) -> list[str]:
    return [f"{key} {value}" for key, value in found.items()]
