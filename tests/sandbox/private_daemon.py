"""A Docker daemon of a test's own: it can be restarted without harm to the machine's."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Self

import docker
import pytest
from containers import BASE, missing
from docker.errors import APIError, DockerException

START_PATIENCE_S = 60.0


class PrivateDaemon:
    """With the base image in it. Needs root and the machine's own daemon, from which the image comes."""

    image = BASE

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.url = f"unix://{folder}/sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or shutil.which("dockerd") is None:
            missing("a daemon of one's own needs root and dockerd")
        self._folder.mkdir(mode=0o700)
        self._start()
        try:
            saved = subprocess.Popen(["docker", "save", BASE], stdout=subprocess.PIPE)
            subprocess.run(
                ["docker", "-H", self.url, "load"], stdin=saved.stdout, check=True, capture_output=True, timeout=300
            )
            if saved.wait(timeout=60) != 0:
                missing(f"there is no image {BASE}; .ci/docker-base makes it")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(str(self._folder)):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def restart(self) -> None:
        """End it, and with it all its containers; start it again."""
        self._stop()
        self._start()

    def containers(self) -> list[str]:
        client = docker.APIClient(base_url=self.url)
        try:
            return [str(each["Names"]) for each in client.containers(all=True)]
        finally:
            client.close()

    def _start(self) -> None:
        options = {"data-root": "data", "exec-root": "exec", "pidfile": "pid", "host": "sock"}
        paths = [f"--{name}={'unix://' if name == 'host' else ''}{self._folder}/{to}" for name, to in options.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # In a network of its own: without, it would take the bridge of the machine's daemon away.
                ["unshare", "--net", "dockerd", *paths, "--iptables=false", "--ip-forward=false"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until_s = time.monotonic() + START_PATIENCE_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > until_s:
                pytest.fail(f"the private daemon did not come up:\n{(self._folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            client = docker.APIClient(base_url=self.url, timeout=5)
            client.ping()
            client.close()
        except (DockerException, APIError, OSError):
            return False
        return True

    def _stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(timeout=60)
