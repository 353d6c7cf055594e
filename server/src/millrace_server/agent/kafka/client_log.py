"""The log of Kafka clients, with a limited rate."""

import logging

from millrace_server.token_bucket import TokenBucket

CLIENT_LOG = logging.getLogger(__name__)

_LOG_BURST, _LOG_SECONDS = 5, 30.0
_LIMITS_MAX = 1_000


class _RepetitionFilter(logging.Filter):
    """Limits the rate of lines of one kind and client, after a few that pass at once.

    While no broker can be reached, librdkafka logs each attempt, many per second.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limits: dict[object, TokenBucket] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        # The arguments of librdkafka's lines are the kind, the client's name with a number, and the text.
        kind = record.msg
        if isinstance(record.args, tuple) and len(record.args) > 1:
            kind = f"{record.args[0]} {str(record.args[1]).partition('#')[0]}"
        if len(self._limits) >= _LIMITS_MAX:
            self._limits.clear()
        return self._limits.setdefault(kind, TokenBucket(1 / _LOG_SECONDS, _LOG_BURST)).try_take()


CLIENT_LOG.addFilter(_RepetitionFilter())
