from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace_client
from millrace_client import ChannelConfig, Client
from tests.conftest import StartMillraced
from tests.millrace_program import millrace_on_terminal, wait_for
from tests.millraced import Millraced

ALTERNATE_SCREEN = "\x1b[?1049h"
MAIN_SCREEN = "\x1b[?1049l"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of this module's own: `top` shows no more channels than fit on the terminal."""
    data_dir = tmp_path_factory.mktemp("terminal") / "data"
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    started = Millraced(("--data-dir", str(data_dir), *free_ports), data_dir)
    yield started.grpc
    started.kill()


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Client]:
    with millrace_client.connect(server) as client:
        yield client


@pytest.fixture
def orders(client: Client) -> Iterator[str]:
    name = "orders"
    client.admin.create_channel(name, ChannelConfig(keep_alive_seconds=0.05))
    yield name
    client.admin.delete_channel(name, force=True)


@pytest.mark.parametrize("keys", ["q", "xQ"])
def test_top_on_a_terminal_shows_channels_until_q(server: str, client: Client, orders: str, keys: str) -> None:
    """The display uses the alternate screen and restores the terminal."""
    client.channel(orders).append([b"one"])
    with millrace_on_terminal(server, "top", "--interval", "0.1") as terminal:
        assert ALTERNATE_SCREEN in terminal.wait_for("orders")
        client.channel(orders).append([b"x"] * 41)
        terminal.wait_for("42%")
        terminal.type(keys)
        exit_code, written = terminal.wait()
    assert exit_code == 0
    assert MAIN_SCREEN in written


def test_top_on_a_dumb_terminal_writes_one_screen_below_the_other(server: str, client: Client, orders: str) -> None:
    """Nothing moves the cursor, as inside an editor or a log of CI."""
    with millrace_on_terminal(server, "top", "--interval", "0.1", kind="dumb") as terminal:
        terminal.wait_for(orders)
        client.channel(orders).append([b"x"] * 42)
        terminal.wait_for("42%")
        terminal.type("q")
        exit_code, written = terminal.wait()
    assert exit_code == 0
    assert "\x1b" not in written


def test_top_on_a_terminal_ends_well_by_interrupt(server: str, orders: str) -> None:
    """Ctrl-C ends the display normally."""
    with millrace_on_terminal(server, "top") as terminal:
        terminal.wait_for(orders)
        terminal.interrupt_until_it_ends()
        exit_code, written = terminal.wait()
    assert exit_code == 0
    assert MAIN_SCREEN in written
    assert "Traceback" not in written


def test_top_on_a_terminal_outlives_its_server(start_millraced: StartMillraced) -> None:
    """The display says that no server responds, and continues to try."""
    doomed = start_millraced()
    with millrace_on_terminal(doomed.grpc, "top", "--interval", "0.1") as terminal:
        terminal.wait_for("CHANNEL")
        doomed.kill()
        terminal.wait_for("trying again: no server responds")
        terminal.type("q")
        exit_code, _ = terminal.wait()
    assert exit_code == 0


def test_put_on_a_terminal_shows_a_bar_and_why_it_waits(
    server: str, client: Client, orders: str, tmp_path: Path
) -> None:
    """The bar moves, shows the reason of a wait, and is replaced by the report."""
    log = tmp_path / "log"
    log.write_bytes(b"line\n" * 150)
    with millrace_on_terminal(server, "put", orders, log) as terminal:
        terminal.wait_for("put: channel full, waiting up to 60 s")
        assert "100 lines" in terminal.wait_for("500/750 bytes")
        with client.channel(orders).transaction() as txn:
            txn.take()
        exit_code, written = terminal.wait()
    assert exit_code == 0
    assert f"{orders}: 150 lines read, 150 events committed, sequences 1 to 150" in written


def test_put_of_typed_lines_stores_them_while_they_come(server: str, client: Client, orders: str) -> None:
    """Ctrl-D ends the input; no progress bar is drawn."""
    with millrace_on_terminal(server, "put", orders) as terminal:
        terminal.wait_for("reading lines from the terminal; end with Ctrl-D")
        terminal.type("one\n")
        wait_for(client, orders, lambda info: info.gauges.queued_events == 1)
        terminal.type("two\n\x04")
        exit_code, written = terminal.wait()
    assert exit_code == 0
    assert f"{orders}: 2 lines read, 2 events committed, sequences 1 to 2" in written


@pytest.mark.parametrize("command", ["peek", "take"])
def test_bodies_on_a_terminal_cannot_drive_it(server: str, client: Client, orders: str, command: str) -> None:
    """Escape sequences in a log are shown escaped."""
    client.channel(orders).append([b"\x1b[2Jhello\x07\xff"])
    with millrace_on_terminal(server, command, orders) as terminal:
        exit_code, written = terminal.wait()
    assert exit_code == 0
    assert "\\x1b[2Jhello\\x07\\xff" in written
    assert "\x1b[2J" not in written


@pytest.mark.parametrize(("response", "left"), [("n", 1), ("", 1), ("y", 0)])
def test_purge_on_a_terminal_asks_before(server: str, client: Client, orders: str, response: str, left: int) -> None:
    """Events are removed only after a yes."""
    client.channel(orders).append([b"one"])
    with millrace_on_terminal(server, "channel", "purge", orders) as terminal:
        terminal.wait_for(f"Remove 1 event from {orders} permanently? [y/N]")
        terminal.type(f"{response}\n")
        exit_code, _ = terminal.wait()
    assert exit_code == (2 if left else 0)
    assert client.admin.get_channel(orders).gauges.queued_events == left


def test_purge_on_a_terminal_interrupted_removes_nothing(server: str, client: Client, orders: str) -> None:
    """Ctrl-C at the question is not a yes."""
    client.channel(orders).append([b"one"])
    with millrace_on_terminal(server, "channel", "purge", orders) as terminal:
        terminal.wait_for("[y/N]")
        terminal.interrupt_until_it_ends()
        exit_code, _ = terminal.wait()
    assert exit_code == 130
    assert client.admin.get_channel(orders).gauges.queued_events == 1
