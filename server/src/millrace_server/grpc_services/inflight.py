"""How many bytes of requests are being handled."""

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

    def admit(self, byte_count: int, peer: str) -> "Admission":
        """Counts a request of a connection, until the admission is left.

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
        return Admission(self, byte_count, peer)

    def release(self, byte_count: int, peer: str) -> None:
        """Counts it no more."""
        self._total -= byte_count
        remaining = self._by_connection.pop(peer, 0) - byte_count
        if remaining > 0:
            self._by_connection[peer] = remaining


class Admission:
    """A request that is counted while it is being handled: for a `with` around that."""

    __slots__ = ("_byte_count", "_inflight", "_peer")

    def __init__(self, inflight: InflightBytes, byte_count: int, peer: str) -> None:
        self._inflight = inflight
        self._byte_count = byte_count
        self._peer = peer

    def __enter__(self) -> None:
        """It is counted already."""

    def __exit__(self, *_: object) -> None:
        self._inflight.release(self._byte_count, self._peer)


def _overloaded(whose: str, held: int, maximum: int) -> OverloadedError:
    return OverloadedError(
        f"requests of {whose} that are being handled hold {held} bytes of at most {maximum}; send less at once",
        retry_delay_seconds=_RETRY_DELAY_SECONDS,
    )
