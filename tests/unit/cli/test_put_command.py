import errno
import inspect
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from millrace.command_line import program
from millrace_client import ChannelFullError, Event, NotAChannelError, TxnCapacityError, UnavailableError
from millrace_client.cli.exit_status import CommandError
from millrace_client.cli.put_command import _limits, _Space, parse_headers, put
from tests.unit.cli.conftest import RunMillrace
from tests.unit.cli.fake_channel import FakeChannel
from tests.unit.cli.fake_client import FakeClient


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "access.log"
    path.write_text("".join(f"line {number}\n" for number in range(250)))
    return path


@pytest.fixture
def roomy(client: FakeClient) -> FakeChannel:
    """A channel with space for all lines, whose transactions hold 100."""
    return client.orders_with(capacity=1000)


def test_parse_headers_with_odd_values_keeps_them() -> None:
    """Only the first equals sign separates, and a value may be empty."""
    assert parse_headers(["a=b=c", "d="]) == {"a": "b=c", "d": ""}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["a"], "is not a header"),
        (["=b"], "is not a header"),
        (["a=1", "a=2"], "is given twice"),
        (["a=\udcff"], "is not UTF-8"),
    ],
)
def test_parse_headers_of_nonsense_says_why(texts: list[str], message: str) -> None:
    """Each kind of mistake has a message of its own."""
    with pytest.raises(ValueError, match=message):
        parse_headers(texts)


