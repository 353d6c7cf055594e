from millrace_server.console.slow_syncs import SlowSyncs
from millrace_server.histograms import Histograms


class Minute:
    """Syncs on a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.family = Histograms().syncs
        self.watch = SlowSyncs(self.family, lambda: self.now)
        self.ask()

    def sync(self, seconds: float, count: int = 1) -> None:
        self.family.of().observe(seconds, count)

    def ask(self) -> str:
        self.now += 10.0
        trouble = self.watch.trouble()
        return "" if trouble is None else trouble.reason


def test_trouble_after_slow_syncs_says_how_many() -> None:
    """One in a hundred is enough, as for the alert."""
    minute = Minute()
    minute.sync(0.1, 98)
    minute.sync(0.3, 2)
    assert minute.ask() == "2 of 100 syncs in the last minute took over 0.25 s"


def test_trouble_after_a_rare_slow_sync_is_none() -> None:
    """A single one among many says nothing about the disk."""
    minute = Minute()
    minute.sync(0.1, 999)
    minute.sync(3.0)
    assert minute.ask() == ""


def test_trouble_of_a_former_minute_is_over() -> None:
    """Only what was slow lately is shown, also to those who have not looked meanwhile."""
    minute = Minute()
    minute.sync(3.0)
    assert minute.ask()
    minute.now += 60.0
    minute.sync(0.001, 5)
    assert minute.ask() == ""
