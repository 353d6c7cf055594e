import asyncio
import signal
import threading

import pytest

from tests.server_loop import new_server_loop
from tests.waiting import WAIT_SECONDS_MAX


def test_loop_in_which_a_test_times_out_ends() -> None:
    """A test that waits without end fails instead of hanging: pytest's timeout uses a signal."""

    def time_out(_number: int, _frame: object) -> None:
        pytest.fail("Timeout")

    before = signal.signal(signal.SIGUSR1, time_out)
    try:
        with asyncio.Runner(loop_factory=new_server_loop) as runner:
            # The signal comes from a thread, while the loop waits as in a test that hangs.
            sending = threading.Thread(target=signal.raise_signal, args=(signal.SIGUSR1,))
            runner.get_loop().call_soon(sending.start)
            with pytest.raises(RuntimeError, match="stopped before Future completed"):
                runner.run(asyncio.wait_for(asyncio.Event().wait(), WAIT_SECONDS_MAX))
            sending.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
