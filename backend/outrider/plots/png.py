"""Plots as PNG files; needs the extra `plots`, which brings a renderer and its font."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from outrider.plots.svg import Plot

#: Pixels per unit of a plot.
_ZOOM = 2.0


def can_draw() -> bool:
    """Whether the renderer and its font are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("resvg_py", "font_source_sans_pro"))


def style() -> str:
    """The style sheet of plots on white."""
    return files("outrider.plots").joinpath("style.css").read_text(encoding="utf-8")


def write_pngs(plots: Sequence[Plot], folder: Path) -> list[Path]:
    """One file each, the same with any fonts on the machine or none; no file where the extra is not installed."""
    if not can_draw():
        return []
    import font_source_sans_pro
    import resvg_py

    fonts = [font_source_sans_pro.SourceSansPro, font_source_sans_pro.SourceSansProSemibold]
    paths = [folder / f"{plot.labels.key}.png" for plot in plots]
    for plot, path in zip(plots, paths, strict=True):
        path.write_bytes(
            resvg_py.svg_to_bytes(
                svg_string=plot.svg,
                background="#ffffff",
                zoom=_ZOOM,
                style_sheet=style(),
                skip_system_fonts=True,
                font_files=fonts,
                font_family="Source Sans Pro",
            )
        )
    return paths
