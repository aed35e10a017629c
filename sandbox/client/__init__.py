"""Clients of the service, with the methods of `Fleet` and `LeasedSandbox`: `Client` blocks, `AsyncClient` awaits.

Over the Unix socket of a state folder, or over HTTP with a token. Nothing is sent twice: a request
whose answer is lost raises ServiceUnreachable, and whether it took effect only the caller can judge.
Heartbeats run by themselves while a lease is held; they alone are repeated.
"""

from rocknroll.sandbox.client.awaiting import AsyncClient
from rocknroll.sandbox.client.awaiting_lease import AsyncLease
from rocknroll.sandbox.client.awaiting_work import AsyncRunningCommand, AsyncSession
from rocknroll.sandbox.client.blocking import Client
from rocknroll.sandbox.client.blocking_lease import Lease
from rocknroll.sandbox.client.blocking_work import RunningCommand, Session
from rocknroll.sandbox.client.calls import Event, LeaseInfo

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncRunningCommand",
    "AsyncSession",
    "Client",
    "Event",
    "Lease",
    "LeaseInfo",
    "RunningCommand",
    "Session",
]
