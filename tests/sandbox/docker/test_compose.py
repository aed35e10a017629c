"""compose.yaml: nothing in it is open or privileged, and its services do together what they are for."""

from __future__ import annotations

import json
import os
import signal
import urllib.parse
import urllib.request
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import docker
import pytest
from composing import PROMETHEUS, composed, configuration, eventually, last_json

from rocknroll.sandbox.client import Client
from rocknroll.sandbox.errors import Unauthenticated
from rocknroll.sandbox.runtimes.docker_options import FLEET
from rocknroll.sandbox.spec import DEFAULT_IMAGE

SERVICES = {"rock", "ray", "roll", "tensorboard", "prometheus", "vllm", "engine"}
DOCKER_SOCKET = "/var/run/docker.sock"
SMOKE = (
    "alfworld-smoke env.config.train_games=24 env.config.seen_games=6 env.config.unseen_games=6 warmstart.games=24"
    " warmstart.epochs=2 learner.iterations=2 eval.episodes=6 eval.every=0 sandbox.count=4 rollout.num_groups=2"
    " engine.slots=4 --json"
)
"""The smoke recipe, smaller still."""


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return configuration()


def open_to_attack(config: dict[str, Any]) -> set[str]:
    """What is wrong with which service, as `service: fault`."""
    return {f"{name}: {fault}" for name, service in config["services"].items() for fault in faults(name, service)}


def faults(name: str, service: dict[str, Any]) -> list[str]:
    found = {
        "privileged": bool(service.get("privileged")),
        "capabilities": service.get("cap_drop") != ["ALL"] or bool(service.get("cap_add")),
        "new privileges": "no-new-privileges:true" not in service.get("security_opt", ()),
        "writable root": not service.get("read_only"),
        "host network": service.get("network_mode") == "host",
        "published": any(not on_loopback(port) for port in service.get("ports", ())),
        "no health check": not service.get("healthcheck", {}).get("test") or service["healthcheck"].get("disable"),
        "Docker socket": name != "rock" and DOCKER_SOCKET in json.dumps(service.get("volumes", ())),
        "host processes": name != "rock" and service.get("pid") == "host",
    }
    return [fault for fault, present in found.items() if present]


def on_loopback(port: str | dict[str, Any]) -> bool:
    return port.startswith("127.0.0.1:") if isinstance(port, str) else port.get("host_ip") == "127.0.0.1"


def test_no_service_is_privileged_published_beyond_loopback_or_unchecked(described: dict[str, Any]) -> None:
    assert described["services"].keys() == SERVICES
    assert open_to_attack(described) == set()
    assert not any(described["services"][name].get("ports") for name in ("ray", "engine"))


@pytest.mark.parametrize(
    ("service", "change", "fault"),
    [
        ("rock", {"privileged": True}, "privileged"),
        ("roll", {"cap_add": ["SYS_ADMIN"]}, "capabilities"),
        ("ray", {"security_opt": []}, "new privileges"),
        ("roll", {"read_only": False}, "writable root"),
        ("vllm", {"network_mode": "host"}, "host network"),
        ("prometheus", {"ports": ["9090:9090/tcp"]}, "published"),
        ("rock", {"ports": [{"target": 8700, "published": "8700"}]}, "published"),
        ("tensorboard", {"healthcheck": {"disable": True}}, "no health check"),
        ("roll", {"volumes": [f"{DOCKER_SOCKET}:{DOCKER_SOCKET}"]}, "Docker socket"),
        ("ray", {"pid": "host"}, "host processes"),
    ],
)
def test_a_service_that_opens_up_is_noticed(
    described: dict[str, Any], service: str, change: dict[str, Any], fault: str
) -> None:
    changed = deepcopy(described)
    changed["services"][service].update(change)
    assert open_to_attack(changed) == {f"{service}: {fault}"}


def test_a_composed_manager_leases_containers_is_scraped_and_takes_over_after_a_kill(
    client: docker.APIClient, host_folder: Path
) -> None:
    with composed(host_folder, client, PROMETHEUS, DEFAULT_IMAGE) as project:
        project.run("up", "--detach", "--no-build", "rock", "prometheus")
        url = project.url("rock", 8700)
        with Client(url) as stranger, pytest.raises(Unauthenticated):
            stranger.snapshot()
        with Client(url, project.token("operate")) as rock:
            rock.wait_ready(120)
            with rock.lease("default", owner="test", ttl_s=300) as sandbox:
                said = sandbox.exec("id -u && echo written > here && cat here").check().stdout
                assert said.split() == [b"1000", b"written"]
                query = ask(project.url("prometheus", 9090))
                assert eventually(lambda: query('rock_leases{pool="default"}')) == [1.0]
                assert query('up{job="rock"}') == [1.0]
                assert query('sum(rock_sandboxes{pool="default",state="READY"})') == [3.0]

                manager = project.inspect("rock")["State"]["Pid"]
                os.kill(manager, signal.SIGKILL)
                eventually(lambda: project.inspect("rock")["State"]["Pid"] not in (0, manager))
                project.await_health("rock")
                assert sandbox.exec("cat here").check().stdout == b"written\n"
        project.await_health("rock", "prometheus")
        assert project.inspect("rock")["Config"]["User"].split(":")[0] != "0"
        fleet_id = fleet_of(client, host_folder)
        project.run("stop", "rock")
        assert client.containers(all=True, filters={"label": f"{FLEET}={fleet_id}"}) == []


def fleet_of(client: docker.APIClient, folder: Path) -> str:
    """The id of the fleet whose sandboxes have their folders here."""
    (found,) = {
        each["Labels"][FLEET]
        for each in client.containers(filters={"label": FLEET})
        if str(folder) in json.dumps(each["Labels"])
    }
    return found


def ask(url: str) -> Callable[[str], list[float]]:
    """Values of an instant query to Prometheus; none while it does not know the metric."""

    def query(expression: str) -> list[float]:
        asked = f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return [float(each["value"][1]) for each in json.load(answer)["data"]["result"]]

    return query


def test_a_composed_run_trains_and_is_shown_beside_a_ray_head(client: docker.APIClient, host_folder: Path) -> None:
    with composed(host_folder, client) as project:
        project.run("up", "--detach", "--no-build", "ray", "tensorboard")
        result = last_json(project.run("run", "--rm", "-T", "roll", "roll", "train", *SMOKE.split()))
        assert result["episodes"] == 16
        project.await_health("ray", "tensorboard")
        with urllib.request.urlopen(f"{project.url('tensorboard', 6006)}/data/runs", timeout=30) as answer:
            assert f"{Path(result['run']).name}/tensorboard" in json.load(answer)
        project.run("run", "--rm", "-T", "roll", "ray", "health-check", "--address", "ray:6379")
