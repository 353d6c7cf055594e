"""Signals that end the program: what they interrupt, and what they must not."""

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Ends the block on Ctrl-C, SIGTERM or a closed terminal; further signals do not interrupt the shutdown."""
    # Signals that are ignored, as with nohup, stay ignored.
    before = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    heeded = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def stop(_number: int, _frame: FrameType | None) -> None:
        for number in heeded:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in heeded:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in heeded.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays the signals until the block ends, so that no process is started or folder removed by half."""
    # Only the main thread is ever interrupted.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    # The children of this program inherit what it ignores, and those of a handler react as they do by default.
    delayed = {number: handler for number, handler in before.items() if callable(handler)}
    for number in delayed:
        signal.signal(number, lambda number, _frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in delayed.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


@contextmanager
def scratch_folder(prefix: str, parent: Path) -> Iterator[Path]:
    """Creates a folder for the block, and removes it at its end, whatever ends the block."""
    folder = tempfile.TemporaryDirectory(prefix=prefix, dir=parent)
    try:
        yield Path(folder.name)
    finally:
        with uninterrupted():
            folder.cleanup()