def test_put_a_file_stores_its_lines_and_reports_them(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """All lines are stored in order, in batches of the transaction capacity."""
    result = millrace("put", "orders", str(log))
    assert result.exit_code == 0
    assert result.stdout == "orders: 250 lines read, 250 events committed, sequences 1 to 250\n"
    assert [event.body for event in roomy.events] == log.read_bytes().splitlines()
    assert [stamp.last_sequence for stamp in roomy.stamps] == [99, 199, 249]


def test_put_with_headers_and_batch_size_uses_them(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """Each event gets all headers, and no batch is larger."""
    millrace("put", "orders", str(log), "--header", "host=a", "--header", "kind=access", "--batch-size", "30")
    assert roomy.events[249] == Event(b"line 249", {"host": "a", "kind": "access"}, 250)
    assert len(roomy.stamps) == 9


def test_put_as_json_writes_one_document(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """The report for programs says that the put is complete."""
    document = json.loads(millrace("put", "orders", str(log), "--json").stdout)
    assert (document["complete"], document["events_committed"], document["resume_skip_lines"]) == (True, 250, 250)


def test_put_again_with_another_producer_stores_again(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """Without an id each run is a producer of its own."""
    for _ in range(2):
        millrace("put", "orders", str(log))
    assert len(roomy.events) == 500


def test_put_into_a_full_channel_tells_how_to_resume(orders: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """The report says exactly what was committed, and gives the command that stores the rest."""
    result = millrace("put", "orders", str(log), "--patience", "0", "--producer-id", "p-1", "--header", "a=b")
    assert (result.exit_code, result.stdout) == (5, "")
    refusal, account = result.stderr.splitlines()
    assert refusal.startswith("millrace: channel 'orders' is full; take events out, ")
    resume = f"millrace put orders {log} --header=a=b --patience=0 --skip-lines 100 --producer-id p-1"
    counts = "250 lines read, 100 events committed, sequences 1 to 100"
    assert account == f"millrace: orders: {counts}; to store the rest, run `{resume}`"


def test_put_resumed_as_it_said_stores_the_rest_once(client: FakeClient, millrace: RunMillrace, log: Path) -> None:
    """Two runs together store each line once, also if the outcome of the first one's last batch is unknown."""
    orders = client.orders_with(capacity=1000)
    orders.append_errors.extend([None, UnavailableError("gone")])
    first = millrace("put", "orders", str(log), "--producer-id", "p-1", "--json", "--batch-size", "90")
    resume = json.loads(first.stdout)["resume_skip_lines"]
    # The response was lost, but the batch was stored.
    orders.append([f"line {number}" for number in range(90, 180)], orders.stamps[-1])
    second = millrace("put", "orders", str(log), "--skip-lines", str(resume), "--producer-id", "p-1")
    assert (first.exit_code, second.exit_code, resume) == (3, 0, 90)
    assert [event.body for event in orders.events] == log.read_bytes().splitlines()


def test_put_interrupted_tells_how_to_resume(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """Ctrl-C prints the same report."""
    roomy.append_errors.extend([None, KeyboardInterrupt(), ChannelFullError("full")])
    result = millrace("put", "orders", str(log))
    assert result.exit_code == 130
    assert "100 events committed" in result.stderr
    assert "--skip-lines 100 --producer-id put-" in result.stderr


def test_put_that_cannot_write_its_report_says_that_all_lines_are_stored(
    roomy: FakeChannel, millrace: RunMillrace, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code alone would suggest putting them again."""

    def fail(*_arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(program, "_drop_output", lambda: None)
    monkeypatch.setattr(typer, "echo", fail)
    result = millrace("put", "orders", str(log))
    assert result.exit_code == 1
    assert "all lines are stored: orders: 250 lines read, 250 events committed" in result.stderr
    assert len(roomy.events) == 250


def test_put_to_another_server_names_it_in_the_resume(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """The command must use the same server."""
    roomy.append_errors.append(TxnCapacityError("too many", channel="orders"))
    result = millrace("--server", "elsewhere:1", "put", "orders", str(log), "--batch-size", "5")
    assert result.exit_code == 1
    assert "--batch-size=5 --server=elsewhere:1 --skip-lines 0" in result.stderr


def test_put_that_ends_early_repeats_all_options_in_the_resume(
    roomy: FakeChannel, millrace: RunMillrace, log: Path
) -> None:
    """The command has all given options; only --skip-lines and --producer-id are new."""
    given = [
        *("--header=a=b c", "--header=d=", "--json-lines", "--also=elsewhere:2", "--key=a", "--batch-size=5"),
        *("--patience=1234567.5", "--json", "--server=elsewhere:1", "--timeout=7.5"),
        *("--tls-ca=ca.pem", "--tls-certificate=own.pem", "--tls-key=own.key", "--token-file=token"),
    ]
    own = {"skip_lines", "producer_id", "channel", "file", "context", "context_name"}
    flags = {f"--{name.replace('_', '-')}" for name in inspect.signature(put).parameters.keys() - own}
    named = {"--headers": "--header", "--as-json": "--json", "--timeout-seconds": "--timeout"}
    assert {option.partition("=")[0] for option in given} == {named.get(flag, flag) for flag in flags}
    log.write_text('{"body": "x"}\n' * 10)
    roomy.append_errors.append(TxnCapacityError("too many", channel="orders"))
    result = millrace("put", "orders", str(log), *given)
    assert result.exit_code == 1
    command = shlex.split(result.stderr.rpartition("run `")[2].strip().removesuffix("`"))
    assert command[:4] == ["millrace", "put", "orders", str(log)]
    assert sorted(command[4:-4]) == sorted(given)
    assert (command[-4], command[-2]) == ("--skip-lines", "--producer-id")


def test_put_that_waits_says_so_once_a_wait(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """The same line does not fill the log."""
    full = ChannelFullError("full", channel="orders", retry_delay_seconds=0.001)
    roomy.append_errors.extend([full, full, None, full, None])
    result = millrace("put", "orders", str(log))
    assert result.exit_code == 0
    assert result.stderr == "millrace: full; trying again for up to 60 s\n" * 2


def test_put_a_batch_above_the_transaction_capacity_is_a_usage_error(millrace: RunMillrace, log: Path) -> None:
    """The batch is refused before a line is read, and the sentence names the limit."""
    result = millrace("put", "orders", str(log), "--batch-size", "101")
    assert result.exit_code == 2
    assert "--batch-size 101 is above the transaction capacity of orders, 100;" in result.stderr


def test_put_a_batch_above_what_a_source_takes_names_the_setting_of_its_channels(
    client: FakeClient, millrace: RunMillrace, log: Path
) -> None:
    """A source of type grpc has no transaction capacity of its own that could be raised."""
    client.orders_with(capacity=1000)
    client.admin.errors.append(NotAChannelError("it is a source"))
    result = millrace("put", "orders", str(log), "--batch-size", "101")
    assert result.exit_code == 2
    assert "raise that of the source's channels with `millrace channel update CHANNEL" in result.stderr


@pytest.mark.parametrize(
    ("source_events", "target"), [(10, "orders --transaction-capacity 11"), (4, "CHANNEL --transaction-capacity 11")]
)
def test_limits_of_several_servers_name_the_setting_of_the_one_that_takes_the_least(
    source_events: int, target: str
) -> None:
    """The name may be a channel on one server, and a source on another."""
    free = [_Space(5, 1000), _Space(source_events, 1000, is_of_source=True)]
    with pytest.raises(CommandError, match=f"channel update {target}"):
        _limits(free, "orders", 11)


def test_put_an_unreadable_file_is_a_usage_error(millrace: RunMillrace, tmp_path: Path) -> None:
    """Neither a missing file nor a directory can be read."""
    missing = millrace("put", "orders", str(tmp_path / "nosuch"))
    folder = millrace("put", "orders", str(tmp_path))
    assert (missing.exit_code, folder.exit_code) == (2, 2)
    assert missing.stderr == (
        f"millrace: cannot read {tmp_path}/nosuch: No such file or directory; name a file that can be read\n"
    )
    assert folder.stderr == f"millrace: cannot read {tmp_path}: Is a directory; name a file that can be read\n"


def test_put_skipping_too_much_is_a_usage_error(roomy: FakeChannel, millrace: RunMillrace, log: Path) -> None:
    """It is probably another file; nothing is stored."""
    result = millrace("put", "orders", str(log), "--skip-lines", "251")
    assert (result.exit_code, len(roomy.events)) == (2, 0)
    assert "the input has 250 lines, fewer than the 251 lines to skip" in result.stderr


def test_put_an_empty_file_stores_nothing(orders: FakeChannel, millrace: RunMillrace, tmp_path: Path) -> None:
    """An empty input is not an error."""
    (tmp_path / "empty").touch()
    result = millrace("put", "orders", str(tmp_path / "empty"))
    assert (result.exit_code, result.stdout) == (0, "orders: 0 lines read, 0 events committed\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--header", "x"),
        ("--batch-size", "0"),
        ("--patience", "-1"),
        ("--skip-lines", "-1"),
        ("--producer-id", "\udcff"),
        ("--producer-id", ""),
        ("--producer-id", "x" * 129),
    ],
)
def test_put_with_impossible_options_is_a_usage_error(
    orders: FakeChannel, millrace: RunMillrace, log: Path, arguments: tuple[str, str]
) -> None:
    """The option is named, and nothing is stored."""
    result = millrace("put", "orders", str(log), *arguments)
    assert (result.exit_code, len(orders.events)) == (2, 0)
    assert arguments[0] in result.stderr


def test_put_into_a_name_that_cannot_be_sent_is_a_usage_error(millrace: RunMillrace, log: Path) -> None:
    """An argument that is not UTF-8 is reported without a traceback."""
    result = millrace("put", "\udcff", str(log))
    assert result.exit_code == 2
    assert "is not UTF-8" in result.stderr
