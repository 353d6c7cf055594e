import asyncio
import os
import signal

import pytest
from structlog.testing import capture_logs

from millrace_server.hosting.signals import ReloadRequests, StopRequests
from tests.waiting import WAIT_SECONDS_MAX


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_ask_first_gracefully_then_urgently(number: signal.Signals) -> None:
    """The first signal requests a stop, the second an immediate one, a third changes nothing."""
    requests = StopRequests()
    with requests.from_signals():
        os.kill(os.getpid(), number)
        await asyncio.wait_for(requests.wait(), WAIT_SECONDS_MAX)
        assert not requests.is_urgent
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(requests.wait_until_urgent(), WAIT_SECONDS_MAX)
    assert requests.is_urgent


async def test_stop_requests_signals_afterwards_are_the_processs_again() -> None:
    """The handlers are removed."""
    with StopRequests().from_signals():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_signals_ask_for_a_reload_and_do_not_end_the_process() -> None:
    """A SIGHUP that arrives while no task waits is kept, and several of them count as one."""
    requests = ReloadRequests()
    with requests.from_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(requests.wait(), WAIT_SECONDS_MAX)
        for _ in range(3):
            requests.add()
        await asyncio.wait_for(requests.wait(), WAIT_SECONDS_MAX)
        waiting = asyncio.create_task(requests.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        requests.add()
        await asyncio.wait_for(waiting, WAIT_SECONDS_MAX)


async def test_reload_requests_signals_afterwards_are_the_processs_again() -> None:
    """The handler is removed."""
    with ReloadRequests().from_signals():
        pass
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_add_while_the_server_stops_is_logged_and_ignored() -> None:
    """The log says why the signal has no effect."""
    requests = ReloadRequests()
    requests.close()
    with capture_logs() as log:
        requests.add()
    assert [entry["event"] for entry in log] == ["SIGHUP is ignored, since the server is stopping"]
