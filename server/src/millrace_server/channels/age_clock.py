"""The ages of commits, which a wall clock that is set forward does not raise."""

from collections.abc import Callable
from typing import NamedTuple

_JUMP_SECONDS_MIN = 30.0
"""Smaller differences between the clocks are ignored: most are corrections by a time service."""

_MICROS = 1_000_000


class ClockJump(NamedTuple):
    """What both clocks say has passed, where the wall clock was set forward."""

    wall_seconds: float
    elapsed_seconds: float


class _Jump(NamedTuple):
    """How far the wall clock was set forward, and the time that it would have shown then, in microseconds."""

    at: int
    size: int


class AgeClock:
    """Says what is older than a duration, by the wall clock and by the time that has passed.

    Commits have the time of the wall clock. Where that is set forward, by mistake or not, what was committed before
    has not aged by as much: it is judged as if the clock had not been set, until all of it is old enough. So nothing
    that was committed since this object was created seems older than it is by more than 30 seconds or half of the
    duration, whichever is less.
    It may seem younger: by the time until a jump was noticed, or by how far the clock was set back.

    `wall` is in microseconds, `monotonic` in seconds; `on_jump` is called when the wall clock was set forward.
    """

    def __init__(
        self, wall: Callable[[], int], monotonic: Callable[[], float], on_jump: Callable[[ClockJump], None]
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._on_jump = on_jump
        self._seen_wall, self._seen_monotonic = wall(), monotonic()
        self._jumps: list[_Jump] = []  # Those before which something may be too young.

    def time_before(self, seconds: float) -> int:
        """Returns the commit time, in microseconds, before which all commits are older than a duration.

        Must be called at least once a minute, since the clocks are compared from call to call.
        """
        self._compare(min(_JUMP_SECONDS_MIN, seconds / 2))
        limit = self._seen_wall - int(seconds * _MICROS)
        for index in reversed(range(len(self._jumps))):
            at, size = self._jumps[index]
            if limit >= at + size:
                # All that was committed before this jump is old enough by now.
                del self._jumps[: index + 1]
                break
            limit -= size
        return limit

    def _compare(self, jump_seconds_min: float) -> None:
        wall, monotonic = self._wall(), self._monotonic()
        passed, elapsed = wall - self._seen_wall, int((monotonic - self._seen_monotonic) * _MICROS)
        ahead = passed - elapsed
        if ahead >= jump_seconds_min * _MICROS:
            self._jumps.append(_Jump(self._seen_wall + elapsed, ahead))
            self._on_jump(ClockJump(passed / _MICROS, elapsed / _MICROS))
        elif -ahead >= jump_seconds_min * _MICROS:
            self._set_back(-ahead)
        self._seen_wall, self._seen_monotonic = wall, monotonic

    def _set_back(self, size: int) -> None:
        """Takes from the newest jumps what a correction has taken from the clock."""
        while self._jumps and size > 0:
            last = self._jumps.pop()
            if last.size > size:
                self._jumps.append(_Jump(last.at, last.size - size))
            size -= last.size
