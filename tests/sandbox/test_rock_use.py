"""`rock exec`, `cp`, `describe` and `logs` on one fleet, and what help costs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from playthings import until
from rocking import COMMAND, Rock

from rocknroll.sandbox.cli.exit_codes import ExitCode
from rocknroll.sandbox.client import Client

FLEET = """
pools:
  box: {size: 3, reuse: reset, command: [sh, -c, "echo ready to serve"]}
  other: {size: 1, variables: {API_KEY: s3cr3t-value}}
"""


@pytest.fixture(scope="module")
def rock() -> Iterator[Rock]:
    """One fleet for all tests here, which leave its sandboxes idle."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        rock = Rock(Path(folder) / "s")
        (Path(folder) / "fleet.yaml").write_text(FLEET)
        assert rock("up", "-f", f"{folder}/fleet.yaml", "--wait").returncode == 0
        yield rock
        assert rock("down").returncode == 0


def test_exec_passes_output_and_exit_code_through(rock: Rock) -> None:
    done = rock("exec", "box-0", "--", "sh", "-c", "echo out; echo err >&2; exit 42")
    assert (done.returncode, done.stdout, done.stderr) == (42, "out\n", "err\n")


def test_exec_gives_stdin_when_asked_to(rock: Rock) -> None:
    done = rock(
        "exec", "-i", "-w", "/", "-e", "NAME=a=b", "box-0", "--", "sh", "-c", "cat; echo $NAME; pwd", stdin=b"in\n"
    )
    assert done.stdout == "in\na=b\n/\n"
    assert rock("exec", "box-0", "--", "cat", stdin=b"not read\n").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--timeout", "0.2", "box-0", "--", "sleep", "50"], ExitCode.KILLED, "Killed at its deadline"),
        (["box-0", "--", "sh", "-c", "kill -9 $$"], 128 + 9, ""),
        (["nothing", "--", "true"], ExitCode.NOT_RUN, "there is no sandbox 'nothing'"),
        (["box", "--", "true"], ExitCode.NOT_RUN, "begins more than one id: box-0, box-1, box-2"),
        (["box-0", "--", "no-such-program"], ExitCode.NOT_RUN, "no-such-program"),
        (["--token", "99999", "box-0", "--", "true"], ExitCode.NOT_RUN, "never given"),
        (["-e", "NAME", "box-0", "--", "true"], ExitCode.USAGE, "NAME=VALUE"),
    ],
    ids=["deadline", "signal", "unknown", "ambiguous", "no program", "no lease", "usage"],
)
def test_exec_tells_its_own_failures_from_those_of_the_command(
    rock: Rock, arguments: list[str], code: int, says: str
) -> None:
    done = rock("exec", *arguments)
    assert done.returncode == code and says in done.stderr, done
    assert "Traceback" not in done.stderr


def test_ids_may_be_shortened(rock: Rock) -> None:
    assert rock("exec", "o", "--", "true").returncode == 0
    assert rock.json("describe", "o")["id"] == "other-0"


