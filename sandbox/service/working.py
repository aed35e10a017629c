"""Routes of work that goes on: commands whose output is streamed, sessions, and environments.

The answer to a stream is frames as the agent's are (lengths, JSON header, body): `{"id"}` first, then
`{"stream": "stdout"|"stderr"}` with bytes, at last `{"result"}` or `{"problem"}`. Input and the wish to
end it come in requests of their own, under that id. A caller that goes away takes its command along.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response, status
from fastapi.responses import StreamingResponse

from rocknroll.sandbox.agent.frames import Frames, Refused, pack
from rocknroll.sandbox.errors import NotFound, SandboxError, SpecInvalid
from rocknroll.sandbox.running import RunningCommand
from rocknroll.sandbox.service import bodies
from rocknroll.sandbox.service.answers import exec_answer
from rocknroll.sandbox.service.gate import may_operate, unless_gone
from rocknroll.sandbox.service.holding import Held
from rocknroll.sandbox.service.problems import facts
from rocknroll.sandbox.session import Session

MEDIA_TYPE = "application/vnd.rocknroll.stream"
Streams = dict[tuple[int, str], RunningCommand]

routes = APIRouter(prefix="/v1/leases/{token}", dependencies=[Depends(may_operate)])


async def _streams(request: Request) -> Streams:
    found: Streams = request.app.state.streams
    return found


async def _running(token: int, stream: str, streams: Annotated[Streams, Depends(_streams)]) -> RunningCommand:
    running = streams.get((token, stream))
    if running is None:
        raise NotFound(f"no command runs under the id {stream!r} of this lease")
    return running


Running = Annotated[RunningCommand, Depends(_running)]


@routes.post("/streams", response_class=StreamingResponse)
async def begin(
    sandbox: Held, streams: Annotated[Streams, Depends(_streams)], wish: bodies.StreamWish
) -> StreamingResponse:
    """Run a command and stream its output as it comes; who reads slowly slows it."""
    running = sandbox.stream(wish.command, wish.timeout_s, wish.cwd, wish.variables)
    return StreamingResponse(_frames(streams, sandbox.token, running), media_type=MEDIA_TYPE)


@routes.put("/streams/{stream}/stdin", status_code=status.HTTP_204_NO_CONTENT)
async def stdin(request: Request, sandbox: Held, running: Running, eof: bool = False) -> Response:
    """Give it input, the raw body; answered once it has room for more. With `eof` this is the last."""
    async for data in request.stream():
        if data:
            await running.write(data)
    if eof:
        await running.write_eof()
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@routes.delete("/streams/{stream}", status_code=status.HTTP_204_NO_CONTENT)
async def kill(sandbox: Held, running: Running) -> Response:
    """End everything that it started; its result says how it ended."""
    running.kill()
    return Response(status_code=status.HTTP_204_NO_CONTENT)


@routes.post("/env", response_class=Response)
async def env(request: Request, sandbox: Held) -> Response:
    """A request to an environment in the sandbox (`env.make`, `env.reset`, …), as one frame, answered by one."""
    try:
        ((raw, body),) = Frames().feed(await request.body())
        header = json.loads(raw)
        op, timeout_s = str(header.pop("op")), float(header.pop("timeout_s"))
    except (Refused, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SpecInvalid(f"the request must be one frame with `op` and `timeout_s` in its header: {error}") from None
    if not op.startswith("env.") or "token" in header:
        raise SpecInvalid(f"`op` is {op!r}, and must be one of an environment; the token is that of the path")
    reply, answer = await unless_gone(request, sandbox.request(op, header, body, timeout_s))
    return Response(_frame(dict(reply), answer), media_type=MEDIA_TYPE)


@routes.post("/sessions", status_code=status.HTTP_201_CREATED)
async def open_session(sandbox: Held, wish: bodies.SessionWish) -> bodies.SessionState:
    """Open a persistent shell."""
    session = await sandbox.session(wish.name, wish.cwd, wish.variables)
    return bodies.SessionState(name=session.name, shell=session.shell)


@routes.post("/sessions/{session}/run")
async def run(request: Request, sandbox: Held, session: str, wish: bodies.RunWish) -> bodies.ExecAnswer:
    """Run a command in it; one at a time."""
    work = Session(sandbox, session, shell="").run(wish.command, wish.timeout_s, wish.output_bytes)
    return exec_answer(await unless_gone(request, work))


@routes.post("/sessions/{session}/interrupt")
async def interrupt(sandbox: Held, session: str) -> bodies.Interrupted:
    """As Ctrl-C."""
    return bodies.Interrupted(interrupted=await Session(sandbox, session, shell="").interrupt())


@routes.delete("/sessions/{session}", status_code=status.HTTP_204_NO_CONTENT)
async def close_session(sandbox: Held, session: str) -> Response:
    """End the shell and everything it ever started."""
    await Session(sandbox, session, shell="").close()
    return Response(status_code=status.HTTP_204_NO_CONTENT)


async def _frames(streams: Streams, token: int, running: RunningCommand) -> AsyncIterator[bytes]:
    key = (token, secrets.token_hex(8))
    streams[key] = running
    try:
        async with running:
            yield _frame({"id": key[1]})
            async for name, data in running:
                yield _frame({"stream": name}, data)
            yield _frame({"result": exec_answer(await running.result()).model_dump()})
    except SandboxError as error:
        yield _frame({"problem": facts(error)})
    finally:
        del streams[key]


def _frame(header: dict[str, Any], body: bytes = b"") -> bytes:
    return pack(json.dumps(header).encode(), body)
