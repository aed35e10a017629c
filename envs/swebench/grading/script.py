"""The script that runs an instance's tests, made from the row's own. Pure.

Of a row's `eval_script` three parts matter: what it does before the tests (activating an environment, installing), the
command that runs them, and nothing else: putting test files in their place is the grader's.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rocknroll.envs.swebench.instance import Instance, RowError

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
WORKDIR = "/testbed"
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1\s*$")
_CLASSIC = """\
#!/bin/bash
cd {workdir}
[ ! -f /opt/miniconda3/bin/activate ] || {{ source /opt/miniconda3/bin/activate && conda activate testbed; }}
: '{start}'
python -m pytest -rA {files}
: '{end}'
"""
"""For rows of the classic schema, which carry no script: what most of their repositories do."""


@dataclass(frozen=True)
class Script:
    """What to run: `before` may fail, `command` is the tests."""

    before: str
    command: str

    @property
    def is_pytest(self) -> bool:
        return re.search(r"(^|[\s/])(pytest|py\.test)\b", self.command) is not None

    def text(self, test_files: Sequence[str], only: Iterable[str] = ()) -> str:
        """The whole script; it ends with the exit code of the tests.

        Args:
            test_files: as the command names them.
            only: tests to run in place of the files, where the command is pytest's.
        """
        command = self.command
        if only and self.is_pytest:
            words = [word for word in shlex.split(command) if word not in test_files]
            command = shlex.join([*words, *only])
        return f"{self.before}\n{command}\nexit $?\n"


def script_of(instance: Instance, test_files: Sequence[str], workdir: str = WORKDIR) -> Script:
    """The script of an instance.

    Raises:
        RowError: its `eval_script` has no marked test command.
    """
    given = instance.eval_script or _CLASSIC.format(
        workdir=workdir, files=" ".join(map(shlex.quote, test_files)), start=START, end=END
    )
    before, started, rest = given.partition(START)
    command, ended, _ = rest.partition(END)
    if not started or not ended:
        raise RowError(f"its eval_script does not mark its test command by {START!r} and {END!r}")
    # The markers stand in lines of their own: `: '…'` or `echo '…'`.
    setup = _without_patching(before.rpartition("\n")[0])
    if workdir != WORKDIR:
        setup = re.sub(rf"^\s*cd {WORKDIR}/?\s*$", "", setup, flags=re.MULTILINE)
    lines = command.partition("\n")[2].rpartition("\n")[0].strip()
    if not lines:
        raise RowError("its eval_script has no command between its markers")
    return Script(setup, lines)


def _without_patching(text: str) -> str:
    """A script without the lines that check files out or apply a patch, and without tracing."""
    kept: list[str] = []
    until = ""
    for line in text.split("\n"):
        if until:
            if line.strip() == until:
                until = ""
            continue
        heredoc = _HEREDOC.search(line)
        if re.match(r"\s*git\s+(apply|checkout)\b", line):
            until = heredoc[2] if heredoc else ""
            continue
        kept.append(re.sub(r"^(\s*set\s+-\w*?)x", r"\1", line))
    return "\n".join(kept)
