"""The documentation is true: commands run, links lead somewhere, names of metrics, tests and keys exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from docs_pages import PAGES, ROOT, UNRUN, Reader, blocks_of

from outrider.telemetry.metrics import Metrics

#: Run elsewhere: patches and their checks.
_ELSEWHERE = {"extending.md"}
_LANGUAGES = {"sh", "python", "yaml", "json", "diff", "mermaid"}


@pytest.mark.model
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.name not in _ELSEWHERE and blocks_of(p)], ids=lambda page: page.stem
)
def test_every_command_of_a_page_does_what_it_says(page: Path, model_folder: Path, tmp_path: Path) -> None:
    """Worked through from top to bottom in an empty folder, every command ends well."""
    reader = Reader(tmp_path)
    try:
        for block in blocks_of(page):
            reader.follow(block)
    finally:
        reader.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A language that is known, and no mark but those that are known; what is not run is said in words before it."""
    text = page.read_text(encoding="utf-8")
    for block in blocks_of(page):
        assert block.language in _LANGUAGES
        assert block.mark == "" or block.mark in UNRUN or block.mark.startswith("file=")
        if block.mark in UNRUN:
            before = text[: text.index(block.text)][-400:]
            assert "needs a GPU" in before


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    """Relative links name files that exist, and headings in them; paths of the source and the tests exist."""
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor and page.name != "python.md":
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}, anchor
    for path in re.findall(r"`((?:tests|backend|configs|workloads|policies|docker|k8s)/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"`((?:policy|engine|runtimes|gateway|dispatch)/\w+\.py)`", text):
        assert (ROOT / "backend" / "outrider" / module).exists(), module


def test_metrics_that_pages_name_are_exposed() -> None:
    """An alert on a metric that is not there would never fire."""
    found = Metrics()
    found.watch(num_in_flight=int, num_queued=int)
    found.watch_runs(num_open=int, num_unsaved=int, is_healthy=bool)
    known = {name for names in found.registry._collector_to_names.values() for name in names}
    for page in PAGES:
        for name in re.findall(r"\boutrider_[a-z_]+\b", page.read_text(encoding="utf-8")):
            assert name in known, f"{page.name}: {name}"


@pytest.mark.timeout(600)
def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    """`make docs` would change nothing."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    generate.main(tmp_path)
    for page in sorted(tmp_path.iterdir()):
        kept = (ROOT / "docs" / "reference" / page.name).read_text(encoding="utf-8")
        assert page.read_text(encoding="utf-8") == kept, f"{page.name} is out of date: make docs"
