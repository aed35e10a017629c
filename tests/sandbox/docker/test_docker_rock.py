"""`rock` on containers: up, work, snapshots, a killed manager, and down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from containers import BASE
from rocking import Rock

from rocknroll.sandbox.cli.exit_codes import ExitCode
from rocknroll.sandbox.runtimes.docker_options import FLEET
from rocknroll.sandbox.store import Store

POOLS = f"""
pools:
  box: {{runtime: docker, image: "{BASE}", size: 1, writable_root: true, reuse: reset, start_timeout_s: 120}}
  bare: {{size: 1}}
"""


@pytest.fixture
def rock(client: docker.APIClient, host_folder: Path) -> Iterator[Rock]:
    """A fleet of one container and one process."""
    rock = Rock(host_folder / "s")
    (host_folder / "fleet.yaml").write_text(POOLS)
    up(rock)
    store = Store(rock.state.store)
    fleet_id = store.fleet_id
    store.close()
    yield rock
    assert rock("down").returncode == 0
    assert client.containers(all=True, filters={"label": f"{FLEET}={fleet_id}"}) == []
    assert not rock.state.run.exists()


def up(rock: Rock) -> None:
    done = rock("up", "-f", str(rock.state.path.parent / "fleet.yaml"), "--wait")
    assert done.returncode == 0, done.stderr


def test_a_container_is_used_as_any_sandbox(rock: Rock, client: docker.APIClient, tmp_path: Path) -> None:
    rows = {row["id"]: (row["runtime"], row["image"], row["state"]) for row in rock.json("ps")["sandboxes"]}
    assert rows == {"box-0": ("docker", BASE, "READY"), "bare-0": ("process", None, "READY")}
    assert rock("exec", "box-0", "--", "sh", "-c", "id -u; exit 7").returncode == 7
    (tmp_path / "file").write_text("here")
    assert rock("cp", str(tmp_path / "file"), "box-0:file").returncode == 0
    assert rock("shell", "box-0", stdin=b"cat file; exit 3\n").stdout == "here"

    tag = "rock-test-commit:latest"
    assert rock.json("image", "commit", "box-0", tag)["image"].startswith("sha256:")
    assert [image["made_by"] for image in rock.json("image", "list")["images"] if tag in image["tags"]] == ["snapshot"]
    client.remove_image(tag, force=True)
    refused = rock("image", "commit", "bare-0", tag)
    assert refused.returncode == ExitCode.SPEC and "has no images" in refused.stderr


def test_gc_leaves_what_a_successor_goes_on_with(rock: Rock) -> None:
    (before,) = [row["pid"] for row in rock.json("ps", "--pool", "box")["sandboxes"]]
    rock.kill_manager()
    ours = Store(rock.state.store).fleet_id
    assert not [name for name in rock.json("gc", "--dry-run")["containers"] if ours in name]
    assert [name for name in rock.json("gc", "--dry-run", "--running")["containers"] if ours in name]
    up(rock)
    (after,) = [row["pid"] for row in rock.json("ps", "--pool", "box")["sandboxes"]]
    assert after == before
    assert not [name for name in rock.json("gc", "--dry-run", "--running")["containers"] if ours in name]


def test_down_removes_the_containers_of_a_killed_manager(rock: Rock) -> None:
    rock.kill_manager()
    assert {name.rpartition(".")[0] for name in rock.json("down")["instances"]} == {"box-0", "bare-0"}
