"""Files and folders in and out: of any size, never half written, never outside the roots, owned by the user."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import resource
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from alone import Client, running_agent

from rocknroll.sandbox.agent.archive import Unpacker, pack
from rocknroll.sandbox.agent.frames import Refused
from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import FileFailed, PathEscapes, QuotaExceeded
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.leased import LeasedSandbox

MakeFleet = Callable[..., Fleet]
PIECE = os.urandom(1 << 20)

# Exchanges a folder for a link to another one, and a file for a link to another one, as fast as the kernel can.
FLIP = """
import ctypes, os, sys
work, outside = (os.fsencode(path) for path in sys.argv[1:])
os.symlink(outside, work + b'/folder-link')
os.symlink(outside + b'/file', work + b'/file-link')
exchange = ctypes.CDLL(None).renameat2
while True:
    for _ in range(100):
        assert exchange(-100, work + b'/door', -100, work + b'/folder-link', 2) == 0
    exchange(-100, work + b'/door', -100, work + b'/folder-link', 2)
    for _ in range(101):
        assert exchange(-100, work + b'/file', -100, work + b'/file-link', 2) == 0
"""


@pytest_asyncio.fixture
async def sandbox(make_fleet: MakeFleet) -> AsyncIterator[LeasedSandbox]:
    async with make_fleet() as fleet, await fleet.lease("me") as sandbox:
        yield sandbox


@pytest.fixture
def rooted(folder: Path) -> Iterator[Client]:
    """A client of an agent that may only touch its working directory; `folder/secret` lies outside."""
    (folder / "secret").write_text("mine")
    with running_agent(folder, roots=[str(folder / "work")]) as path:
        client = Client(path)
        yield client
        client.close()


@pytest.mark.asyncio
async def test_files_larger_than_a_frame_stream_both_ways(sandbox: LeasedSandbox) -> None:
    sent, got = hashlib.sha256(), hashlib.sha256()

    def source() -> Iterator[bytes]:
        for size in (1, 1 << 20, 100, *([777_777] * 60)):
            sent.update(PIECE[:size])
            yield PIECE[:size]

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = await sandbox.write_from("big", source(), mode=0o640)
    assert await sandbox.read_to("big", got.update) == size > 2 * (1 << 24)
    assert got.hexdigest() == sent.hexdigest()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 << 10  # KiB
    assert (await sandbox.stat("big")).mode == 0o640


@pytest.mark.asyncio
async def test_readers_see_the_old_file_until_the_new_one_is_complete(sandbox: LeasedSandbox) -> None:
    await sandbox.write("file", b"old", mode=0o755)
    arrived = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield bytes(3 << 20)
        assert await sandbox.read("file") == b"old"
        arrived.set()
        raise ConnectionError("the source broke")

    with pytest.raises(ConnectionError):
        await sandbox.write_from("file", source())
    assert arrived.is_set()
    assert await sandbox.read("file") == b"old"
    assert (await sandbox.exec("ls -A")).stdout == b"file\n"
    await sandbox.write("file", b"new")
    assert (await sandbox.stat("file")).mode == 0o755


@pytest.mark.asyncio
async def test_a_file_that_is_replaced_while_it_is_read_is_noticed(sandbox: LeasedSandbox) -> None:
    await sandbox.write("file", bytes(5 << 20))

    async def sink(data: bytes) -> None:
        await sandbox.write("file", bytes(5 << 20))

    with pytest.raises(FileFailed, match="replaced"):
        await sandbox.read_to("file", sink)


@pytest.mark.asyncio
async def test_a_lost_client_leaves_no_part_of_a_file(sandbox: LeasedSandbox, folder: Path) -> None:
    with running_agent(folder) as path:
        client = Client(path)
        client.do("write", b"half", path="file", key="k", last=False)
        assert [entry.name for entry in (folder / "work").iterdir()] == [".file.k.part"]
        client.close()
        other = Client(path)
        other.do("exec", argv=["sh", "-c", 'while [ -n "$(ls -A)" ]; do sleep 0.01; done'])
        assert "error" in other.do("write", b"rest", path="file", key="k", offset=4)[0]
        other.close()


@pytest.mark.asyncio
async def test_folders_go_in_and_out_unchanged(sandbox: LeasedSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "sub" / ("long" * 40)).write_bytes(PIECE * 3)
    (source / "sub" / "ümlaut \n").write_text("odd")
    (source / "link").symlink_to("sub/empty")
    (source / "sub" / "up").symlink_to("../run.sh")
    await sandbox.upload(source, "in/here")
    assert (await sandbox.exec("in/here/run.sh")).stdout == b"ran\n"
    await sandbox.download("in/here", tmp_path / "back")
    assert snapshot(tmp_path / "back") == snapshot(source)


def snapshot(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        name, mode = str(path.relative_to(folder)), path.lstat().st_mode
        found[name] = path.readlink() if path.is_symlink() else (mode, path.read_bytes() if path.is_file() else None)
    return found


@pytest.mark.asyncio
async def test_a_folder_that_leads_out_or_is_too_large_does_not_come_out(
    sandbox: LeasedSandbox, tmp_path: Path
) -> None:
    await sandbox.exec(
        "mkdir a b c; ln -s /etc/passwd a/x; ln -s ../../etc b/x; head -c 3000000 /dev/zero > c/x; mkfifo c/p"
    )
    for name in ("a", "b"):
        with pytest.raises(PathEscapes):
            await sandbox.download(name, tmp_path / name)
        assert not (tmp_path / name / "x").is_symlink()
    with pytest.raises(QuotaExceeded):
        await sandbox.download("c", tmp_path / "c", limit_bytes=1 << 20)
    with pytest.raises(FileFailed):
        await sandbox.download("nowhere", tmp_path / "d")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "out").symlink_to("/etc")
    with pytest.raises(PathEscapes):
        await sandbox.upload(tmp_path / "e", "e")


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: bytes = b"", size: int | None = None
) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(data) if size is None else size
    return info.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


@pytest.mark.parametrize(
    "stream",
    [
        member("../out", data=b"x"),
        member("/tmp/rock-out", data=b"x"),
        member("a/../../out", data=b"x"),
        member("link", tarfile.SYMTYPE, "/etc"),
        member("link", tarfile.SYMTYPE, "../x"),
        member("link", tarfile.SYMTYPE, ".") + member("two", tarfile.SYMTYPE, "link/../.."),
        member("d", tarfile.DIRTYPE) + member("link", tarfile.SYMTYPE, "d") + member("link/file", data=b"x"),
        member("hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("device", tarfile.CHRTYPE),
        member("fifo", tarfile.FIFOTYPE),
        member("huge", size=1 << 40),
        member("x" * 100_000, data=b"x"),
        member("/".join("d" * 300), data=b"x"),
        b"\xff" * 512,
        b"no archive at all" * 100,
        member("cut", data=b"x" * 600)[:700],
    ],
)
def test_a_hostile_archive_changes_nothing_outside(tmp_path: Path, stream: bytes) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    folder = os.open(inside, os.O_RDONLY)
    unpacker = Unpacker(folder, limit_bytes=1 << 20, limit_entries=100)
    with pytest.raises((Refused, OSError)):
        feed(unpacker, stream)
    unpacker.close()
    os.close(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert not Path("/tmp/rock-out").exists()
    for path in inside.rglob("*"):
        assert path.resolve().is_relative_to(inside)
        assert not path.is_file() or path.name in ("cut",)


def feed(unpacker: Unpacker, stream: bytes) -> None:
    for at in range(0, len(stream), 100):
        unpacker.feed(stream[at : at + 100])
    unpacker.finish()


def test_what_is_packed_is_a_tar_that_others_read(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ("n" * 150)).write_text("content")
    (tmp_path / "l").symlink_to("d")
    folder = os.open(tmp_path, os.O_RDONLY)
    with tarfile.open(fileobj=io.BytesIO(b"".join(pack(folder)))) as archive:
        assert sorted(archive.getnames()) == ["d", "d/" + "n" * 150, "l"]
        file = archive.extractfile("d/" + "n" * 150)
        assert file is not None and file.read() == b"content"
    os.close(folder)


@pytest.mark.parametrize(
    "path",
    [
        "../secret",
        "{folder}/secret",
        "a/../../secret",
        "absolute",
        "relative",
        "chain",
        "door/secret",
        "/etc/passwd",
        "/",
    ],
)
def test_no_path_leaves_the_roots(rooted: Client, folder: Path, path: str) -> None:
    work = folder / "work"
    (work / "absolute").symlink_to(folder / "secret")
    (work / "relative").symlink_to("../secret")
    (work / "chain").symlink_to("relative")
    (work / "door").symlink_to("..")
    (work / "a").mkdir()
    path = path.format(folder=folder)
    for op, fields in (("read", {}), ("write", {}), ("pack", {"window": 1 << 20}), ("unpack", {"window": 1 << 20})):
        assert rooted.do(op, path=path, **fields)[0]["error"]["kind"] in ("path_escapes", "file_failed")
    if path not in ("absolute", "relative", "chain"):  # of these the link itself is looked at
        assert rooted.do("stat", path=path)[0]["error"]["kind"] == "path_escapes"
    assert (folder / "secret").read_text() == "mine"
    assert sorted(entry.name for entry in folder.iterdir()) == ["s", "secret", "work"]


def test_inside_the_roots_links_and_dots_lead_where_they_should(rooted: Client, folder: Path) -> None:
    work = folder / "work"
    (work / "a" / "b").mkdir(parents=True)
    (work / "a" / "file").write_text("here")
    (work / "absolute").symlink_to(work / "a")
    (work / "relative").symlink_to("a/b/../file")
    (work / "loop").symlink_to("loop")
    for path in ("a/file", "./a//b/../file", "absolute/file", "relative", f"{work}/a/file", "absolute/b/../file"):
        assert rooted.do("read", path=path)[1] == b"here"
    assert rooted.do("write", b"new", path="relative")[0]["size_bytes"] == 3
    assert (work / "a" / "file").read_text() == "new" and (work / "relative").is_symlink()
    assert "ELOOP" in rooted.do("read", path="loop")[0]["error"]["message"]
    assert rooted.do("stat", path="a/..")[0]["kind"] == "folder"
    assert "regular" in rooted.do("write", b"", path="a")[0]["error"]["message"]
    assert "ENOTDIR" in rooted.do("read", path="a/file/x")[0]["error"]["message"]


def test_flipping_links_leads_nobody_out(rooted: Client, folder: Path) -> None:
    outside, door = folder / "outside", folder / "work" / "door"
    outside.mkdir()
    (outside / "file").write_text("secret")
    door.mkdir()
    (door / "file").write_text("harmless")
    (folder / "work" / "file").write_text("harmless")
    flipper = subprocess.Popen([sys.executable, "-c", FLIP, str(folder / "work"), str(outside)])
    outcomes = set()
    try:
        for _ in range(2000):
            for path in ("door/file", "file"):
                header, body = rooted.do("read", path=path)
                assert body in (b"", b"harmless")
                outcomes.add(header.get("error", {}).get("kind", "read"))
            header, _ = rooted.do("write", b"planted", path="door/planted")
            outcomes.add(header.get("error", {}).get("kind", "written"))
    finally:
        flipper.kill()
        flipper.wait()
    assert {"read", "written", "path_escapes"} <= outcomes
    assert [path.name for path in outside.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv (util-linux)")
@pytest.mark.asyncio
async def test_a_root_agent_acts_on_files_and_runs_commands_as_the_user(folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    os.chown(work, 1234, 1235)
    work.chmod(0o700)
    folder.chmod(0o755)
    (folder / "private").write_text("root's")
    (folder / "private").chmod(0o600)
    # As in Docker: a root that may neither pass over file permissions nor give files away.
    capabilities = ("setpriv", "--no-new-privs", "--bounding-set", "-all,+setuid,+setgid,+kill")
    with running_agent(folder, wrapper=capabilities, user="1234:1235") as path:
        client = Client(path)
        assert client.do("write", b"x", path="sub/file")[0]["size_bytes"] == 1
        found = (work / "sub" / "file").stat()
        assert (found.st_uid, found.st_gid) == (1234, 1235)
        assert (work / "sub").stat().st_uid == 1234
        assert client.do("read", path="sub/file")[1] == b"x"
        assert "EACCES" in client.do("read", path=str(folder / "private"))[0]["error"]["message"]
        assert "EACCES" in client.do("write", b"x", path=str(folder / "planted"))[0]["error"]["message"]
        assert client.do("exec", argv=["id", "-u"])[1] == b"1234\n"
        assert client.do("exec", argv=["id", "-G"])[1] == b"1235\n"
        assert client.do("session.open", name="s")[0]["shell"]
        assert client.do("session.run", b"id -u; touch mine; sleep 1000", name="s", timeout_s=1.0)[0]["timed_out"]
        assert client.do("session.run", b"id -u", name="s")[1] == b"1234\n"
        assert (work / "mine").stat().st_uid == 1234
        hidden = "(setsid env -i sleep 5551 &); sleep 1000"
        assert client.do("exec", argv=["sh", "-c", hidden], timeout_s=0.3)[0]["timed_out"]
        left = client.do("exec", argv=["sh", "-c", "grep -lzxs 555[1] /proc/[0-9]*/cmdline"])
        assert left[1] == b""
        agent = client.do("exec", argv=["sh", "-c", "cat /proc/$PPID/environ || kill -9 $PPID"])[0]
        assert agent["exit_code"] != 0
        client.close()
        channel = await Channel.connect(path, "s", 10.0)
        channel.close()
