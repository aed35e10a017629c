"""Roles on devices: who sits where, what is missing, what does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from rocknroll.trainer.cluster_section import ClusterSection, named_devices
from rocknroll.trainer.device_map import assign, colocated
from rocknroll.trainer.errors import RecipeError
from rocknroll.trainer.memory_model import GIB
from rocknroll.trainer.placement_plan import PlacementPlan, plan_placement
from rocknroll.trainer.recipe import Recipe

QWEN = {
    "layers": 28,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "heads": 12,
    "kv_heads": 2,
    "head_dim": 128,
    "vocabulary": 151936,
    "tied": True,
    "attention_bias": True,
}


def cluster(learner: int | str | None, engine: int | str | None, nodes: int = 1, gpus: int = 8) -> ClusterSection:
    devices = {"learner": learner, "engine": engine}
    return ClusterSection.model_validate({"nodes": nodes, "gpus_per_node": gpus, "devices": devices})


def planned(section: dict[str, Any], *, kind: str = "vllm", replicas: int = 1, **changes: Any) -> PlacementPlan:
    """A plan for Qwen2.5-1.5B; `kind` is not checked, so that this runs where vLLM engines are not known."""
    policy = {"model": "acme/q", "dtype": "bfloat16", "architecture": QWEN}
    recipe = Recipe.model_validate({"policy": policy, "cluster": section, **changes})
    engine = recipe.engine.model_copy(update={"kind": kind, "replicas": replicas})
    return plan_placement(recipe.model_copy(update={"engine": engine}))


@pytest.mark.parametrize(
    ("text", "devices"), [("3", (3,)), ("0-3", (0, 1, 2, 3)), ("6, 0-1", (0, 1, 6)), ("2-2", (2,))]
)
def test_devices_are_named_by_ranges(text: str, devices: tuple[int, ...]) -> None:
    assert named_devices(text) == devices


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "0-"])
def test_what_names_no_devices_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a number of them, or which"):
        cluster(text, None)


def test_a_device_is_named_once() -> None:
    with pytest.raises(ValueError, match="names 2 twice"):
        cluster("0-2,2-4", None)


def test_counts_get_what_nobody_has_named() -> None:
    assert assign(cluster(2, "0-3,6")) == {"learner": (4, 5), "engine": (0, 1, 2, 3, 6)}
    assert assign(cluster(4, 4)) == {"learner": (0, 1, 2, 3), "engine": (4, 5, 6, 7)}
    assert assign(cluster(None, None)) == {}


def test_roles_that_name_the_same_devices_share_them() -> None:
    assert colocated(assign(cluster("0-7", "0-7")))
    assert not colocated(assign(cluster("0-3", "4-7")))


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (cluster("6-9", None), r"`cluster.devices.learner` names devices 8, 9, and there are 8 devices \(1 × .* 8\)"),
        (cluster(6, 4), r"`cluster.devices.engine` asks for 4 devices and 2 are free: .*learner 6, engine 4.* 2 more"),
        (cluster("0-4", "4-7"), "learner and engine share device 4 and not all of theirs"),
        (cluster(1, None, gpus=0), "asks for 1 devices and 0 are free"),
    ],
)
def test_devices_that_are_missing_or_fought_for_are_told_by_role(section: ClusterSection, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        assign(section)


def test_every_device_says_who_sits_there() -> None:
    section = {"nodes": 2, "gpus_per_node": 2, "devices": {"learner": 2, "engine": 2}}
    plan = planned(section, replicas=2)
    assert [(d.node, d.index, list(d.parts)) for d in plan.devices] == [
        (0, 0, ["learner rank 0"]),
        (0, 1, ["learner rank 1"]),
        (1, 0, ["engine 0"]),
        (1, 1, ["engine 1"]),
    ]
    assert plan.problems == () and not plan.colocated
    assert plan.on_cpu["sandboxes"] == "32 spread over 2 nodes"


def test_a_device_that_is_too_small_is_told_with_what_fills_it() -> None:
    section = {"gpus_per_node": 1, "gpu_memory_gib": 16, "devices": {"learner": 1}}
    (problem,) = planned(section).problems
    assert "learner: device 0 would need" in problem and "GiB of 16.0" in problem
    assert "activations" in problem and "`learner.recompute`" in problem
    roomy = planned({**section, "gpu_memory_gib": 79})
    assert roomy.problems == ()
    assert 16 * GIB < roomy.devices[0].need_bytes < 79 * GIB


def test_sharing_a_device_adds_up_what_both_need() -> None:
    shared = planned({"gpus_per_node": 1, "devices": {"learner": "0", "engine": "0"}})
    apart = planned({"gpus_per_node": 2, "devices": {"learner": "0", "engine": "1"}})
    assert shared.colocated
    assert shared.devices[0].need_bytes == sum(device.need_bytes for device in apart.devices)


def test_vllm_beside_a_learner_must_be_told_how_much_it_may_take() -> None:
    (problem,) = planned({"gpus_per_node": 1, "devices": {"learner": "0", "engine": "0"}}).problems
    assert "`engine.vllm.kv_cache_bytes`" in problem


def test_a_local_engine_has_no_use_for_devices() -> None:
    (problem,) = planned({"gpus_per_node": 1, "devices": {"engine": 1}}, kind="local").problems
    assert "`engine.kind: local` computes on the CPU" in problem


def test_engines_and_their_devices_must_come_to_the_same_number() -> None:
    (problem,) = planned({"gpus_per_node": 4, "devices": {"engine": 4}}, replicas=3).problems
    assert problem.startswith("engine: 3 engines") and "need 3, and `cluster.devices.engine` gives 4" in problem


def test_without_a_shape_the_placement_alone_is_shown() -> None:
    changes = {"policy": {"model": "acme/unheard-of"}, "cluster": {"gpus_per_node": 1, "devices": {"learner": 1}}}
    plan = plan_placement(Recipe.model_validate(changes))
    assert plan.devices[0].need_bytes == 0
    assert plan.assumptions[0].startswith("memory is not estimated")
    changes["cluster"]["gpu_memory_gib"] = 80
    with pytest.raises(RecipeError, match=r"The shape of `policy\.model` acme/unheard-of is not known"):
        plan_placement(Recipe.model_validate(changes))


def test_a_recipe_without_devices_is_planned_on_the_cpu() -> None:
    plan = plan_placement(Recipe.model_validate({"learner": {"ranks": 2}}))
    assert plan.devices == () and plan.problems == ()
    assert plan.on_cpu["learner ranks"].startswith("2 on node 0")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"learner": {"ranks": 3}, "cluster": {"devices": {"learner": 2}}},
            r"`learner.ranks` \(3\) must be the number",
        ),
        ({"learner": {"ranks": 2, "stream": True}, "rollout": {"async_ratio": 0}}, "2 ranks share out a whole batch"),
        ({"learner": {"ranks": 2}, "credit": {"kind": "entropy"}}, "each of 2 ranks has another first pass"),
        ({"learner": {"ranks": 97}}, "more than the trajectories of an optimiser step"),
        ({"learner": {"recompute": True}, "credit": {"kind": "local"}}, "`learner.recompute` computes twice"),
    ],
)
def test_ranks_that_do_not_go_with_the_rest_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Recipe.model_validate(changes)


def test_ranks_follow_from_the_devices() -> None:
    recipe = Recipe.model_validate({"cluster": {"gpus_per_node": 8, "devices": {"learner": "0,2-4"}}})
    assert recipe.learner_ranks == 4
    assert Recipe().learner_ranks == 1
