"""The ages of commits, which a wall clock that is set forward does not raise."""

from collections.abc import Callable
from typing import NamedTuple

_JUMP_MICROS_MIN = 30_000_000
"""From here on the clock was set: time services correct less than this gradually between two looks at it."""

_MICROS = 1_000_000


class ClockJump(NamedTuple):
    """What both clocks say has passed, where the wall clock was set forward."""

    wall_seconds: float
    elapsed_seconds: float


class AgeClock:
    """Says what is older than a duration, by the wall clock and by the time that has passed.

    Commits have the time of the wall clock. Where that is set forward, by mistake or not, what was committed before
    has not aged by as much: it is judged as if the clock had not been set, until all of it is old enough. So what was
    committed since this object exists never seems older than it is. It may seem younger: by the time until a jump was
    noticed; by a jump, if another one follows within the duration; by how far the clock was set back.

    `wall` is in microseconds, `monotonic` in seconds; `on_jump` is called when the wall clock was set forward.
    """

    def __init__(
        self, wall: Callable[[], int], monotonic: Callable[[], float], on_jump: Callable[[ClockJump], None]
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._on_jump = on_jump
        self._seen_wall, self._seen_monotonic = wall(), monotonic()
        self._jump = 0
        self._jumped_at = 0

    def time_before(self, seconds: float) -> int:
        """Returns the commit time, in microseconds, before which all commits are older than a duration.

        Must be called at least once a minute, since the clocks are compared from call to call.
        """
        self._compare()
        limit = self._seen_wall - int(seconds * _MICROS)
        if limit - self._jump >= self._jumped_at:
            # What was committed before the jump is old enough by now.
            self._jump = 0
        return limit - self._jump

    def _compare(self) -> None:
        wall, monotonic = self._wall(), self._monotonic()
        passed, elapsed = wall - self._seen_wall, int((monotonic - self._seen_monotonic) * _MICROS)
        if passed - elapsed >= _JUMP_MICROS_MIN:
            self._jump += passed - elapsed
            self._jumped_at = self._seen_wall + elapsed
            self._on_jump(ClockJump(passed / _MICROS, elapsed / _MICROS))
        elif elapsed - passed >= _JUMP_MICROS_MIN:
            self._jump = max(0, self._jump - (elapsed - passed))
        self._seen_wall, self._seen_monotonic = wall, monotonic
