"""Outrider: decides, for every request, how to speculate. The public names of the SDK; nothing heavy."""

from outrider.version import __version__

__all__ = ["__version__"]
