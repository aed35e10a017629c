"""Connections to the service: one request and its answer, or a stream of bytes; blocking and awaiting."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx

from rocknroll.sandbox.client.calls import Call, error_of
from rocknroll.sandbox.client.shared import CONNECT_S, LIMITS, Address, ResultT, answer_of, body_of


class Wire:
    """Blocks."""

    def __init__(self, address: str | Path | None, token: str | None) -> None:
        self.address = Address(address, token)
        self._http = httpx.Client(
            base_url=self.address.base_url,
            headers=self.address.headers,
            transport=httpx.HTTPTransport(uds=self.address.uds, limits=LIMITS) if self.address.uds else None,
            limits=LIMITS,
            trust_env=not self.address.uds,
        )

    def send(self, call: Call[ResultT]) -> ResultT:
        with self.address.reaching():
            response = self._http.request(
                call.method,
                call.path,
                params=dict(call.params),
                json=call.json,
                timeout=httpx.Timeout(call.timeout_s, connect=CONNECT_S),
            )
        return answer_of(call, response)

    @contextlib.contextmanager
    def stream(self, method: str, path: str, silence_s: float, **more: Any) -> Iterator[httpx.Response]:
        with contextlib.ExitStack() as stack:
            timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
            with self.address.reaching():
                response = stack.enter_context(self._http.stream(method, path, timeout=timeout, **more))
                if not response.is_success:
                    response.read()
                    raise error_of(response.status_code, body_of(response))
            yield response

    def close(self) -> None:
        self._http.close()


class AsyncWire:
    """Awaits."""

    def __init__(self, address: str | Path | None, token: str | None) -> None:
        self.address = Address(address, token)
        self._http = httpx.AsyncClient(
            base_url=self.address.base_url,
            headers=self.address.headers,
            transport=httpx.AsyncHTTPTransport(uds=self.address.uds, limits=LIMITS) if self.address.uds else None,
            limits=LIMITS,
            trust_env=not self.address.uds,
        )

    async def send(self, call: Call[ResultT]) -> ResultT:
        with self.address.reaching():
            response = await self._http.request(
                call.method,
                call.path,
                params=dict(call.params),
                json=call.json,
                timeout=httpx.Timeout(call.timeout_s, connect=CONNECT_S),
            )
        return answer_of(call, response)

    @contextlib.asynccontextmanager
    async def stream(self, method: str, path: str, silence_s: float, **more: Any) -> AsyncIterator[httpx.Response]:
        async with contextlib.AsyncExitStack() as stack:
            timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
            with self.address.reaching():
                response = await stack.enter_async_context(self._http.stream(method, path, timeout=timeout, **more))
                if not response.is_success:
                    await response.aread()
                    raise error_of(response.status_code, body_of(response))
            yield response

    async def aclose(self) -> None:
        await self._http.aclose()
