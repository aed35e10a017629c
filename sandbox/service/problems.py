"""Errors on the wire: `application/problem+json` (RFC 9457), with the error's stable kind as `code`.

One table says which HTTP status each error has; an error has that of the nearest class it derives from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from rocknroll.sandbox import errors

PROBLEM_TYPE = "application/problem+json"
STATUSES: Mapping[type[errors.SandboxError], int] = {
    errors.SandboxError: 500,
    errors.ServiceFailed: 500,
    errors.SpecInvalid: 422,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.NotFound: 404,
    errors.LeaseLost: 409,
    errors.AmbiguousId: 409,
    errors.SessionBusy: 409,
    errors.TooLarge: 413,
    errors.QuotaExceeded: 429,
    errors.FileFailed: 422,
    errors.ExecFailed: 422,
    errors.EnvFailed: 422,
    errors.SandboxLost: 410,
    errors.SessionEnded: 410,
    errors.ProtocolError: 502,
    errors.StartFailed: 502,
    errors.RuntimeUnavailable: 503,
    errors.FleetExhausted: 503,
    errors.FleetClosed: 503,
    errors.StoreFailed: 503,
    errors.LeaseTimeout: 504,
    errors.RequestTimeout: 504,
    errors.StartTimeout: 504,
    errors.EnvHung: 504,
}


def status_of(error: errors.SandboxError) -> int:
    """The HTTP status of an error."""
    return next(STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES)


def problem(error: errors.SandboxError) -> JSONResponse:
    """The answer that tells of an error."""
    status = status_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse(facts(error), status, headers, media_type=PROBLEM_TYPE)


def facts(error: errors.SandboxError) -> dict[str, Any]:
    """What the answer says; the client makes the error of it again."""
    status = status_of(error)
    title = (type(error).__doc__ or "").strip().splitlines()[0]
    content: dict[str, Any] = {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": str(error),
        "code": error.kind,
    }
    if isinstance(error, errors.EnvError):
        content |= {"error_type": error.error_type, "traceback": error.traceback}
    if isinstance(error, errors.SessionEnded):
        content["exit_code"] = error.exit_code
    return content


def install(app: FastAPI) -> None:
    """Answer everything that can go wrong in `app` with a problem."""

    @app.exception_handler(errors.SandboxError)
    async def known(request: Request, error: errors.SandboxError) -> JSONResponse:
        return problem(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        said = "; ".join(f"`{'.'.join(str(part) for part in one['loc'])}`: {one['msg']}" for one in error.errors())
        return problem(errors.SpecInvalid(f"the request is not understood: {said}"))

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, errors.SandboxError):  # raised while the framework read the body
            return problem(error.__cause__)
        if error.status_code in (404, 405):
            return problem(errors.NotFound(f"there is no {request.method} {request.url.path} here; see /openapi.json"))
        return problem(errors.SpecInvalid(f"the request cannot be read: {error.detail}"))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        return problem(errors.ServiceFailed(f"unexpected {type(error).__name__}; the service's log has the traceback"))
