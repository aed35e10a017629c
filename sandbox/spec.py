"""What a sandbox is to be: the models that outside input (files, keyword arguments) is checked by.

Imports nothing heavy. Unknown keys are refused, values are immutable, and `fingerprint` changes
whenever anything that a running sandbox depends on changes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

DEFAULT_IMAGE = "rocknroll-sandbox:latest"
"""What `rock image build` makes unless told otherwise."""


class Model(BaseModel):
    """Base of all specifications: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Resources(Model):
    """Limits of one sandbox, as far as the runtime can enforce them (`rock doctor` says how far)."""

    memory_bytes: PositiveInt | None = None
    """Of the whole sandbox, its memory-backed folders and swap included; None is 2 GiB. Without control groups, of the
    address space of each process, and None is no limit."""
    cpus: PositiveFloat = 1.0
    """Share of the machine's cores; not limited without control groups."""
    processes: PositiveInt | None = 512
    open_files: PositiveInt = 4096
    file_bytes: PositiveInt = 1 << 30
    """Largest file a process may write, the log included."""
    scratch_bytes: PositiveInt = 1 << 28
    """Size of /tmp and /dev/shm, each (memory-backed)."""
    work_bytes: PositiveInt = 1 << 28
    """Size of the working directory where it is memory-backed (without `writable_root`)."""


class HealthPolicy(Model):
    """Probes with hysteresis: one missed probe makes SUSPECT, `failures` of the last `window` make DEAD."""

    interval_s: PositiveFloat = 5.0
    timeout_s: PositiveFloat = 5.0
    failures: PositiveInt = 3
    window: PositiveInt = 4

    @model_validator(mode="after")
    def _window_holds_failures(self) -> HealthPolicy:
        if self.window < self.failures:
            raise ValueError(f"window={self.window} can never hold failures={self.failures} misses")
        return self


class RestartPolicy(Model):
    """Exponential back-off with jitter after failures; too many within a window quarantine the slot."""

    backoff_s: NonNegativeFloat = 0.1
    """Wait before the second restart in a row; the first is immediate. Doubles from there."""
    backoff_limit_s: PositiveFloat = 30.0
    jitter: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the wait that is drawn at random."""
    limit: PositiveInt = 8
    """Failures within `window_s` that quarantine a slot. Wanted recycling is no failure."""
    window_s: PositiveFloat = 300.0


class EnvSpec(Model):
    """A Gymnasium environment that is made before the sandbox counts as READY."""

    entry_point: str = Field(pattern=r"^[\w.]+:[\w.]+$")
    """`package.module:Class`, imported inside the sandbox."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class (JSON)."""
    python_path: tuple[Path, ...] = ()
    """Folders put on the module search path, and readable."""
    host: str = "rocknroll.envs.host"
    """Module inside the sandbox that serves the environment."""
    make_timeout_s: PositiveFloat = 120.0
    preload: bool = True
    """Import the module once and fork sandboxes from there: faster starts, shared memory. Turn off
    for modules that start threads on import."""
    modules: tuple[str, ...] = ()
    """What is imported with it, for an entry point that imports the rest only when it is called."""


class SandboxSpec(Model):
    """One kind of sandbox."""

    name: str = Field(default="sandbox", pattern=r"^[A-Za-z0-9._-]{1,40}$")
    image: str = ""
    """Docker image; empty for the process runtime, which has none."""
    user: str = Field(default="1000:1000", pattern=r"^(\d+:\d+|root)$")
    """Who commands run as (Docker); the agent runs as root, with no capability but to become this user and to kill."""
    workdir: str = Field(default="/work", pattern=r"^/")
    """Working directory (Docker; a process sandbox has its own folder)."""
    writable_root: bool = False
    """Docker: the whole file system is a copy-on-write layer, without a quota; processes: the working directory is on
    disk. Else only the working directory, /tmp and /dev/shm are writable, in memory."""
    roots: tuple[str, ...] = ()
    """Folders that file operations may touch, from the working directory on, and no others, wherever `..` and links
    lead. Empty: all that the sandbox sees. Commands are not meant: they have the runtime around them."""
    template: Path | None = None
    """Folder whose content the working directory starts with, copy-on-write: what is written stays in the sandbox."""
    env: EnvSpec | None = None
    command: tuple[str, ...] = ()
    """Run once in a fresh sandbox; it is READY when this ended with exit code 0."""
    variables: dict[str, str] = Field(default_factory=dict)
    """Environment variables inside."""
    bare: bool = False
    """Processes: of this package and its interpreter's libraries nothing is visible inside, so no environment can be
    made there. In Docker every sandbox without `env` is like that."""
    readable: tuple[Path, ...] = ()
    """Host files and folders that are visible inside, read-only, under the same path."""
    network: Literal["none", "bridge", "host"] = "none"
    """`bridge` is Docker's, which reaches the outside; `host` is for the process runtime."""
    reuse: Literal["fresh", "reset"] = "fresh"
    """What a released sandbox becomes: a fresh one, or READY again with its environment kept."""
    resources: Resources = Resources()
    health: HealthPolicy = HealthPolicy()
    restart: RestartPolicy = RestartPolicy()
    start_timeout_s: PositiveFloat = 60.0

    @model_validator(mode="after")
    def _environments_need_the_package(self) -> SandboxSpec:
        if self.bare and self.env is not None:
            raise ValueError("bare: an environment needs this package inside; leave one of the two out")
        return self

    @property
    def fingerprint(self) -> str:
        """Short hash of the whole specification."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:12]
