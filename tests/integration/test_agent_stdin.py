"""Lines from the standard input of a real daemon."""

import os

from tests.conftest import StartMillraced
from tests.integration.daemon_queries import component_of, stored_bodies
from tests.waiting import wait_until

CHANNEL_TOML = """
[channels.lines]
type = "file"
capacity = 100000
min_free_bytes = 0
"""
CONFIG_TOML = f"""{CHANNEL_TOML}
[sources.in]
type = "stdin"
channels = ["lines"]
"""
LINES = [b"%d" % number for number in range(20_000)]
TEXT = b"".join(line + b"\n" for line in LINES)


def test_input_to_its_end_is_stored_and_the_daemon_goes_on(start_millraced: StartMillraced) -> None:
    """The state says that the source has ended."""
    reader, writer = os.pipe()
    server = start_millraced(CONFIG_TOML, stdin=reader)
    os.close(reader)
    with os.fdopen(writer, "wb") as file:
        file.write(TEXT + b"last")
    wait_until(lambda: component_of(server, "in")["State"] == "stopped")
    assert component_of(server, "in")["Reason"] == "end of standard input"
    assert stored_bodies(server) == [*LINES, b"last"]
    assert server.stop() == 0
    assert server.other_output == []


def test_end_of_the_input_stops_the_daemon_where_that_is_wanted(start_millraced: StartMillraced) -> None:
    """All lines are stored by then: `gzip -dc old.gz | millraced serve --config import.toml`."""
    reader, writer = os.pipe()
    server = start_millraced(CONFIG_TOML + "exit_at_end = true\n", stdin=reader)
    os.close(reader)
    with os.fdopen(writer, "wb") as file:
        file.write(TEXT)
    assert server.wait() == 0
    assert stored_bodies(start_millraced(CHANNEL_TOML, server.data_dir)) == LINES


def test_stop_while_the_input_is_open_ends_the_daemon_at_once(start_millraced: StartMillraced) -> None:
    """A thread blocked in a read does not delay the stop; what was read is stored."""
    reader, writer = os.pipe()
    server = start_millraced(CONFIG_TOML, stdin=reader)
    os.close(reader)
    os.write(writer, b"one\ntwo")
    wait_until(lambda: component_of(server, "in")["State"] == "running")
    wait_until(lambda: stored_bodies(server) == [b"one"])
    assert server.stop() == 0
    os.close(writer)
    assert stored_bodies(start_millraced(CHANNEL_TOML, server.data_dir)) == [b"one", b"two"]
