"""Which accelerators each engine that a run starts gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rocknroll.sandbox.cluster import ClusterChoice
from rocknroll.trainer.engines import devices as devices_module
from rocknroll.trainer.engines.devices import engine_cluster, engine_devices, visible
from rocknroll.trainer.engines.vllm.installation import Installation
from rocknroll.trainer.engines.vllm.server import environment_of
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.recipe import Recipe


def recipe(devices: dict[str, Any] | None, *, nodes: int = 1, replicas: int = 1, **vllm: Any) -> Recipe:
    cluster = {"nodes": nodes, "gpus_per_node": 4, "devices": devices or {}}
    engine = {"kind": "vllm", "replicas": replicas, "vllm": vllm or {"kv_cache_bytes": 1 << 30}}
    return Recipe.model_validate({"cluster": cluster, "engine": engine})


def test_each_engine_gets_its_own() -> None:
    assert engine_devices(recipe(None)) is None
    assert engine_devices(recipe({"engine": "1-3"}, replicas=3)) == [(1,), (2,), (3,)]
    assert engine_devices(recipe({"learner": "0-1", "engine": "2-3"}, tensor_parallel_size=2)) == [(2, 3)]
    assert engine_devices(recipe({"learner": "0", "engine": "0"})) == [(0,)]


def test_servers_that_run_already_have_theirs() -> None:
    urls = ["http://one:8000", "http://two:8000"]
    assert engine_devices(recipe({"engine": "4-5"}, nodes=2, replicas=2, urls=urls)) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (recipe({"engine": "0-1"}), r"1 engines \(`engine.replicas`\) on 1 devices each .* gives 2"),
        (recipe({"engine": "3-4"}, nodes=2, replicas=2), "devices 4 on other nodes than the first.*`engine.vllm.urls`"),
    ],
)
def test_what_cannot_be_is_refused(given: Recipe, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        engine_devices(given)


def test_a_server_sees_nothing_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def seen(devices: tuple[int, ...] | None) -> str | None:
        section = recipe(None).engine
        return environment_of(section, Installation(Path("python"), "0.32.0", False), devices).get(
            "CUDA_VISIBLE_DEVICES"
        )

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert (seen(None), seen((2, 3))) == (None, "2,3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-abc,7")
    assert (seen(None), seen((1, 2))) == ("5, GPU-abc,7", "GPU-abc,7")
    with pytest.raises(RecipeError, match=r"names device 3, and \$CUDA_VISIBLE_DEVICES .* leaves 3"):
        visible((0, 3))


ON = ClusterChoice("10.0.0.1:6379", "a test named it")


@pytest.mark.parametrize(
    ("devices", "more", "there"),
    [
        ({"engine": "0-1"}, {}, True),
        ({"engine": "0-1"}, {"where": "here"}, False),
        (None, {}, False),
        (None, {"where": "cluster"}, True),
        ({"learner": "2-3", "engine": "0-1"}, {}, True),
        ({"learner": "2", "engine": "0-1"}, {}, False),
        ({"learner": "0-1", "engine": "0-1"}, {"kv_cache_bytes": 1 << 30}, False),
    ],
)
def test_engines_are_on_the_cluster_where_they_can_be(
    monkeypatch: pytest.MonkeyPatch, devices: dict[str, Any] | None, more: dict[str, Any], there: bool
) -> None:
    monkeypatch.setattr(devices_module, "choose_cluster", lambda address: ON)
    given = recipe(devices, replicas=2, **{"eager": True, **more})
    assert engine_cluster(given) == (ON if there else None)
    assert (engine_devices(given) is None) == (there or devices is None)


@pytest.mark.parametrize(
    ("devices", "cores", "said"),
    [
        (None, [0], "`engine.cores` names cores of this machine: leave it out"),
        ({"learner": 1, "engine": 2}, None, "Ray would not know which accelerators the learner has"),
        ({"learner": "0-1", "engine": "0-1"}, None, "Ray would not know which accelerators the learner has"),
    ],
)
def test_engines_that_cannot_be_on_the_cluster_are_refused(
    monkeypatch: pytest.MonkeyPatch, devices: dict[str, Any] | None, cores: list[int] | None, said: str
) -> None:
    wanted = recipe(devices, replicas=2, where="cluster", kv_cache_bytes=1 << 30)
    wanted = wanted.model_copy(update={"engine": wanted.engine.model_copy(update={"cores": cores})})
    with pytest.raises(RecipeError, match=r"is `cluster`, and this machine alone is used: .*: name a cluster"):
        engine_cluster(recipe(None, where="cluster"))
    monkeypatch.setattr(devices_module, "choose_cluster", lambda address: ON)
    with pytest.raises(RecipeError, match=f"`engine.vllm.where` is `cluster`, and {said}"):
        engine_cluster(wanted)
