"""Keeps a task's transactions alive while it is slow."""

import threading
import time
from contextlib import ExitStack

import millrace_client as millrace
from millrace_spark.shards import Shard

_RENEWALS_PER_LEASE = 3
_CALL_SECONDS_MIN = 1.0
_CALL_SECONDS_MAX = 5.0


class LeaseKeeper:
    """Renews transactions often enough from a thread of its own, from the first one on until it is stopped.

    It has connections of its own, whose calls are short: puts do not wait for a renewal, nor a renewal for a put, and a
    server that is away takes a few seconds of each round from the others, however many transactions it has.

    Args:
        lease_seconds: How long a transaction lives without a call.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._pause_seconds = lease_seconds / _RENEWALS_PER_LEASE
        self._call_seconds = min(max(self._pause_seconds, _CALL_SECONDS_MIN), _CALL_SECONDS_MAX)
        self._connections = ExitStack()
        self._clients: dict[str, millrace.Client] = {}
        self._lock = threading.Lock()
        self._txns: dict[str, list[millrace.Transaction]] = {}
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_at = time.monotonic()

    def add(self, shard: Shard, txn_id: str) -> None:
        """Keeps one more."""
        client = self._clients.get(shard.endpoint)
        if client is None:
            connected = millrace.connect(shard.endpoint, timeout_seconds=self._call_seconds)
            client = self._clients[shard.endpoint] = self._connections.enter_context(connected)
        txn = client.channel(shard.channel).transaction(txn_id=txn_id)
        with self._lock:
            self._txns.setdefault(shard.endpoint, []).append(txn)
        if self._thread is None:
            self._renewed_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="millrace-leases", daemon=True)
            self._thread.start()

    def stop(self, *, is_for_commit: bool) -> None:
        """Stops; where the transactions are to be committed, they have their whole lease from about now on.

        Waits for one call that is under way, and for one to each server that is away where it is for a commit.
        """
        self._is_stopped.set()
        with self._connections:
            if self._thread is not None:
                self._thread.join()
            # The commit comes when the last task of the batch is done.
            if is_for_commit and time.monotonic() - self._renewed_at > self._pause_seconds / 2:
                self._renew_all(is_last=True)

    def _run(self) -> None:
        while not self._is_stopped.wait(self._pause_seconds):
            self._renew_all(is_last=False)

    def _renew_all(self, *, is_last: bool) -> None:
        self._renewed_at = time.monotonic()
        with self._lock:
            at_servers = [tuple(txns) for txns in self._txns.values()]
        for txns in at_servers:
            for txn in txns:
                if self._is_stopped.is_set() and not is_last:
                    return
                if not _is_answered(txn):
                    break


def _is_answered(txn: millrace.Transaction) -> bool:
    """Renews a transaction; tells whether its server answers at all."""
    try:
        txn.renew()
    except millrace.MillraceError as error:
        # Where the transaction has ended, the next put or the commit tells.
        return error.advice is not millrace.RetryAdvice.UNREACHABLE
    return True
