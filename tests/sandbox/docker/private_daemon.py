"""A Docker daemon of a test's own, which may be restarted and killed while others use the machine's."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

from rocknroll.sandbox.errors import RuntimeUnavailable
from rocknroll.sandbox.owner import identity
from rocknroll.sandbox.runtimes.docker_daemon import connect

PATIENCE_S = 60.0


class PrivateDaemon:
    """Everything of it lies in `folder`. Needs root and the programs of Docker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, again if it was ended; returns once it answers."""
        # In a network of its own: without a bridge it would remove the one of the machine's daemon.
        command = ["unshare", "--net", "dockerd", "--bridge", "none", "--iptables=false", "--host", self.url]
        command += ["--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"]
        command += ["--pidfile", f"{self.folder}/pid"]
        (self.folder / "pid").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                connect(self.url).close()
                return
            except RuntimeUnavailable:
                assert time.monotonic() < deadline_s, (self.folder / "log").read_text()[-2000:]
                assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End it; SIGKILL leaves its containers running."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(PATIENCE_S)
        # Its containerd dies with it, a little later; until then the next daemon would take it for one to use.
        noted = self.folder / "exec" / "containerd" / "containerd.pid"
        if noted.exists():
            deadline_s = time.monotonic() + PATIENCE_S
            while identity(int(noted.read_text())):
                assert time.monotonic() < deadline_s, "containerd outlives its daemon"
                time.sleep(0.01)
            noted.unlink()

    def load(self, source: docker.APIClient, image: str) -> None:
        """Copy an image over from another daemon."""
        client = connect(self.url)
        for _ in client.load_image(source.get_image(image)):
            continue
        client.close()

    def clear(self) -> None:
        """End it with all that belongs to it: containerd and its children carry the folder in their arguments."""
        if self._process is not None and self._process.poll() is None:
            self.end()
        mark = str(self.folder).encode()
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and int(path.name) != os.getpid():
                try:
                    if mark in (path / "cmdline").read_bytes():
                        os.kill(int(path.name), signal.SIGKILL)
                except (OSError, ProcessLookupError):
                    continue
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in reversed(mounts):
            if mount.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", mount], check=False)


@contextmanager
def private_daemon(folder: Path) -> Iterator[PrivateDaemon]:
    """A running daemon, gone at the end."""
    daemon = PrivateDaemon(folder)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.clear()
