"""What a container is created with: every flag that keeps a sandbox in, without a daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.runtimes.docker_folder import InstanceFolder
from rocknroll.sandbox.runtimes.docker_options import container, variables
from rocknroll.sandbox.spec import Resources, SandboxSpec

IMAGE: dict[str, Any] = {"Id": "sha256:1", "Config": {"Env": ["PATH=/opt/bin:/bin", "SECRET=image's"]}}
FOLDER = InstanceFolder(Path("/tmp/rock-0-f/01234567"))


def body(image: dict[str, Any] = IMAGE, **fields: Any) -> dict[str, Any]:
    return container(SandboxSpec(image="i", **fields), image, FOLDER, {"a": "b"}, None)


def host(**fields: Any) -> dict[str, Any]:
    config: dict[str, Any] = body(**fields)["HostConfig"]
    return config


def test_every_container_is_closed_in() -> None:
    config = host()
    assert config["CapDrop"] == ["ALL"]
    assert config["SecurityOpt"] == ["no-new-privileges"]
    assert config["NetworkMode"] == "none"
    assert config["ReadonlyRootfs"] is True
    assert config["LogConfig"]["Type"] == "none"
    assert config["IpcMode"] == "private"
    assert config["Privileged"] is False
    assert config["Memory"] == config["MemorySwap"] == 2 << 30
    assert config["PidsLimit"] == 512
    assert config["NanoCpus"] == 1_000_000_000


def test_the_agent_is_the_first_process_whatever_the_image_says() -> None:
    made = body({**IMAGE, "Config": {"Entrypoint": ["/evil"], "User": "7", "Healthcheck": {"Test": ["CMD", "x"]}}})
    assert made["Entrypoint"][:3] == ["python3", "-I", "-S"]
    assert (made["Cmd"], made["User"], made["Healthcheck"]) == ([], "0:0", {"Test": ["NONE"]})


def test_the_agent_may_become_the_user_kill_and_rank_first_and_nothing_else() -> None:
    assert host()["CapAdd"] == ["SETUID", "SETGID", "KILL", "SYS_NICE"]
    assert host(user="root")["CapAdd"] == []


def test_only_memory_backed_folders_of_limited_size_are_writable() -> None:
    config = host(resources=Resources(scratch_bytes=1 << 20, work_bytes=2 << 20), workdir="/testbed", user="7:8")
    assert set(config["Tmpfs"]) == {"/rock", "/tmp", "/testbed"}
    assert config["Tmpfs"]["/testbed"] == "rw,nosuid,nodev,exec,size=2097152,mode=0755,uid=7,gid=8"
    assert all("nosuid,nodev" in options and "size=" in options for options in config["Tmpfs"].values())
    assert config["ShmSize"] == 1 << 20
    writable = [mount["Target"] for mount in config["Mounts"] if not mount["ReadOnly"]]
    assert writable == ["/rock/run"]


def test_what_is_readable_is_mounted_read_only_without_what_lies_below(tmp_path: Path) -> None:
    mount = next(each for each in host(readable=(tmp_path,))["Mounts"] if each["Target"] == str(tmp_path))
    assert mount["ReadOnly"] and mount["BindOptions"]["NonRecursive"]


def test_limits_of_files_are_those_of_the_specification() -> None:
    limits = {each["Name"]: each["Hard"] for each in host(resources=Resources(open_files=64, file_bytes=9))["Ulimits"]}
    assert limits == {"nofile": 64, "core": 0, "fsize": 9}


def test_a_writable_root_has_no_memory_backed_folders_but_those_of_docker() -> None:
    config = host(writable_root=True)
    assert config["ReadonlyRootfs"] is False
    assert set(config["Tmpfs"]) == {"/rock"}


def test_variables_are_the_images_then_ours_then_the_specifications() -> None:
    spec = SandboxSpec(image="i", variables={"PATH": "/mine"})
    assert variables(spec, IMAGE, "box-0.1") == {
        "LANG": "C.UTF-8",
        "SECRET": "image's",
        "HOME": "/work",
        "ROCKNROLL_SANDBOX": "box-0.1",
        "PATH": "/mine",
    }


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"network": "host"}, "process runtime"),
        ({"user": "0:0"}, "write root"),
        ({"workdir": "/"}, "below /"),
        ({"workdir": "/srv/../etc"}, "plain absolute path"),
        ({"workdir": "/proc/1"}, "needs itself"),
        ({"workdir": "/rock"}, "needs itself"),
        ({"readable": (Path("/no/such"),)}, "there is no /no/such"),
        ({"readable": (Path("/proc"),)}, "would hide"),
        ({"resources": Resources(memory_bytes=512 << 20)}, "Raise memory_bytes"),
        ({"resources": Resources(memory_bytes=200 << 20), "writable_root": True}, "Raise memory_bytes"),
    ],
)
def test_a_specification_that_cannot_hold_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SpecInvalid, match=text):
        body(**fields)


def test_an_image_with_volumes_needs_a_writable_root() -> None:
    image = {"Id": "sha256:1", "Config": {"Volumes": {"/data": {}}}}
    with pytest.raises(SpecInvalid, match="/data"):
        body(image)
    assert body(image, writable_root=True)["Image"] == "sha256:1"
