from types import SimpleNamespace
from typing import Any

from millrace_server.agent.sources.taildir.config import TaildirSourceConfig
from millrace_server.agent.sources.taildir.file_scheduler import POLL_SECONDS_MAX, SCAN_SECONDS, FileScheduler


class SlowRegister(SimpleNamespace):
    """A register without files whose scans take some time of a fake clock."""

    def __init__(self, scan_seconds: float) -> None:
        super().__init__(files={}, now=0.0, saves_at=[])
        self._scan_seconds = scan_seconds

    def scan(self, _now: float) -> None:
        self.now += self._scan_seconds

    def save(self) -> None:
        self.saves_at.append(self.now)


def turns_of(register: Any) -> FileScheduler:
    config = TaildirSourceConfig(type="taildir", paths=["/var/log/*.log"], channels=["orders"])
    return FileScheduler(config, register, clock=lambda: float(register.now))


def test_next_portion_after_a_long_look_comes_no_later_than_the_longest_pause() -> None:
    """Slow scans of directories are repeated less often, up to a maximum pause; quick ones are repeated soon."""
    for scan_seconds, pause_seconds in ((0.001, SCAN_SECONDS), (0.05, 5.0), (2.0, POLL_SECONDS_MAX)):
        register = SlowRegister(scan_seconds)
        scheduler = turns_of(register)
        assert scheduler.next_chunk() is None
        assert scheduler.wait_seconds <= pause_seconds
        register.now = scan_seconds + pause_seconds - 0.0005
        scheduler.next_chunk()
        assert register.now < scan_seconds + pause_seconds, f"looked again too early after {scan_seconds} s"
        register.now = scan_seconds + pause_seconds + 0.0005
        scheduler.next_chunk()
        assert register.now > scan_seconds + pause_seconds + 0.0005


def test_next_portion_after_a_long_look_saves_as_often_as_ever() -> None:
    """A slow scan does not delay the saving of positions."""
    register = SlowRegister(3.0)
    scheduler = turns_of(register)
    for _ in range(10):
        scheduler.next_chunk()
        register.now += 0.5
    assert len(register.saves_at) >= 4
