"""Advice for users of Spark on errors of a write, by the reason of the error."""

from collections.abc import Mapping

_LOST = (
    "between the tasks' puts and the commit the server restarted, or leaseSeconds ran out, so the rows that the tasks "
    "had put are gone; {again}"
)
_REPEAT_STREAM = "start the query again; it repeats the batch and stores nothing twice"
_REPEAT_SAVE = "save again"

PUT_ADVICE: Mapping[str, str] = {
    "BYTES_FULL": (
        "open transactions hold as many bytes as the server allows, including those of aborted batches until their "
        "leaseSeconds are over; write less at once, or give the channel a larger byte_capacity"
    ),
    "TOO_MANY_TXNS": (
        "write with fewer tasks (coalesce), or raise the channel's transaction_capacity or open_transactions_max; "
        "transactions of aborted batches end when their leaseSeconds are over"
    ),
    "TXN_CAPACITY": "write less at once, in smaller batches or saves, or give the channel a larger byte_capacity",
    "MESSAGE_TOO_LARGE": "raise message_bytes_max in the server's configuration, or remove such rows",
    "EVENT_TOO_LARGE": "remove such rows, or raise message_bytes_max or byte_capacity in the server's configuration",
    "DEADLINE": "the server was unreachable, or too slow, for retrySeconds",
    "TXN_NOT_FOUND": _LOST.format(again="run the task again"),
    "LEASE_EXPIRED": _LOST.format(again="run the task again"),
}
"""Advice on a refused put of a task."""

_FULL = "there was no room for retrySeconds; consume events, give the channel a larger capacity, or write less at once"


def commit_advice(*, is_streaming: bool) -> Mapping[str, str]:
    """Returns the advice for a refused commit of the driver."""
    lost = _LOST.format(again=_REPEAT_STREAM if is_streaming else _REPEAT_SAVE)
    less = "limit the batch, such as by maxEventsPerTrigger" if is_streaming else "save it in parts"
    return {
        **PUT_ADVICE,
        "TXN_NOT_FOUND": lost,
        "LEASE_EXPIRED": lost,
        "TXN_STATE": lost,
        "CHANNEL_FULL": _FULL,
        "BYTES_FULL": _FULL,
        "TXN_CAPACITY": f"the batch cannot fit even an empty channel; give the channel more capacity, or {less}",
    }
