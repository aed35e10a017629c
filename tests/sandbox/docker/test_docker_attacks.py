"""Each test tries the thing from inside a real container, and then finds the neighbours and the daemon well."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest
import pytest_asyncio
from containers import SMALL, START_TIMEOUT_S

from rocknroll.sandbox.errors import SandboxError
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import ExecResult, LeasedSandbox
from rocknroll.sandbox.runtimes.docker import DockerRuntime
from rocknroll.sandbox.spec import HealthPolicy, RestartPolicy, SandboxSpec

pytestmark = pytest.mark.asyncio
MakeSpec = Callable[..., SandboxSpec]
Eventually = Callable[[Callable[[], bool]], Awaitable[None]]


@dataclass
class Pair:
    """Two sandboxes of one fleet: one attacks, the other one must not notice."""

    fleet: Fleet
    attacker: LeasedSandbox
    neighbour: LeasedSandbox
    ends: bool = False
    """The attack ends the attacker's own sandbox, which is then replaced."""

    async def sh(self, command: str, timeout_s: float = 60.0) -> ExecResult:
        return await self.attacker.exec(command, timeout_s=timeout_s)

    def container(self, client: docker.APIClient, sandbox: LeasedSandbox) -> str:
        pid = next(each["pid"] for each in self.fleet.snapshot() if each["id"] == sandbox.id)
        found = client.containers(filters={"label": "rocknroll.instance"})
        return next(each["Id"] for each in found if client.inspect_container(each["Id"])["State"]["Pid"] == pid)


@pytest_asyncio.fixture(params=["1000:1000"])
async def pair(request: pytest.FixtureRequest, runtime: DockerRuntime, spec: MakeSpec) -> AsyncIterator[Pair]:
    """After every attack the attacker's own sandbox works as before, too, unless the test says that it ends."""
    quick = RestartPolicy(backoff_s=0, limit=1000)
    wanted = spec(user=request.param, restart=quick)
    async with Fleet(wanted, 2, runtime, owns_runtime=False) as fleet:
        attacker = await fleet.lease("attacker", timeout_s=START_TIMEOUT_S)
        neighbour = await fleet.lease("neighbour", timeout_s=START_TIMEOUT_S)
        await neighbour.exec("echo mine > file")
        pair = Pair(fleet, attacker, neighbour)
        yield pair
        assert (await neighbour.exec("cat file")).stdout == b"mine\n"
        if pair.ends:
            await pair.attacker.release()
            pair.attacker = await fleet.lease("attacker", timeout_s=START_TIMEOUT_S)
        for _ in range(100):  # what was killed still has to be reaped before there is room again
            done = await pair.attacker.exec("echo alive")
            if done.stdout == b"alive\n":
                break
        assert done.stdout == b"alive\n"
        assert pair.ends or [each["restarts"] for each in fleet.snapshot()] == [0, 0]
        assert await runtime.isolation()


as_anyone = pytest.mark.parametrize("pair", ["1000:1000", "root"], indirect=True)


@as_anyone
async def test_a_fork_bomb_stays_within_its_limit(pair: Pair, client: docker.APIClient) -> None:
    name = pair.container(client, pair.attacker)
    code = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    bomb = asyncio.create_task(pair.attacker.exec(["python3", "-c", code], timeout_s=3.0))
    most = 0
    while not bomb.done():
        assert (await pair.neighbour.exec("echo quick")).stdout == b"quick\n"
        processes = await asyncio.to_thread(client.top, name)
        most = max(most, len(processes["Processes"]))
    assert (await bomb).timed_out
    assert SMALL.processes is not None
    assert 10 < most <= SMALL.processes


@as_anyone
async def test_a_memory_bomb_dies_alone(pair: Pair) -> None:
    done = await pair.sh("python3 -c 'held = []\nwhile True: held.append(bytearray(1 << 24))'")
    assert done.exit_code == -9 or b"MemoryError" in done.stderr or done.exit_code == 137


@as_anyone
async def test_many_small_memory_bombs_end_no_other_sandbox(pair: Pair, eventually: Eventually) -> None:
    pair.ends = True  # the agent may be the largest process by then
    hog = "python3 -c 'import time; held = bytes(range(256)) * (1 << 15); time.sleep(1000)' &"
    try:
        done = await pair.sh(f"for i in $(seq 60); do {hog} done; wait", timeout_s=10.0)
        assert done.timed_out or done.exit_code != 0
    except SandboxError:
        await eventually(lambda: any("out of memory" in str(each["last_error"]) for each in pair.fleet.snapshot()))


