from pathlib import Path

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.sinks.millrace.config import MillraceSinkConfig
from millrace_server.agent.sinks.millrace.target import FILE_NAME, Endpoints, connected
from millrace_server.agent.supervision import ComponentError
from tests.fake_clock import FakeClock

NAMES = ["a:1", "b:1", "c:1"]
FAILOVER_SECONDS = 30.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def opened(directory: Path, clock: FakeClock, names: list[str] = NAMES) -> Endpoints:
    return Endpoints(names, FAILOVER_SECONDS, directory, clock)


async def test_current_of_a_new_sink_is_the_first(tmp_path: Path, clock: FakeClock) -> None:
    """The first server stays current while it works, and no file is written."""
    endpoints = opened(tmp_path, clock)
    assert await endpoints.current() == "a:1"
    clock.now += 1e6
    endpoints.note_success()
    assert await endpoints.current() == "a:1"
    assert not (tmp_path / FILE_NAME).exists()


async def test_current_after_failures_is_the_same_until_the_time_has_passed(tmp_path: Path, clock: FakeClock) -> None:
    """Only that server recognizes events that it has stored without a response."""
    endpoints = opened(tmp_path, clock)
    for _ in range(3):
        assert await endpoints.current() == "a:1"
        endpoints.note_failure()
        clock.now += FAILOVER_SECONDS / 3 - 0.01
    assert await endpoints.current() == "a:1"
    clock.now += 1
    with capture_logs() as logs:
        assert await endpoints.current() == "b:1"
    assert [(entry["former"], entry["endpoint"]) for entry in logs] == [("a:1", "b:1")]
    clock.now += 1e6
    assert await endpoints.current() == "b:1"


async def test_current_after_a_success_between_failures_has_all_its_time(tmp_path: Path, clock: FakeClock) -> None:
    """The sink leaves a server only after failures without any success."""
    endpoints = opened(tmp_path, clock)
    await endpoints.current()
    endpoints.note_failure()
    clock.now += FAILOVER_SECONDS
    endpoints.note_success()
    endpoints.note_failure()
    clock.now += FAILOVER_SECONDS - 1
    assert await endpoints.current() == "a:1"


async def test_current_behind_the_last_is_the_first_again(tmp_path: Path, clock: FakeClock) -> None:
    """Each server gets the same time."""
    endpoints = opened(tmp_path, clock)
    seen = []
    for _ in range(4):
        seen.append(await endpoints.current())
        endpoints.note_failure()
        clock.now += FAILOVER_SECONDS
    assert seen == ["a:1", "b:1", "c:1", "a:1"]


async def test_current_after_a_restart_is_the_one_before_it(tmp_path: Path, clock: FakeClock) -> None:
    """A crash between an event's storing and its settling must not send it to another server."""
    directory = tmp_path / "sinks" / "collector"
    endpoints = opened(directory, clock)
    await endpoints.current()
    endpoints.note_failure()
    clock.now += FAILOVER_SECONDS
    assert await endpoints.current() == "b:1"
    assert await opened(directory, clock).current() == "b:1"
    assert await opened(directory, clock, ["c:1", "a:1"]).current() == "c:1"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"elsewhere:1\n", b"b:1\n" * 1_000])
async def test_current_of_a_meaningless_file_is_the_first(tmp_path: Path, clock: FakeClock, content: bytes) -> None:
    """The content of the file makes no difference."""
    (tmp_path / FILE_NAME).write_bytes(content)
    assert await opened(tmp_path, clock).current() == "a:1"


async def test_current_of_a_single_server_is_that_one(tmp_path: Path, clock: FakeClock) -> None:
    """There is no other server, so nothing is written."""
    endpoints = opened(tmp_path / "none", clock, ["a:1"])
    await endpoints.current()
    endpoints.note_failure()
    clock.now += 10 * FAILOVER_SECONDS
    assert await endpoints.current() == "a:1"
    assert not (tmp_path / "none").exists()


async def test_connected_with_a_token_in_plain_text_sends_it_to_no_network(tmp_path: Path) -> None:
    """The sink says so, and keeps its events."""
    (tmp_path / "token").write_text("token-of-a-test")
    config = MillraceSinkConfig(
        type="millrace", channel="a", target_channel="b", endpoints=["192.0.2.1:7070"], token_file=tmp_path / "token"
    )
    with pytest.raises(ComponentError, match=r"would be sent to 192\.0\.2\.1:7070 unencrypted; connect over TLS"):
        async with connected("192.0.2.1:7070", config):
            pass
