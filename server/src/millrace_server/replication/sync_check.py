"""Whether the engine's servers sync what they store, which they tell over HTTP, and not to clients."""

import asyncio
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException

import structlog
from pydantic import BaseModel, ValidationError

_log = structlog.stdlib.get_logger(__name__)

_SECONDS = 3.0
_RESPONSE_BYTES_MAX = 1 << 20
_NANOSECONDS = 1_000_000_000


class _Storage(BaseModel):
    """How JetStream stores, as `/varz` shows it."""

    sync_always: bool = False
    sync_interval: int = 0
    """In nanoseconds."""


class _JetStream(BaseModel):
    config: _Storage


class _Server(BaseModel):
    """A server of the engine, as `/varz` shows it."""

    jetstream: _JetStream


async def warn_of_missing_syncs(monitoring_urls: Sequence[str]) -> None:
    """Warns of servers of the engine whose `sync_interval` is not `always`, and of those that do not tell."""
    await asyncio.gather(*[asyncio.to_thread(_warn, url) for url in monitoring_urls])


def _warn(url: str) -> None:
    try:
        storage = _storage_of(url)
    except (OSError, ValueError) as error:
        _log.warning("cannot determine whether the engine syncs its writes", url=url, error=str(error))
        return
    if not storage.sync_always:
        _log.warning(
            "the engine does not sync each message: a power failure of most of its servers would lose acknowledged "
            "events; set sync_interval: always in the table jetstream of its configuration",
            url=url,
            sync_interval_seconds=storage.sync_interval / _NANOSECONDS,
        )


def _storage_of(url: str) -> _Storage:
    """Returns what a server of the engine says of its JetStream; raises OSError or ValueError."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=_SECONDS) as response:  # noqa: S310 - it was checked
            return _Server.model_validate_json(response.read(_RESPONSE_BYTES_MAX)).jetstream.config
    except (HTTPException, ValidationError):
        raise ValueError("it is not the monitoring port of a nats-server with JetStream") from None
