from contextlib import ExitStack

import pytest

from millrace_server.errors import OverloadedError
from millrace_server.grpc_services.rpc import InflightBytes


def test_admit_within_the_limits_admits() -> None:
    """Requests that add up to the limit are in work together."""
    inflight = InflightBytes(total_max=100, connection_max=60)
    with inflight.admit(60, "a"), inflight.admit(40, "b"):
        pass


def test_admit_beyond_the_connections_limit_refuses() -> None:
    """One connection is told to send less, with a delay; another is not hindered."""
    inflight = InflightBytes(total_max=100, connection_max=60)
    with inflight.admit(50, "a"):
        with pytest.raises(OverloadedError, match=r"this connection .* hold 50 bytes of at most 60") as caught:
            inflight.admit(11, "a").__enter__()
        assert caught.value.retry_delay_seconds
        with inflight.admit(10, "a"), inflight.admit(40, "b"):
            pass


def test_admit_beyond_the_limit_of_all_refuses() -> None:
    """Whichever connection comes too much is refused."""
    inflight = InflightBytes(total_max=100, connection_max=60)
    with (
        inflight.admit(60, "a"),
        inflight.admit(40, "b"),
        pytest.raises(OverloadedError, match=r"the server .* hold 100 bytes of at most 100"),
    ):
        inflight.admit(1, "c").__enter__()


def test_admit_of_a_request_that_stands_alone_always_admits() -> None:
    """The message limit bounds it, so nobody is locked out by limits that are smaller."""
    inflight = InflightBytes(total_max=10, connection_max=10)
    with inflight.admit(1_000, "a"), pytest.raises(OverloadedError):
        inflight.admit(1, "b").__enter__()


def test_admit_of_nothing_is_always_admitted() -> None:
    """A request without bytes holds no memory."""
    inflight = InflightBytes(total_max=10, connection_max=10)
    with inflight.admit(10, "a"), inflight.admit(0, "a"), inflight.admit(0, "b"):
        pass


@pytest.mark.parametrize("error", [None, ValueError])
def test_admit_when_the_request_is_done_gives_its_bytes_back(error: type[Exception] | None) -> None:
    """However the request ended, and no connection that is idle is remembered."""
    inflight = InflightBytes(total_max=10, connection_max=10)
    for _ in range(3):
        with ExitStack() as done:
            if error is not None:
                done.enter_context(pytest.raises(error))
            with inflight.admit(10, "a"):
                if error is not None:
                    raise error
    assert inflight._by_connection == {}
    assert inflight._total == 0
