"""Whether the engine's servers sync what they store, which they tell over HTTP, and not to clients."""

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from typing import Any

import structlog

_log = structlog.stdlib.get_logger(__name__)

_SECONDS = 3.0
_ANSWER_BYTES_MAX = 1 << 20
_NANOSECONDS = 1_000_000_000


async def warn_of_missing_syncs(monitoring_urls: Sequence[str]) -> None:
    """Warns of servers of the engine whose `sync_interval` is not `always`, and of those that do not tell."""
    await asyncio.gather(*[asyncio.to_thread(_warn, url) for url in monitoring_urls])


def _warn(url: str) -> None:
    try:
        settings = _jetstream_settings(url)
    except (OSError, ValueError) as error:
        _log.warning("the engine does not tell whether it syncs what it stores", url=url, error=str(error))
        return
    if not settings.get("sync_always"):
        _log.warning(
            "the engine does not sync each message: a power failure of most of its servers would lose acknowledged "
            "events; set sync_interval: always in the table jetstream of its configuration",
            url=url,
            sync_interval_seconds=settings.get("sync_interval", 0) / _NANOSECONDS,
        )


def _jetstream_settings(url: str) -> dict[str, Any]:
    """Returns what a server of the engine says of its JetStream; raises OSError or ValueError."""
    with urllib.request.urlopen(f"{url.rstrip('/')}/varz", timeout=_SECONDS) as answer:  # noqa: S310 - it was checked
        found = json.loads(answer.read(_ANSWER_BYTES_MAX))
    settings = found.get("jetstream", {}).get("config") if isinstance(found, dict) else None
    if not isinstance(settings, dict):
        raise ValueError("it has no JetStream")  # noqa: TRY004 - what a server tells is a value
    return settings
