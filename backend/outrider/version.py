"""The version, in one place: packaging, `--version`, `/server_info` and the SDK's user agent read it."""

__version__ = "0.1.0"
