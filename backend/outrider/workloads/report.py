"""The report of a run in files that a person reads: Markdown, one HTML page that works offline, and PNGs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from outrider.plots.png import can_draw, write_pngs
from outrider.plots.svg import Plot
from outrider.workloads import page
from outrider.workloads.report_plots import plots
from outrider.workloads.report_tables import error_rows, glance_rows, task_rows, wait_rows
from outrider.workloads.results import Result
from outrider.workloads.tables import Row, html_table, markdown_table, markdown_text

#: Tables by their headings, and what they say.
_SAYS = {
    "At a glance": "All requests of each arm. Medians, each with the interval that holds it with 95 %; of all "
    "together and of good ones, the median round, and from the slowest to the fastest.",
    "By task and temperature": "Tokens per second of each request after its first token. Drafts that were verified "
    "for nothing are wasted. Texts are compared at temperature 0.",
    "How long a reader waits": "Milliseconds until the first token, for each further token, and of pauses between "
    "one event that brought text and the next.",
}
_NO_PNG = "No PNGs were written: they need pip install 'outrider[plots]'"


def write_report(result: Result, folder: Path) -> list[Path]:
    """`report.md`, `report.html` and a PNG for each plot; the files that were written."""
    drawn = plots(result)
    folder.mkdir(parents=True, exist_ok=True)
    html, markdown = folder / "report.html", folder / "report.md"
    html.write_text(_html(result, drawn), encoding="utf-8")
    markdown.write_text(_markdown(result, drawn), encoding="utf-8")
    return [html, markdown, *write_pngs(drawn, folder)]


def _title(result: Result) -> str:
    return f"{result.suite}: {', '.join(arm.name for arm in result.arms)}"


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


def _tables(result: Result) -> dict[str, list[Row]]:
    return dict(zip(_SAYS, (glance_rows(result), task_rows(result), wait_rows(result)), strict=True))


def _conditions(result: Result) -> dict[str, object]:
    arms = {f"arm {one.name}": ", ".join([one.target, *_words(one.hints)]) for one in result.arms}
    slo = {} if result.slo is None else {"SLO": ", ".join(_words(result.slo.model_dump(exclude_none=True)))}
    run = {"suite": f"{result.suite} ({result.suite_digest})", "arrivals": result.arrivals, "seed": result.seed}
    return {**result.conditions, **run, **arms, **slo}


def _words(found: Mapping[str, object]) -> list[str]:
    return [f"{key} {value}" for key, value in found.items()]


def _notes(result: Result) -> list[str]:
    return [*result.notes, *([] if can_draw() else [_NO_PNG])]


def _html(result: Result, drawn: list[Plot]) -> str:
    tables = _tables(result).items()
    glance, tasks, waits = (page.section(title, html_table(_SAYS[title], rows)) for title, rows in tables)
    errors = error_rows(result)
    parts = [
        *map(page.warning, _warnings(result)),
        glance,
        page.section("Plots", page.figures(drawn)) if drawn else "",
        tasks,
        waits,
        page.section("What limited the run", page.paragraph(_bottleneck(result))),
        page.section("Errors", html_table("The most frequent first.", errors) if errors else page.paragraph("None.")),
        page.section("Notes", page.bullets(_notes(result))) if _notes(result) else "",
        page.section("Conditions", page.facts(_conditions(result))),
    ]
    return page.page(_title(result), _below(result), [part for part in parts if part])


def _markdown(result: Result, drawn: list[Plot]) -> str:
    errors = error_rows(result)
    tables = _tables(result) | ({"Errors": errors} if errors else {})
    warnings = (f"**{markdown_text(words)}**" for words in _warnings(result))
    parts = [f"# {markdown_text(_title(result))}", markdown_text(_below(result)), *warnings]
    for title, rows in tables.items():
        parts += [f"## {title}", _SAYS.get(title, ""), markdown_table(rows)]
    parts += [markdown_text(_bottleneck(result))]
    parts += [f"![{plot.labels.title}]({plot.labels.key}.png)" for plot in drawn if can_draw()]
    parts += [f"- {markdown_text(note)}" for note in _notes(result)]
    parts += [
        "## Conditions",
        "\n".join(f"- {key}: {markdown_text(str(v))}" for key, v in _conditions(result).items()),
    ]
    return "\n\n".join(parts) + "\n"
