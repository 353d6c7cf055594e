"""The call that is being served, as the services see it. Without authentication, every caller may do everything."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from millrace_server.access.audit import Audit
from millrace_server.access.permissions import Permission
from millrace_server.access.quotas import UNBOUNDED
from millrace_server.channels.activity import Origin
from millrace_server.errors import MillraceError

_ABOUT = ("channel", "name", "txn_id", "producer_id")


class Call:
    """A call without authentication, whose caller may do everything; a context in which it is the current call."""

    identity = ""
    """The owner of the caller's transactions and claims; empty without authentication."""
    quota = UNBOUNDED

    def __init__(self, peer: str = "") -> None:
        """`peer` is the caller's address: gRPC's context crashes if it is asked for that after a cancellation."""
        self.peer = peer

    @property
    def origin(self) -> Origin:
        return Origin(self.identity, self.peer)

    def __enter__(self) -> Self:
        CURRENT_CALL.set(self)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        return

    def check(self, request: Any) -> None:
        """Raises ForbiddenError, or that there is no such thing, unless the caller may make this request."""

    def recheck(self) -> None:
        """Raises UnauthenticatedError or ForbiddenError if the caller may not make this call any more."""

    def note_refusal(self, error: MillraceError, request: Any) -> None:
        """Logs that a message of a stream was refused."""

    def admit(self, byte_count: int) -> None:
        """Counts a request; raises QuotaExceededError if it is too much, or if the caller has read too much."""

    async def receive(self, byte_count: int) -> None:
        """Waits until a message of a stream may be received; raises QuotaExceededError if that takes too long."""

    async def send(self, byte_count: int) -> None:
        """Waits until a response of a stream may be sent."""

    def may(self, _permission: Permission, _channel: str) -> bool:
        """Whether the caller may do this."""
        return True

    def require(self, permissions: Sequence[Permission], channel: str) -> None:
        """Raises ForbiddenError unless the caller has one of the permissions."""

    def require_throughout(self, permissions: Sequence[Permission], channel: str) -> None:
        """Does the same, and ends the call with that error once no role allows it any more."""


class AuditedCall(Call):
    """A call without authentication that administers the server: the audit log has it."""

    def __init__(self, audit: Audit, name: str, peer: str) -> None:
        super().__init__(peer)
        self._audit = audit
        self._name = name
        self._about: Mapping[str, str] = {}

    def check(self, request: Any) -> None:
        self._about = about_of(request)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._audit.note(None, self.peer, self._name, error, self._about, administers=True)


def about_of(request: Any) -> dict[str, str]:
    """Returns what the audit log says of a request."""
    return {key: getattr(request, key) for key in _ABOUT if hasattr(request, key)}


CURRENT_CALL: ContextVar[Call] = ContextVar("call", default=Call())  # noqa: B039 - it is never changed


def current_call() -> Call:
    """Returns the call that the current task serves."""
    return CURRENT_CALL.get()
