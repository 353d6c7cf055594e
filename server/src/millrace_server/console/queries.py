"""Requests of the API: their queries and bodies, checked."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from millrace.setting_problems import describe_problems
from millrace_server.console.calls import RefusedError

BODY_BYTES_MAX = 64 * 1024
"""Maximum size of a request's body; no act needs more."""

_BODY_SECONDS_MAX = 10.0

QueryT = TypeVar("QueryT", bound=BaseModel)


def query_of(request: Request, kind: type[QueryT]) -> QueryT:
    """Returns the query of a request; raises RefusedError, with all problems, unless it is valid."""
    try:
        return kind.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise _bad_request(error, kind) from None


async def body_of(request: Request, kind: type[QueryT]) -> QueryT:
    """Returns the JSON body of a request; raises RefusedError, with all problems, unless it is valid."""
    try:
        async with asyncio.timeout(_BODY_SECONDS_MAX):
            body = await _read(request)
    except (TimeoutError, ClientDisconnect):
        raise RefusedError(408, "TIMEOUT", "the body of the request did not arrive in time") from None
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise RefusedError(400, "BAD_ARGUMENT", "the body of the request is not JSON") from None
        raise _bad_request(error, kind) from None


async def _read(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise RefusedError(413, "BODY_TOO_LARGE", f"the body has more than {BODY_BYTES_MAX} bytes")
    return body


def _bad_request(error: ValidationError, kind: type[BaseModel]) -> RefusedError:
    return RefusedError(400, "BAD_ARGUMENT", "; ".join(map(str, describe_problems(error, kind))))
