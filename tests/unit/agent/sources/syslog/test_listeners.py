import structlog

from millrace_server.agent.sources.syslog.listeners import Loss, LossCounter


def test_note_of_a_flood_is_logged_at_once_and_then_at_intervals() -> None:
    """The log has few lines, whose counts are complete."""
    now = 0.0
    losses = LossCounter("log", lambda: now)
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            losses.count(Loss.DATAGRAMS, 2)
        losses.count(Loss.CONNECTIONS)
        now = 61.0
        losses.count(Loss.DATAGRAMS)
        losses.count(Loss.DATAGRAMS)
        losses.log_remaining()
        losses.log_remaining()
    reported = [(entry["reason"].split()[0], entry["count"], entry["total"]) for entry in logs]
    assert reported == [("datagrams", 2, 2), ("TCP", 1, 1), ("datagrams", 199, 201), ("datagrams", 1, 202)]
    assert losses.counts == {Loss.DATAGRAMS: 202, Loss.CONNECTIONS: 1}
