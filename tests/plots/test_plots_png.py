"""Plots as PNG files."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from not_run import not_run
from outrider.plots.charts import WIDTH, Series, line_chart
from outrider.plots.png import can_draw, style, write_pngs
from outrider.plots.svg import Labels


def drawn(title: str, folder: Path) -> bytes:
    if not can_draw():
        not_run("PNG files: the renderer is not installed; pip install 'outrider[plots]'")
    plot = line_chart(Labels("lines", title, "x", "y", "words"), [Series("a", [(0, 0), (1, 1)])])
    (path,) = write_pngs([plot], folder)
    assert path == folder / "lines.png"
    return path.read_bytes()


def pixels(png: bytes) -> bytes:
    """The filtered rows of a PNG with one or more IDAT parts."""
    at, found = 8, b""
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        found += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return zlib.decompress(found)


def test_a_png_has_twice_the_size_of_its_plot(tmp_path: Path) -> None:
    """And is one."""
    png = drawn("Title", tmp_path)
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", png[16:20]) == (2 * WIDTH,)


def test_type_is_drawn_without_fonts_of_the_machine(tmp_path: Path) -> None:
    """Another title gives another picture, since the font comes along; the same one gives the same bytes."""
    one, two = drawn("Title", tmp_path), drawn("Other words", tmp_path)
    assert pixels(one) != pixels(two)
    assert drawn("Title", tmp_path) == one


@pytest.mark.parametrize("name", ["mark", "s5", "on-dark", "missing"])
def test_the_sheet_names_every_class(name: str) -> None:
    """But marks, which have the look of their series."""
    assert (f".{name} " in style()) is (name != "mark")
