"""`python -m outrider` and the `outrider` command: set-up errors and missing extras become one line."""

from __future__ import annotations

import sys

_ENGINE = ("gguf", "jinja2", "llguidance", "numpy", "plotext", "safetensors", "tokenizers", "torch")
#: Package that not everybody has -> the extra that brings it.
EXTRAS = {**dict.fromkeys(_ENGINE, "engine"), "font_source_sans_pro": "plots", "resvg_py": "plots"}


def main() -> None:
    """Run the command line; exit status 1 with one line on standard error when the set-up is wrong."""
    from outrider.cli.main import app
    from outrider.errors import SetupError

    try:
        app()
    except SetupError as error:
        sys.stderr.write(f"outrider: {error.message}\n")
        sys.exit(1)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        extra = f"pip install 'outrider[{EXTRAS[package]}]'"
        sys.stderr.write(f"outrider: this needs {package}, which is not installed: {extra}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
