"""Settings of the SWE-bench family."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from rocknroll.envs.hiding import RuntimeName
from rocknroll.envs.swebench.images import NAMESPACE

MINI_SWE = "mini-swe"
"""Name of the shipped task set."""


class PlaceConfig(BaseModel):
    """Where commands and tests run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    runtime: RuntimeName = "process"
    """Sandboxes without a daemon, for rows that bring their files along (`tree`), or containers, for all."""
    image: str = ""
    """Docker image for rows with a `tree`: Python, git and bash; empty is the one that `rock image build` makes."""
    namespace: str = NAMESPACE
    """Of published images, where rows name none."""
    pull: bool = False
    """Fetch an image that is not on this machine."""
    memory_bytes: int = Field(default=4 << 30, ge=64 << 20)
    """Of one sandbox."""
    cpus: float = Field(default=1.0, gt=0)
    processes: int = Field(default=256, ge=8)


class SWEBenchConfig(PlaceConfig):
    """What is played, and how."""

    data: str = MINI_SWE
    """`mini-swe`, a JSONL, JSON or Parquet file, a folder, or a data set's id on the hub."""
    data_split: str = "test"
    """Of a data set from the hub."""
    held_out: float = Field(default=0.25, ge=0.0, le=1.0)
    """Share of the instances that are not trained on; by a hash of their ids."""
    exclude: tuple[str, ...] = ()
    """Instances left out, by id: those that `roll validate` found to fail their own gold patch."""
    max_turns: int = Field(default=30, ge=1)
    command_timeout_s: float = Field(default=60.0, gt=0)
    grading_timeout_s: float = Field(default=1800.0, gt=0)
    """Of one run of the tests."""
    remind: bool = False
    """Say after each command how many turns are left."""
    hints: bool = False
    """Show the row's `hints_text`, too."""
