"""Logging in and out of the console, and the identity of the current session."""

import math
import time
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated, Any

from pydantic import BaseModel, Field, SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millrace_server.access.audit import Audit
from millrace_server.access.control import AccessControl, Identity, credentials_of
from millrace_server.console.calls import RefusedError, peer_of
from millrace_server.console.gate import Gate
from millrace_server.console.queries import body_of
from millrace_server.console.sessions import AGE_SECONDS_MAX, LoginLimit
from millrace_server.errors import MillraceError
from millrace_server.grpc_services.guard import AUTHORIZATIONS
from millrace_server.network.http_server import certificate_of


class LoginRequest(BaseModel, extra="forbid"):
    """The token that begins a session."""

    token: Annotated[SecretStr, Field(min_length=1, max_length=8_192)]


class Login:
    """Begins, describes and ends sessions."""

    def __init__(self, access: AccessControl | None, gate: Gate, *, has_tls: bool) -> None:
        self._access = access
        self._gate = gate
        self._has_tls = has_tls
        self._limit = LoginLimit()
        self._audit = Audit()
        self._start_time = time.time()

    async def describe(self, request: Request) -> Response:
        identity = None
        if self._access is not None:
            with suppress(MillraceError):
                identity = self._access.identify(credentials_of(AUTHORIZATIONS.get(), certificate_of(request.scope)))
        return JSONResponse(self._document(identity))

    def _document(self, identity: Identity | None) -> dict[str, Any]:
        server = {"version": version("millrace-server"), "start_time": self._start_time, "time": time.time()}
        expiry_time = math.inf if identity is None else identity.expiry_time
        is_required = self._access is not None
        return {
            "is_required": is_required,
            "identity": identity and identity.name,
            "proof": identity and identity.proof,
            "expiry_time": expiry_time if math.isfinite(expiry_time) else None,
            # The version would help attackers, so it is shown only after the login.
            "server": None if is_required and identity is None else server,
        }

    async def begin(self, request: Request) -> Response:
        if self._access is None or self._gate.sessions is None:
            raise RefusedError(409, "NO_LOGIN", "this server has no [auth]: there is nothing to log in to")
        address = request.client.host if request.client else ""
        if delay_seconds := self._limit.delay_seconds(address):
            raise RefusedError(429, "TOO_MANY_LOGINS", "too many failed logins; try again later", delay_seconds)
        login = await body_of(request, LoginRequest)
        identity = None
        try:
            authorization = f"Bearer {login.token.get_secret_value().strip()}"
            credentials = credentials_of([authorization], certificate_of(request.scope))
            identity = self._access.identify(credentials)
            session_id = self._gate.sessions.open(credentials, identity)
        except MillraceError as error:
            self._limit.note_failure(address)
            self._audit.note(identity, peer_of(request), "Login", error, administers=True)
            raise
        self._audit.note(identity, peer_of(request), "Login", None, administers=True)
        response = JSONResponse(self._document(identity))
        response.set_cookie(
            self._gate.cookie_of(request),
            session_id,
            max_age=int(AGE_SECONDS_MAX),
            secure=self._has_tls,
            httponly=True,
            samesite="strict",
        )
        return response

    async def end(self, request: Request) -> Response:
        name = self._gate.cookie_of(request)
        if self._gate.sessions is not None and (session_id := request.cookies.get(name)) is not None:
            self._gate.sessions.close(session_id)
        response = Response(status_code=204)
        response.delete_cookie(name, secure=self._has_tls, httponly=True, samesite="strict")
        return response
