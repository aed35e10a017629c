"""Every cell of the tables of what the process runtime protects against, tried on real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from playthings import HERE, WAIT_S

from rocknroll.sandbox.errors import ExecFailed, RuntimeUnavailable, SandboxError, SandboxLost
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import ExecResult, LeasedSandbox
from rocknroll.sandbox.runtimes.outlet import KEPT_BYTES
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import Resources, SandboxSpec

pytestmark = pytest.mark.asyncio
MIB = 1 << 20
DOCUMENT = HERE.parents[1] / "docs" / "sandbox" / "process.md"
PROCESSES = 48


def table(name: str) -> dict[tuple[str, str], str]:
    """The cells of a table of the document, by row and column."""
    text = DOCUMENT.read_text().partition(f"<!-- {name} -->")[2].partition(f"<!-- /{name} -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.strip().splitlines()]
    return {(row[0], column): cell for row in rows[2:] for column, cell in zip(rows[0][1:], row[1:], strict=True)}


@dataclass
class Scene:
    """Two sandboxes, and a host with something to steal."""

    fleet: Fleet
    folder: Path
    attacker: LeasedSandbox
    victim: LeasedSandbox
    secret: Path
    shared: Path

    async def sh(self, command: str, timeout_s: float = 20.0) -> ExecResult:
        return await self.attacker.exec(command, timeout_s=timeout_s)

    async def python(self, program: str) -> str:
        """What it prints; empty if it fails. `agent` is the pid of the agent."""
        start = "import ctypes, os, socket, sys\nagent = 1 if os.getppid() in (0, 1) else os.getppid()\n"
        done = await self.attacker.exec([sys.executable, "-c", start + program], timeout_s=20.0)
        return done.stdout.decode() if done.exit_code == 0 else ""

    async def well(self) -> bool:
        """Whether the attacker's sandbox works, once what its deadline ended is gone."""
        deadline_s = time.monotonic() + WAIT_S
        while True:
            try:
                return (await self.sh("echo well")).stdout == b"well\n"
            except ExecFailed:
                assert time.monotonic() < deadline_s, "no command can be started any more"
                await asyncio.sleep(0.01)

    def home(self, sandbox: LeasedSandbox) -> Path:
        """A sandbox's folder on the host."""
        instance = self.fleet.instance(sandbox.id)
        assert instance is not None
        return instance.socket_path.parent


Attack = Callable[[Scene], Awaitable[bool]]
"""True when it was held."""
ATTACKS: dict[str, Attack] = {}


def attack(row: str) -> Callable[[Attack], Attack]:
    def register(function: Attack) -> Attack:
        ATTACKS[row] = function
        return function

    return register


@attack("fork bomb")
async def _fork_bomb(scene: Scene) -> bool:
    before = len(os.listdir("/proc"))  # noqa: PTH208
    bombing = asyncio.create_task(scene.sh("bomb() { bomb | bomb & }; bomb; sleep 2", timeout_s=4.0))
    most = 0
    while not bombing.done():
        most = max(most, len(os.listdir("/proc")) - before)  # noqa: PTH208
        await asyncio.sleep(0.05)
    with contextlib.suppress(SandboxError):
        await bombing
    # The other sandbox and the host have processes of their own that come and go.
    return most < 2 * PROCESSES


@attack("memory bomb")
async def _memory_bomb(scene: Scene) -> bool:
    return await scene.python("data = bytearray(400 << 20); print('had it')") == ""


@attack("flood of output from a command")
async def _output_flood(scene: Scene) -> bool:
    done = await scene.sh("yes", timeout_s=1.0)
    return done.timed_out and len(done.stdout) <= 1 << 18 and done.stdout_cut_bytes > 0


@attack("flood of output into the log")
async def _log_flood(scene: Scene) -> bool:
    log = scene.home(scene.attacker) / "log"
    flood = {"module": "no.module", "argv": ["/bin/sh", "-c", "exec yes >&2"]}
    flooding = asyncio.create_task(scene.attacker.request("env.make", flood, timeout_s=60.0))
    while log.stat().st_size < KEPT_BYTES // 2:
        await asyncio.sleep(0.005)
    sizes = []
    for _ in range(20):
        await scene.sh("true")
        sizes.append(log.stat().st_size)
    flooding.cancel()
    return max(sizes) <= KEPT_BYTES


