"""`python -m outrider` and the `outrider` command: set-up errors become one line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; exit status 1 with one line on standard error when the set-up is wrong."""
    from outrider.cli.main import app
    from outrider.errors import SetupError

    try:
        app()
    except SetupError as error:
        sys.stderr.write(f"outrider: {error.message}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
