"""The agent as a program of its own, under every Python it promises to run on that this machine has."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alone import Client, running_agent


def interpreters() -> list[str]:
    """This one, and older and newer ones from PATH or pyenv."""
    roots = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    roots += sorted((Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions").glob("3.*/bin"))
    found = {}
    for minor in (9, 13):
        for root in roots:
            candidate = root / f"python3.{minor}"
            if candidate.is_file() and "shims" not in candidate.parts:
                found[minor] = str(candidate)
    return [sys.executable, *found.values()]


@pytest.fixture(params=interpreters(), ids=lambda path: Path(path).name)
def client(request: pytest.FixtureRequest, folder: Path) -> Iterator[Client]:
    with running_agent(folder, python=request.param) as path:
        client = Client(path)
        yield client
        client.close()


def test_the_agent_needs_nothing_but_the_standard_library(client: Client) -> None:
    done, output = client.do("exec", b"typed", token=5, argv=["sh", "-c", "cat; exit 4"])
    assert (done["exit_code"], output) == (4, b"typed")
    assert client.do("exec", token=5, argv=["sleep", "1000"], timeout_s=0.2)[0]["timed_out"]
    assert client.do("stat", token=4, path=".")[0]["error"]["kind"] == "stale_token"
    assert client.do("write", b"data", token=5, path="a/b")[0]["size_bytes"] == 4
    assert client.do("read", token=5, path="a/b", offset=1)[1] == b"ata"
    assert client.do("session.open", token=5, name="x")[0]["shell"] in ("bash", "sh")
    assert client.do("session.run", b"cd a; echo $PWD", token=5, name="x")[1].endswith(b"/a\n")
    assert client.do("session.run", b"sleep 1000", token=5, name="x", timeout_s=0.2)[0]["timed_out"]
    assert client.do("session.run", b"echo $PWD", token=5, name="x")[1].endswith(b"/a\n")
    assert client.do("pack", token=5, path="a", window=1 << 20)[0]["exit_code"] == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"op": "nonsense"},
        {"op": "exec"},
        {"op": "exec", "argv": []},
        {"op": "exec", "argv": 7, "timeout_s": 1},
        {"op": "exec", "argv": ["true"], "timeout_s": float("nan")},
        {"op": "exec", "argv": ["true"], "timeout_s": -1},
        {"op": "exec", "argv": ["true"], "timeout_s": "soon"},
        {"op": "exec", "argv": ["true"], "variables": [1]},
        {"op": "exec", "argv": ["true"], "output_bytes": 1 << 40},
        {"op": "read", "path": ""},
        {"op": "read", "path": "a\0b"},
        {"op": "read", "path": "x", "offset": -1},
        {"op": "write", "path": "x", "last": False},
        {"op": "session.run", "name": "never opened"},
        {"op": "env.reset"},
        {"op": "exec", "token": "one", "argv": ["true"]},
        {"op": "exec", "token": None, "argv": ["true"]},
    ],
    ids=str,
)
def test_a_request_that_makes_no_sense_is_answered_with_an_error(folder: Path, fields: dict[str, object]) -> None:
    with running_agent(folder) as path:
        client = Client(path)
        assert client.ask(**{"token": 1, "timeout_s": 5, **fields})[0]["error"]["kind"] in (
            "protocol_error",
            "exec_failed",
            "session_ended",
            "env_crashed",
        )
        assert client.do("exec", argv=["true"])[0]["exit_code"] == 0
        client.close()


def test_an_agent_that_nobody_is_connected_to_ends(folder: Path) -> None:
    with running_agent(folder, orphan_ttl_s=0.2) as path:
        client = Client(path)
        about = client.do("exec", argv=["sh", "-c", "echo $PPID"])[1]
        ended = os.pidfd_open(int(about))
        client.close()
        assert select.select([ended], [], [], 30)[0]
        os.close(ended)


def test_an_agent_holds_nothing_of_what_is_over(folder: Path) -> None:
    with running_agent(folder) as path:
        client = Client(path)

        def descriptors() -> int:
            agent = int(client.do("exec", argv=["sh", "-c", "echo $PPID"])[1])
            return len(list(Path(f"/proc/{agent}/fd").iterdir()))

        def everything() -> None:
            client.do("exec", argv=["true"])
            client.do("exec", argv=["/no/such/program"])
            client.do("exec", argv=["sleep", "1000"], timeout_s=0.05)
            client.do("stream", argv=["/no/such/program"], window=1)
            client.do("stream", argv=["true"], window=1)
            client.do("write", b"x", path="file")
            client.do("write", b"x", path="file/below")
            client.do("write", b"x", path="/proc/none")
            client.do("read", path="missing/file")
            client.do("pack", path=".", window=1 << 20)
            client.do("pack", path="missing", window=1 << 20)
            client.do("session.open", name="x")
            client.do("session.run", b"sleep 1000", name="x", timeout_s=0.05)
            client.do("session.close", name="x")
            client.do("session.open", name="x", cwd="/no/such/folder")
            client.do("env.make", module="none", argv=["true"])
            client.do("env.close")
            other = Client(path)
            other.tell(op="exec", token=1, argv=["sleep", "1000"], timeout_s=1000)
            other.tell(b"half", op="write", token=1, path="half", key="k", last=False)
            other.close()
            client.do("exec", argv=["sh", "-c", "while ls -A | grep -q half; do sleep 0.01; done"])

        everything()
        before = descriptors()
        for _ in range(5):
            everything()
        assert descriptors() == before
        client.close()


def test_children_in_the_background_do_not_use_up_the_agents_descriptors(folder: Path) -> None:
    with running_agent(folder) as path:
        client = Client(path)
        for _ in range(60):
            client.do("exec", argv=["sh", "-c", "sleep 1000 &"])
        agent = int(client.do("exec", argv=["sh", "-c", "echo $PPID"])[1])
        assert len(list(Path(f"/proc/{agent}/fd").iterdir())) < 60
        client.do("fence", token=2)
        assert client.do("exec", token=2, argv=["sh", "-c", "cat /proc/$PPID/task/$PPID/children"])[1].count(b" ") == 1
        client.close()
