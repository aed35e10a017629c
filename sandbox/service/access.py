"""Who may do what: two roles, tokens that stand for them, and the caller behind a connection.

Over the Unix socket the file's permissions are the authorisation. Everywhere else a bearer token is
needed. Only digests of tokens are kept, compared in constant time, so that none can be printed.
"""

from __future__ import annotations

import hashlib
import hmac
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rocknroll.sandbox.errors import Forbidden, SpecInvalid, Unauthenticated

MIN_TOKEN_CHARS = 16
TOKEN_VARIABLE = "ROCK_TOKEN_{}"
"""Of the service: one token for each role may also come from its environment."""


class Role(StrEnum):
    READ = "read"
    """May look."""
    OPERATE = "operate"
    """May do everything."""


@dataclass(frozen=True)
class Peer:
    """The other end of a connection."""

    local: bool
    """It came over the Unix socket."""
    pid: int | None
    """Its process, where that is known."""


UNKNOWN = Peer(local=False, pid=None)


class Tokens:
    """The tokens that the service takes."""

    def __init__(self, tokens: Mapping[str, Role]) -> None:
        self._digests = [(_digest(token), role) for token, role in tokens.items()]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def role(self, authorization: str | None) -> Role:
        """The role of a request with this `Authorization` header.

        Raises:
            Unauthenticated: there is none, or it holds no known token.
        """
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Unauthenticated("a token is needed here: send `Authorization: Bearer TOKEN` ($ROCK_TOKEN for `rock`)")
        digest = _digest(token.strip())
        found = [role for known, role in self._digests if hmac.compare_digest(known, digest)]
        if not found:
            raise Unauthenticated("this token is not known here; ask who runs the service for another")
        return Role.OPERATE if Role.OPERATE in found else Role.READ


def check_role(role: Role, needed: Role) -> None:
    """Let a role do what needs `needed`.

    Raises:
        Forbidden: it may not.
    """
    if needed is Role.OPERATE and role is not Role.OPERATE:
        raise Forbidden("this token may only look (role read); this needs one of role operate")


def load_tokens(path: Path | None, environment: Mapping[str, str]) -> Tokens:
    """Tokens from a file (`role token` a line, `#` begins a comment) and the environment.

    Raises:
        SpecInvalid: the file cannot be read, others can read it, or a line is wrong. No token is quoted.
    """
    found: dict[str, Role] = {}
    for role in Role:
        name = TOKEN_VARIABLE.format(role.upper())
        if token := environment.get(name):
            _add(found, role, token, f"${name}")
    if path is not None:
        for number, line in enumerate(_lines(path), start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or words[0] not in list(Role):
                raise SpecInvalid(f"{path}, line {number}: must be a role (read or operate) and a token")
            _add(found, Role(words[0]), words[1], f"{path}, line {number}")
    return Tokens(found)


def _add(found: dict[str, Role], role: Role, token: str, where: str) -> None:
    if len(token) < MIN_TOKEN_CHARS:
        raise SpecInvalid(
            f"{where}: a token needs {MIN_TOKEN_CHARS} characters at least; `openssl rand -hex 24` makes a good one"
        )
    found[token] = Role.OPERATE if Role.OPERATE in (role, found.get(token)) else role


def _lines(path: Path) -> list[str]:
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise SpecInvalid(f"{path}: others may read the tokens in it; run `chmod 600 {path}`")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecInvalid(f"{path}: the tokens cannot be read: {error}") from error


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