def test_output_is_shown_as_it_comes_and_input_sent_as_it_is_typed(rock: Rock) -> None:
    running = subprocess.Popen(
        [*COMMAND, "exec", "-i", "box-0", "--", "cat"],
        env=rock.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    assert running.stdin is not None and running.stdout is not None
    for line in (b"one\n", b"two\n"):
        running.stdin.write(line)
        assert running.stdout.readline() == line
    running.stdin.close()
    assert running.wait(timeout=60) == 0
    running.stdout.close()


def test_a_shell_without_a_terminal_reads_commands(rock: Rock) -> None:
    done = rock("shell", "-w", "/", "box-0", stdin=b"pwd\nX=4\necho $X >&2\nexit $X\n")
    assert (done.returncode, done.stdout, done.stderr) == (4, "/\n", "4\n")
    assert rock("shell", "nothing").returncode == ExitCode.NOT_RUN


def test_a_shell_on_a_terminal_is_one(rock: Rock) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    running = subprocess.Popen(
        [*COMMAND, "shell", "box-0"], env=rock.environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""

    def hear(what: bytes) -> None:
        nonlocal said
        while what not in said:
            said += os.read(ours, 4096)
        said = said.partition(what)[2]

    os.write(ours, b"stty size; tty\n")
    hear(b"33 99\r\n")
    hear(b"/dev/pts/")
    # Said by what is to be interrupted: the shell's own word would come before that has the terminal.
    os.write(ours, b"sh -c 'echo begun; exec sleep 1000'\n")
    hear(b"begun\r\n")
    os.write(ours, b"\x03")  # Ctrl-C ends the command, not the shell
    hear(b"^C")
    hear(b"$ ")
    os.write(ours, b"echo $((6 * 7)); exit 5\n")
    hear(b"42\r\n")
    assert running.wait(timeout=60) == 5
    os.close(ours)


def test_exec_as_json_is_one_object(rock: Rock) -> None:
    done = rock("exec", "--json", "box-0", "--", "sh", "-c", "echo out; exit 3")
    assert done.returncode == 3
    result = json.loads(done.stdout)
    assert (result["exit_code"], result["stdout"], result["timed_out"]) == (3, "out\n", False)


def test_a_held_sandbox_is_used_by_the_token_of_its_lease_alone(rock: Rock) -> None:
    with Client(rock.state.socket) as client, client.lease("box", owner="somebody") as lease:
        refused = rock("exec", lease.id, "--", "true")
        assert refused.returncode == ExitCode.NOT_RUN and "held by somebody" in refused.stderr
        assert rock("exec", lease.id, "--token", str(lease.token), "--", "echo", "mine").stdout == "mine\n"
        assert not lease.lost and lease.exec("true").exit_code == 0
        other = "box-0" if lease.id != "box-0" else "box-1"
        assert "is on " + lease.id in rock("exec", other, "--token", str(lease.token), "--", "true").stderr


def test_a_killed_exec_leaves_no_lease_behind(rock: Rock) -> None:
    running = rock.background("exec", "box-2", "--", "sleep", "1000")
    until(lambda: _lease(rock, "box-2"), "the lease of exec")
    running.kill()
    running.communicate()
    until(lambda: not _lease(rock, "box-2"), "the end of the lease")
    assert "owner_died" in [event["kind"] for event in rock.json("events")["events"] if event["sandbox"] == "box-2"]


def _lease(rock: Rock, sandbox: str) -> bool:
    return rock.json("describe", sandbox)["lease"] is not None


def test_files_are_copied_both_ways(rock: Rock, tmp_path: Path) -> None:
    source, back = tmp_path / "data", tmp_path / "back"
    source.write_bytes(os.urandom(3 << 20))
    source.chmod(0o750)
    assert rock("cp", str(source), "box-0:deep/data").returncode == 0
    assert rock("exec", "box-0", "--", "stat", "-c", "%a %s", "deep/data").stdout == f"750 {3 << 20}\n"
    assert rock("cp", "box-0:deep/data", str(back)).returncode == 0
    assert back.read_bytes() == source.read_bytes() and back.stat().st_mode & 0o777 == 0o750
    (tmp_path / "folder").mkdir()
    assert rock("cp", "box-0:deep/data", str(tmp_path / "folder")).returncode == 0
    assert (tmp_path / "folder" / "data").exists()


def test_folders_are_copied_both_ways(rock: Rock, tmp_path: Path) -> None:
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "deep" / "file").write_text("here")
    assert rock("cp", str(tmp_path / "source"), "box-1:into/").returncode == 0
    assert rock("exec", "box-1", "--", "cat", "into/source/deep/file").stdout == "here"
    (tmp_path / "back").mkdir()
    assert rock("cp", "box-1:into/source", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back" / "source" / "deep" / "file").read_text() == "here"


def test_a_copy_that_fails_leaves_what_was_there(rock: Rock, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    done = rock("cp", "box-0:nothing", str(target))
    assert done.returncode == ExitCode.SANDBOX and "nothing" in done.stderr
    assert target.read_text() == "precious" and list(tmp_path.iterdir()) == [target]
    assert rock("cp", str(tmp_path / "nothing"), "box-0:x").returncode == ExitCode.SANDBOX
    assert rock("cp", "a", "b").returncode == ExitCode.USAGE


def test_a_description_has_what_was_printed_and_hides_variables(rock: Rock) -> None:
    described = rock.json("describe", "other-0")
    assert "s3cr3t-value" not in json.dumps(described)
    assert "API_KEY" in rock("describe", "other-0").stdout
    assert rock("logs", "box-1").returncode == 0
    assert "serving at" in rock("logs").stdout


def test_what_sandboxes_say_cannot_drive_the_terminal(rock: Rock) -> None:
    with Client(rock.state.socket) as client, client.lease("box", owner="evil\x1b[2Jowner"):
        assert "\x1b" not in rock("ps").stdout and "evilowner" in rock("ps").stdout


def test_scaling_adds_and_removes_sandboxes(rock: Rock) -> None:
    assert rock.json("scale", "other", "2")["size"] == 2
    until(lambda: len(rock.json("ps", "--pool", "other")["sandboxes"]) == 2, "two sandboxes")
    assert rock("scale", "other", "1").returncode == 0
    until(lambda: len(rock.json("ps", "--pool", "other")["sandboxes"]) == 1, "one sandbox")
    assert rock("scale", "nothing", "1").returncode == ExitCode.NOT_FOUND


def test_ids_are_completed(rock: Rock) -> None:
    variables = {"_ROCK_COMPLETE": "complete_bash", "COMP_WORDS": "rock exec bo", "COMP_CWORD": "2"}
    assert rock(variables=variables).stdout.split() == ["box-0", "box-1", "box-2"]
    for shell in ("bash", "zsh", "fish"):
        assert "_ROCK_COMPLETE" in rock("completion", shell).stdout
    assert rock("completion", "cmd").returncode == ExitCode.USAGE


# typer itself imports pydantic for the options of a command.
HEAVY = ("torch", "textual", "transformers", "fastapi", "uvicorn", "httpx", "docker", "sqlite3", "asyncio")


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["exec", "--help"], ["image", "build", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    program = f"""
import sys
from rocknroll.sandbox.cli.app import app
try:
    app({arguments!r}, prog_name="rock")
finally:
    print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Usage: rock" in done.stdout
    assert done.stderr == "[]\n"
