"""Plots as PNG files; needs the extra `plots`, which brings a renderer and its font."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path

from outrider.plots.svg import Plot

#: Pixels per unit of a plot.
_ZOOM = 2.0


def can_draw() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("resvg_py", "font_source_sans_pro"))


def style() -> str:
    """The style sheet of plots on white."""
    return files("outrider.plots").joinpath("style.css").read_text(encoding="utf-8")


def write_png(plot: Plot, path: Path) -> None:
    """The same with any fonts on the machine, or none. Only where `can_draw`."""
    import font_source_sans_pro
    import resvg_py

    path.write_bytes(
        resvg_py.svg_to_bytes(
            svg_string=plot.svg,
            background="#ffffff",
            zoom=_ZOOM,
            style_sheet=style(),
            skip_system_fonts=True,
            font_files=[font_source_sans_pro.SourceSansPro, font_source_sans_pro.SourceSansProSemibold],
            font_family="Source Sans Pro",
        )
    )
