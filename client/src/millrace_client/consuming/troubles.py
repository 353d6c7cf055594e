"""Which errors a consumer waits out, and which it tells."""

import grpc

from millrace_client.errors import (
    BadArgumentError,
    BadNameError,
    ChannelNotFoundError,
    ClientClosedError,
    ClientForkedError,
    CorruptError,
    MessageTooLargeError,
    MillraceError,
)

_LASTING_ERRORS = (
    BadArgumentError,
    BadNameError,
    ClientClosedError,
    ClientForkedError,
    CorruptError,
    MessageTooLargeError,
)
# What other servers, and what stands between, say where a repeat cannot help.
_LASTING_CODES = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}


def passes(error: MillraceError, *, waits_for_channels: bool) -> bool:
    """Tells whether time may mend it: a server that restarts or replays, a claim that ends, a network that comes back.

    A log that failed belongs to them, since its server can be started anew.
    """
    if isinstance(error, ChannelNotFoundError):
        return waits_for_channels
    return not isinstance(error, _LASTING_ERRORS) and error.code not in _LASTING_CODES
