"""Log records, shipped to a channel."""

import logging
from typing import Any, Literal

from millrace_client._log_sender import LogSender, ProducerSource, ShippingConfig, ShippingMetrics, event_of, is_own
from millrace_client.errors import BadArgumentError

# What a record has before anybody adds to it.
_USUAL_FIELDS = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}


class MillraceHandler(logging.Handler):
    """Ships log records to a channel, without ever blocking or breaking the program.

        producer = millrace_client.Producer(["localhost:7070"])
        logging.getLogger().addHandler(MillraceHandler(producer, "logs"))

    A record becomes an event as it is logged, and is sent by a thread. Where more wait than the buffer holds, or
    sending fails, records are dropped and counted, and a later record tells how many. What this package and gRPC log
    themselves is passed over, since shipping it would never end.

    The event's headers are `logger`, `level`, `time`, `host` and `pid`. Its body is a JSON object with these and
    `message`, `module`, `function`, `line`, `thread`, `exception`, `stack` and whatever was given as `extra`; or the
    text that the handler's formatter makes.

    The end of the program, and `close`, send what waits, within `flush_seconds`. After a fork the child begins with an
    empty buffer; a producer that was made before does not work there, so give a function that makes one.
    """

    def __init__(  # noqa: PLR0913 - one less would be an object around the other options
        self,
        producer: ProducerSource,
        channel: str,
        *,
        key: str | None = None,
        body: Literal["json", "text"] = "json",
        level: int | str = logging.NOTSET,
        config: ShippingConfig | None = None,
    ) -> None:
        """Sends nothing yet.

        Args:
            producer: A `Producer`, or anything with such a `send`, which stays the caller's to close; or a
                function that makes one, called by the thread that sends, once in each process; that one is closed with
                the handler.
            channel: Where records go.
            key: The producer's key for all records; one key keeps their order where there are many servers.
            body: What the body is.
            level: The least level that is shipped.
            config: Limits. None: the defaults.

        Raises:
            BadArgumentError: `body` is neither of the two.
        """
        super().__init__(level)
        if body not in ("json", "text"):
            raise BadArgumentError(f"body: is {body!r}; it must be 'json' or 'text'")
        self._config = config or ShippingConfig()
        self._is_text = body == "text"
        self._sender = LogSender(producer, channel, key, self._config)

    @property
    def metrics(self) -> ShippingMetrics:
        """What became of the records so far."""
        return self._sender.metrics

    def emit(self, record: logging.LogRecord) -> None:
        """Ships a record; see the class."""
        try:
            if not is_own(record.name):
                body = self.format(record) if self._is_text else self._fields_of(record)
                self._sender.send(event_of(record.name, record.levelname, record.created, body))
        except Exception:  # noqa: BLE001 - a record that cannot be formatted must not break the program
            self._sender.count_dropped()
            self.handleError(record)

    def _fields_of(self, record: logging.LogRecord) -> dict[str, Any]:
        fields = {name: value for name, value in vars(record).items() if name not in _USUAL_FIELDS}
        fields |= {
            "message": record.getMessage(),
            "module": record.module,
            "function": record.funcName,
            "line": record.lineno,
            "thread": record.threadName,
        }
        formatter = self.formatter or _FORMATTER
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = formatter.formatException(record.exc_info)
        elif record.exc_text:
            fields["exception"] = record.exc_text
        if record.stack_info:
            fields["stack"] = formatter.formatStack(record.stack_info)
        return fields

    def flush(self) -> None:
        """Waits until what was logged is stored, but not longer than `flush_seconds`."""
        self._sender.flush(self._config.flush_seconds)

    def close(self) -> None:
        """Sends what waits, within `flush_seconds`; takes nothing more."""
        self._sender.close(self._config.flush_seconds)
        super().close()


_FORMATTER = logging.Formatter()

__all__ = ["MillraceHandler", "ShippingConfig", "ShippingMetrics"]
