"""What a fork leaves of gRPC.

gRPC puts itself in order around a fork, but only where no thread is inside it at that moment; else the child's first
call never returns, not even at its deadline. So it is remembered which connections were busy, and the child is refused.
"""

import os
import weakref
from typing import Protocol

from millrace_client.errors import ClientForkedError


class Connecting(Protocol):
    """What may have threads inside gRPC."""

    @property
    def is_busy(self) -> bool:
        """Whether it has, now."""


class Forks:
    """Knows whether this process was forked while a connection was busy."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connecting] = weakref.WeakSet()
        self._spoiled_by_process_id = 0
        os.register_at_fork(after_in_child=self._look_back)

    def watch(self, connection: Connecting) -> None:
        """Minds a connection for as long as it exists."""
        self._connections.add(connection)

    def refuse_if_spoiled(self) -> None:
        """Raises ClientForkedError where a new connection would hang."""
        if self._spoiled_by_process_id:
            raise ClientForkedError(
                f"process {self._spoiled_by_process_id} had calls under way when it forked {os.getpid()}, so gRPC "
                "does not work in the new process; fork before the first call, or start processes with 'spawn'"
            )

    def _look_back(self) -> None:
        if not self._spoiled_by_process_id and any(connection.is_busy for connection in self._connections):
            self._spoiled_by_process_id = os.getppid()


FORKS = Forks()
"""This process's."""


def forked_error(process_id: int) -> ClientForkedError:
    """The error for a client that was opened in another process."""
    return ClientForkedError(
        f"this client was used in process {process_id} before the fork of {os.getpid()}, and gRPC's connections do not"
        " survive a fork; call connect() in the new process"
    )
