"""`rock up`, `down` and what lies between, as a person or a script drives them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playthings import until
from rocking import Rock, processes_mentioning

from rocknroll.sandbox.cli.exit_codes import ExitCode
from rocknroll.sandbox.client import Client
from rocknroll.sandbox.errors import LeaseLost, ServiceUnreachable

FLEET = "pools: {box: {size: 2, reuse: reset}}\n"


@pytest.fixture
def rock(folder: Path) -> Iterator[Rock]:
    rock = Rock(folder / "s")
    yield rock
    assert rock("down", "--timeout", "20").returncode == 0
    assert processes_mentioning(str(folder)) == []


@pytest.fixture
def up(rock: Rock, folder: Path) -> Rock:
    (folder / "fleet.yaml").write_text(FLEET)
    started = rock.json("up", "-f", str(folder / "fleet.yaml"), "--wait")
    assert started["ready"] and started["pid"] == rock.state.manager()
    return rock


def test_without_a_file_there_are_four_ready_sandboxes_when_up_returns(rock: Rock) -> None:
    assert rock("up", "--wait").returncode == 0
    rows = rock.json("ps")["sandboxes"]
    assert [(row["id"], row["state"], row["runtime"], row["lease"]) for row in rows] == [
        (f"default-{index}", "READY", "process", None) for index in range(4)
    ]
    assert {"id", "state", "image", "runtime", "node", "lease", "restarts", "last_error"} <= set(rows[0])


def test_down_leaves_nothing_but_the_record(up: Rock, folder: Path) -> None:
    assert processes_mentioning(str(folder))
    assert up.json("down")["manager"] is not None
    assert processes_mentioning(str(folder)) == []
    assert {path.name for path in up.state.path.iterdir()} == {"fleet.json", "lock", "rock.log", "store.sqlite"}
    assert up("ps").returncode == ExitCode.SERVICE
    assert up("down").returncode == 0


def test_down_cleans_up_after_a_manager_that_was_killed(up: Rock, folder: Path) -> None:
    holder = up.background("exec", "box-0", "--timeout", "60", "--", "sleep", "50")
    until(lambda: up.json("ps")["sandboxes"][0]["lease"] is not None, "the lease of exec")
    up.kill_manager()
    assert up("ps").returncode == ExitCode.SERVICE
    ended = up.json("down")
    assert ended["manager"] is None and len(ended["instances"]) == 2 and len(ended["leases"]) == 1
    assert holder.wait(timeout=60) == ExitCode.NOT_RUN
    holder.communicate()
    assert processes_mentioning(str(folder)) == [] and not up.state.run.exists()
    store = sqlite3.connect(up.state.store)
    assert store.execute("SELECT outcome FROM leases WHERE ended IS NULL").fetchall() == []
    store.close()


def test_a_manager_that_comes_after_a_killed_one_goes_on_with_its_leases(up: Rock, folder: Path) -> None:
    (folder / "hold.py").write_text(
        "import sys\n"
        "from rocknroll.sandbox.client import Client\n"
        "lease = Client(sys.argv[1]).lease('box', owner='holder', ttl_s=600, heartbeats=False)\n"
        "lease.exec('echo kept > note').check()\n"
        "print(lease.id, lease.token)\n"
    )
    command = [sys.executable, str(folder / "hold.py"), str(up.state.socket)]
    sandbox, token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    before = {row["id"]: row["pid"] for row in up.json("ps")["sandboxes"]}
    up.kill_manager()
    assert up("up", "-f", str(folder / "fleet.yaml"), "--wait").returncode == 0
    rows = {row["id"]: row for row in up.json("ps")["sandboxes"]}
    assert {name: row["pid"] for name, row in rows.items()} == before
    assert (rows[sandbox]["lease"]["owner"], rows[sandbox]["lease"]["token"]) == ("holder", int(token))
    assert up("exec", sandbox, "--token", token, "--", "cat", "note").stdout == "kept\n"


def test_a_holder_with_heartbeats_outlives_a_manager_that_is_killed_and_started_again(up: Rock, folder: Path) -> None:
    with Client(up.state.socket) as client, client.lease("box", ttl_s=15) as lease:
        lease.exec("echo kept > note").check()
        missed = threading.Event()
        judge = lease._noted
        lease._noted = lambda error: (missed.set(), judge(error))[1]  # type: ignore[method-assign]
        up.kill_manager()
        with pytest.raises(ServiceUnreachable):
            lease.exec("true")
        assert missed.wait(60), "no heartbeat fell into the time without a manager"
        assert up("up", "-f", str(folder / "fleet.yaml"), "--wait").returncode == 0
        before = lease.deadline
        until(lambda: lease.deadline > before, "the next heartbeat")
        assert not lease.lost and lease.exec("cat note").stdout == b"kept\n"


def test_release_ends_a_lease_whose_deadline_passed_while_no_manager_was_there(up: Rock, folder: Path) -> None:
    with Client(up.state.socket) as client:
        lease = client.lease("box", ttl_s=600, heartbeats=False)
        up.kill_manager()
        lease._info = dataclasses.replace(lease._info, deadline=0.0)  # ten minutes pass
        lease._noted(ServiceUnreachable("what a heartbeat says now"))
        assert "unheard" in lease.lost
        with pytest.raises(ServiceUnreachable):
            lease.release()
        assert up("up", "-f", str(folder / "fleet.yaml"), "--wait").returncode == 0
        lease.release()
        with pytest.raises(LeaseLost, match="over: released"):
            client.held(lease.token)
        lease.release()


def test_what_went_wrong_under_a_lease_is_not_hidden_by_a_manager_that_is_away(up: Rock) -> None:
    with Client(up.state.socket) as client:
        with pytest.raises(ZeroDivisionError), client.lease("box"):
            up.kill_manager() / 0
        assert up("down").returncode == 0


def test_a_second_up_is_refused_with_the_pid_of_the_first(up: Rock) -> None:
    for arguments in (["up"], ["up", "-d"]):
        done = up(*arguments)
        assert done.returncode == ExitCode.TAKEN
        assert f"pid {up.state.manager()}" in done.stderr and "rock down" in done.stderr
    assert up("exec", "box-0", "--", "true").returncode == 0


def test_in_the_foreground_ctrl_c_ends_everything(rock: Rock, folder: Path) -> None:
    manager = rock.background("up")
    until(lambda: rock("ps").returncode == 0, "the service answers")
    manager.send_signal(signal.SIGINT)
    _, said = manager.communicate(timeout=60)
    assert manager.returncode == ExitCode.INTERRUPTED
    assert "Interrupted." in said and "Traceback" not in said
    assert processes_mentioning(str(folder)) == []
    assert not rock.state.socket.exists()


def test_a_pool_that_cannot_start_fails_the_wait_and_says_why(rock: Rock, folder: Path) -> None:
    (folder / "bad.yaml").write_text("pools: {bad: {command: [sh, -c, 'echo no disk; exit 9'], restart: {limit: 2}}}")
    done = rock("up", "-f", str(folder / "bad.yaml"), "--wait")
    assert done.returncode == ExitCode.SANDBOX
    assert "no disk" in done.stderr and "rock down" in done.stderr
    assert rock.json("ps")["sandboxes"][0]["state"] == "QUARANTINED"


def test_what_ends_a_detached_manager_early_is_said_here(rock: Rock, folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        (folder / "tokens").write_text("operate " + "x" * 20)
        (folder / "tokens").chmod(0o600)
        port = other.getsockname()[1]
        (folder / "tcp.yaml").write_text(f"{FLEET}listen: {{tcp: '127.0.0.1:{port}', tokens: tokens}}")
        done = rock("up", "-d", "-f", str(folder / "tcp.yaml"))
    assert done.returncode == ExitCode.TAKEN
    assert f"127.0.0.1:{port}: another program listens there" in done.stderr and "x" * 20 not in done.stderr


def test_over_tcp_the_token_comes_from_the_environment(rock: Rock, folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "tcp.yaml").write_text(f"{FLEET}listen: {{tcp: '127.0.0.1:{port}'}}")
    token = "t" * 20
    variables = {"ROCK_TOKEN_READ": token}
    assert rock("up", "--wait", "-f", str(folder / "tcp.yaml"), variables=variables).returncode == 0
    url = f"http://127.0.0.1:{port}"
    assert rock("ps", "--url", url).returncode == ExitCode.DENIED
    assert rock("ps", "--url", url, variables={"ROCK_TOKEN": token}).returncode == 0
    assert rock("restart", "box-0", "--url", url, variables={"ROCK_TOKEN": token}).returncode == ExitCode.DENIED
    for path in rock.state.path.rglob("*"):
        assert not path.is_file() or token.encode() not in path.read_bytes(), path
    assert processes_mentioning(token) == []


@pytest.mark.parametrize(
    ("text", "says"),
    [("pools: {a: {siez: 1}}", "Did you mean `pools.a.size`?"), ("pools: {a: {runtime: docker}}", "needs an `image`")],
)
def test_a_wrong_fleet_file_is_refused_before_anything_starts(rock: Rock, folder: Path, text: str, says: str) -> None:
    (folder / "wrong.yaml").write_text(text)
    for command in (["up", "-d"], ["up"], ["validate"]):
        done = rock(*command, "-f", str(folder / "wrong.yaml"))
        assert done.returncode == ExitCode.SPEC and says in done.stderr
    assert not rock.state.path.exists()


def test_a_state_folder_that_cannot_be_used_is_said(folder: Path) -> None:
    (folder / "file").write_text("")
    assert Rock(folder / "file" / "s")("up").returncode == ExitCode.STORAGE
    deep = Rock(folder / ("x" * 80))("up", "-d")
    assert deep.returncode == ExitCode.SPEC and "--state" in deep.stderr


def test_a_full_disk_is_said(rock: Rock) -> None:
    rock.state.prepare()
    rock.state.store.symlink_to("/dev/full")
    done = rock("up")
    rock.state.store.unlink()
    assert done.returncode == ExitCode.STORAGE and "Traceback" not in done.stderr


def listed(up: Rock) -> list[dict[str, Any]]:
    """What `rock ps` shows; without times, which are reckoned anew from a clock that no row keeps."""
    return [{**row, "since": None} for row in up.json("ps")["sandboxes"]]


def test_dry_runs_change_nothing(up: Rock, folder: Path) -> None:
    before = listed(up)
    for arguments, says in (
        (["up", "-f", str(folder / "fleet.yaml"), "--dry-run"], "would keep 2 × box"),
        (["down", "--dry-run"], "would end the manager"),
        (["restart", "box-0", "--dry-run"], "would restart box-0, which is READY"),
        (["scale", "box", "9", "--dry-run"], "would scale box from 2 to 9"),
        (["exec", "box-1", "--dry-run", "--", "true"], "would run ['true'] in box-1"),
        (["cp", "box-0:a", str(folder), "--dry-run"], "would copy box-0:a"),
        (["image", "build", "--dry-run"], "would build"),
        (["image", "commit", "box-0", "tag", "--dry-run"], "would commit box-0 as tag"),
    ):
        done = up(*arguments)
        assert done.returncode == 0 and says in done.stdout, (arguments, done)
    assert listed(up) == before


def test_gc_removes_what_a_killed_manager_left_and_nothing_that_lives(up: Rock, folder: Path) -> None:
    assert up.json("gc")["files"] == []
    up.kill_manager()
    assert up.json("gc", "--dry-run")["files"] == [str(up.state.socket)]  # the forkserver waits for a successor
    (forkserver,) = up.state.run.iterdir()
    for pid in processes_mentioning(str(folder)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: up.json("gc", "--dry-run")["files"] == sorted([str(forkserver), str(up.state.socket)]), "all dead")
    assert up.json("gc")["removed"]
    assert not forkserver.exists() and not up.state.socket.exists()


def test_events_are_followed_as_json_lines(up: Rock) -> None:
    follower = up.background("events", "-f", "-n", "1", "--json")
    assert follower.stdout is not None
    json.loads(follower.stdout.readline())
    up("restart", "box-1")
    kinds = [json.loads(follower.stdout.readline())["kind"] for _ in range(2)]
    assert kinds == ["recycled", "started"]
    follower.send_signal(signal.SIGINT)
    assert follower.wait(timeout=60) == ExitCode.INTERRUPTED
    follower.communicate()