@as_anyone
async def test_full_folders_are_full_and_nothing_more(pair: Pair) -> None:
    before = shutil.disk_usage("/").free
    for folder in ("/work", "/tmp", "/dev/shm"):
        done = await pair.sh(f"cat /dev/zero > {folder}/zeros")
        assert b"No space left" in done.stderr
    assert (await pair.sh("cat /proc/self/status > /dev/null; echo ok")).stdout == b"ok\n"
    grown = before - shutil.disk_usage("/").free
    assert grown < 1 << 30  # others write here, too; what was tried has no end
    await pair.sh("rm -f zeros /tmp/zeros /dev/shm/zeros")


async def test_nothing_else_can_be_written(pair: Pair) -> None:
    done = await pair.sh("find / -xdev -writable ! -type l ! -path '/proc/*' 2>/dev/null")
    assert set(done.stdout.split()) == {b"/work", b"/tmp"}
    mounts = (await pair.sh("awk '$4 ~ /^rw/ {print $2}' /proc/mounts")).stdout.decode().split()
    writable = {mount for mount in mounts if (await pair.sh(f"touch {mount}/probe")).exit_code == 0}
    assert writable == {"/work", "/tmp", "/dev/shm", "/dev/mqueue"}


@as_anyone
async def test_an_output_flood_costs_nobody_memory(pair: Pair) -> None:
    flood = asyncio.create_task(pair.sh("yes & yes >&2", timeout_s=2.0))
    while not flood.done():
        assert (await pair.neighbour.exec("echo quick")).stdout == b"quick\n"
        await pair.attacker.request("fence", {}, timeout_s=10.0)
    done = await flood
    assert done.timed_out
    assert len(done.stdout) <= 1 << 18 and done.stdout_cut_bytes > 0


@as_anyone
async def test_the_containers_own_output_cannot_be_reached(pair: Pair) -> None:
    for number in (0, 1, 2):
        assert (await pair.sh(f"echo x > /proc/1/fd/{number}")).exit_code != 0


@as_anyone
async def test_killing_everything_leaves_the_agent(pair: Pair) -> None:
    others = asyncio.create_task(pair.sh("sleep 1000"))
    await pair.sh("until pgrep sleep 2>/dev/null || grep -qs sleep /proc/[0-9]*/cmdline; do :; done", timeout_s=20.0)
    await pair.sh("kill -9 -1")
    assert (await others).exit_code == -9
    # Root is told that it may; the kernel drops what the first process has no handler for, and it has one for one.
    await pair.sh("for number in $(seq 64); do kill -$number 1; done")


async def test_the_agents_signals_are_refused_to_others(pair: Pair) -> None:
    done = await pair.sh("kill -INT 1")
    assert b"not permitted" in done.stderr.lower()


@as_anyone
async def test_the_hosts_files_are_not_there(pair: Pair, tmp_path: Path) -> None:
    secret = tmp_path / "secret-of-the-host"
    secret.write_text("x")
    tmp_path.chmod(0o755)
    secret.chmod(0o644)
    assert (await pair.sh(f"cat {secret}")).exit_code != 0
    found = await pair.sh("find / -name secret-of-the-host -o -name docker.sock -o -name 'agent.sock' 2>/dev/null")
    allowed = {"", "/rock/run/agent.sock"} if pair.fleet.spec.user == "root" else {""}
    assert set(found.stdout.decode().strip().split("\n")) <= allowed
    assert (await pair.sh("ls /var/lib/docker /proc/1/root")).exit_code != 0
    devices = await pair.sh("find /dev -type b; mknod disk b 254 0; mknod mem c 1 1")
    assert devices.stdout == b"" and devices.exit_code != 0


async def test_other_sandboxes_cannot_be_reached(pair: Pair, runtime: DockerRuntime) -> None:
    sockets = [instance.socket_path for instance in runtime._instances]
    assert len(sockets) == 2 and all(path.exists() for path in sockets)
    for path in (*sockets, Path("/rock/run/agent.sock")):
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
        done = await pair.attacker.exec(["python3", "-c", code])
        assert b"FileNotFoundError" in done.stderr or b"PermissionError" in done.stderr
    assert (await pair.sh("grep -c @ /proc/net/unix")).stdout == b"0\n"  # no abstract socket


@as_anyone
async def test_there_is_no_network(pair: Pair) -> None:
    assert (await pair.sh("ls /sys/class/net")).stdout == b"lo\n"
    code = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    assert b"Network is unreachable" in (await pair.attacker.exec(["python3", "-c", code])).stderr
    code = "import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"
    assert b"PermissionError" in (await pair.attacker.exec(["python3", "-c", code])).stderr


async def test_set_user_id_programs_give_nothing(pair: Pair) -> None:
    found = (await pair.sh("find / -xdev -perm -4000 2>/dev/null")).stdout.split()
    assert b"/usr/bin/su" in found
    # It would print the effective user if the bit had worked; root's shadow file is what such programs are after.
    code = "import os; os.execv('/usr/bin/chage', ['chage', '-l', 'root'])"
    assert b"cannot open /etc/shadow" in (await pair.attacker.exec(["python3", "-c", code])).stderr
    assert (await pair.sh("grep NoNewPrivs /proc/self/status")).stdout.split() == [b"NoNewPrivs:", b"1"]


