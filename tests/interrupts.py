"""Ctrl-C at any point of a call."""

import gc
import sys
from collections.abc import Callable
from types import FrameType


def interrupt_at(step: int, call: Callable[[], object]) -> bool:
    """Raises KeyboardInterrupt in a call where Python looks for signals for the nth time; returns whether it does.

    Python does so when a function of its own begins, and when one of C has returned.
    """
    steps = iter(range(step))

    def interrupt(_frame: FrameType, kind: str, _argument: object) -> None:
        if kind in {"call", "c_return"} and next(steps, None) is None:
            sys.setprofile(None)
            raise KeyboardInterrupt

    # An interrupt in what the garbage collector calls would only be reported as ignored.
    gc.disable()
    sys.setprofile(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
        gc.enable()
    return False
