"""Access to the API by session, token or certificate; changes are accepted only from the console's own page."""

from collections.abc import Awaitable, Callable

import structlog
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from millrace_server.access.control import AccessControl
from millrace_server.console.calls import RefusedError
from millrace_server.console.sessions import Sessions
from millrace_server.errors import MillraceError
from millrace_server.grpc_services.guard import AUTHORIZATIONS, Authorizations
from millrace_server.network.http_requests import Refusal

MARK = "x-millrace-console"
"""A header of requests that change something. Other sites cannot send it without a CORS preflight, which fails."""

_JSON = "application/json"

Serve = Callable[[Request], Awaitable[Response]]

_log = structlog.stdlib.get_logger(__name__)


class Gate:
    """Wraps the endpoints of the API: finds the session of a request, and returns errors as JSON."""

    def __init__(self, access: AccessControl | None, *, has_tls: bool) -> None:
        self.sessions = None if access is None else Sessions(access)
        self._has_tls = has_tls

    def cookie_of(self, request: HTTPConnection) -> str:
        """Returns the name of the session's cookie, which differs between the servers on a host."""
        port = request.headers.get("host", "").rpartition(":")[2]
        name = f"millrace_session_{port}" if port.isdecimal() else "millrace_session"
        return f"__Host-{name}" if self._has_tls else name

    def endpoint(self, serve: Serve) -> Serve:
        async def handle(request: Request) -> Response:
            try:
                self._check_mark(request)
                # A context variable: the endpoint runs in the same task.
                AUTHORIZATIONS.set(self.authorizations_of(request))
                return await serve(request)
            except RefusedError as refused:
                return refused.refusal.response()
            except MillraceError as error:
                return RefusedError.of(error).refusal.response()
            except Exception:  # noqa: BLE001 - a bug in one page must not look like a server that has stopped
                _log.exception("internal error", path=request.url.path)
                return Refusal(500, "INTERNAL", "internal error; see the server's log").response()

        return handle

    def _check_mark(self, request: Request) -> None:
        if request.method in {"GET", "HEAD"}:
            return
        if request.headers.get(MARK) != "1":
            raise RefusedError(403, "FOREIGN_ORIGIN", f"the header {MARK}: 1 is missing")
        if request.method == "POST" and request.headers.get("content-type", "").partition(";")[0] != _JSON:
            raise RefusedError(415, "BAD_ARGUMENT", f"the content type must be {_JSON}")

    def authorizations_of(self, request: HTTPConnection) -> Authorizations:
        """Returns the authorization headers of a request; without any, the credentials of its session."""
        shown = tuple(request.headers.getlist("authorization"))
        cookie = request.cookies.get(self.cookie_of(request))
        if shown or cookie is None or self.sessions is None:
            return shown
        credentials = self.sessions.credentials_of(cookie)
        return () if credentials is None else (credentials,)
