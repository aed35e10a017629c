"""compose.yaml as a project of its own, driven as a person would: prepared, brought up, looked at, taken down."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import docker
import yaml
from containers import missing
from docker.errors import NotFound

ROOT = Path(__file__).parents[3]
IMAGE = "rocknroll:local"
PROMETHEUS = "rocknroll-prometheus:local"
PROFILES = ("train", "gpu")
WAIT_S = 150.0
POLL_S = 0.2
COMMAND_TIMEOUT_S = 200.0

ValueT = TypeVar("ValueT")


def compose_command() -> list[str]:
    """Version 1 as Debian has it, or the plugin."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker") and not subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        return ["docker", "compose"]
    return missing("there is no docker-compose; .ci/install-docker installs it")


def configuration() -> dict[str, Any]:
    """compose.yaml with every profile, as docker-compose understands it."""
    profiles = [word for profile in PROFILES for word in ("--profile", profile)]
    done = subprocess.run(
        [*compose_command(), "--file", str(ROOT / "compose.yaml"), *profiles, "config"],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)
    return found


class Composed:
    """One project; `composed("up", "-d")` runs docker-compose on it, `composed.run` does so and must succeed."""

    def __init__(self, folder: Path, client: docker.APIClient) -> None:
        self.folder, self.client = folder, client
        self.name = f"t{secrets.token_hex(4)}"
        self._command = compose_command()
        self._environment = {
            **os.environ,
            "ROCKNROLL_IMAGE": IMAGE,
            "PROMETHEUS_IMAGE": PROMETHEUS,
            **{name: str(free_port()) for name in ("ROCK_PORT", "PROMETHEUS_PORT", "TENSORBOARD_PORT")},
            "ROCK_STATE": str(folder / "state"),
            "COMPOSE_PROJECT_NAME": self.name,
        }
        subprocess.run([ROOT / "compose" / "prepare", folder], check=True, env=self._environment, capture_output=True)

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, "--file", str(ROOT / "compose.yaml"), "--env-file", str(self.folder / ".env"), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_TIMEOUT_S,
            env=self._environment,
            stdin=subprocess.DEVNULL,
        )

    def run(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def url(self, service: str, port: int) -> str:
        """Where a published port is on this machine."""
        host, _, number = self.run("port", service, str(port)).strip().rpartition(":")
        assert host == "127.0.0.1"
        return f"http://{host}:{number}"

    def inspect(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.inspect_container(self.run("ps", "-q", service).strip())
        return found

    def await_health(self, *services: str) -> None:
        """Return once each is healthy by its own check."""
        for service in services:
            eventually(lambda service=service: self.inspect(service)["State"]["Health"]["Status"] == "healthy")

    def token(self, role: str) -> str:
        lines = (self.folder / "secrets" / "rock_tokens").read_text(encoding="utf-8").splitlines()
        return dict(line.split() for line in lines)[role]


def free_port() -> int:
    """One of this machine's that nobody listens on; unlike Docker's own choice it outlives a container's restart."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


def eventually(look: Callable[[], ValueT]) -> ValueT:
    """What `look` returns once that is true."""
    deadline_s = time.monotonic() + WAIT_S
    while not (found := look()):
        assert time.monotonic() < deadline_s, "it never came true"
        time.sleep(POLL_S)
    return found


@contextmanager
def composed(folder: Path, client: docker.APIClient, *images: str) -> Iterator[Composed]:
    """A project of which nothing is left at the end; its services' logs are shown when a test fails in it."""
    for image in (IMAGE, *images):
        try:
            client.inspect_image(image)
        except NotFound:
            missing(f"there is no image {image}; `make compose-image` and `rock image build` make them")
    project = Composed(folder, client)
    try:
        yield project
    except BaseException:
        print(project("logs", "--no-color", "--tail=40").stdout)
        raise
    finally:
        project.run("--profile", "train", "down", "--volumes", "--remove-orphans", "--timeout", "20")


def last_json(text: str) -> dict[str, Any]:
    """The last line of a command's output."""
    found: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return found
