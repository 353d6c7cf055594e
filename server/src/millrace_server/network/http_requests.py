"""Checks of HTTP requests: browsers may send them only from the server's own pages."""

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import JSONResponse

from millrace_server.network import Address

HEAD_BYTES_MAX = 16 * 1024
"""Maximum size of a request before its body."""

_LOCALHOST = "localhost"
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?")


def _check_host_name(text: str) -> str:
    if not (match := _HOST.fullmatch(text)) or match["host"] != text:
        raise ValueError("must be a host name or an IP address, an IPv6 address in brackets, without a port")
    return text.lower()


HostName = Annotated[str, AfterValidator(_check_host_name)]
"""A setting that is a value of the header `Host`, without its port."""


def accepts_gzip(request: Request) -> bool:
    """Whether the client lists gzip. One that lists it with a weight, which may be 0, gets plain text."""
    return "gzip" in [coding.strip() for coding in request.headers.get("accept-encoding", "").split(",")]


class Refusal(NamedTuple):
    """Why a request is refused."""

    status: int
    reason: str
    """The stable name of the refusal, such as that of an error over gRPC."""
    message: str
    retry_delay_seconds: float | None = None
    """The delay after which a retry may succeed; None if it cannot."""

    def response(self, headers: Mapping[str, str] = {}) -> JSONResponse:
        """Returns the response, which has the same form for all HTTP listeners."""
        if self.retry_delay_seconds is not None:
            headers = {**headers, "Retry-After": str(max(math.ceil(self.retry_delay_seconds), 1))}
        return JSONResponse({"reason": self.reason, "message": self.message}, self.status, headers)


class RequestCheck:
    """Checks the request heads of a listener against cross-site requests and DNS rebinding.

    A page of another site in a browser must not send requests. It must not read responses either, under a name that
    its owner has pointed to this server.
    """

    def __init__(self, listen: str, host_names: Iterable[str], setting: str) -> None:
        """`host_names` are additional names of the server, from the setting `setting`."""
        self._listen = Address.parse(listen).host.lower()
        self._names = {_LOCALHOST, self._listen, f"[{self._listen}]", *host_names}
        self._setting = setting

    def refusal(self, scope: Any, *, is_open: bool = False) -> Refusal | None:
        """Returns why a request is refused; None if it is not. With `is_open`, any Host is accepted."""
        headers = scope["headers"]
        head_bytes = sum(len(key) + len(value) for key, value in headers)
        if head_bytes + len(scope["raw_path"]) + len(scope["query_string"]) > HEAD_BYTES_MAX:
            return Refusal(431, "HEAD_TOO_LARGE", f"the headers and the path have more than {HEAD_BYTES_MAX} bytes")
        sent = dict(headers)
        host = sent.get(b"host", b"").decode("latin-1").lower()
        if not is_open and not self._is_own(host, scope):
            return Refusal(
                421,
                "UNKNOWN_HOST",
                f"the Host of the request, {host[:255]!a}, is not a name of this server; if it should be, add it to "
                f"{self._setting}",
            )
        origin = sent.get(b"origin", b"").decode("latin-1").lower()
        # Links from other sites may be followed; the linking page cannot read the response.
        is_link = sent.get(b"sec-fetch-mode") == b"navigate" and scope["method"] == "GET"
        is_foreign = origin.partition("://")[2] != host if origin else sent.get(b"sec-fetch-site") == b"cross-site"
        if is_foreign and not is_link:
            return Refusal(403, "FOREIGN_ORIGIN", "cross-origin requests are not allowed")
        return None

    def refusal_of_browser(self, scope: Any) -> Refusal | None:
        """Returns the same for browsers; other programs may use any Host."""
        is_browser = any(key in {b"origin", b"sec-fetch-site"} for key, _ in scope["headers"])
        return self.refusal(scope, is_open=not is_browser)

    def _is_own(self, host: str, scope: Any) -> bool:
        match = _HOST.fullmatch(host)
        return match is not None and (match["host"] in self._names or self._is_own_address(match["host"], scope))

    def _is_own_address(self, host: str, scope: Any) -> bool:
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        if address.is_loopback or str(address) == (scope.get("server") or [""])[0]:
            return True
        # Any address by which other machines may reach it, such as that of a published port. A page can have such an
        # address as its origin only if it was loaded from there.
        return self._listen in {"0.0.0.0", "::"}  # noqa: S104 - compared, not listened on
