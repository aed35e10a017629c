"""The `rock` command."""

from __future__ import annotations


def main() -> None:
    """Entry point; exits with a code of `exit_codes.ExitCode`."""
    from rocknroll.sandbox.cli.app import app

    app(prog_name="rock")
