import threading

import pytest

from millrace_client.cli.interrupts import TerminatedError, undisguised_interrupts


def interrupted(interrupt: type[BaseException]) -> None:
    lock = threading.Lock()
    try:
        raise interrupt
    finally:
        lock.release()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, TerminatedError])
def test_interrupt_inside_a_lock_comes_out_as_itself(interrupt: type[BaseException]) -> None:
    """A lock that is given back by an interrupted wait complains, and that is not the story."""
    with pytest.raises(interrupt), undisguised_interrupts():
        interrupted(interrupt)


def test_other_errors_pass_as_they_are() -> None:
    """Also such as look like it."""
    with pytest.raises(RuntimeError, match="mine"), undisguised_interrupts():
        raise RuntimeError("mine")
