"""From results to the bodies that carry them."""

from __future__ import annotations

import base64

from rocknroll.sandbox.results import ExecResult
from rocknroll.sandbox.service import bodies


def exec_answer(done: ExecResult) -> bodies.ExecAnswer:
    return bodies.ExecAnswer(
        exit_code=done.exit_code,
        stdout=base64.b64encode(done.stdout).decode(),
        stderr=base64.b64encode(done.stderr).decode(),
        stdout_cut_bytes=done.stdout_cut_bytes,
        stderr_cut_bytes=done.stderr_cut_bytes,
        timed_out=done.timed_out,
        wall_s=done.wall_s,
        interrupted=done.interrupted,
    )
