"""How the owner of a replicated channel deletes it for all servers.

First the channel's entry says that this is decided, then the stream goes, then the entry says that the channel is
deleted. An owner that ends in between leaves the rest to the next one: a stream that is gone without such a note would
be taken for lost.
"""

import asyncio
from contextlib import suppress

import structlog

from millrace_server.channels.engines import SharedEngine
from millrace_server.replication.engine import EngineError
from millrace_server.replication.lease import ChannelLease
from millrace_server.replication.stream import StreamLimits

_log = structlog.stdlib.get_logger(__name__)

_RETRY_SECONDS = 1.0


async def decide_deletion(lease: ChannelLease) -> bool:
    """Notes that the channel is to be deleted; returns whether that is certain."""
    is_decided = await lease.mark_deleting()
    if not is_decided:
        _log.warning("a channel is not deleted, as its owner's entry could not be written", channel=lease.channel)
    return is_decided


async def finish_deletion(
    shared: SharedEngine, lease: ChannelLease, limits: StreamLimits, ending: asyncio.Event
) -> None:
    """Deletes the stream of a channel whose deletion is decided, and then says so.

    Gives up when the lease is lost, or after the time of one, or as soon as `ending` is set; then the channel's entry
    still says what is decided.
    """
    clock = asyncio.get_running_loop().time
    give_up = clock() + shared.leases.members.lease_seconds
    while lease.is_held and not ending.is_set() and clock() < give_up:
        try:
            await shared.stores.delete(lease.channel, limits)
        except EngineError as error:
            _log.warning("a channel's stream cannot be deleted yet", channel=lease.channel, error=str(error))
            with suppress(TimeoutError):
                async with asyncio.timeout(_RETRY_SECONDS):
                    await ending.wait()
        else:
            await lease.release(is_deleted=True)
