"""What a request gets that is not stored."""

import math

from starlette.responses import JSONResponse, Response

from millrace_server.errors import MillraceError

RETRY_SECONDS = 1.0
"""When to come again where nobody knows better."""


class HttpRefusalError(Exception):
    """Returned when a request is not stored.

    Attributes:
        status: The status of the answer.
        reason: Stable name of the refusal.
        message: Why, in a sentence: what it was, what is allowed.
        retry_seconds: After how long a repeat makes sense; None where it makes none.
        is_unread: Whether some of the request's body was not read, so that its connection cannot go on.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_seconds: float | None = None,
        is_unread: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_seconds = retry_seconds
        self.is_unread = is_unread

    def answer(self) -> Response:
        """The answer."""
        headers = {}
        if self.retry_seconds is not None:
            headers["Retry-After"] = str(max(math.ceil(self.retry_seconds), 1))
        if self.is_unread:
            headers["Connection"] = "close"
        return JSONResponse({"reason": self.reason, "message": self.message}, self.status, headers)


def bad_request(message: str) -> HttpRefusalError:
    """The refusal of a request that can never be stored."""
    return HttpRefusalError(400, "BAD_ARGUMENT", message)


def come_again(error: MillraceError) -> HttpRefusalError:
    """The refusal of a request that the channels cannot store now."""
    return HttpRefusalError(503, error.reason, str(error), retry_seconds=error.retry_delay_seconds or RETRY_SECONDS)


def too_large(message: str, *, is_unread: bool = False) -> HttpRefusalError:
    """The refusal of a request that is larger than may be."""
    return HttpRefusalError(413, "TOO_LARGE", message, is_unread=is_unread)
