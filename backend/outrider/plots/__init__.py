"""Plots as SVG, for pages and as PNG; knows no measurement."""
