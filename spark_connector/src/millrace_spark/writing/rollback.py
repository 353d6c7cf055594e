"""Rolls back what tasks have put."""

import logging
from collections.abc import Iterable

import millrace_client as millrace
from millrace_spark.writing.put_notes import ShardPuts

_CALL_SECONDS_MAX = 5.0

_log = logging.getLogger("millrace_spark")


def roll_back(puts: Iterable[ShardPuts]) -> None:
    """Drops what open transactions hold. What a server does not do now is done when their leases end."""
    by_endpoint: dict[str, list[tuple[str, str]]] = {}
    for shard_puts in puts:
        pairs = [(shard_puts.shard.channel, txn_id) for txn_id in shard_puts.txn_ids]
        by_endpoint.setdefault(shard_puts.shard.endpoint, []).extend(pairs)
    for endpoint, txns in by_endpoint.items():
        with millrace.connect(endpoint, timeout_seconds=_CALL_SECONDS_MAX) as client:
            _roll_back_at(client, txns)


def _roll_back_at(client: millrace.Client, txns: Iterable[tuple[str, str]]) -> None:
    for channel, txn_id in txns:
        try:
            client.channel(channel).rollback(txn_id)
        except millrace.MillraceError as error:
            # Ended ones are as they should be: a commit of which the driver has not heard may be among them.
            if error.advice is millrace.RetryAdvice.UNREACHABLE:
                _log.info("%s: transactions wait for their leases to end: %s", client.endpoint, error)
                return
