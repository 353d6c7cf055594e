"""The audit log of denied and administrative calls: identity, address, call and outcome, without secrets."""

import time
from collections.abc import Mapping

import structlog

from millrace_server.access.control import Identity
from millrace_server.errors import ForbiddenError, MillraceError, TxnNotFoundError, UnauthenticatedError

_DENIAL_SECONDS = 1.0
_IDENTITIES_MAX = 4_096

LOGGER = __name__

_log = structlog.stdlib.get_logger(LOGGER)


class Audit:
    """Logs denials, at most one per second and identity, and every administrative call."""

    def __init__(self) -> None:
        self._logged_at: dict[str, float] = {}
        self._suppressed: dict[str, int] = {}

    def note(  # noqa: PLR0913 - who, from where, what, which, outcome
        self,
        identity: Identity | None,
        peer: str,
        call: str,
        error: BaseException | None,
        about: Mapping[str, str] = {},
        *,
        administers: bool,
    ) -> None:
        """Logs the outcome of a call, if it is administrative or was denied.

        `about` is what the call concerned, such as its channel. It includes the `owner` if that is another identity:
        a caller is told that a transaction of another identity is not found, which is logged as a denial.
        """
        is_denied = isinstance(error, UnauthenticatedError | ForbiddenError)
        is_denied |= "owner" in about and isinstance(error, TxnNotFoundError)
        if not (administers or is_denied):
            return
        who = {"identity": identity.name, "proof": identity.proof} if identity else {"identity": None}
        what = {"peer": peer, "call": call, **about}
        if error is None:
            _log.info("audit", outcome="done", **who, **what)
            return
        why = {"reason": error.reason} if isinstance(error, MillraceError) else {}
        if not is_denied:
            _log.info("audit", outcome="failed", **who, **what, **why)
        elif (suppressed := self._admit("" if identity is None else identity.name)) is not None:
            more = {"denials_suppressed": suppressed} if suppressed else {}
            _log.warning("audit", outcome="denied", **who, **what, **why, **more)

    def _admit(self, identity: str) -> int | None:
        """Returns the number of denials suppressed since an identity's last entry; None if this one is suppressed."""
        now = time.monotonic()
        if now - self._logged_at.get(identity, float("-inf")) < _DENIAL_SECONDS:
            self._suppressed[identity] = self._suppressed.get(identity, 0) + 1
            return None
        if len(self._logged_at) >= _IDENTITIES_MAX:
            self._logged_at.clear()
            self._suppressed.clear()
        self._logged_at[identity] = now
        return self._suppressed.pop(identity, 0)
