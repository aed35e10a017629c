"""Both ends of a socket prove that they know the secret, and neither says it.

Client and agent each name a fresh nonce; each then sends the HMAC-SHA256 (RFC 2104) of its role and
both nonces. The role keeps one side's proof from being sent back as the other's, the fresh nonce
keeps an old proof from being used again. `hmac` is not imported: it would load OpenSSL (4 MiB).
"""

from __future__ import annotations

import os
from _operator import _compare_digest  # what hmac.compare_digest is

try:
    from _sha2 import sha256  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # before Python 3.12
    from _sha256 import sha256  # type: ignore[import-not-found,unused-ignore]

NONCE_BYTES = 16
AGENT, CLIENT = b"agent", b"client"
_BLOCK_BYTES = 64


def nonce() -> str:
    """A fresh one, in hex."""
    return os.urandom(NONCE_BYTES).hex()


def hmac_sha256(key: bytes, message: bytes) -> str:
    """In hex."""
    key = (sha256(key).digest() if len(key) > _BLOCK_BYTES else key).ljust(_BLOCK_BYTES, b"\0")
    inner = sha256(bytes(byte ^ 0x36 for byte in key) + message).digest()
    digest: str = sha256(bytes(byte ^ 0x5C for byte in key) + inner).hexdigest()
    return digest


def prove(secret: str, role: bytes, client_nonce: str, agent_nonce: str) -> str:
    """What the side of this role sends."""
    return hmac_sha256(secret.encode(), b"|".join((role, client_nonce.encode(), agent_nonce.encode())))


def proves(proof: object, secret: str, role: bytes, client_nonce: str, agent_nonce: str) -> bool:
    """Whether `proof` is it; takes the same time wherever it differs."""
    expected = prove(secret, role, client_nonce, agent_nonce)
    return isinstance(proof, str) and proof.isascii() and bool(_compare_digest(proof, expected))
