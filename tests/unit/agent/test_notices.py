import logging

from structlog.testing import capture_logs

from millrace_server.agent.notices import NOTICE_SECONDS, Notices


def test_tell_of_the_same_kind_again_is_told_now_and_then_with_its_count() -> None:
    """The first is told at once, what comes soon after is counted, and nothing is left out of the count."""
    now = 100.0
    notices = Notices("app", lambda: now)
    with capture_logs() as entries:
        notices.tell(logging.WARNING, "events were dropped", "a", 2, channel="a")
        for _ in range(3):
            notices.tell(logging.WARNING, "events were dropped", "a", 5, channel="a")
        now += NOTICE_SECONDS
        notices.tell(logging.WARNING, "events were dropped", "a", 1, channel="a")
    assert [(entry["events"], entry["channel"], entry["source"]) for entry in entries] == [
        (2, "a", "app"),
        (16, "a", "app"),
    ]


def test_tell_of_another_kind_is_told_at_once() -> None:
    """One channel's troubles do not hide another's."""
    notices = Notices("app", lambda: 0.0)
    with capture_logs() as entries:
        for about in ("a", "b", "a"):
            notices.tell(logging.ERROR, "events were dropped", about, 1)
        notices.tell(logging.ERROR, "events were set aside", "a", 1)
    assert [entry["log_level"] for entry in entries] == ["error"] * 3


def test_tell_of_very_many_kinds_remembers_a_bounded_number_of_them() -> None:
    """What a stranger writes may make kinds without end."""
    notices = Notices("app", lambda: 0.0)
    with capture_logs():
        for number in range(1_000):
            notices.tell(logging.ERROR, "events were dropped", str(number), 1)
            notices.tell(logging.ERROR, "events were dropped", str(number), 1)
    assert len(notices._told_at) <= 100
    assert len(notices._untold) <= 100
