"""`rock top` on a pretended fleet, for tests on a real terminal: PIDFILE, or --keys for its keys' names."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import typer
from pretence import NOW, Pretence, fleet, run, sandboxes

from rocknroll.dashboard.app import Dashboard, run_dashboard
from rocknroll.dashboard.dialogs import Help
from rocknroll.dashboard.snapshot import Snapshot
from rocknroll.sandbox.cli.exit_codes import boundary


class WithShell(Pretence):
    secret = "hush-hush"

    def __init__(self) -> None:
        super().__init__(Snapshot(NOW, fleet(sandboxes(30, ill=7)), run()))
        self.fails = False

    async def snapshot(self) -> Snapshot:
        secret = self.secret
        assert secret
        if self.fails:
            _ = 1 / 0
        return await super().snapshot()

    def shell_command(self, sandbox_id: str) -> tuple[str, ...]:
        return ("sh", "-c", f"echo shell of {sandbox_id}; read line")


async def names_of_keys() -> list[str]:
    app = Dashboard(WithShell())
    async with app.run_test() as pilot:
        await pilot.press("2", "question_mark")
        while not isinstance(app.screen, Help):
            await pilot.pause(0.01)
        return [key for line in app.screen.lines for key, _ in line.keys]


def main() -> None:
    if sys.argv[1] == "--keys":
        print(*asyncio.run(names_of_keys()))
        return
    source = WithShell()
    signal.signal(signal.SIGUSR1, lambda number, frame: setattr(source, "fails", True))
    Path(sys.argv[1]).write_text(str(os.getpid()))

    def top() -> None:
        run_dashboard(source, ascii_only=False, theme=None, interval_s=0.2)

    app = typer.Typer()
    app.command()(boundary.command(top))
    app(args=[])


if __name__ == "__main__":
    main()
