"""gRPC in other processes: after a fork, and in copies that are sent there.

gRPC supports a fork only if no thread is inside it at that moment; otherwise the child's first call never returns, not
even at its deadline. So this module remembers whether a connection was busy, and refuses new connections in the child.
"""

import os
import weakref
from typing import NoReturn, Protocol

from millrace_client.errors import ClientForkedError


class Unpicklable:
    """Base of what has connections, which belong to the process that made them."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "clients, producers and consumers cannot be pickled or copied, since their connections belong to "
            "this process; connect in the worker"
        )


class Connected(Protocol):
    """An object that may have threads inside gRPC."""

    @property
    def is_busy(self) -> bool:
        """Whether it has any now."""


class ForkGuard:
    """Knows whether this process was forked while a connection was busy."""

    def __init__(self) -> None:
        self._connections: weakref.WeakSet[Connected] = weakref.WeakSet()
        self._busy_parent_id = 0
        os.register_at_fork(after_in_child=self._check_parent)

    def watch(self, connection: Connected) -> None:
        """Includes a connection for as long as it exists."""
        self._connections.add(connection)

    def check_usable(self) -> None:
        """Raises ClientForkedError if a new connection would hang."""
        if self._busy_parent_id:
            raise ClientForkedError(
                f"process {self._busy_parent_id} had calls in progress when it forked {os.getpid()}, so gRPC "
                "does not work in the new process; fork before the first call, or start processes with 'spawn'"
            )

    def _check_parent(self) -> None:
        if not self._busy_parent_id and any(connection.is_busy for connection in self._connections):
            self._busy_parent_id = os.getppid()


FORKS = ForkGuard()
"""The guard of this process."""


def forked_error(process_id: int) -> ClientForkedError:
    """Returns the error for a client that was opened in another process."""
    return ClientForkedError(
        f"this client was used in process {process_id} before the fork of {os.getpid()}, and gRPC's connections do not"
        " survive a fork; call connect() in the new process"
    )
