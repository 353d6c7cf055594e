"""How many bytes of requests are being handled."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace_server.errors import OverloadedError

_RETRY_DELAY_SECONDS = 0.5


class InflightBytes:
    """Bounds what requests in work hold in memory, in all and for each connection.

    A request that stands alone is always admitted: the message limit bounds it.
    """

    def __init__(self, total_max: int, connection_max: int) -> None:
        self._total_max = total_max
        self._connection_max = connection_max
        self._total = 0
        self._by_connection: dict[str, int] = {}

    @contextmanager
    def admit(self, byte_count: int, peer: str) -> Iterator[None]:
        """Counts a request of a connection while it is being handled.

        Raises:
            OverloadedError: It would pass a limit.
        """
        held = self._by_connection.get(peer, 0)
        if held and held + byte_count > self._connection_max:
            raise _overloaded("this connection", held, self._connection_max)
        if self._total and self._total + byte_count > self._total_max:
            raise _overloaded("the server", self._total, self._total_max)
        self._total += byte_count
        self._by_connection[peer] = held + byte_count
        try:
            yield
        finally:
            self._total -= byte_count
            remaining = self._by_connection.pop(peer, 0) - byte_count
            if remaining > 0:
                self._by_connection[peer] = remaining


def _overloaded(whose: str, held: int, maximum: int) -> OverloadedError:
    return OverloadedError(
        f"requests of {whose} that are being handled hold {held} bytes of at most {maximum}; send less at once",
        retry_delay_seconds=_RETRY_DELAY_SECONDS,
    )
