"""Spread long work over a few processes, without importing the engine into this one.

Each worker is `python -m rocknroll.envs.alfworld.worker`, fed one JSON job on its standard input and
answering with one JSON line per finished item. No fork (this process may hold threads of a trainer) and
no multiprocessing spawn (it would import the caller's script again); `-P` keeps the current folder off its path.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocknroll.envs.text import EnvDataError, Progress

MOST_WORKERS = 8
"""More gain little: writing files becomes the limit."""

ITEMS_PER_WORKER = 16
"""A process costs 1.5 CPU-s to start, about as much as this many games."""


def spread(job: Mapping[str, Any], items: Sequence[Any], progress: Progress | None = None) -> list[dict[str, Any]]:
    """Run `job` over `items`; answers in the order of the items.

    Raises:
        EnvDataError: what a worker reported, or that it died.
    """
    if not items:
        return []
    workers = max(1, min(os.cpu_count() or 1, MOST_WORKERS, len(items) // ITEMS_PER_WORKER))
    done, lock = 0, threading.Lock()
    stop: list[subprocess.Popen[str]] = []

    def finished() -> None:
        nonlocal done
        with lock:
            done += 1
            if progress is not None:
                progress(done, len(items))

    def run(share: Sequence[Any]) -> list[dict[str, Any]]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rocknroll.envs.alfworld.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        stop.append(process)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdin.write(json.dumps({**job, "items": list(share)}))
            process.stdin.close()
            answers = []
            for line in process.stdout:
                answers.append(_answer(line))
                finished()
            complaint = process.stderr.read()
        if len(answers) != len(share):
            last = complaint.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
            raise EnvDataError(f"a worker that makes ALFWorld games or episodes died: {last[0]}")
        return answers

    try:
        with ThreadPoolExecutor(workers) as pool:
            shares = [pool.submit(run, items[start::workers]) for start in range(workers)]
            answers = [share.result() for share in shares]
    except BaseException:
        for process in stop:
            process.kill()
        raise
    ordered: list[dict[str, Any]] = [{}] * len(items)
    for start, share_answers in enumerate(answers):
        ordered[start::workers] = share_answers
    return ordered


def _answer(line: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise EnvDataError(str(answer["error"]))
    return answer
