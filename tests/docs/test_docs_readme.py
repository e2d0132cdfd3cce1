"""The README: its commands run, its example prints what is shown, and what any page names can be asked for."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from docs_pages import PAGES, ROOT, Block, Reader, blocks_of

from shipping.dockerfiles import is_command

README = ROOT / "README.md"
_PROMPT = re.compile(r"^(?:(?:>>>|\.\.\.) )+")


def shown_behind(text: str, block: Block) -> list[str]:
    """The lines of the indented block that follows."""
    (shown,) = re.findall(r"^```\n\n((?:    .*\n)+)", text[text.index(block.text) :], re.MULTILINE)[:1]
    return [line.strip() for line in shown.splitlines()]


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_example_prints_what_is_shown(model_folder: Path, tmp_path: Path) -> None:
    """Pasted into Python's prompt beside a gateway that has measured and learnt nothing yet."""
    (block,) = blocks_of(README)
    reader = Reader(tmp_path)
    try:
        reader.follow(Block("sh", "", "outrider serve --port 8000\n"))
        reader.follow(Block("asyncio", "", block.text + "\n"))
    finally:
        reader.close()
    shown = shown_behind(README.read_text(encoding="utf-8"), block)
    printed = [_PROMPT.sub("", line) for line in reader.printed.splitlines()]
    assert [line for line in printed if line in shown] == shown, printed


def test_commands_that_need_no_server_run(tmp_path: Path) -> None:
    """Those in indented lines, from the root of a clone, with the request that one of them asks for."""
    text = README.read_text(encoding="utf-8")
    commands = re.findall(r"^    \.venv/bin/(outrider .*?)(?:\s+#.*)?$", text, re.MULTILINE)
    assert len(commands) == 3
    (tmp_path / "policies").symlink_to(ROOT / "policies")
    (tmp_path / "request.json").write_text('{"messages": [{"role": "user", "content": "Hello"}]}')
    reader = Reader(tmp_path)
    for command in commands:
        reader.follow(Block("sh", "", command + "\n"))


@pytest.mark.parametrize("page", [README, *PAGES], ids=lambda page: page.stem)
def test_commands_in_sentences_exist(page: Path) -> None:
    """Every `outrider ...` is a command with those flags, in each of its alternatives; every `make ...` is a verb."""
    text = page.read_text(encoding="utf-8")
    for said in re.findall(r"`outrider ([a-z][^`]*)`", text):
        words = [word.split("|") for word in shlex.split(said)]
        for i in range(max(map(len, words))):
            assert is_command([one[min(i, len(one) - 1)] for one in words]), said
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for verb in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{verb}:", makefile, re.MULTILINE), verb