@as_anyone
async def test_nothing_can_be_mounted_and_no_namespace_made(pair: Pair) -> None:
    for attempt in (
        "mount -t tmpfs none /work",
        "mount -o remount,rw /",
        "mount --bind /tmp /work",
        "umount /work",
        "unshare -Ur true",
        "unshare -m true",
        "nsenter -t 1 -m true",
        "chroot / true",
        "echo 1 > /proc/sys/kernel/sysrq",
        "echo b > /proc/sysrq-trigger",
        "mkdir /sys/fs/cgroup/memory/mine /sys/fs/cgroup/mine",
        "date -s 2000-01-01",
        "hostname elsewhere",
        "dmesg --clear",
    ):
        assert (await pair.sh(attempt)).exit_code != 0, attempt
    assert (await pair.sh("grep -c . /proc/self/uid_map")).stdout == b"1\n"
    bounding = (await pair.sh("grep CapEff /proc/self/status")).stdout.split()[1]
    assert int(bounding, 16) == 0


@as_anyone
async def test_the_agents_secret_is_nowhere(pair: Pair, runtime: DockerRuntime) -> None:
    (secret, *_) = (each.secret for each in runtime._instances if each.instance_id.startswith(pair.attacker.id))
    # Half of it: the searching commands have the whole of what they search for in their own arguments.
    half = secret[:16]
    done = await pair.sh(
        "cat /proc/1/environ /proc/1/cmdline /rock/run/* /proc/[0-9]*/environ 2>/dev/null; head -c 1 /proc/1/mem; "
        "cat /proc/1/maps; env"
    )
    assert half not in done.stdout.decode(errors="replace")
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/maps", "/rock/run/config.json"):
        assert (await pair.sh(f"head -c 1 {path}")).exit_code != 0, path
    trace = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.ptrace(16, 1, 0, 0), ctypes.get_errno())"
    assert (await pair.attacker.exec(["python3", "-c", trace])).stdout.split()[0] == b"-1"


async def test_nothing_can_be_planted_beside_the_agents_socket(pair: Pair) -> None:
    for attempt in ("touch /rock/run/x", "ln -s /etc/passwd /rock/run/log", "rm /rock/run/agent.sock", "ls /rock"):
        assert b"Permission denied" in (await pair.sh(attempt)).stderr
    assert (await pair.sh("touch /rock/program/x; chmod 777 /rock")).exit_code != 0


@pytest.mark.parametrize("pair", ["root"], indirect=True)
async def test_what_root_plants_there_fools_nobody(pair: Pair, runtime: DockerRuntime, host_folder: Path) -> None:
    """Commands that run as root do reach the folder; the host follows no link in it."""
    outside = host_folder / "outside"
    outside.write_text("the host's")
    (mine,) = (each for each in runtime._instances if each.instance_id.startswith(pair.attacker.id))
    planted = f"cd /rock/run && ln -sf {outside} log && mv agent.sock kept && ln -s /var/run/docker.sock agent.sock"
    assert (await pair.sh(planted)).exit_code == 0
    assert await mine.output_tail() == ""
    assert not mine.folder.listens()
    assert (await pair.sh("touch /rock/program/x")).exit_code != 0


async def test_endless_starts_of_sandboxes_do_not_pile_up(
    pair: Pair, client: docker.APIClient, fleet_id: str, eventually: Eventually
) -> None:
    for _ in range(3):
        await pair.attacker.release(recycle=True)
        pair.attacker = await pair.fleet.lease("attacker", timeout_s=START_TIMEOUT_S)
    filters = {"label": f"rocknroll.fleet={fleet_id}"}
    await eventually(lambda: len(client.containers(all=True, filters=filters)) == 2)


async def test_a_frozen_sandbox_is_replaced_and_its_holder_told(
    runtime: DockerRuntime, spec: MakeSpec, eventually: Eventually
) -> None:
    health = HealthPolicy(interval_s=0.1, timeout_s=0.5, failures=2, window=2)
    async with Fleet(spec(health=health), 1, runtime, owns_runtime=False) as fleet:
        sandbox = await fleet.lease("me", timeout_s=START_TIMEOUT_S)
        os.kill(fleet.snapshot()[0]["pid"], signal.SIGSTOP)
        await eventually(lambda: bool(sandbox.lost))
        fresh = await fleet.lease("me", timeout_s=START_TIMEOUT_S)
        assert (await fresh.exec("echo fresh")).stdout == b"fresh\n"
