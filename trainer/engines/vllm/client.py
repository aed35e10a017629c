"""The routes of a vLLM server that the engine uses, with what they answer. One instance per server and event loop.

Generation is token ids in, token ids out. The routes that change weights are those that
`VLLM_SERVER_DEV_MODE=1` adds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import httpcore
import httpx

from rocknroll.trainer.engines.base import EngineError, FinishReason, Sampling

CONNECT_TIMEOUT_S = 10.0
ASK_TIMEOUT_S = 120.0
"""For what takes no computing; machines may be busy."""
GENERATED = "generate-tokens-"
"""The server puts this before the ids of requests."""
SHOWN = 600
"""Characters of an answer that an error quotes."""

PauseMode = Literal["abort", "keep"]


class ServerGone(EngineError):
    """The server could not be reached, or went away while it was asked."""


class ServerRefused(EngineError):
    """The server answered that it would not, or could not."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Answer:
    """What came of a request; the three tuples have one length."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    """Of the prompt, from the prefix cache."""


@dataclass(frozen=True)
class Behind:
    """A server behind a relay: where that listens, and the key that leads on from there."""

    host: str
    port: int
    key: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Client:
    """Asks one server. Every method raises ServerGone or ServerRefused.

    Args:
        where: its address, the path of its Unix socket, or the relay before it.
    """

    def __init__(self, where: str | Path | Behind) -> None:
        self.where = str(where)
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        transport = httpx.AsyncHTTPTransport(uds=str(where) if isinstance(where, Path) else None, limits=limits)
        if isinstance(where, Behind):
            # httpx hands no such thing on to the connections that it makes.
            transport._pool = httpcore.AsyncConnectionPool(
                max_connections=None, max_keepalive_connections=None, network_backend=_Knocking(where)
            )
        self._http = httpx.AsyncClient(
            transport=transport,
            base_url=where if isinstance(where, str) else "http://vllm",
            timeout=httpx.Timeout(ASK_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def healthy(self) -> bool:
        """Whether it says that it is well."""
        try:
            await self._ask("GET", "/health", timeout_s=CONNECT_TIMEOUT_S)
        except EngineError:
            return False
        return True

    async def version(self) -> str:
        return str((await self._ask("GET", "/version"))["version"])

    async def max_length(self) -> int:
        """Tokens of the longest context that it takes."""
        (model, *_) = (await self._ask("GET", "/v1/models"))["data"]
        return int(model["max_model_len"])

    async def lacks(self, route: str) -> bool:
        """Whether it has no such route. (Its list of all routes takes seconds to make.)"""
        try:
            await self._ask("GET", route)
        except ServerRefused as refusal:
            return refusal.status == HTTPStatus.NOT_FOUND  # of another method: the route is there
        return False

    async def tokenize(self, text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False}
        return [int(token) for token in (await self._ask("POST", "/tokenize", body))["tokens"]]

    async def worker(self) -> Mapping[str, Any]:
        """What our extension of its workers says of itself."""
        told = await self._ask("POST", "/collective_rpc", {"method": "rocknroll_worker"})
        (first, *_) = told["results"]
        return dict(first)

    async def generate(
        self, name: str, prompt: Sequence[int], sampling: Sampling, allowed: Sequence[int] | None = None
    ) -> Answer:
        """Generate, with `allowed` only among those tokens. Waits for as long as it takes."""
        parameters: dict[str, Any] = {
            "n": 1,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_tokens,
            "stop_token_ids": list(sampling.stop_ids),
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
        }
        if sampling.seed is not None:
            parameters["seed"] = sampling.seed
        if allowed is not None:
            parameters["allowed_token_ids"] = list(allowed)
        body = {"request_id": name, "token_ids": list(prompt), "sampling_params": parameters}
        return _answer(await self._ask("POST", "/inference/v1/generate", body, timeout_s=None))

    async def abort(self, name: str) -> None:
        """End a request of that name; it is answered with what it has. Unknown names are ignored."""
        await self._ask("POST", "/abort_requests", {"request_ids": [GENERATED + name]})

    async def pause(self, mode: PauseMode, *, clear_cache: bool, timeout_s: float) -> None:
        """Stop between two steps; requests that are there end (`abort`) or wait (`keep`).

        With `clear_cache` nothing computed so far is used again, of those that wait neither.
        """
        query = f"mode={mode}&clear_cache={str(clear_cache).lower()}"
        await self._ask("POST", f"/pause?{query}", timeout_s=timeout_s)

    async def resume(self, timeout_s: float) -> None:
        await self._ask("POST", "/resume", timeout_s=timeout_s)

    async def begin_transfer(self) -> None:
        """Once per server, before the first weights."""
        await self._ask("POST", "/init_weight_transfer_engine", {"init_info": {}})

    async def load(self, paths: Sequence[Path], version: int, timeout_s: float) -> None:
        """Replace the weights by those in files, as policy `version`; the server must be paused."""
        update = {"paths": [str(path.resolve()) for path in paths]}
        await self._ask("POST", "/start_weight_update", timeout_s=timeout_s)
        await self._ask("POST", "/update_weights", {"update_info": update}, timeout_s)
        await self._ask("POST", "/finish_weight_update", {"weight_version": str(version)}, timeout_s)
        await self._ask("POST", "/reset_prefix_cache?reset_running_requests=true", timeout_s=timeout_s)

    async def call_version(self, version: int) -> None:
        """Have the weights that it began with carry a version."""
        await self._ask("POST", "/update_weight_version", {"new_version": str(version)})

    async def _ask(
        self, method: str, route: str, body: Mapping[str, Any] | None = None, timeout_s: float | None = ASK_TIMEOUT_S
    ) -> Any:
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        try:
            response = await self._http.request(method, route, json=body, timeout=timeout)
        except httpx.TimeoutException as error:
            raise ServerGone(f"the vLLM server at {self.where} did not answer {route} in {timeout_s} s") from error
        except httpx.HTTPError as error:
            why = str(error) or type(error).__name__
            raise ServerGone(f"the vLLM server at {self.where} cannot be reached ({route}): {why}") from error
        if response.is_error:
            raise ServerRefused(
                f"the vLLM server at {self.where} answered {route} with {response.status_code}:"
                f" {response.text[:SHOWN]}",
                response.status_code,
            )
        try:
            return response.json() if response.content else None
        except json.JSONDecodeError as error:
            raise ServerRefused(
                f"the server at {self.where} answered {route} with something that is no JSON, so it is no vLLM:"
                f" {response.text[:SHOWN]}",
                response.status_code,
            ) from error


def _answer(told: Mapping[str, Any]) -> Answer:
    """What `/inference/v1/generate` answers.

    Raises:
        ServerRefused: it is not what it should be, or a log-probability is no number.
    """
    (choice,) = told["choices"]
    tokens = [int(token) for token in choice["token_ids"] or ()]
    content = (choice.get("logprobs") or {}).get("content") or ()
    logprobs = [float(entry["logprob"]) for entry in content]
    versions = _of_each_token(choice.get("weight_versions"), len(tokens))
    if not len(tokens) == len(logprobs) == len(versions):
        raise ServerRefused(
            f"the vLLM server gave {len(tokens)} tokens, {len(logprobs)} log-probabilities and {len(versions)}"
            " versions",
            200,
        )
    if not all(map(math.isfinite, logprobs)):
        raise ServerRefused("the weights of the vLLM server give logits that are not numbers", 200)
    usage = told.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Answer(
        tuple(tokens),
        tuple(logprobs),
        versions,
        choice["finish_reason"],
        int(usage.get("prompt_tokens", 0)),
        int(details.get("cached_tokens") or 0),
    )


def _of_each_token(spans: Sequence[Mapping[str, Any]] | None, count: int) -> tuple[int, ...]:
    """The version of each of `count` tokens, from the spans that share one."""
    versions = [int(span["version"]) for span in spans or () for _ in range(span["start"], span["end"])]
    return tuple(versions[:count])


class _Knocking(httpcore.AsyncNetworkBackend):
    """Connections to a relay, each with its key said first."""

    def __init__(self, relay: Behind) -> None:
        self._relay, self._inner = relay, httpcore.AnyIOBackend()

    async def connect_tcp(self, host: str, port: int, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        stream = await self._inner.connect_tcp(self._relay.host, self._relay.port, *args, **options)
        await stream.write(self._relay.key.encode())
        return stream

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
