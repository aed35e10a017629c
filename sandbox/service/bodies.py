"""What callers send and get: the models behind the OpenAPI description. Unknown keys are refused.

Bytes travel as base64 in JSON. Times are seconds; `deadline` and `time` are seconds since the epoch.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt, model_validator

from rocknroll.sandbox.spec import EnvSpec, Model

Seconds = Annotated[float, Field(gt=0, le=7 * 86_400)]


class LeaseWish(Model):
    """Either any READY sandbox of `pool`, waited for, or this very `sandbox`, at once."""

    pool: str | None = None
    sandbox: str | None = None
    """Its id, or the beginning of it."""
    owner: str = Field(min_length=1, max_length=200)
    ttl_s: Seconds = 60.0
    timeout_s: float = Field(default=60.0, ge=0, le=86_400)
    """How long to wait for a READY sandbox."""
    bind_to_process: bool = False
    """End the lease when the calling process does (Unix socket only)."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.pool is None) == (self.sandbox is None):
            raise ValueError("give either `pool` or `sandbox`")
        return self


class LeaseState(Model):
    """A lease that is in force. Its token is part of every path under it."""

    token: int
    sandbox: str
    owner: str
    ttl_s: float
    deadline: float
    python: list[str]
    """Command of the Python interpreter inside."""
    env: EnvSpec | None
    """The environment that was made in it before it became READY."""


class Heartbeat(Model):
    """Moves the deadline to `ttl_s` (None: the one it has) from now."""

    ttl_s: Seconds | None = None


class ExecWish(Model):
    command: str | Annotated[list[str], Field(min_length=1)]
    """Text goes to `sh -c`."""
    timeout_s: Seconds = 60.0
    stdin: Base64Bytes = b""
    cwd: str = "."
    variables: dict[str, str] = Field(default_factory=dict)
    output_bytes: PositiveInt = 1 << 18
    """Kept of each stream: the first and the last half."""


class ExecAnswer(Model):
    """What a command did; see `leased.ExecResult`."""

    exit_code: int
    stdout: str
    """Base64."""
    stderr: str
    """Base64."""
    stdout_cut_bytes: int
    stderr_cut_bytes: int
    timed_out: bool
    wall_s: float
    interrupted: bool


class StreamWish(Model):
    """A command whose output is streamed; its input comes in requests of its own."""

    command: str | Annotated[list[str], Field(min_length=1)]
    timeout_s: Seconds = 60.0
    cwd: str = "."
    variables: dict[str, str] = Field(default_factory=dict)


class SessionWish(Model):
    name: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9._-]*$")
    """Empty: it gets one."""
    cwd: str = "."
    variables: dict[str, str] = Field(default_factory=dict)


class SessionState(Model):
    name: str
    shell: str
    """`bash`, or `sh` where there is none."""


class RunWish(Model):
    command: str
    """Of any number of lines."""
    timeout_s: Seconds = 60.0
    output_bytes: PositiveInt = 1 << 18


class Interrupted(Model):
    interrupted: bool
    """Whether something ran."""


class FileAnswer(Model):
    """See `leased.FileStat`."""

    kind: str
    size_bytes: int
    mode: int
    modified_s: float


class Scale(Model):
    size: PositiveInt
    ready: NonNegativeInt | None = None


class LeaseRef(Model):
    owner: str
    token: int
    deadline: float


class Row(BaseModel):
    """What the fleet says of something; it may come to say more."""

    model_config = ConfigDict(extra="allow")


class SandboxRow(Row):
    """One sandbox, as `rock ps` shows it."""

    id: str
    pool: str
    state: str
    image: str | None
    runtime: str
    node: str | None
    lease: LeaseRef | None
    pid: int | None
    restarts: int
    last_error: str | None


class SandboxList(Model):
    sandboxes: list[SandboxRow]


class EventAnswer(Model):
    seq: int
    time: float
    sandbox: str
    kind: str
    detail: str


class EventList(Model):
    events: list[EventAnswer]


class AlertRow(Row):
    """One time that a rule's condition held; see `alerts.rule.Alert`."""

    rule: str
    subject: str
    severity: str
    since: float
    text: str
    resolved: float | None
    """None while it is open."""


class AlertList(Model):
    alerts: list[AlertRow]


class SandboxDescription(SandboxRow):
    spec: dict[str, Any]
    """Its specification; values of variables are hidden."""
    output: str
    """What its processes printed last."""
    events: list[EventAnswer]


class PoolRow(Row):
    name: str
    runtime: str
    image: str | None
    spec: str
    """Fingerprint of the specification."""
    size: int
    ready: int | None
    states: dict[str, int]
    waiting: int
    """Callers that wait for a sandbox."""
    exhausted: str | None
    """Why no sandbox of it can start; None while one can."""


class PoolList(Model):
    pools: list[PoolRow]


class Quantiles(Model):
    """Of the newest so many; seconds."""

    count: int
    p50_s: float
    p95_s: float


class Overview(Model):
    """Everything at a glance. Sandboxes also have `cpu` (cores) and `memory_bytes`, where they are of this machine."""

    at: float
    began: float
    pools: list[PoolRow]
    sandboxes: list[SandboxRow]
    events: list[EventAnswer]
    """The newest, oldest first."""
    alerts: list[AlertRow]
    counters: dict[str, float]
    """Events since the manager began, by kind."""
    starts: Quantiles | None
    execs: Quantiles | None
    """Commands and environment steps of the present holders."""


class CommitWish(Model):
    tag: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}$")
    """Name of the image."""


class Committed(Model):
    image: str
    """The image's id."""
    tag: str


class Restarted(Model):
    id: str


class Removed(Model):
    id: str


class Health(Model):
    status: str
    version: str


class Readiness(Model):
    ready: bool


class Problem(Model):
    """RFC 9457. `code` is stable; the classes in `sandbox/errors.py` are known by it."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    error_type: str | None = None
    traceback: str | None = None
    exit_code: int | None = None
