"""Finds the shards that are to be read."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.refusals import explained
from millrace_spark.shards import Shard, is_meant, is_pattern

CALL_SECONDS_MAX = 10.0
"""How long a server may take to answer; there is nothing to wait for in what is asked of it."""


@contextlib.contextmanager
def connected(endpoints: Sequence[str]) -> Iterator[dict[str, millrace.Client]]:
    """A connection to each endpoint, closed in the end."""
    with ExitStack() as stack:
        yield {
            endpoint: stack.enter_context(millrace.connect(endpoint, timeout_seconds=CALL_SECONDS_MAX))
            for endpoint in endpoints
        }


def refuse_aliases(homes: dict[str, str], endpoint: str, channels: Sequence[millrace.ChannelInfo]) -> None:
    """Makes sure that no server is named twice, as `localhost` and `127.0.0.1`: a channel's id is its own.

    Raises:
        OptionError: One is.
    """
    for info in channels:
        if (home := homes.setdefault(info.channel_id, endpoint)) != endpoint:
            raise OptionError(
                f"option endpoints: {home} and {endpoint} are the same server, since channel {info.name} is one and "
                "the same there; name it once"
            )


def find_shards(clients: Mapping[str, millrace.Client], wanted: Sequence[str]) -> list[Shard]:
    """The channels of these names and patterns on each server; a channel need not be on all of them.

    Raises:
        MillraceSparkError: A server cannot be reached, or a name or pattern fits no channel on any.
    """
    if len(clients) == 1 and not any(map(is_pattern, wanted)):
        # Claiming them tells whether they are there.
        return [Shard(name, endpoint) for endpoint in clients for name in wanted]
    there: list[Shard] = []
    homes: dict[str, str] = {}
    for endpoint, client in clients.items():
        with explained(endpoint, ", ".join(wanted)):
            infos = client.admin.list_channels()
        refuse_aliases(homes, endpoint, infos)
        there.extend(Shard(info.name, endpoint) for info in infos)
    for name in wanted:
        if not any(is_meant(shard.channel, (name,)) for shard in there):
            channels = ", ".join(sorted({shard.channel for shard in there})) or "no channels"
            what = "the pattern fits no channel" if is_pattern(name) else "there is none of that name"
            raise MillraceSparkError(f"channel {name}: {what} on {', '.join(clients)}, which have {channels}")
    return sorted(shard for shard in there if is_meant(shard.channel, tuple(wanted)))
