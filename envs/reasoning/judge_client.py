"""Asks an OpenAI-compatible endpoint for verdicts. A judge that cannot be had is an error, never a reward."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx

from rocknroll.envs.reasoning.judge_config import JudgeConfig
from rocknroll.envs.reasoning.judge_verdict import Inquiry, NotAVerdict, Verdict
from rocknroll.envs.text import EnvDataError
from rocknroll.sandbox.errors import EnvError

Result = TypeVar("Result")

SHOWN_CHARS = 300
RETRIED = frozenset({408, 409, 425, 429})
"""Statuses below 500 that another try may change."""


class JudgeFailed(EnvError):
    """The judge gave no verdict; the episode is lost to infrastructure."""

    kind = "judge_failed"


class _TryAgain(Exception):
    """One request came to nothing, and another may not."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class JudgeClient:
    """Use as an async context manager; any number of verdicts may be asked for at once."""

    def __init__(self, config: JudgeConfig) -> None:
        """
        Raises:
            EnvDataError: the environment variable that should have the key is not set.
        """
        self._config = config
        self._key = _key(config.api_key_env)
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._http = httpx.AsyncClient(
            base_url=config.base_url.rstrip("/") + "/",
            headers=headers,
            timeout=config.timeout_s,
            limits=httpx.Limits(max_connections=config.concurrency),
        )
        self._turns = asyncio.Semaphore(config.concurrency)
        self._model = config.model

    async def __aenter__(self) -> JudgeClient:
        """
        Raises:
            JudgeFailed: no model is named, and the endpoint does not say of exactly one that it serves it.
        """
        if not self._model:
            try:
                self._model = await self._only_model()
            except BaseException:
                await self._http.aclose()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def verdict(self, inquiry: Inquiry) -> Verdict:
        """The judge's verdict.

        Raises:
            JudgeFailed: there is none, after all retries or at once where they are pointless.
        """
        async with self._turns:
            return await self._tried(lambda: self._ask(inquiry))

    async def _ask(self, inquiry: Inquiry) -> Verdict:
        config = self._config
        request = {
            "model": self._model,
            "messages": inquiry.messages(),
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
        }
        reply = await self._json("POST", "chat/completions", request)
        try:
            said = reply["choices"][0]["message"]["content"]
        except (LookupError, TypeError):
            raise _TryAgain(f"its reply has no message: {self._shown(str(reply))}") from None
        try:
            return inquiry.verdict(str(said or ""))
        except NotAVerdict as error:
            raise _TryAgain(self._shown(str(error))) from None

    async def _only_model(self) -> str:
        listed = await self._tried(lambda: self._json("GET", "models"))
        try:
            names = [str(model["id"]) for model in listed["data"]]
        except (LookupError, TypeError):
            names = []
        if len(names) != 1:
            raise JudgeFailed(
                f"the judge at {self._config.base_url} serves {', '.join(names) or 'no model that it names'}:"
                " set `model`"
            )
        return names[0]

    async def _tried(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """What the first attempt that succeeds returns."""
        config = self._config
        for number in range(config.retries + 1):
            try:
                return await attempt()
            except _TryAgain as error:
                failure = error
            if number < config.retries:
                wait_s = config.backoff_s * 2**number * random.uniform(0.5, 1.0)
                await asyncio.sleep(min(max(wait_s, failure.after_s), config.max_backoff_s))
        raise JudgeFailed(f"the judge at {config.base_url} failed {config.retries + 1} times, lastly so: {failure}")

    async def _json(self, method: str, path: str, body: Any = None) -> Any:
        try:
            # httpx limits the wait for each piece of a reply; the whole one has a limit, too.
            async with asyncio.timeout(self._config.timeout_s):
                reply = await self._http.request(method, path, json=body)
        except (TimeoutError, httpx.TimeoutException):
            raise _TryAgain(f"it did not reply within {self._config.timeout_s:g} s") from None
        except httpx.HTTPError as error:
            raise _TryAgain(self._shown(f"{type(error).__name__}: {error}")) from None
        if reply.status_code in RETRIED or reply.status_code >= 500:
            raise _TryAgain(f"status {reply.status_code}: {self._shown(reply.text)}", _retry_after_s(reply))
        if reply.status_code != 200:
            raise JudgeFailed(
                f"the judge at {self._config.base_url} refuses: status {reply.status_code}: {self._shown(reply.text)}."
                " Check `base_url`, `model` and `api_key_env`"
            )
        try:
            return reply.json()
        except ValueError:
            raise _TryAgain(f"its reply is not JSON: {self._shown(reply.text)}") from None

    def _shown(self, text: str) -> str:
        """Text from outside, for messages: one line, without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "…")
        return "".join(sign if sign.isprintable() else " " for sign in text[:SHOWN_CHARS])


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise EnvDataError(f"`api_key_env` names the environment variable {variable}, which is not set")
    return key


def _retry_after_s(reply: httpx.Response) -> float:
    """What the server asks for, in seconds; 0 where it says nothing, or a date."""
    try:
        return max(0.0, float(reply.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0
