"""The log of what was denied and of what administers: who, from where, what, and how it ended. Never secrets."""

import time
from collections.abc import Mapping

import structlog

from millrace_server.access.control import Identity
from millrace_server.errors import ForbiddenError, MillraceError, UnauthenticatedError

_DENIAL_SECONDS = 1.0
_IDENTITIES_MAX = 4_096

LOGGER = __name__

_log = structlog.stdlib.get_logger(LOGGER)


class Audit:
    """Tells of denials, at most one a second for an identity, and of every administration."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}
        self._untold: dict[str, int] = {}

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
        """Notes how a call ended, and the channel that it was about."""
        is_denied = isinstance(error, UnauthenticatedError | ForbiddenError)
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
        elif (untold := self._admit("" if identity is None else identity.name)) is not None:
            more = {"denials_suppressed": untold} if untold else {}
            _log.warning("audit", outcome="denied", **who, **what, **why, **more)

    def _admit(self, identity: str) -> int | None:
        """Returns how many denials of an identity were not told since the last one; None if this one is not."""
        now = time.monotonic()
        if now - self._told_at.get(identity, float("-inf")) < _DENIAL_SECONDS:
            self._untold[identity] = self._untold.get(identity, 0) + 1
            return None
        if len(self._told_at) >= _IDENTITIES_MAX:
            self._told_at.clear()
            self._untold.clear()
        self._told_at[identity] = now
        return self._untold.pop(identity, 0)
