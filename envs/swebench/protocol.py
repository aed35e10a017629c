"""How an agent and its shell talk: one bash block in, exit code and output back (mini-swe-agent, version 2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command whose output begins with this line submits the work."""
LIMIT_CHARS = 10_000
"""Longer output is shown by its first and its last half of this."""
_BLOCK = re.compile(r"```(?:mswea_bash_command|bash|sh)[ \t]*\n(.*?)\n?```", re.DOTALL)

INSTRUCTIONS = f"""\
You are a programmer at a shell. The repository in the current folder has the problem described below; mend it in the
source, so that its tests, and others that you do not see, pass. Do not change tests or their configuration.

Answer with your thoughts and exactly one command block:

```bash
your command
```

Each command runs in a new subshell in the repository's folder; there is no network, and nobody answers prompts. When
you are done, submit with the command

```bash
echo {SENTINEL}
```"""


def as_action(command: str) -> str:
    """A command as the agent has to write it."""
    return f"```bash\n{command}\n```"


SUBMISSION = as_action(f"echo {SENTINEL}")


@dataclass(frozen=True)
class Command:
    """What the agent asks for; or why that is not clear."""

    text: str = ""
    problem: str = ""


def command_of(response: str) -> Command:
    """The command of a response."""
    blocks = _BLOCK.findall(response)
    if len(blocks) != 1:
        return Command(problem=f"Your answer has {len(blocks)} command blocks; it must have exactly one ```bash block.")
    if not (text := blocks[0].strip()):
        return Command(problem="Your command block is empty.")
    return Command(text)


def submits(output: str, returncode: int) -> bool:
    """Whether a command's output says that the work is done."""
    lines = output.lstrip().splitlines()
    return returncode == 0 and bool(lines) and lines[0].strip() == SENTINEL


def shortened(output: str, limit: int = LIMIT_CHARS) -> str:
    """The output, without its middle where it is longer than `limit` characters."""
    if len(output) <= limit:
        return output
    half = limit // 2
    left_out = len(output) - 2 * half
    return f"{output[:half]}\n[{left_out} characters left out: print less, with head, tail or grep]\n{output[-half:]}"


def observation(
    returncode: int, output: str, *, timed_out_s: float | None = None, turns_left: int | None = None
) -> str:
    """What the agent reads after a command.

    Args:
        timed_out_s: the command was stopped after so many seconds.
        turns_left: said, where the environment reminds of it.
    """
    said = [f"<returncode>{returncode}</returncode>", f"<output>\n{shortened(output).rstrip()}\n</output>"]
    if timed_out_s is not None:
        said.append(f"<note>The command was stopped after {timed_out_s:g} s.</note>")
    if turns_left is not None:
        said.append(f"<note>{turns_left} turns are left.</note>")
    return "\n".join(said)
