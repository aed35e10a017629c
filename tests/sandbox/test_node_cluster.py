"""Which cluster is meant is said, and one that is meant and does not answer is never replaced by this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rocknroll.sandbox import cluster
from rocknroll.sandbox.cluster import ClusterChoice, choose_cluster
from rocknroll.sandbox.errors import ClusterUnavailable
from rocknroll.sandbox.nodes import cluster_runtime
from rocknroll.sandbox.runtimes.ray import check_versions, rooms


@pytest.fixture
def head() -> Iterator[str]:
    """An address where something listens."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """Where `ray start` writes the address of the cluster that it began."""
    return tmp_path


def write(started: Path, address: str) -> None:
    (started / "ray_current_cluster").write_text(address)


def test_without_any_cluster_it_is_this_machine(started: Path) -> None:
    choice = choose_cluster(None, {}, started)
    assert (choice.address, str(choice)) == (
        "",
        "this machine alone is used: no cluster is named or started here",
    )


def test_an_address_in_the_configuration_comes_before_the_variable(started: Path, head: str, nobody: str) -> None:
    choice = choose_cluster(head, {"RAY_ADDRESS": nobody}, started)
    assert str(choice) == f"the Ray cluster at {head} is used: `cluster.address` names it"


def test_the_variable_comes_before_a_cluster_that_was_started_here(started: Path, head: str, nobody: str) -> None:
    write(started, nobody)
    assert str(choose_cluster(None, {"RAY_ADDRESS": head}, started)).endswith("$RAY_ADDRESS names it")


def test_a_cluster_that_was_started_here_is_found(started: Path, head: str) -> None:
    write(started, head)
    for address, variable in ((None, {}), ("auto", {}), (None, {"RAY_ADDRESS": "auto"})):
        assert choose_cluster(address, variable, started) == ClusterChoice(head, "`ray start` began it on this machine")


def test_local_is_this_machine_whatever_else_there_is(started: Path, head: str) -> None:
    write(started, head)
    assert choose_cluster("local", {"RAY_ADDRESS": head}, started).address == ""
    assert choose_cluster(None, {"RAY_ADDRESS": "local"}, started).address == ""


def test_a_cluster_that_has_ended_is_said_to_have(started: Path, nobody: str) -> None:
    write(started, nobody)
    choice = choose_cluster(None, {}, started)
    assert not choice.address and f"{nobody}, which `ray start` began here, has ended" in str(choice)
    with pytest.raises(ClusterUnavailable, match=rf"`auto`, and no Ray cluster .*\(the one at {nobody} has ended\)"):
        choose_cluster("auto", {}, started)


def test_a_cluster_that_is_named_and_does_not_answer_is_an_error(started: Path, head: str, nobody: str) -> None:
    write(started, head)
    with pytest.raises(ClusterUnavailable, match=rf"{nobody} does not answer .*, and \$RAY_ADDRESS names it"):
        choose_cluster(None, {"RAY_ADDRESS": nobody}, started)
    with pytest.raises(ClusterUnavailable, match=rf"{nobody} does not answer .*, and `cluster.address` names it"):
        choose_cluster(nobody, {}, started)


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", ":6379"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ClusterUnavailable, match=r"must be `host:port`"):
        choose_cluster(address, {})
    with pytest.raises(ClusterUnavailable, match=r"\$RAY_ADDRESS is"):
        choose_cluster(None, {"RAY_ADDRESS": address})


def test_an_address_that_another_user_wrote_is_not_followed(
    started: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(started, head)
    if os.getuid() == 0:
        os.chown(started / "ray_current_cluster", 4711, -1)
    else:
        monkeypatch.setattr(cluster.os, "getuid", lambda: 4711)
    assert choose_cluster(None, {}, started).address == ""


def test_a_missing_ray_is_named_with_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(ClusterUnavailable, match=r"Ray is not installed here: pip install 'rocknroll\[ray\]'"):
        cluster_runtime(ClusterChoice("head:6379", "$RAY_ADDRESS names it"))


def test_only_nodes_that_say_so_take_sandboxes_where_any_does() -> None:
    def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
        return {
            "NodeID": name * 6,
            "NodeManagerHostname": "host",
            "NodeManagerAddress": "10.0.0.1",
            "Alive": alive,
            "Resources": resources,
        }

    assert rooms([node("a", CPU=2.0), node("b"), node("c", alive=False, CPU=4.0)]) == [
        ("aaaaaa", "host-aaaaaa", "10.0.0.1", 32)
    ]
    assert [row[1:] for row in rooms([node("a", CPU=2.0), node("b", CPU=1.0, sandboxes=5.0)])] == [
        ("host-bbbbbb", "10.0.0.1", 5)
    ]


def test_equal_versions_pass() -> None:
    same = {"rocknroll": "1", "python": "3.11", "ray": "2"}
    check_versions("a", same, same)
    with pytest.raises(ClusterUnavailable, match=r"node a has python 3.12 \(here 3.11\): install the same"):
        check_versions("a", {**same, "python": "3.12"}, same)
