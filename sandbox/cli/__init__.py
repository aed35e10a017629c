"""The `rock` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point; exits with a code of `exit_codes.ExitCode`."""
    # httpx would import its own command line with what colours it, which is half of what `rock ps` takes.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from rocknroll.sandbox.cli.app import app

    app(prog_name="rock")
