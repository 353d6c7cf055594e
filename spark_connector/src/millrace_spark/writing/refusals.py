"""What servers refuse of a write, told to somebody who writes through Spark."""

from collections.abc import Mapping

_LOST = (
    "between the tasks' puts and the commit the server was started anew, or leaseSeconds ran out, so what the tasks "
    "had put is gone; {again}"
)
_REPEAT_STREAM = "start the query again: it repeats the batch, and stores nothing twice"
_REPEAT_SAVE = "save again"

_PUT_ADVICE: Mapping[str, str] = {
    "BYTES_FULL": (
        "transactions hold as much as the server takes at once, those of batches that were broken off too, until their "
        "leaseSeconds are over; write less at once, or give the channel a larger byte_capacity"
    ),
    "TOO_MANY_TXNS": (
        "write with fewer tasks (coalesce), or raise the channel's transaction_capacity or open_transactions_max; "
        "transactions of batches that were broken off go when their leaseSeconds are over"
    ),
    "TXN_CAPACITY": "write less at once, in smaller batches or saves, or give the channel a larger byte_capacity",
    "MESSAGE_TOO_LARGE": "raise message_bytes_max in the server's configuration, or leave out such rows",
    "EVENT_TOO_LARGE": "leave out such rows, or raise message_bytes_max or byte_capacity in the server's configuration",
    "DEADLINE": "it could not be reached, or was too slow, for as long as retrySeconds says",
    "TXN_NOT_FOUND": _LOST.format(again="the task is to run again"),
    "LEASE_EXPIRED": _LOST.format(again="the task is to run again"),
}
_FULL = (
    "there was none for as long as retrySeconds says; let somebody consume, give the channel a larger capacity, or "
    "write less at once"
)


def put_advice() -> Mapping[str, str]:
    """What to do where a task's put is refused, by the error's reason."""
    return _PUT_ADVICE


def commit_advice(*, is_streaming: bool) -> Mapping[str, str]:
    """What to do where the driver's commit is refused, by the error's reason."""
    lost = _LOST.format(again=_REPEAT_STREAM if is_streaming else _REPEAT_SAVE)
    less = "limit what a batch holds, as by maxEventsPerTrigger" if is_streaming else "save it in parts"
    return {
        **_PUT_ADVICE,
        "TXN_NOT_FOUND": lost,
        "LEASE_EXPIRED": lost,
        "TXN_STATE": lost,
        "CHANNEL_FULL": _FULL,
        "BYTES_FULL": _FULL,
        "TXN_CAPACITY": f"it can never fit, however empty the channel is; give the channel more capacity, or {less}",
    }
