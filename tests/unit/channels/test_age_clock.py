from millrace_server.channels.age_clock import AgeClock, ClockJump

SECOND = 1_000_000
DAY = 86_400


class Clocks:
    """A wall clock and a monotonic clock, and the ages by them."""

    def __init__(self) -> None:
        self.wall = 1_000 * DAY
        self.elapsed = 50.0
        self.jumps: list[ClockJump] = []
        self.ages = AgeClock(lambda: self.wall * SECOND, lambda: self.elapsed, self.jumps.append)

    def pass_time(self, seconds: int, ahead_seconds: int = 0) -> None:
        self.elapsed += seconds
        self.wall += seconds + ahead_seconds

    def time_before(self, seconds: int) -> int:
        return self.ages.time_before(seconds) // SECOND


def test_time_before_while_both_clocks_agree_is_that_long_ago() -> None:
    """Corrections that time services make gradually are followed."""
    clocks = Clocks()
    for ahead_seconds in (0, 5, -5, 29, -29):
        clocks.pass_time(60, ahead_seconds)
        assert clocks.time_before(DAY) == clocks.wall - DAY
    assert clocks.jumps == []


def test_time_before_after_a_jump_is_as_without_it_until_all_before_it_is_old_enough() -> None:
    """From then on the wall clock counts again, by which the later commits were made."""
    clocks = Clocks()
    jumped_at = clocks.wall + 60
    clocks.pass_time(60, 365 * DAY)
    assert clocks.time_before(DAY) == jumped_at - DAY
    assert clocks.jumps == [ClockJump(365 * DAY + 60, 60)]
    clocks.pass_time(DAY - 1)
    assert clocks.time_before(DAY) == jumped_at - 1
    clocks.pass_time(1)
    assert clocks.time_before(DAY) == jumped_at + 365 * DAY == clocks.wall - DAY
    assert len(clocks.jumps) == 1


def test_time_before_after_several_jumps_is_as_without_them() -> None:
    """Each holds for what was committed before it, however many there are within the duration."""
    clocks = Clocks()
    started = clocks.wall
    for day in range(1, 90):
        clocks.pass_time(DAY, DAY // 2)
        # Seven days ago, the clock was ahead by the jumps until then.
        earlier = max(0, day - 7)
        assert clocks.time_before(7 * DAY) == started + (day - 7) * DAY + earlier * DAY // 2
    assert len(clocks.jumps) == 89


def test_time_before_a_short_duration_notices_short_jumps() -> None:
    """Half of the duration is the most by which anything expires early."""
    clocks = Clocks()
    clocks.pass_time(1, 3)
    assert clocks.time_before(6) == clocks.wall - 3 - 6
    clocks.pass_time(1, -1)
    assert clocks.time_before(6) == clocks.wall - 3 - 6
    clocks.pass_time(1, -5)
    assert clocks.time_before(6) == clocks.wall - 6


def test_time_before_when_the_clock_was_set_right_again_follows_it() -> None:
    """What a mistake has added, its correction takes away; a clock set back beyond that makes nothing older."""
    clocks = Clocks()
    clocks.pass_time(60, DAY)
    clocks.time_before(10)
    for ahead_seconds in (-DAY, -DAY):
        clocks.pass_time(60, ahead_seconds)
        assert clocks.time_before(10) == clocks.wall - 10
