"""RPCs for HTTP requests within the process, with the same permissions, quotas and audit log as over gRPC."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message
from starlette.requests import HTTPConnection

from millrace.googleapis import error_details_pb2, status_pb2
from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access.audit import Audit
from millrace_server.access.permissions import Permission
from millrace_server.errors import MillraceError
from millrace_server.grpc_services.call import AuditedCall, Call
from millrace_server.grpc_services.guard import PEER_CERTIFICATE, Guard, Rule
from millrace_server.grpc_services.rpc import Handler
from millrace_server.grpc_services.rules import RULES
from millrace_server.grpc_services.status import code_of
from millrace_server.network.http_requests import Refusal
from millrace_server.network.http_server import certificate_of

READ = Rule(lambda call, _request: call.require_everywhere(Permission.DESCRIBE))
"""The rule of pages that show all channels."""

_STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.OUT_OF_RANGE: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
_OTHER_STATUS = 500


class RefusedError(Exception):
    """Raised when a request is refused; the arguments are those of `Refusal`."""

    def __init__(self, status: int, reason: str, message: str, retry_delay_seconds: float | None = None) -> None:
        super().__init__(message)
        self.refusal = Refusal(status, reason, message, retry_delay_seconds)

    @classmethod
    def of(cls, error: MillraceError) -> "RefusedError":
        status = _STATUSES.get(code_of(error), _OTHER_STATUS)
        return cls(status, error.reason, str(error), error.retry_delay_seconds)


def peer_of(request: HTTPConnection) -> str:
    """Returns the address of a client, in the format of the audit log."""
    return ":".join(map(str, request.client or ()))


class _Context:
    """The part of a call's context that RPC handlers use."""

    def __init__(self, request: HTTPConnection) -> None:
        self._peer = peer_of(request)
        self._code: grpc.StatusCode | None = None
        certificate = certificate_of(request.scope)
        self._certificates = {} if certificate is None else {PEER_CERTIFICATE: [certificate]}

    def peer(self) -> str:
        return self._peer

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self._certificates

    def code(self) -> grpc.StatusCode | None:
        return self._code

    async def abort(self, code: grpc.StatusCode, sentence: str, metadata: Sequence[tuple[str, bytes]]) -> NoReturn:
        self._code = code
        info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
        seconds = None
        for _, encoded in metadata:
            for detail in status_pb2.Status.FromString(encoded).details:
                detail.Unpack(info)
                if detail.Unpack(retry):
                    seconds = retry.retry_delay.ToTimedelta().total_seconds()
        raise RefusedError(_STATUSES.get(code, _OTHER_STATUS), info.reason, sentence, seconds)


class Calls:
    """Calls the handlers of RPCs for HTTP requests."""

    def __init__(self, handlers: Mapping[str, Handler], guard: Guard | None) -> None:
        self._handlers = handlers
        self._guard = guard
        self._audit = Audit()

    async def call(self, request: HTTPConnection, message: Message) -> Any:
        """Returns the response of AdminService to a message; raises RefusedError."""
        name = message.DESCRIPTOR.name.removesuffix("Request")
        serve: Any = self._handlers[name].unary_unary
        return getattr(pb, f"{name}Response").FromString(await serve(message.SerializeToString(), _Context(request)))

    @contextmanager
    def admitted(self, request: HTTPConnection, rule: Rule | str, message: Any = None) -> Iterator[Call]:
        """Enters a call if a rule, or the rule of an RPC, allows it; raises MillraceError otherwise."""
        name = rule if isinstance(rule, str) else f"HTTP {request.url.path}"
        with self._entered(request, RULES[rule] if isinstance(rule, str) else rule, name) as call:
            call.check(message)
            yield call

    def _entered(self, request: HTTPConnection, rule: Rule, name: str) -> Call:
        if self._guard is not None:
            context: Any = _Context(request)
            return self._guard.enter(rule, name, context)
        peer = peer_of(request)
        return AuditedCall(self._audit, name, peer) if rule.administers else Call(peer)
