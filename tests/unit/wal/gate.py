"""A gate before the calls of a log to its disk."""

import threading

from tests.simulated_disk import SimulatedDisk

_WAIT_SECONDS = 60.0


class Gate:
    """Blocks one call of a kind until it is opened."""

    def __init__(self, disk: SimulatedDisk, kind: str) -> None:
        self._kind = kind
        self._is_reached = threading.Event()
        self._may_go = threading.Event()
        disk.before_call = self._hold

    def _hold(self, kind: str, _name: str) -> None:
        if kind == self._kind and not self._is_reached.is_set():
            self._is_reached.set()
            assert self._may_go.wait(_WAIT_SECONDS)

    def wait(self) -> None:
        """Waits until a call is blocked."""
        assert self._is_reached.wait(_WAIT_SECONDS)

    def open(self) -> None:
        """Unblocks this call and all others."""
        self._may_go.set()
