"""What the kernel grants this user, found by trying in a process that is thrown away.

Standard library only, loaded by path in the forkserver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

PROBE_BYTES = 1 << 20


def _try(attempt: Callable[[], None]) -> str:
    """Why `attempt` fails in a fork of this process; empty when it does not."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
        except BaseException as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        refused = file.read().decode(errors="replace")
    os.waitpid(pid, 0)
    return refused


def namespaces(jail: ModuleType, folder: str) -> dict[str, Any]:
    """`refused`: why there are no namespaces; `overlay_refused`: why no copy-on-write folders in them."""
    work = {"path": folder + "/work", "bytes": PROBE_BYTES, "on_disk": False, "template": "", "overlay": False}

    def build(work: dict[str, Any]) -> None:
        jail.build_root(folder + "/root", work, [], PROBE_BYTES)
        jail.forbid_user_namespaces()
        jail.drop_privileges()

    def try_all(work: dict[str, Any]) -> str:
        def attempt() -> None:
            jail.enter_namespaces(network=False)
            refused = _try(lambda: build(work))
            if refused:
                raise OSError(refused)

        return _try(attempt)

    for name in ("work", "root", "template"):
        os.makedirs(f"{folder}/{name}", exist_ok=True)
    refused = try_all(work)
    copying = refused or try_all({**work, "template": folder + "/template", "overlay": True})
    return {"refused": refused, "overlay_refused": copying}
