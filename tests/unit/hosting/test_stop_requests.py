import asyncio
import os
import signal

import pytest

from millrace_server.hosting.signals import StopRequests


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_ask_first_gracefully_then_urgently(number: signal.Signals) -> None:
    """The first signal asks to stop, the second to hurry, a third changes nothing."""
    requests = StopRequests()
    with requests.from_signals():
        os.kill(os.getpid(), number)
        await asyncio.wait_for(requests.wait(), 10.0)
        assert not requests.is_urgent
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(requests.wait_until_urgent(), 10.0)
    assert requests.is_urgent


async def test_signals_afterwards_are_the_processs_again() -> None:
    """Nothing of the handlers is left behind."""
    with StopRequests().from_signals():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
