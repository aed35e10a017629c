"""The Docker daemon, off the event loop: every call runs in one of a few threads.

The one place where what the daemon and its client library raise becomes this package's errors.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, NotFound
from docker.errors import ImageNotFound as NoSuchImage

from rocknroll.sandbox.errors import (
    ImageNotFound,
    RuntimeUnavailable,
    SandboxError,
    SpecInvalid,
    StartFailed,
)

DEFAULT_URL = "unix:///var/run/docker.sock"
THREADS = 8
"""More calls at once than the daemon serves well; short ones must not wait behind starts."""
CALL_TIMEOUT_S = 60
"""Of a single answer of the daemon."""

Result = TypeVar("Result")


def default_url() -> str:
    """`$DOCKER_HOST`, else Docker's default socket."""
    return os.environ.get("DOCKER_HOST") or DEFAULT_URL


class Daemon:
    """One daemon of this machine. Connects on first use; safe to call from many tasks."""

    def __init__(self, base_url: str | None = None) -> None:
        self.url = base_url or default_url()
        self._client: docker.APIClient | None = None
        self._connecting = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="rock-docker")

    async def call(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """`work(client, *arguments)` in a thread. A cancelled caller leaves it running to its end.

        Raises:
            RuntimeUnavailable: no daemon, or it went away meanwhile.
            ImageNotFound, SpecInvalid, StartFailed: what the daemon refused, see `translated`.
            docker.errors.NotFound: no such container; callers know what that means.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(self._do, work, arguments))

    def _do(self, work: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        try:
            with self._connecting:
                if self._client is None:
                    self._client = connect(self.url)
            return work(self._client, *arguments)
        except (NotFound, SandboxError) as error:
            if isinstance(error, NoSuchImage) or "no such image" in str(error).lower():
                raise translated(error) from None
            raise
        except (DockerException, requests.RequestException, OSError) as error:
            raise translated(error) from None

    def close(self) -> None:
        """Wait for calls under way and end the threads."""
        self._threads.shutdown(wait=True)
        if self._client is not None:
            self._client.close()


def connect(url: str) -> docker.APIClient:
    """A client of the daemon at `url`.

    Raises:
        RuntimeUnavailable: it is on another machine, does not answer, or must not be used by this user.
    """
    if not url.startswith("unix://"):
        raise RuntimeUnavailable(
            f"the Docker daemon at {url} is not on this machine's file system, and sandboxes are reached over Unix "
            "sockets there; unset DOCKER_HOST, or run the fleet on the machine of that daemon"
        )
    try:
        return docker.APIClient(base_url=url, version="auto", timeout=CALL_TIMEOUT_S)
    except (DockerException, requests.RequestException, OSError) as error:
        raise translated(error, url) from None


def translated(error: Exception, url: str = "") -> SandboxError:
    """What an exception of the client library means for a sandbox."""
    where = f" at {url}" if url else ""
    causes = list(_causes(error))
    if any(isinstance(cause, PermissionError) for cause in causes):
        return RuntimeUnavailable(
            f"this user may not use the Docker daemon{where}: permission denied on its socket. "
            "Run `sudo usermod -aG docker $USER`, then log in again"
        )
    if isinstance(error, NoSuchImage) or (isinstance(error, NotFound) and "no such image" in str(error).lower()):
        return ImageNotFound(
            f"the image is not on this machine ({error.explanation}); "
            "make it with `rock image build`, or fetch it with `docker pull`"
        )
    text = str(error.explanation or error) if isinstance(error, APIError) else str(error)
    if "no space left on device" in text.lower():
        return StartFailed(f"a disk is full: {text}; `docker system df` shows what the images and containers take")
    if isinstance(error, APIError):
        return _refused(error, text)
    if isinstance(error, OSError) and not isinstance(error, requests.RequestException | ConnectionError):
        return StartFailed(f"the sandbox's folder could not be prepared: {text}")
    return RuntimeUnavailable(
        f"no Docker daemon answers{where} ({text}); start it with `sudo systemctl start docker` "
        "(without systemd: `sudo dockerd`)"
    )


def _refused(error: APIError, text: str) -> SandboxError:
    if "executable file not found" in text or 'exec: "python3"' in text:
        return StartFailed(
            f"the image has no python3, which the sandbox's agent runs on: {text}; "
            "add it with `rock image build --base IMAGE`",
            permanent=True,
        )
    if error.status_code == 400 or "invalid mount config" in text:
        return SpecInvalid(f"Docker refused the specification: {text}")
    return StartFailed(f"Docker could not do it: {text}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception with all that led to it; requests and urllib3 keep the first one in their arguments."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseException) and id(each) not in seen:
            seen.add(id(each))
            yield each
            waiting += [each.__cause__, each.__context__, *(part for part in each.args if isinstance(part, Exception))]
