"""What commands and files of a sandbox are, to who asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from rocknroll.sandbox.errors import ExecFailed, ExecTimeout


@dataclass(frozen=True)
class ExecResult:
    """What a command did. `exit_code` is negative when a signal ended it. `interrupted`: somebody asked for its end."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    stdout_cut_bytes: int
    stderr_cut_bytes: int
    timed_out: bool
    wall_s: float
    interrupted: bool = False

    @classmethod
    def of(cls, header: Mapping[str, Any], body: bytes) -> Self:
        """From the agent's reply; one to a stream has no output in it."""
        split = int(header.get("stdout_bytes", 0))
        return cls(
            exit_code=int(header["exit_code"]),
            stdout=body[:split],
            stderr=body[split:],
            stdout_cut_bytes=int(header.get("stdout_cut", 0)),
            stderr_cut_bytes=int(header.get("stderr_cut", 0)),
            timed_out=bool(header["timed_out"]),
            wall_s=float(header["wall_s"]),
            interrupted=bool(header.get("interrupted")),
        )

    def check(self) -> Self:
        """This result, if the command succeeded.

        Raises:
            ExecTimeout: it was killed at its deadline; ExecFailed: it ended with another code than 0.
        """
        if self.timed_out:
            raise ExecTimeout(f"killed at its deadline after {self.wall_s:.1f} s; {self._tail()}")
        if self.exit_code != 0:
            raise ExecFailed(f"exit code {self.exit_code}; {self._tail()}")
        return self

    def _tail(self) -> str:
        return f"last output: {(self.stderr or self.stdout)[-500:].decode(errors='replace')!r}"


@dataclass(frozen=True)
class FileStat:
    """`kind` is `file`, `folder`, `link` or `other`; links are not followed."""

    kind: str
    size_bytes: int
    mode: int
    modified_s: float
