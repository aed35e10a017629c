"""Settings of the ALFWorld family; imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from rocknroll.envs.cache import cache_root

TaskType = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]

TASK_TYPES: tuple[TaskType, ...] = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

SPLITS = ("train", "seen", "unseen")

Count = Annotated[int, Field(ge=0)]

FEWEST_RECEPTACLES = 4
"""A two-object task needs two sources, a target and, to be a search at all, one more place."""

FEWEST_OBJECTS = 2
"""Two-object and lamp tasks name two objects."""


class AlfWorldConfig(BaseModel):
    """Which games there are and how they are played. The defaults are small scenes; for scenes of the
    official size use `max_receptacles=0, objects=[8, 20], max_steps=50`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Literal["auto", "generated", "official"] = "auto"
    """`auto`: official when `$ALFWORLD_DATA` is set, else generated."""
    data_path: str | None = None
    """Official data (the folder that holds `json_2.1.1`); None: `$ALFWORLD_DATA`."""
    seed: int = 0
    """Decides every generated game, together with the sizes below."""
    train_games: Count = 3000
    seen_games: Count = 256
    unseen_games: Count = 256
    task_types: tuple[TaskType, ...] = TASK_TYPES
    max_receptacles: Count = 6
    """Receptacles in a scene; 0: all that the floor plan has."""
    objects: tuple[PositiveInt, PositiveInt] = (3, 6)
    """Fewest and most objects in a scene, the task's own included."""
    max_steps: PositiveInt = 20
    """Steps before an episode is truncated."""
    renamed: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Share of the visits to training games, in cloning and in RL, in which things go by other names."""
    repeat_task: bool = False
    """Say the task again at the end of every observation, as the usual prompts for language models do."""
    banner: bool = False
    """Keep TextWorld's welcome line in the first observation."""
    refresh_grammar: bool = True
    """Official games carry an older grammar (`put X in/on Y`); play them with the installed one (`move X to Y`)."""
    engine: Literal["memoised", "stock"] = "memoised"
    """`stock`: TextWorld's own environment, same text, about 100 times slower; for comparison."""
    expert_action: bool = False
    """Put the handcoded expert's next command into `info` (it sees the same text as the agent)."""
    cache_dir: str | None = None
    """None: `$ROCKNROLL_CACHE`, else the platform's cache folder."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if not self.task_types:
            raise ValueError("task_types is empty; name at least one task type")
        if len(set(self.task_types)) != len(self.task_types):
            raise ValueError("task_types names a type twice")
        fewest, most = self.objects
        if fewest < FEWEST_OBJECTS or most < fewest:
            raise ValueError(
                f"objects must be [fewest, most] with {FEWEST_OBJECTS} <= fewest <= most, got {list(self.objects)}"
            )
        if 0 < self.max_receptacles < FEWEST_RECEPTACLES:
            raise ValueError(
                f"max_receptacles must be 0 (all) or at least {FEWEST_RECEPTACLES}, got {self.max_receptacles}"
            )
        return self

    def games_in(self, split: str) -> int:
        """How many games are generated for a split."""
        return {"train": self.train_games, "seen": self.seen_games, "unseen": self.unseen_games}[split]


def translations(config: AlfWorldConfig) -> Path:
    """Where translated problems are kept."""
    return cache_root(config.cache_dir) / "alfworld" / "translations"