@attack("write to the agent's own output (`/proc/1/fd/1`)")
async def _agents_output(scene: Scene) -> bool:
    program = "for n in (1, 2):\n  with open(f'/proc/{agent}/fd/{n}', 'w') as f: f.write('planted')\nprint('done')"
    return await scene.python(program) == "" and "planted" not in (scene.home(scene.attacker) / "log").read_text()


@attack("`kill -9 -1`")
async def _kill_all(scene: Scene) -> bool:
    level = (await scene.fleet.runtime.isolation()).level
    apart = ["--pid", "--fork", "--mount-proc", "--kill-child"] + (
        [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    )
    # In a pid namespace of its own: where the attack is not held, it would kill everything of this user.
    process = await asyncio.create_subprocess_exec(
        "unshare",
        *apart,
        sys.executable,
        str(HERE / "killer.py"),
        level,
        str(scene.folder),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert said in (b"held\n", b"open\n")
    return said == b"held\n"


@attack("kill the agent")
async def _kill_agent(scene: Scene) -> bool:
    try:
        await scene.python("os.kill(agent, 9)")
        await scene.attacker.request("fence", {})
    except SandboxLost:
        return False
    return True


@attack("trace the agent, read its memory or environment")
async def _trace(scene: Scene) -> bool:
    traced = await scene.python("print(ctypes.CDLL(None).ptrace(16, agent, 0, 0))")
    opened = [
        await scene.python(f"print(len(open('/proc/' + str(agent) + '/{name}', 'rb').read(1)))")
        for name in ("mem", "environ", "auxv")
    ]
    return traced == "-1\n" and opened == ["", "", ""]


@attack("see processes of the host")
async def _see_processes(scene: Scene) -> bool:
    done = await scene.sh("cat /proc/*/cmdline | tr '\\0' ' '")
    return b"pytest" not in done.stdout


@attack("read files of the host")
async def _read_host(scene: Scene) -> bool:
    return (await scene.sh(f"cat '{scene.secret}'")).stdout != b"mine"


@attack("write files of the host")
async def _write_host(scene: Scene) -> bool:
    await scene.sh(f"echo planted > '{scene.secret}.new'; echo planted >> '{scene.shared}/data'")
    return not Path(f"{scene.secret}.new").exists() and "planted" not in (scene.shared / "data").read_text()


@attack("write to the system's folders, the root, `/dev`")
async def _write_system(scene: Scene) -> bool:
    name = f"rocknroll-attack-{os.getpid()}"
    done = await scene.sh(f"for f in /usr /etc / /dev; do echo x > $f/{name} && echo wrote && rm $f/{name}; done")
    return done.stdout == b""


@attack("connect to another sandbox's socket")
async def _other_socket(scene: Scene) -> bool:
    path = scene.home(scene.victim) / "agent.sock"
    return await scene.python(f"socket.socket(socket.AF_UNIX).connect({str(path)!r}); print('connected')") == ""


@attack("look into another sandbox's folder")
async def _other_folder(scene: Scene) -> bool:
    await scene.victim.write("note", b"private")
    return (
        await scene.sh(f"cd {scene.home(scene.victim)} && cat work/note; find / -name note -path '*rock*'")
    ).stdout == b""


@attack("connect to a server of the host")
async def _network(scene: Scene) -> bool:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        return await scene.python(f"socket.create_connection(('127.0.0.1', {port}), 5); print('connected')") == ""


@attack("gain capabilities by a set-user-id program")
async def _setuid(scene: Scene) -> bool:
    if os.getuid() != 0:
        pytest.skip("only root can make a program that becomes root")
    done = await scene.sh(f"'{scene.shared}/become-root' -h CapEff /proc/self/status")
    return done.exit_code == 0 and done.stdout.split()[1] == b"0" * 16


@attack("mount a file system")
async def _mount(scene: Scene) -> bool:
    mounting = "print(ctypes.CDLL(None).mount(b'none', os.getcwd().encode(), b'tmpfs', 0, None))"
    return await scene.python(mounting) == "-1\n"


@attack("make a user namespace")
async def _user_namespace(scene: Scene) -> bool:
    return await scene.python("print(ctypes.CDLL(None).unshare(0x10000000))") == "-1\n"


async def _fill(scene: Scene, folder: str) -> bool:
    done = await scene.sh(f"head -c {20 * MIB} /dev/zero > {folder}/fill; stat -c %s {folder}/fill; rm {folder}/fill")
    return int(done.stdout) < 20 * MIB


@attack("fill the disk from the working directory")
async def _fill_work(scene: Scene) -> bool:
    return await _fill(scene, ".")


@attack("fill `/tmp` and `/dev/shm`")
async def _fill_scratch(scene: Scene) -> bool:
    return all([await _fill(scene, folder) for folder in ("/tmp", "/dev/shm")])


@pytest_asyncio.fixture
async def scene(request: pytest.FixtureRequest, folder: Path, tmp_path: Path) -> AsyncIterator[Scene]:
    runtime = ProcessRuntime(request.param, folder=folder, limits="groups")
    try:
        await runtime.grants()
    except RuntimeUnavailable as refused:
        await runtime.close()
        pytest.skip(str(refused))
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "data").write_text("yours")
    shutil.copy(shutil.which("grep") or "", shared / "become-root")
    (shared / "become-root").chmod(0o4755)
    (tmp_path / "secret").write_text("mine")
    resources = Resources(memory_bytes=128 * MIB, work_bytes=8 * MIB, scratch_bytes=8 * MIB, processes=PROCESSES)
    spec = SandboxSpec(resources=resources, readable=(shared,), restart={"backoff_s": 0.0})  # type: ignore[arg-type]
    async with Fleet(spec, 2, runtime) as fleet:
        attacker, victim = await fleet.lease("attacker"), await fleet.lease("victim")
        yield Scene(fleet, folder, attacker, victim, tmp_path / "secret", shared)
        # Whatever happened, everyone else goes on, and so does the fleet.
        assert (await victim.exec("echo well")).stdout == b"well\n"
        await attacker.release(recycle=True)
        async with await fleet.lease("next", timeout_s=60.0) as sandbox:
            assert (await sandbox.exec("echo well")).stdout == b"well\n"


@pytest.mark.parametrize(
    ("row", "scene", "documented"),
    [(row, level, cell) for (row, level), cell in table("attacks").items()],
    indirect=["scene"],
)
async def test_an_attack_ends_as_documented(row: str, scene: Scene, documented: str) -> None:
    assert documented in ("held", "open")
    assert ("held" if await ATTACKS[row](scene) else "open") == documented
    if documented == "held":
        assert await scene.well()


async def test_every_attack_has_a_row_and_every_level_a_column() -> None:
    assert set(table("attacks")) == {(row, level) for row in ATTACKS for level in ("namespaces", "bubblewrap", "plain")}


LIMITS = {
    "memory of one process": "data = bytearray(400 << 20); print('had it')",
    "memory of the sandbox": """
import time
for _ in range(4):
    if os.fork() == 0:
        data = bytearray(100 << 20)
        time.sleep(2)
        os._exit(0)
if all(os.wait()[1] == 0 for _ in range(4)): print('had it')
""",
    "number of processes": """
import time
for _ in range(100):
    if os.fork() == 0:
        time.sleep(2)
        os._exit(0)
print('had it')
""",
    "share of cpu": """
import time
for _ in range(10):
    if os.fork() == 0:
        end = time.monotonic() + 1.5
        while time.monotonic() < end: pass
        os._exit(0)
began = time.monotonic()
if sum(os.wait3(0)[2].ru_utime for _ in range(10)) > 0.2 * (time.monotonic() - began): print('had it')
""",
}


@pytest.mark.parametrize(("row", "column", "documented"), [(*key, cell) for key, cell in table("limits").items()])
async def test_a_limit_holds_as_documented(folder: Path, row: str, column: str, documented: str) -> None:
    runtime = ProcessRuntime("namespaces", folder=folder, limits="groups" if column == "control groups" else "rlimits")
    try:
        await runtime.grants()
    except RuntimeUnavailable as refused:
        await runtime.close()
        pytest.skip(str(refused))
    # So little that whoever is not held gets twice as much on a busy machine, too.
    cpus = 0.1 if row == "share of cpu" else 0.4
    resources = Resources(
        memory_bytes=256 * MIB, work_bytes=8 * MIB, scratch_bytes=8 * MIB, processes=PROCESSES, cpus=cpus
    )
    if documented == "held unless root":
        documented = "open" if os.getuid() == 0 else "held"
    async with Fleet(SandboxSpec(resources=resources), 1, runtime) as fleet, await fleet.lease("me") as sandbox:
        done = await sandbox.exec([sys.executable, "-c", "import os" + "\n" + LIMITS[row]], timeout_s=30.0)
        assert ("open" if done.stdout == b"had it\n" else "held") == documented


async def test_every_limit_has_a_row() -> None:
    assert set(table("limits")) == {(row, column) for row in LIMITS for column in ("control groups", "rlimits")}
