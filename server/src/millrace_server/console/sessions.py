"""Sessions of people who have logged in to the console with a token."""

import hashlib
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

from millrace_server.access.control import AccessControl, Credentials, Identity
from millrace_server.access.permissions import Permission
from millrace_server.errors import ForbiddenError, MillraceError

IDLE_SECONDS_MAX = 3_600.0
"""A session ends when its page has been closed for this long: an open page polls the server."""

AGE_SECONDS_MAX = 12 * 3_600.0
SESSIONS_MAX = 1_000
FAILURES_MAX = 10
"""Failed logins that an address may have at once; then one more every `FAILURE_SECONDS`."""

FAILURE_SECONDS = 6.0

_ADDRESSES_MAX = 4_096
_ID_BYTES = 32


class _Session(NamedTuple):
    credentials: Credentials
    identity: str
    began_at: float
    used_at: float


class Sessions:
    """The open sessions, by the hashes of their random ids; they end with the process, or once a token is revoked."""

    def __init__(self, access: AccessControl, clock: Callable[[], float] = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._sessions: dict[bytes, _Session] = {}
        access.watch(lambda: self._keep(self._is_valid))

    def open(self, credentials: Credentials, identity: Identity) -> str:
        """Returns the id of a new session of the identity that these credentials prove.

        Raises ForbiddenError if it may not see all channels, which the console shows.
        """
        if not self._access.rights_of(identity).may_everywhere(Permission.DESCRIBE):
            raise ForbiddenError(f"no role of {identity.name!a} allows describe:*, which the console needs")
        self._end_overdue()
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].used_at)]
        session_id = secrets.token_urlsafe(_ID_BYTES)
        now = self._clock()
        self._sessions[_key(session_id)] = _Session(credentials, identity.name, now, now)
        return session_id

    def credentials_of(self, session_id: str) -> Credentials | None:
        """Returns the credentials of an open session, and marks it as used; None if there is none."""
        self._end_overdue()
        key = _key(session_id)
        session = self._sessions.get(key)
        if session is None:
            return None
        self._sessions[key] = session._replace(used_at=self._clock())
        return session.credentials

    def close(self, session_id: str) -> None:
        """Ends a session; does nothing if there is none."""
        self._sessions.pop(_key(session_id), None)

    def _end_overdue(self) -> None:
        now = self._clock()
        self._keep(lambda one: now - one.used_at < IDLE_SECONDS_MAX and now - one.began_at < AGE_SECONDS_MAX)

    def _is_valid(self, session: _Session) -> bool:
        try:
            return self._access.identify(session.credentials).name == session.identity
        except MillraceError:
            return False

    def _keep(self, is_kept: Callable[[_Session], bool]) -> None:
        self._sessions = {key: session for key, session in self._sessions.items() if is_kept(session)}


def _key(session_id: str) -> bytes:
    # Hashed, so that the process's memory holds no usable ids.
    return hashlib.sha256(session_id.encode(errors="replace")).digest()


class LoginLimit:
    """Limits the failed logins from each address."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._forgiven_at: dict[str, float] = {}
        """When all failures of an address are forgiven."""

    def delay_seconds(self, address: str) -> float:
        """Returns after how many seconds an address may try again; 0 if it may now."""
        excess = self._forgiven_at.get(address, 0.0) - self._clock()
        return max(excess - (FAILURES_MAX - 1) * FAILURE_SECONDS, 0.0)

    def note_failure(self, address: str) -> None:
        now = self._clock()
        if len(self._forgiven_at) >= _ADDRESSES_MAX:
            self._forgiven_at = {one: time for one, time in self._forgiven_at.items() if time > now}
        if len(self._forgiven_at) >= _ADDRESSES_MAX:
            del self._forgiven_at[next(iter(self._forgiven_at))]
        self._forgiven_at[address] = max(self._forgiven_at.get(address, now), now) + FAILURE_SECONDS
