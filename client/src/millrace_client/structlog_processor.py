"""A structlog processor that sends log entries to a channel. It does not import structlog."""

import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import Any, TypeVar

from millrace_client._log_sender import LogSender, ProducerSource, ShippingConfig, ShippingMetrics, event_of, is_own

EntryT = TypeVar("EntryT")
"""An entry: a mapping, or after a renderer its text."""


class MillraceProcessor:
    """Sends each entry to a channel, and passes it on unchanged; see `MillraceHandler` for the rest.

        structlog.configure(processors=[
            structlog.processors.add_log_level,
            MillraceProcessor(producer, "logs"),
            structlog.dev.ConsoleRenderer(),
        ])

    The event's headers are `logger`, `level`, `time`, `host` and `pid`. Its body is a JSON object of the entry;
    after a renderer it is the rendered text.
    """

    def __init__(
        self, producer: ProducerSource, channel: str, *, key: str | None = None, config: ShippingConfig | None = None
    ) -> None:
        """Sends nothing yet; see `MillraceHandler`."""
        self._config = config or ShippingConfig()
        self._sender = LogSender(producer, channel, key, self._config)

    @property
    def metrics(self) -> ShippingMetrics:
        """The counts of the entries so far."""
        return self._sender.metrics

    def __call__(self, logger: Any, method_name: str, entry: EntryT) -> EntryT:
        """Sends an entry, and returns it."""
        try:
            fields = entry if isinstance(entry, Mapping) else {}
            name = str(fields.get("logger") or getattr(logger, "name", None) or "")
            if not is_own(name):
                level = str(fields.get("level") or method_name)
                self._sender.send(event_of(name, level, time.time(), _body_of(entry)))
        except Exception:  # noqa: BLE001 - an entry that cannot be encoded must not break the program
            self._sender.count_dropped()
        return entry

    def flush(self) -> None:
        """Waits until all entries are stored, at most `flush_seconds`."""
        self._sender.flush(self._config.flush_seconds)

    def close(self) -> None:
        """Sends waiting entries, within `flush_seconds`, and accepts no more."""
        self._sender.close(self._config.flush_seconds)


def _body_of(entry: object) -> Mapping[str, Any] | str:
    if isinstance(entry, Mapping):
        return {**entry, "exception": _traceback_of(entry["exc_info"])} if entry.get("exc_info") else entry
    if isinstance(entry, (bytes, bytearray)):
        return bytes(entry).decode(errors="backslashreplace")
    return str(entry)


def _traceback_of(exc_info: object) -> str:
    """Returns the traceback of any `exc_info` that structlog accepts."""
    match exc_info:
        case BaseException():
            lines = traceback.format_exception(exc_info)
        case (type() as kind, BaseException() as error, TracebackType() | None as frames):
            lines = traceback.format_exception(kind, error, frames)
        case _:
            return traceback.format_exc().rstrip()
    return "".join(lines).rstrip()


__all__ = ["MillraceProcessor", "ShippingConfig", "ShippingMetrics"]
