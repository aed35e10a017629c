"""What a fork of the forkserver does until it is a sandbox: groups, namespaces, files, limits, privileges.

Every step that fails is told through a pipe, which closes once the sandbox stands: the forkserver
answers its owner only then. Standard library only, loaded by path in the forkserver.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

STANDS = b"\0"
"""Told through the pipe when nothing can go wrong any more."""

Serve = Callable[[socket.socket, dict[str, Any]], None]


def close_descriptors(keep: list[int]) -> None:
    """Only standard streams and `keep` stay open."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:
                continue


class Spawn:
    """One sandbox in the making, after the fork; `jail` and `cgroup` are the modules, `serve` is the agent's."""

    def __init__(
        self,
        job: dict[str, Any],
        listener: socket.socket,
        report: int,
        jail: ModuleType,
        cgroup: ModuleType,
        serve: Serve,
    ) -> None:
        self._job, self._listener, self._report = job, listener, report
        self._jail, self._cgroup, self._serve = jail, cgroup, serve

    def become(self, log: int) -> None:
        """Be the sandbox, and end with it: never returns."""
        status = 1
        try:
            self._jail.die_with_parent(signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # A handler, for what the forkserver ignores would stay ignored in commands.
            signal.signal(signal.SIGINT, lambda number, frame: None)
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            close_descriptors([self._listener.fileno(), self._report])
            if "cpu" in self._job["groups"]:
                self._jail.rank_first()
            levels = {"namespaces": self._supervise, "bubblewrap": self._bubblewrap, "plain": self._plain}
            status = levels[self._job["level"]]()
        except BaseException as error:
            self._tell(error)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _tell(self, error: BaseException) -> None:
        traceback.print_exc()
        try:
            os.write(self._report, f"{type(error).__name__}: {error}".encode()[:2000])
        except OSError:
            return

    def _supervise(self) -> int:
        """Enter the namespaces and wait for the agent, so that its end can be told apart."""
        self._jail.enter_namespaces(network=self._job["network"])
        doors = self._cgroup.doors(self._job["groups"])
        entered, entering = os.pipe()
        inner = os.fork()
        if inner == 0:
            for number in (entering, *doors):
                os.close(number)
            self._jail.die_with_parent(signal.SIGKILL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._isolated(entered)
        # The kernel takes milliseconds for this; meanwhile the other process makes its file system, for both of them.
        self._cgroup.enter(doors, inner)
        os.write(entering, STANDS)
        os.close(entering)
        os.close(entered)
        self._listener.close()
        os.close(self._report)

        def end(number: int, frame: Any) -> None:
            os.kill(inner, signal.SIGKILL)

        # A namespace's first process is reaped only after all others in it are gone: waiting for it is waiting for all.
        signal.signal(signal.SIGTERM, end)
        status = os.waitpid(inner, 0)[1]
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _isolated(self, entered: int) -> None:
        """The first process of the namespaces; `entered` says when it is in its control groups."""
        job, status = self._job, 1
        try:
            self._jail.build_root(job["root"], job["work"], job["readable"], job["resources"]["scratch_bytes"])
            if not job["network"]:
                self._jail.raise_loopback()
            if os.read(entered, 1) != STANDS:
                return  # The other process told why.
            os.close(entered)
            self._jail.limit(job["resources"], job["groups"], count_processes=True)
            self._jail.forbid_user_namespaces()
            self._jail.drop_privileges()
            status = self._agent()
        except BaseException as error:
            self._tell(error)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _plain(self) -> int:
        job = self._job
        self._cgroup.enter(self._cgroup.doors(job["groups"]))
        self._jail.adopt_orphans()
        self._fill()
        self._jail.limit(job["resources"], job["groups"], count_processes=False)
        self._jail.drop_privileges()
        return self._agent()

    def _bubblewrap(self) -> int:
        """Become bubblewrap, which becomes the agent."""
        job = self._job
        self._cgroup.enter(self._cgroup.doors(job["groups"]))
        self._fill()
        self._jail.limit(job["resources"], job["groups"], count_processes=False)
        config = os.memfd_create("config", 0)
        job["agent"]["listener"] = self._listener.fileno()
        os.write(config, json.dumps(job["agent"]).encode())
        os.lseek(config, 0, os.SEEK_SET)
        for number in (config, self._listener.fileno()):
            os.set_inheritable(number, True)
        os.write(self._report, STANDS)
        os.execv(job["bubblewrap"][0], [*job["bubblewrap"], str(config)])

    def _fill(self) -> None:
        if self._job["work"]["template"]:
            self._jail.copy_folder(self._job["work"]["template"], self._job["work"]["path"])

    def _agent(self) -> int:
        os.chdir(self._job["work"]["path"])
        os.write(self._report, STANDS)
        os.close(self._report)
        self._serve(self._listener, self._job["agent"])
        return 0
