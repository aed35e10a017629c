"""A lock has one holder, and none when its holder is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rocknroll.trainer.file_lock import FileHeld, FileLock, is_held

HOLD = """
import sys, time
from pathlib import Path
from rocknroll.trainer.file_lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_second_holder_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    with pytest.raises(FileHeld) as refused:
        FileLock(tmp_path / "lock")
    assert refused.value.pid == os.getpid()
    lock.release()
    FileLock(tmp_path / "lock").release()


def test_releasing_twice_is_harmless(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "lock")
    lock.release()
    lock.release()
    assert not is_held(tmp_path / "lock")


def test_asking_makes_no_file(tmp_path: Path) -> None:
    assert not is_held(tmp_path / "lock")
    assert not list(tmp_path.iterdir())


def test_a_killed_holder_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert is_held(path)
    with pytest.raises(FileHeld, match=str(holder.pid)):
        FileLock(path)
    holder.send_signal(signal.SIGKILL)
    lock = FileLock(path, wait_s=30)
    assert is_held(path)
    lock.release()
    holder.wait()
    holder.stdout.close()
