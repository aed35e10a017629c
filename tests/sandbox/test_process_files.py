"""The working directory of process sandboxes: bounded, and over a template that never changes."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from rocknroll.sandbox.channel import Channel
from rocknroll.sandbox.errors import RuntimeUnavailable, SpecInvalid, StartFailed
from rocknroll.sandbox.fleet import Fleet
from rocknroll.sandbox.runtimes.process import ProcessRuntime
from rocknroll.sandbox.spec import Resources, SandboxSpec

pytestmark = pytest.mark.asyncio
MakeFleet = Callable[..., Fleet]
WAYS = ["overlay in memory", "overlay on disk", "copy in memory", "bubblewrap", "plain"]


def content(folder: Path) -> dict[str, tuple[int, str]]:
    """Everything in a folder: mode, and text or target."""
    found = {}
    for path in sorted(folder.rglob("*")):
        text = str(path.readlink()) if path.is_symlink() else "" if path.is_dir() else path.read_text()
        found[str(path.relative_to(folder))] = (path.lstat().st_mode, text)
    return found


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "a template: with, odd name"
    (path / "deep" / "er").mkdir(parents=True)
    (path / "kept").write_text("as it was")
    (path / "gone").write_text("to be removed")
    (path / "moved").write_text("to be renamed")
    (path / "deep" / "er" / "file").write_text("below")
    (path / "script").write_text("#!/bin/sh\necho ran\n")
    (path / "script").chmod(0o755)
    (path / "link").symlink_to("deep/er/file")
    return path


@pytest_asyncio.fixture
async def way(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[tuple[ProcessRuntime, bool]]:
    """A runtime that makes working directories in one of the ways, and whether the spec asks for disk."""
    name = str(request.param)
    level = {"bubblewrap": "bubblewrap", "plain": "plain"}.get(name, "namespaces")
    runtime = ProcessRuntime(level, folder=folder)  # type: ignore[arg-type]
    try:
        grants = await runtime.grants()
    except RuntimeUnavailable as refused:
        await runtime.close()
        pytest.skip(str(refused))
    if name.startswith("copy"):
        runtime._grants = replace(grants, overlay_refused="as on a kernel without it")
    elif name.startswith("overlay"):
        assert grants.overlay, grants.overlay_refused
    yield runtime, name.endswith("disk")
    await runtime.close()


@pytest.mark.parametrize("way", WAYS, indirect=True)
async def test_a_template_is_seen_changed_at_will_and_stays_as_it_was(
    way: tuple[ProcessRuntime, bool], template: Path
) -> None:
    before = content(template)
    runtime, on_disk = way
    spec = SandboxSpec(template=template, writable_root=on_disk, reuse="fresh")
    async with Fleet(spec, 1, runtime, owns_runtime=False) as fleet:
        for _ in range(2):
            async with await fleet.lease("me") as sandbox:

                async def shell(command: str) -> str:
                    done = await sandbox.exec(command)
                    return done.check().stdout.decode()

                assert await shell("cat kept link; ./script") == "as it wasbelowran\n"
                assert await shell("echo changed > kept; echo more >> deep/er/file; cat kept deep/er/file") == (
                    "changed\nbelowmore\n"
                )
                assert await shell("rm gone; ls gone 2>/dev/null || echo absent") == "absent\n"
                assert (
                    await shell("echo again > gone; cat gone; rm gone; ls")
                    == "again\ndeep\nkept\nlink\nmoved\nscript\n"
                )
                assert await shell("mv moved elsewhere; cat elsewhere; ls moved 2>/dev/null || echo absent") == (
                    "to be renamedabsent\n"
                )
                assert await shell("mv deep shallow; cat shallow/er/file; ls deep 2>/dev/null || echo absent") == (
                    "belowmore\nabsent\n"
                )
                assert await shell("rm -r shallow; mkdir shallow; ls -A shallow") == ""
                assert await shell("find . -exec touch {} +; chmod 600 script; ln kept hard; cat hard") == "changed\n"
            assert content(template) == before


@pytest.mark.parametrize("way", WAYS[:3], indirect=True)
async def test_two_sandboxes_over_one_template_do_not_see_each_other(
    way: tuple[ProcessRuntime, bool], template: Path
) -> None:
    runtime, on_disk = way
    async with Fleet(SandboxSpec(template=template, writable_root=on_disk), 2, runtime, owns_runtime=False) as fleet:
        first, second = await fleet.lease("first"), await fleet.lease("second")
        await first.write("kept", b"mine")
        assert await second.read("kept") == b"as it was"


@pytest.mark.parametrize("way", ["overlay in memory", "copy in memory", "bubblewrap"], indirect=True)
@pytest.mark.parametrize("with_template", [True, False], ids=["template", "empty"])
async def test_a_working_directory_in_memory_holds_work_bytes_and_no_more(
    way: tuple[ProcessRuntime, bool], template: Path, with_template: bool
) -> None:
    runtime, _ = way
    on_disk = with_template and (await runtime.grants()).level == "bubblewrap"
    resources = Resources(work_bytes=1 << 20, scratch_bytes=1 << 20)
    spec = SandboxSpec(resources=resources, template=template if with_template else None)
    async with Fleet(spec, 1, runtime, owns_runtime=False) as fleet, await fleet.lease("me") as sandbox:
        done = await sandbox.exec("head -c 3000000 /dev/zero > big; stat -c %s big")
        assert (int(done.stdout) <= 1 << 20) is not on_disk
        await sandbox.exec("rm big")
        done = await sandbox.exec("i=0; while [ $i -lt 3000 ] && true > f$i; do i=$((i+1)); done; ls | wc -l")
        # bubblewrap cannot limit the number of files; their memory counts for the sandbox all the same.
        assert (int(done.stdout) < 2000) is ((await runtime.grants()).level == "namespaces")
        for path in ("/tmp", "/dev/shm"):
            done = await sandbox.exec(f"head -c 3000000 /dev/zero > {path}/big; stat -c %s {path}/big")
            assert int(done.stdout) <= 1 << 20
        assert (await sandbox.exec("echo alive")).stdout == b"alive\n"


async def test_a_writable_root_puts_the_working_directory_on_disk(make_fleet: MakeFleet, folder: Path) -> None:
    async with make_fleet(writable_root=True) as fleet, await fleet.lease("me") as sandbox:
        await sandbox.write("file", b"on disk")
        (found,) = (path for path in folder.rglob("file") if path.parent.name == "work")
        assert found.read_text() == "on disk"


@pytest.mark.parametrize("way", ["copy in memory", "bubblewrap", "plain"], indirect=True)
async def test_what_cannot_be_copied_is_named(way: tuple[ProcessRuntime, bool], template: Path) -> None:
    os.mkfifo(template / "pipe")
    runtime, _ = way
    with pytest.raises(StartFailed, match="pipe is no file, folder or link"):
        await runtime.start(SandboxSpec(template=template), "box", floor=0)


@pytest.mark.parametrize("way", ["copy in memory"], indirect=True)
async def test_a_template_that_does_not_fit_fails_the_start_with_the_reason(
    way: tuple[ProcessRuntime, bool], template: Path, folder: Path
) -> None:
    (template / "big").write_bytes(bytes(1 << 21))
    runtime, _ = way
    spec = SandboxSpec(template=template, resources=Resources(work_bytes=1 << 20))
    with pytest.raises(StartFailed, match="No space left"):
        await runtime.start(spec, "box", floor=0)
    assert [path for path in folder.glob("*/*") if path.name.isdigit()] == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (SandboxSpec(template=Path("/no/such/folder")), "not a folder"),
        (SandboxSpec(image="debian"), "no images"),
        (SandboxSpec(network="bridge"), "is Docker's"),
        (SandboxSpec(resources=Resources(memory_bytes=1 << 28)), "leave nothing for commands"),
    ],
)
async def test_a_specification_that_can_never_work_is_refused(folder: Path, spec: SandboxSpec, says: str) -> None:
    runtime = ProcessRuntime(folder=folder)
    with pytest.raises(SpecInvalid, match=says):
        await runtime.start(spec, "box", floor=0)
    await runtime.close()


async def test_the_agent_serves_in_the_overlay(folder: Path, template: Path) -> None:
    runtime = ProcessRuntime(folder=folder)
    instance = await runtime.start(SandboxSpec(template=template), "box", floor=0)
    channel = await Channel.connect(instance.socket_path, instance.secret, timeout_s=30.0)
    _, data = await channel.request("read", {"path": "deep/er/file", "token": 0})
    assert data == b"below"
    channel.close()
    await runtime.close()
