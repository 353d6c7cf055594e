import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest

import millrace_client as millrace
from millrace.columns import columns_from_events
from millrace_spark import ClaimedRange, MillraceSparkError
from millrace_spark.option_values import Security
from millrace_spark.reading import tasks as reading
from millrace_spark.reading.options import TaskOptions
from millrace_spark.reading.ranges import RangePartition

SCHEMA = pa.schema([("sequence", pa.int64()), ("body", pa.binary())])
CLAIMED = ClaimedRange(
    endpoint="a:1",
    channel="orders",
    reader_id="me",
    epoch=7,
    first_sequence=1,
    next_sequence=21,
    lease_seconds=30.0,
    channel_id="id",
    is_held=True,
)


class UnreliableServer:
    """Breaks off after each so many batches; its batches have three events each.

    Attributes:
        reads: Where each read began, and under which epoch.
        first: The oldest event.
        next: The sequence of the next event.
    """

    first, next = 1, 21

    def __init__(self, batches_per_read: int, error: millrace.MillraceError) -> None:
        self.reads: list[tuple[int, int | None]] = []
        self._batches_per_read = batches_per_read
        self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes nothing."""

    @property
    def admin(self) -> Self:
        return self

    def channel(self, _name: str) -> Self:
        return self

    def get_channel(self, _name: str) -> Any:
        gauges = SimpleNamespace(first_sequence=self.first, next_sequence=self.next)
        return SimpleNamespace(channel_id=CLAIMED.channel_id, gauges=gauges)

    def read(self, _reader_id: str, from_sequence: int, to_sequence: int, epoch: int | None) -> Iterator[Any]:
        self.reads.append((from_sequence, epoch))
        for number, first in enumerate(range(from_sequence, to_sequence, 3)):
            if number == self._batches_per_read:
                raise self._error
            sequences = range(first, min(first + 3, to_sequence))
            [columns] = columns_from_events([({}, f"{sequence}".encode()) for sequence in sequences])
            yield millrace.Batch(first, columns)


def rows(server: UnreliableServer, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[int]:
    monkeypatch.setattr(millrace, "connect", lambda _endpoint, **_settings: server)
    monkeypatch.setattr("millrace_spark.servers._PAUSE_SECONDS", 0.0)
    batches = reading.read_partition(RangePartition(CLAIMED, 2, 21), SCHEMA, TaskOptions(**options))
    table = pa.Table.from_batches(list(batches), SCHEMA)
    assert table["body"].to_pylist() == [f"{sequence}".encode() for sequence in table["sequence"].to_pylist()]
    sequences: list[int] = table["sequence"].to_pylist()
    return sequences


def test_read_partition_without_a_file_of_tls_names_the_machine(tmp_path: Path) -> None:
    """The driver may have the file. It is not retried: no server is needed."""
    partition = RangePartition(replace(CLAIMED, endpoint="127.0.0.1:1"), 2, 21)
    tls = millrace.Tls(ca=tmp_path / "ca.pem")
    with pytest.raises(MillraceSparkError) as refused:
        list(reading.read_partition(partition, SCHEMA, TaskOptions(security=Security(tls=tls))))
    assert str(refused.value) == (
        f"channel orders at 127.0.0.1:1: tls: {tls.ca} cannot be read: No such file or directory; that is on "
        f"{platform.node()}; the driver and each executor read the file by this path"
    )


def test_read_partition_goes_on_behind_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of disconnects, each event is read once, in order, under the same epoch."""
    server = UnreliableServer(2, millrace.UnavailableError("broken"))
    assert rows(server, monkeypatch) == list(range(2, 21))
    assert server.reads == [(2, 7), (8, 7), (14, 7), (20, 7)]


def test_read_partition_from_a_server_that_stays_away_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The read fails with an error after the retry time."""
    server = UnreliableServer(0, millrace.UnavailableError("cannot reach a:1"))
    with pytest.raises(MillraceSparkError, match=r"^channel orders at a:1: cannot reach a:1$"):
        rows(server, monkeypatch, retry_seconds=0.01)


def test_read_partition_of_events_that_are_gone_reads_the_rest_if_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events may be purged, or expire, or a server may lose some, while a task reads."""
    server = UnreliableServer(2, millrace.SequenceGoneError("gone"))
    server.first, server.next = 17, 20
    assert rows(server, monkeypatch, fail_on_data_loss=False) == [*range(2, 8), *range(17, 20)]
    assert server.reads == [(2, 7), (17, 7)]
    server.first = 21
    assert rows(server, monkeypatch, fail_on_data_loss=False) == list(range(2, 8))
    with pytest.raises(MillraceSparkError, match="are gone: consumed, purged or expired; load again, or set the optio"):
        rows(server, monkeypatch)


def test_read_partition_of_events_that_are_refused_although_they_are_there_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not repeated forever."""
    server = UnreliableServer(0, millrace.SequenceGoneError("gone"))
    with pytest.raises(MillraceSparkError, match="gone"):
        rows(server, monkeypatch, fail_on_data_loss=False)
    assert len(server.reads) == 1


def test_read_partition_that_is_refused_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A permanent error is not retried."""
    server = UnreliableServer(1, millrace.StaleEpochError("a newer claim has begun"))
    with pytest.raises(MillraceSparkError, match="was taken over"):
        rows(server, monkeypatch)
    assert len(server.reads) == 1
