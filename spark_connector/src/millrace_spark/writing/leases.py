"""Keeps the transactions of a slow task alive."""

import threading
import time
from contextlib import ExitStack

import millrace_client as millrace
from millrace_spark.option_values import Security
from millrace_spark.shards import Shard

_RENEWALS_PER_LEASE = 3
_CALL_SECONDS_MIN = 1.0
_CALL_SECONDS_MAX = 5.0


class LeaseKeeper:
    """Renews transactions in a background thread, from the first one until it is stopped.

    It has its own connections with short deadlines, so that puts and renewals do not wait for each other, and an
    unreachable server delays the other servers by a few seconds per round, however many transactions it has.
    """

    def __init__(self, lease_seconds: float, security: Security) -> None:
        self._pause_seconds = lease_seconds / _RENEWALS_PER_LEASE
        self._call_seconds = min(max(self._pause_seconds, _CALL_SECONDS_MIN), _CALL_SECONDS_MAX)
        self._security = security
        self._connections = ExitStack()
        self._clients: dict[str, millrace.Client] = {}
        self._lock = threading.Lock()
        self._txns: dict[str, list[millrace.Transaction]] = {}
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_at = time.monotonic()

    def add(self, shard: Shard, txn_id: str) -> None:
        client = self._clients.get(shard.endpoint)
        if client is None:
            connected = self._security.connect(shard.endpoint, timeout_seconds=self._call_seconds)
            client = self._clients[shard.endpoint] = self._connections.enter_context(connected)
        txn = client.channel(shard.channel).transaction(txn_id=txn_id)
        with self._lock:
            self._txns.setdefault(shard.endpoint, []).append(txn)
        if self._thread is None:
            self._renewed_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="millrace-leases", daemon=True)
            self._thread.start()

    def stop(self, *, is_for_commit: bool) -> None:
        """Stops the thread. Before a commit, renews the transactions, so that they have a full lease.

        Waits for a call that is under way, and before a commit for one call to each unreachable server.
        """
        self._is_stopped.set()
        with self._connections:
            if self._thread is not None:
                self._thread.join()
            # The commit follows when the last task of the batch is done.
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
                if not _has_response(txn):
                    break


def _has_response(txn: millrace.Transaction) -> bool:
    """Renews a transaction; returns whether its server responded."""
    try:
        txn.renew()
    except millrace.MillraceError as error:
        # If the transaction has ended, the next put or the commit reports it.
        return error.advice is not millrace.RetryAdvice.UNREACHABLE
    return True
