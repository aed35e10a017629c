"""Write a blueprint down as the official game folder does: `game.tw-pddl` and `traj_data.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rocknroll.envs.alfworld import package
from rocknroll.envs.alfworld.blueprint import Blueprint
from rocknroll.envs.alfworld.house import affords, fits, openable, symbol

UNKNOWN_GOAL = "UNKNOWN GOAL"
"""Where the package's grammar expects the task."""

AFFORDANCES = {"cleanable": "Cleanable", "heatable": "Heatable", "coolable": "Coolable", "sliceable": "Sliceable"}
"""Predicate of the domain -> affordance of the package."""


def problem(blueprint: Blueprint, name: str) -> str:
    """The planning problem. The package's goals close the problem; the metric has to come before that."""
    receptacles, things = blueprint.receptacles, blueprint.things
    kinds = sorted({thing.kind for thing in things} | {blueprint.object_kind})
    homes = sorted({receptacle.kind for receptacle in receptacles})
    movable = set(package.constants().MOVABLE_RECEPTACLES)
    locations = sorted({receptacle.location for receptacle in receptacles} | {blueprint.start})
    objects = [
        "agent1 - agent",
        *(f"{symbol(location)} - location" for location in locations),
        *(f"{symbol(receptacle.id)} - receptacle" for receptacle in receptacles),
        *(f"{symbol(thing.id)} - object" for thing in things),
        *(f"{kind}Type - rtype" for kind in homes),
        *(f"{kind}Type - otype" for kind in kinds),
    ]
    facts = [f"atLocation agent1 {symbol(blueprint.start)}"]
    for receptacle in receptacles:
        where = symbol(receptacle.id)
        facts.append(f"receptacleType {where} {receptacle.kind}Type")
        facts.append(f"receptacleAtLocation {where} {symbol(receptacle.location)}")
        if openable(receptacle.kind):
            facts.append(f"openable {where}")
    for thing in things:
        what = symbol(thing.id)
        facts.append(f"objectType {what} {thing.kind}Type")
        facts.append(f"objectAtLocation {what} {symbol(thing.receptacle.location)}")
        facts.append(f"inReceptacle {what} {symbol(thing.receptacle.id)}")
        facts += [
            f"{predicate} {what}" for predicate, affordance in AFFORDANCES.items() if affords(thing.kind, affordance)
        ]
        if thing.kind in movable:
            facts.append(f"isReceptacleObject {what}")
        facts.append(f"{'toggleable' if affords(thing.kind, 'Toggleable') else 'pickupable'} {what}")
    facts += [f"canContain {home}Type {kind}Type" for home in homes for kind in kinds if home in fits().get(kind, ())]
    goal = (
        package.goals()
        .gdict[blueprint.task_type]["pddl"]
        .format(obj=blueprint.object_kind, recep=blueprint.parent_kind, toggle=blueprint.lamp_kind)
    )
    return "\n".join(
        [
            f"(define (problem {name})",
            "(:domain alfred)",
            "(:objects",
            *objects,
            ")",
            "(:init",
            "(= (total-cost) 0)",
            *(f"({fact})" for fact in facts),
            ")",
            goal.replace("#", "-").rstrip().removesuffix(")"),
            "(:metric minimize (total-cost)))",
        ]
    )


def folder_name(blueprint: Blueprint) -> str:
    """`<type>-<object>-<movable receptacle>-<target>-<scene>`, as the official data has it."""
    target = blueprint.parent_kind or blueprint.lamp_kind
    return f"{blueprint.task_type}-{blueprint.object_kind}-None-{target}-{blueprint.scene}"


def game_data(blueprint: Blueprint, name: str) -> dict[str, Any]:
    """Content of `game.tw-pddl`; `solvable` and `walkthrough` are added once it was played."""
    return {
        "pddl_domain": package.domain(),
        "grammar": package.grammar().replace(UNKNOWN_GOAL, blueprint.sentence),
        "pddl_problem": problem(blueprint, name),
        "solvable": False,
        "walkthrough": [],
    }


def trajectory_data(blueprint: Blueprint, name: str) -> dict[str, Any]:
    """Content of `traj_data.json`: what the official loader and its handcoded expert read."""
    return {
        "task_id": name,
        "task_type": blueprint.task_type,
        "pddl_params": {
            "mrecep_target": "",
            "object_sliced": False,
            "object_target": blueprint.object_kind,
            "parent_target": blueprint.parent_kind,
            "toggle_target": blueprint.lamp_kind,
        },
        "scene": {"floor_plan": f"FloorPlan{blueprint.scene}", "scene_num": blueprint.scene},
        "turk_annotations": {
            "anns": [{"assignment_id": "generated", "high_descs": [], "task_desc": blueprint.sentence, "votes": [1]}]
        },
    }


def write(folder: Path, game: dict[str, Any], trajectory: dict[str, Any]) -> Path:
    """Write both files; returns the game file."""
    folder.mkdir(parents=True)
    (folder / "traj_data.json").write_text(json.dumps(trajectory), encoding="utf-8")
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(game), encoding="utf-8")
    return path
