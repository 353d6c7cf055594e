"""Keeps a task's transactions alive while it is slow."""

import contextlib
import threading
import time

import millrace_client as millrace

_RENEWALS_PER_LEASE = 3


class LeaseKeeper:
    """Renews transactions often enough from a thread of its own, from the first one on until it is stopped.

    Attributes:
        lock: Held while one of the transactions is used, by whoever does so: they are for one thread at a time.
    """

    def __init__(self, lease_seconds: float) -> None:
        self.lock = threading.Lock()
        self._pause_seconds = lease_seconds / _RENEWALS_PER_LEASE
        self._txns: list[millrace.Transaction] = []
        self._is_stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._renewed_at = time.monotonic()

    def add(self, txn: millrace.Transaction) -> None:
        """Keeps one more."""
        with self.lock:
            self._txns.append(txn)
        if self._thread is None:
            self._renewed_at = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="millrace-leases", daemon=True)
            self._thread.start()

    def stop(self, *, is_for_commit: bool) -> None:
        """Stops; where the transactions are to be committed, they have their whole lease from about now on."""
        self._is_stopped.set()
        if self._thread is not None:
            self._thread.join()
        # The commit comes when the last task of the batch is done.
        if is_for_commit and time.monotonic() - self._renewed_at > self._pause_seconds / 2:
            self._renew_all()

    def _run(self) -> None:
        while not self._is_stopped.wait(self._pause_seconds):
            self._renew_all()

    def _renew_all(self) -> None:
        self._renewed_at = time.monotonic()
        with self.lock:
            txns = tuple(self._txns)
        for txn in txns:
            # Where one has ended, the next put or the commit tells.
            with self.lock, contextlib.suppress(millrace.MillraceError):
                txn.renew()
