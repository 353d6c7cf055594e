"""A logging handler that sends log records to a channel."""

import logging
from typing import Any, Literal

from millrace_client._log_sender import LogSender, ProducerSource, ShippingConfig, ShippingMetrics, event_of, is_own
from millrace_client.errors import BadArgumentError

# The fields that every record has.
_USUAL_FIELDS = {*vars(logging.LogRecord("", 0, "", 0, "", (), None)), "message", "asctime", "taskName"}


class MillraceHandler(logging.Handler):
    """Sends log records to a channel, without blocking or breaking the program.

        producer = millrace_client.Producer(["localhost:7070"])
        logging.getLogger().addHandler(MillraceHandler(producer, "logs"))

    A record becomes an event when it is logged, and a thread sends it. If the buffer is full or sending fails, records
    are dropped and counted, and a later record reports their number. Records of this package and of gRPC are ignored,
    since sending them would create further records without end.

    The event's headers are `logger`, `level`, `time`, `host` and `pid`. Its body is a JSON object with these and
    `message`, `module`, `function`, `line`, `thread`, `exception`, `stack` and all `extra` fields; or the text of the
    handler's formatter.

    `close` and the program's exit send waiting records, within `flush_seconds`. After a fork the child starts with an
    empty buffer; a producer from before the fork does not work there, so pass a function that creates one.
    """

    def __init__(  # noqa: PLR0913 - all but two have defaults
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
            producer: A `Producer`, or any object with such a `send`, which the caller closes; or a function that
                creates one: the sending thread calls it once in each process, and the handler closes the result.
            channel: The channel of the records.
            key: The producer's key for all records; one key keeps their order with several servers.
            body: The form of the event's body.
            level: The lowest level that is sent.
            config: The limits. None: the defaults.

        Raises:
            BadArgumentError: `body` is neither "json" nor "text".
        """
        super().__init__(level)
        if body not in ("json", "text"):
            raise BadArgumentError(f"body: is {body!r}; it must be 'json' or 'text'")
        self._config = config or ShippingConfig()
        self._is_text = body == "text"
        self._sender = LogSender(producer, channel, key, self._config)

    @property
    def metrics(self) -> ShippingMetrics:
        """The counts of the records so far."""
        return self._sender.metrics

    def emit(self, record: logging.LogRecord) -> None:
        """Sends a record; see the class."""
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
        """Waits until all records are stored, at most `flush_seconds`."""
        self._sender.flush(self._config.flush_seconds)

    def close(self) -> None:
        """Sends waiting records, within `flush_seconds`, and accepts no more."""
        self._sender.close(self._config.flush_seconds)
        super().close()


_FORMATTER = logging.Formatter()

__all__ = ["MillraceHandler", "ShippingConfig", "ShippingMetrics"]
