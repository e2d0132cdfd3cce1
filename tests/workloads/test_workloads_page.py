"""A report from its sections."""

from __future__ import annotations

from pathlib import Path

from outrider.workloads.page import Page, Section, write_page


def test_page_and_markdown_have_the_same_sections(tmp_path: Path) -> None:
    """In their order; one that is empty is left out, and letters mean themselves."""
    sections = [
        Section("Nothing"),
        Section("Words", "Some *words* & more."),
        Section("Figures", "Says.", [{"arm": "off", "speed": 2.5}, {"arm": "policy", "speed": None}]),
        Section("Facts", bullets=["a|b"], facts={"cores": 2, "shared": True}),
    ]
    html, markdown = write_page(Page("Title", "below", ["beware"], sections), tmp_path / "new", "r")
    assert (html.name, markdown.name) == ("r.html", "r.md")
    assert markdown.read_text("utf-8") == (
        "# Title\n\nbelow\n\n**beware**\n\n"
        "## Words\n\nSome \\*words\\* & more.\n\n"
        "## Figures\n\nSays.\n\n| arm | speed |\n| --- | ---: |\n| off | 2.50 |\n| policy | - |\n\n"
        "## Facts\n\n- a\\|b\n- cores: 2\n- shared: yes\n"
    )
    text = html.read_text("utf-8")
    assert [text.count(f"<h2>{one.title}</h2>") for one in sections] == [0, 1, 1, 1]
    assert "<p>Some *words* &amp; more.</p>" in text and "<li>a|b</li>" in text and "<dt>cores</dt><dd>2</dd>" in text
