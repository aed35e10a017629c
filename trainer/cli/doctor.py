"""`roll doctor`: what is here, what is missing, and the one command that adds it."""

from __future__ import annotations

import sys

import typer
from rich.console import Console
from rich.table import Table

from rocknroll.sandbox.cli.boundary import DebugOption
from rocknroll.sandbox.cli.output import JsonOption, print_json
from rocknroll.trainer.cli.exit_codes import ExitCode


def doctor(as_json: JsonOption = False, debug: DebugOption = False) -> None:
    """Look at this machine; exits with 7 when something that training needs is missing.

    Examples:

      roll doctor

      roll doctor --json
    """
    from rocknroll.trainer.doctor import examine, to_json

    checks = examine()
    report = to_json(checks)
    if as_json:
        print_json(report)
    else:
        table = Table("", "", "found", "to mend it", box=None, pad_edge=False)
        for check in checks:
            mark = "ok" if check.ok else "MISSING" if check.needed else "--"
            table.add_row(mark, check.name, check.found, check.fix)
        Console(file=sys.stdout, highlight=False, markup=False).print(table)
    if not report["ok"]:
        raise typer.Exit(ExitCode.INFRASTRUCTURE)
