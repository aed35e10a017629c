"""Persistent shells: what one run sets the next one finds, and no run breaks its session."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from rocknroll.sandbox.errors import ExecFailed, QuotaExceeded, SessionBusy, SessionEnded
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox
from rocknroll.sandbox.session import Session

pytestmark = pytest.mark.asyncio
MakeFleet = Callable[..., Fleet]
TOOLS = (
    "sh",
    "pwd",
    "cat",
    "sed",
    "sleep",
    "mkdir",
    "seq",
    "yes",
    "head",
    "env",
    "setsid",
    "grep",
    "tr",
    "wc",
    "ls",
    "touch",
    "cut",
)


@pytest_asyncio.fixture
async def sandbox(make_fleet: MakeFleet) -> AsyncIterator[LeasedSandbox]:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        yield sandbox


@pytest_asyncio.fixture(params=["bash", "sh"])
async def session(request: pytest.FixtureRequest, make_fleet: MakeFleet, folder: Path) -> AsyncIterator[Session]:
    """A session with each shell: a PATH without bash makes it sh."""
    variables = {}
    if request.param == "sh":
        (folder / "tools").mkdir()
        for tool in TOOLS:
            (folder / "tools" / tool).symlink_to(str(shutil.which(tool)))
        variables = {"PATH": str(folder / "tools")}
    fleet = make_fleet(readable=(folder / "tools",) if variables else ())
    async with fleet, await fleet.lease("me") as sandbox, await sandbox.session(variables=variables) as session:
        assert session.shell == request.param
        yield session


async def said(session: Session, command: str, timeout_s: float = 20.0) -> bytes:
    """What a command that succeeds prints."""
    return (await session.run(command, timeout_s)).check().stdout


async def test_folder_variables_and_functions_stay(session: Session) -> None:
    await said(session, "mkdir -p deep/er && cd deep/er")
    await said(session, "plain='a b'; export OUT=1\nf() { echo f $1; }")
    assert (
        await said(session, "echo ${PWD##*work/} $plain; f x; sh -c 'echo [$OUT$plain]'")
    ) == b"deep/er a b\nf x\n[1]\n"


async def test_exit_codes_and_both_streams_are_told(session: Session) -> None:
    done = await session.run("echo out; echo err >&2; (exit 5)")
    assert (done.exit_code, done.stdout, done.stderr) == (5, b"out\n", b"err\n")
    assert await said(session, "echo $?") == b"5\n"
    assert await said(session, "exec 2>&1") == b""
    assert await said(session, "echo one; echo two >&2; echo three") == b"one\ntwo\nthree\n"


async def test_heredocs_and_many_lines_are_one_command(session: Session) -> None:
    command = "X=1\ncat <<'END'\n$X 'quote\nEND\nfor i in 1 2; do\n  echo $i\ndone\ncat <<END | tr a-z A-Z\nx$X\nEND"
    assert await said(session, command) == b"$X 'quote\n1\n2\nX1\n"


@pytest.mark.parametrize(
    "text", ["echo 'open", 'echo "open', "if true; then", "cat <<END\nnever ended", ")", "f() {", "$(("]
)
async def test_a_command_that_is_no_command_says_so_and_leaves_the_session(session: Session, text: str) -> None:
    await said(session, "X=kept")
    done = await session.run(text)
    assert done.exit_code != 0 or b"never ended" in done.stdout
    assert await said(session, "echo $X") == b"kept\n"
    assert await said(session, "echo again") == b"again\n"


async def test_readers_get_an_end_of_file(session: Session) -> None:
    assert await said(session, "read line; echo [$line]; cat; wc -c") == b"[]\n0\n"


async def test_background_children_do_not_hold_the_answer_and_live_on(session: Session) -> None:
    assert await said(session, "sleep 1000 & child=$!; echo started") == b"started\n"
    await said(session, "kill -0 $child")
    done = await session.run("sleep 1000", timeout_s=0.2)
    assert done.timed_out
    await said(session, "kill -0 $child")


async def test_what_the_background_prints_in_between_comes_with_the_next_run(session: Session) -> None:
    await said(session, "(until [ -e go ]; do sleep 0.01; done; echo late; touch over) &")
    assert await said(session, "touch go; until [ -e over ]; do sleep 0.01; done; echo now") == b"late\nnow\n"


async def test_a_deadline_ends_what_ran_and_keeps_what_was_set(session: Session) -> None:
    await said(session, "before=1; mkdir -p there")
    hidden = "(setsid env -i sleep 1234 </dev/null >/dev/null 2>&1 &)"
    assert await said(session, "sleep 1233 & until grep -lzx 123[3] /proc/[0-9]*/cmdline; do :; done") != b""
    done = await session.run(f"cd there; during=2; {hidden}; echo partial; sleep 1000; echo never; touch never", 0.5)
    assert (done.timed_out, done.stdout) == (True, b"partial\n")
    assert await said(session, "echo $before $during; ls; env pwd | grep -o there") == b"1 2\nthere\n"
    assert (await session.run("grep -lzx 123[4] /proc/[0-9]*/cmdline")).stdout == b""


@pytest.mark.parametrize("command", ["while :; do :; done", "trap '' 2 15 42; while :; do :; done", "echo > pipe"])
async def test_a_shell_that_hangs_itself_is_replaced(session: Session, sandbox: LeasedSandbox, command: str) -> None:
    await session._sandbox.request("exec", {"argv": ["mkfifo", "pipe"]})  # type: ignore[attr-defined]
    await said(session, "X=kept; mkdir -p d; cd d; ln -s ../pipe . 2>/dev/null || true")
    await said(session, "cd ..")
    assert (await session.run(command, timeout_s=0.3)).timed_out
    assert await said(session, "echo $X; env pwd | grep -o 'work$'") == b"kept\nwork\n"


async def test_functions_arrays_and_options_survive_a_deadline(sandbox: LeasedSandbox) -> None:
    async with await sandbox.session() as session:
        await said(
            session,
            "f() { echo f; }; declare -A map=([a]='x y'); list=(1 '2 3'); shopt -s extglob nullglob; set -- p 'q r'",
        )
        await said(session, "alias say=echo; trap 'echo usr1' USR1; umask 027; readonly R=1; declare -i n=4")
        assert (await session.run("sleep 1000", timeout_s=0.2)).timed_out
        text = await said(
            session,
            'f; echo "${map[a]}|${list[1]}|$2|$R"; n=n+1; echo $n; umask; shopt -q extglob; alias say; kill -USR1 $$',
        )
        assert text == b"f\nx y|2 3|q r|1\n5\n0027\nalias say='echo'\nusr1\n"


async def test_an_interrupt_lets_programs_clean_up(sandbox: LeasedSandbox) -> None:
    async with await sandbox.session() as session:
        script = (
            b"import time\ntry: open('up', 'w').close(); time.sleep(1000)\nexcept KeyboardInterrupt: print('cleaned')"
        )
        await sandbox.write("clean.py", script)
        running = asyncio.create_task(session.run(f"{sandbox.python[0]} clean.py; echo never", timeout_s=1000))
        (await sandbox.exec("until [ -e up ]; do sleep 0.01; done")).check()
        assert await session.interrupt()
        done = await running
        assert (done.interrupted, done.timed_out, done.stdout) == (True, False, b"cleaned\n")
        assert not await session.interrupt()
        assert await said(session, "echo on") == b"on\n"


async def test_an_interrupt_ends_what_ignores_it(session: Session) -> None:
    await said(session, "sleep 1000 & earlier=$!")
    ignoring = "(trap '' INT; sleep 4444 & touch up; sleep 1) & until [ -e up ]; do sleep 0.01; done; sleep 1000"
    running = asyncio.create_task(session.run(ignoring, timeout_s=1000))
    await session._sandbox.request("exec", {"argv": ["sh", "-c", "until [ -e up ]; do sleep 0.01; done"]})
    assert await session.interrupt()
    assert (await running).interrupted
    assert (await session.run("kill -0 $earlier && ! grep -lzx 444[4] /proc/[0-9]*/cmdline")).exit_code == 0


async def test_set_e_ends_the_run_and_not_the_session(session: Session) -> None:
    done = await session.run("set -e; X=1; false; echo never")
    assert (done.exit_code, done.stdout) == (1, b"")
    assert await said(session, "echo $X") == b"1\n"
    done = await session.run("echo first; (exit 7); echo never")
    assert (done.exit_code, done.stdout) == (7, b"first\n")
    assert await said(session, "set +e; false; echo $X") == b"1\n"


async def test_exit_ends_the_session_with_its_code(session: Session) -> None:
    await said(session, "(exit 4) || true; sh -c 'exit 5' || true")
    with pytest.raises(SessionEnded, match="bye") as caught:
        await session.run("sleep 1000 & echo bye; exit 3")
    assert caught.value.exit_code == 3
    with pytest.raises(SessionEnded, match="no session"):
        await session.run("true")
    await session.close()


async def test_a_shell_that_kills_itself_ends_its_session(session: Session) -> None:
    with pytest.raises(SessionEnded):
        await session.run("kill -9 $$")


async def test_long_output_is_capped_and_binary_output_is_unchanged(session: Session) -> None:
    done = await session.run("seq 1 200000", output_bytes=1000)
    assert (done.stdout[:4], done.stdout[-7:], len(done.stdout)) == (b"1\n2\n", b"200000\n", 1000)
    assert done.stdout_cut_bytes == sum(len(str(n)) + 1 for n in range(1, 200001)) - 1000
    assert (await session.run("yes", timeout_s=0.3, output_bytes=100)).stdout_cut_bytes > 1 << 20
    assert await said(session, r"printf '\377\000\200'") == b"\xff\x00\x80"


async def test_nothing_that_a_command_prints_is_taken_for_its_end(session: Session) -> None:
    forge = r"for fd in /proc/self/fd/*; do printf 'done x 0\0done 1 0\0' >$fd; done 2>/dev/null; sleep 0.1; exit 9"
    done = await session.run(f"sh <<'END'\n{forge}\nEND")
    assert done.exit_code == 9
    assert done.wall_s > 0.1
    assert await said(session, "echo on") == b"on\n"


async def test_sessions_are_independent(sandbox: LeasedSandbox) -> None:
    sessions = [await sandbox.session(f"s{n}", variables={"N": str(n)}) for n in range(8)]
    with pytest.raises(SessionBusy):
        await sandbox.session("s1")
    slow = asyncio.create_task(sessions[0].run("sleep 1000", timeout_s=1000))
    results = await asyncio.gather(*(session.run("mkdir d$N; cd d$N; echo $N ${PWD##*/}") for session in sessions[1:]))
    assert [result.stdout for result in results] == [b"%d d%d\n" % (n, n) for n in range(1, 8)]
    assert not slow.done()
    await sessions[0].close()
    with pytest.raises(SessionEnded, match="closed"):
        await slow


async def test_closing_ends_everything_a_session_started(sandbox: LeasedSandbox) -> None:
    async with await sandbox.session() as session:
        await said(session, "sleep 4321 & (setsid env -i sleep 4322 &)")
        for started in ("432[1]", "432[2]"):
            (await sandbox.exec(f"until grep -lzx {started} /proc/[0-9]*/cmdline; do :; done", timeout_s=20.0)).check()
    found = (await sandbox.exec("cat /proc/[0-9]*/comm")).stdout.split()
    assert b"sleep" not in found


async def test_what_cannot_be_opened_says_why(sandbox: LeasedSandbox) -> None:
    from rocknroll.sandbox.agent.state import MAX_SESSIONS

    with pytest.raises(ExecFailed, match="No such file"):
        await sandbox.session(cwd="/no/such/folder")
    for _ in range(MAX_SESSIONS):
        await sandbox.session()
    with pytest.raises(QuotaExceeded):
        await sandbox.session()


async def test_a_run_costs_about_as_much_as_exec(sandbox: LeasedSandbox) -> None:
    async def median(once: Callable[[], object]) -> float:
        times = []
        for _ in range(50):
            began_s = time.perf_counter()
            await once()  # type: ignore[misc]
            times.append(time.perf_counter() - began_s)
        return sorted(times)[25]

    async with await sandbox.session() as session:
        run, executed = await median(lambda: session.run("true")), await median(lambda: sandbox.exec("true"))
        assert run < 3 * executed
