"""One vocabulary for everything that can go wrong with a sandbox.

An infrastructure failure reaches its caller as one of these; it is never a reward and never a
crash of the run. `kind` is the stable code that events, metrics and the wire carry; a kind that
arrives over the wire becomes the same class again through `from_wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class SandboxError(Exception):
    """Base of all sandbox failures."""

    kind: ClassVar[str] = "sandbox_error"


class SpecInvalid(SandboxError):
    """The specification or a request can never work, however often it is tried."""

    kind = "spec_invalid"


class RuntimeUnavailable(SandboxError):
    """This machine cannot run sandboxes of the asked kind; the text says what is missing."""

    kind = "runtime_unavailable"


class ClusterUnavailable(RuntimeUnavailable):
    """A Ray cluster that was asked for is not there, does not fit this process, or has too little; the text says
    which part of it."""

    kind = "cluster_unavailable"


class SocketPathTooLong(SpecInvalid):
    """A Unix socket path is longer than the kernel accepts (107 bytes)."""

    kind = "socket_path_too_long"


class StartFailed(SandboxError):
    """A sandbox did not come up. `permanent`: trying again would end the same way."""

    kind = "start_failed"

    def __init__(self, message: str, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class StartTimeout(StartFailed):
    """A sandbox did not answer within `spec.start_timeout_s`; nothing of it is left."""

    kind = "start_timeout"


class ImageNotFound(StartFailed):
    """An image is not on this machine, and nothing here fetches it unasked; the text names the commands that do."""

    kind = "image_not_found"

    def __init__(self, message: str, permanent: bool = True) -> None:
        super().__init__(message, permanent)


class SandboxLost(SandboxError):
    """The sandbox died or stopped answering while it was in use."""

    kind = "sandbox_lost"


class NodeLost(SandboxLost):
    """The machine that the sandbox ran on died, was cut off, or ended its sandboxes because it was not heard of."""

    kind = "node_lost"


class RequestTimeout(SandboxLost):
    """The agent did not answer a request in time."""

    kind = "request_timeout"


class ProtocolError(SandboxError):
    """The other side of a channel broke the protocol (frame too large, no JSON, unknown operation)."""

    kind = "protocol_error"


class LeaseLost(SandboxError):
    """The lease expired, was released, or someone else holds the sandbox now."""

    kind = "lease_lost"


class StaleToken(LeaseLost):
    """The agent refused a request because it has seen a newer fencing token."""

    kind = "stale_token"


class FleetExhausted(SandboxError):
    """No sandbox of this fleet can ever become READY; the text says why the last one failed."""

    kind = "fleet_exhausted"


class FleetClosed(SandboxError):
    """The fleet was closed."""

    kind = "fleet_closed"


class StoreFailed(SandboxError):
    """The fleet's record cannot be read or written: a full disk, a broken file, one of another version."""

    kind = "store_failed"


class LeaseTimeout(SandboxError):
    """No sandbox became READY within the time the caller was willing to wait."""

    kind = "lease_timeout"


class GroupFailed(SandboxError):
    """Fewer members of a redundant group finished than were wanted; the text says how many, and why no more."""

    kind = "group_failed"


class ExecFailed(SandboxError):
    """A command ended with a non-zero exit code (raised by `ExecResult.check` only)."""

    kind = "exec_failed"


class ExecTimeout(ExecFailed):
    """A command was killed at its deadline (raised by `ExecResult.check` only)."""

    kind = "exec_timeout"


class FileFailed(SandboxError):
    """A file could not be read, written or looked at inside the sandbox."""

    kind = "file_failed"


class PathEscapes(FileFailed):
    """A path, a link, or a name in an archive leads out of the folders that may be touched."""

    kind = "path_escapes"


class QuotaExceeded(SandboxError):
    """More commands, sessions, environments or bytes at once than a sandbox or its caller allows."""

    kind = "quota_exceeded"


class SessionBusy(SandboxError):
    """The session runs a command already, or there is one of this name already."""

    kind = "session_busy"


class SessionEnded(SandboxError):
    """The session's shell is gone: `exit`, a crash, or `close`; `exit_code` where the shell had one."""

    kind = "session_ended"

    def __init__(self, message: str, exit_code: int | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class EnvFailed(SandboxError):
    """The environment inside a sandbox failed. Base of the three below."""

    kind = "env_failed"


class EnvError(EnvFailed):
    """The environment raised an exception; `traceback` holds its text."""

    kind = "env_error"

    def __init__(self, message: str, error_type: str = "", traceback: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.traceback = traceback


class EnvHung(EnvFailed):
    """The environment did not answer before its deadline and was killed."""

    kind = "env_hung"


class EnvCrashed(EnvFailed):
    """The process of the environment died."""

    kind = "env_crashed"


class NotFound(SandboxError):
    """There is no sandbox, pool or page of that name; the text lists what there is."""

    kind = "not_found"


class AmbiguousId(NotFound):
    """More than one sandbox's id begins like this; the text lists them."""

    kind = "ambiguous_id"


class Unauthenticated(SandboxError):
    """The service wants a token here, and got none or a wrong one."""

    kind = "unauthenticated"


class Forbidden(SandboxError):
    """The token's role does not allow this."""

    kind = "forbidden"


class TooLarge(SandboxError):
    """A request has a larger body than the service takes."""

    kind = "too_large"


class StateLocked(SandboxError):
    """Another manager works on this state folder; the text has its pid."""

    kind = "state_locked"


class AddressUnavailable(SandboxError):
    """The service cannot listen there: a port taken, a socket that another program serves, no permission."""

    kind = "address_unavailable"


class ServiceUnreachable(SandboxError):
    """Nothing answers at the service's address, or it stopped answering; whether a request took effect is unknown."""

    kind = "service_unreachable"


class ServiceFailed(SandboxError):
    """The service met an error that nobody foresaw; its log has the traceback."""

    kind = "service_failed"


def _kinds(cls: type[SandboxError]) -> dict[str, type[SandboxError]]:
    found = {cls.kind: cls}
    for child in cls.__subclasses__():
        found |= _kinds(child)
    return found


KINDS: Mapping[str, type[SandboxError]] = _kinds(SandboxError)


def from_wire(error: Mapping[str, Any]) -> SandboxError:
    """The exception that an agent's error reply stands for; an unknown kind is a ProtocolError."""
    kind, message = str(error.get("kind")), str(error.get("message", ""))
    cls = KINDS.get(kind)
    if cls is None:
        return ProtocolError(f"agent sent an error of unknown kind {kind!r}: {message}")
    if issubclass(cls, EnvError):
        return cls(message, str(error.get("type", "")), str(error.get("traceback", "")))
    if issubclass(cls, SessionEnded):
        return cls(message, error.get("exit_code"))
    return cls(message)
