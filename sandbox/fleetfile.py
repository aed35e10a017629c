"""`fleet.yaml`: which pools a site keeps, where it listens, and where it remembers.

Checked in full before anything starts. Relative paths start at the file's folder; every complaint
names the file, the key and, for an unknown key, the nearest known one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError, model_validator

from rocknroll.sandbox import strict_yaml
from rocknroll.sandbox.alerts.config import FleetAlerts
from rocknroll.sandbox.cluster import LOCAL
from rocknroll.sandbox.config_errors import Schema, explain, kind
from rocknroll.sandbox.errors import SpecInvalid
from rocknroll.sandbox.spec import DEFAULT_IMAGE, Model, SandboxSpec

DEFAULT_POOL = "default"
DEFAULT_SIZE = 4
_POOL_KEYS = frozenset({"runtime", "size", "ready", "max_starting"})

RuntimeName = Literal["process", "docker"]
ModelT = TypeVar("ModelT", bound=Model)


class PoolConfig(SandboxSpec):
    """One pool: how many sandboxes of which kind. Its key in `pools` is the name of the kind."""

    runtime: RuntimeName = "process"
    size: PositiveInt = 1
    """Sandboxes at most."""
    ready: NonNegativeInt | None = None
    """Keep this many READY beyond the leased ones; None keeps all `size` up."""
    max_starting: PositiveInt | None = None
    """Starts at once; None is twice the cores."""

    @model_validator(mode="after")
    def _runtime_can_do_it(self) -> Self:
        if self.ready is not None and self.ready > self.size:
            raise ValueError(f"`ready` is {self.ready}, more than the {self.size} sandboxes of `size`")
        if self.runtime == "docker" and not self.image:
            raise ValueError(
                f"the docker runtime needs an `image`, such as `{DEFAULT_IMAGE}`, which `rock image build` makes"
            )
        if self.runtime == "process" and self.image:
            raise ValueError("the process runtime has no `image`; set `runtime: docker` or take `image` out")
        if self.runtime == "process" and self.network == "bridge":
            raise ValueError("`network: bridge` is Docker's; the process runtime knows `none` and `host`")
        if self.runtime == "docker" and self.network == "host":
            raise ValueError("`network: host` is for the process runtime; Docker's sandboxes get `none` or `bridge`")
        return self

    @property
    def spec(self) -> SandboxSpec:
        """What each sandbox of the pool is."""
        return SandboxSpec.model_validate(self.model_dump(exclude=set(_POOL_KEYS)))


class Listen(Model):
    """Where the service is reached."""

    unix: Path | None = None
    """Socket, mode 0600; None is `rock.sock` in the state folder."""
    tcp: str | None = Field(default=None, pattern=r"^(\[[0-9a-fA-F:.]+\]|[^:/\s]+):\d{1,5}$")
    """`host:port` to listen on besides. Callers there need a token."""
    tokens: Path | None = None
    """File with one `role token` a line (roles: read, operate), mode 0600."""
    certificate: Path | None = None
    """Certificate chain (PEM) for TLS on `tcp`."""
    key: Path | None = None
    """Private key (PEM) for TLS on `tcp`."""

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("TLS needs both `certificate` and `key`")
        if self.tcp is None and (self.certificate or self.tokens):
            raise ValueError("`tokens`, `certificate` and `key` are for `tcp`, which is not set")
        if self.tcp is not None and not 0 < int(self.tcp.rpartition(":")[2]) < 65536:
            raise ValueError(f"`tcp` is {self.tcp}, and ports go from 1 to 65535")
        return self


class Cluster(Model):
    """The machines that the sandboxes of all pools run on."""

    address: str = LOCAL
    """`host:port` of a Ray cluster's head; `auto`: the one of `$RAY_ADDRESS`, else the one that `ray start` began here;
    `local`: this machine alone."""


class FleetFile(Model):
    """All of a `fleet.yaml`."""

    state: Path | None = None
    """Folder of the record, the socket, the log and the sandboxes' files; None leaves it to the command."""
    listen: Listen = Listen()
    cluster: Cluster = Cluster()
    alerts: FleetAlerts = FleetAlerts()
    pools: dict[str, PoolConfig] = Field(min_length=1)


def default_fleet() -> FleetFile:
    """What `rock up` starts without a file: a few bare sandboxes that need no daemon."""
    return FleetFile(pools={DEFAULT_POOL: PoolConfig(name=DEFAULT_POOL, size=DEFAULT_SIZE)})


def load_fleet_file(path: Path) -> FleetFile:
    """Read and check a fleet file.

    Raises:
        SpecInvalid: it cannot be read, is not YAML, has an unknown key, or a value does not fit.
    """
    try:
        data = strict_yaml.parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SpecInvalid(f"{path}: the fleet file cannot be read: {error}. Give another with `-f`.") from error
    except ValueError as error:
        raise SpecInvalid(f"{path}: not valid YAML: {error}. Correct the file there.") from error
    return parse_fleet(data, str(path), path.absolute().parent)


def parse_fleet(data: Any, origin: str, folder: Path) -> FleetFile:
    """A fleet from plain data; `origin` is named in complaints, relative paths start at `folder`.

    Raises:
        SpecInvalid: as in `load_fleet_file`.
    """
    if not isinstance(data, Mapping):
        raise SpecInvalid(f"{origin}: a fleet file is a mapping of keys to values, this is {kind(data)}.")
    pools = data.get("pools")
    if not isinstance(pools, Mapping) or not pools:
        raise SpecInvalid(
            f"{origin}: `pools` must name at least one pool, such as `pools: {{default: {{size: 4}}}}`,"
            f" but is {kind(pools)}."
        )
    checked = {name: _pool(str(name), pool, origin, folder) for name, pool in pools.items()}
    top = _check({**data, "pools": {"-": {}}}, FleetFile, "", origin)
    listen = top.listen.model_copy(
        update={key: _under(folder, getattr(top.listen, key)) for key in ("unix", "tokens", "certificate", "key")}
    )
    return top.model_copy(update={"state": _under(folder, top.state), "listen": listen, "pools": checked})


def _pool(name: str, data: Any, origin: str, folder: Path) -> PoolConfig:
    if isinstance(data, Mapping) and "name" in data:
        raise SpecInvalid(f"{origin}: `pools.{name}.name`: a pool is named by its key, `{name}`. Take `name` out.")
    if not isinstance(data, Mapping):
        raise SpecInvalid(f"{origin}: `pools.{name}` must be a section (a mapping), but is {kind(data)}.")
    pool = _check({**data, "name": name}, PoolConfig, f"pools.{name}.", origin)
    env = pool.env
    if env is not None:
        env = env.model_copy(update={"python_path": tuple(_under(folder, path) for path in env.python_path)})
    readable = tuple(_under(folder, path) for path in pool.readable)
    return pool.model_copy(update={"env": env, "readable": readable, "template": _under(folder, pool.template)})


def _check(data: Mapping[str, Any], model: type[ModelT], prefix: str, origin: str) -> ModelT:
    try:
        # Strict JSON: `true` is no number and "3" no integer, yet a list may become a tuple.
        return model.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as invalid:
        text = explain(invalid, Schema(prefix, model, "A fleet file"), lambda loc: origin)
        raise SpecInvalid(text if text.startswith(origin) else f"{origin}: {text}") from invalid


def _under(folder: Path, path: Path | None) -> Any:
    return None if path is None else folder / path.expanduser()
