"""Looks at what is to be written to, before any task runs."""

from functools import lru_cache

from millrace_spark.lookup import connected, refuse_aliases
from millrace_spark.refusals import explained
from millrace_spark.writing.options import WriteOptions
from millrace_spark.writing.refusals import put_advice

_KNOWN_MAX = 100


def check_targets(options: WriteOptions) -> None:
    """Makes sure that each server answers and has the channel, where the options name one.

    Raises:
        MillraceSparkError: One does not.
    """
    with connected(options.endpoints) as clients:
        homes: dict[str, str] = {}
        for endpoint, client in clients.items():
            with explained(endpoint, options.channel, advice_by_reason=put_advice()):
                admin = client.admin
                there = [admin.get_channel(options.channel)] if options.channel else admin.list_channels()
            refuse_aliases(homes, endpoint, there)


@lru_cache(_KNOWN_MAX)
def check_targets_once(options: WriteOptions) -> None:
    """The same, but in each process once: a stream goes on while a server is away for a while."""
    check_targets(options)
