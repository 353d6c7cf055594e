"""A server that is paused, and the effect on the producer's program."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import millrace_client as millrace
from tests.millraced import Millraced

_CONFIG_TOML = """
server.shutdown_grace_seconds = 0.0
[channels.orders]
type = "memory"
capacity = 1000000
transaction_capacity = 10000
"""
_MIB = 1 << 20

# A process of its own, for exact figures of its memory. It sends as fast as it can for a while, and until its buffer
# overflows, which takes longer on a slow machine.
_PROGRAM = """
import json, os, resource, sys, time
from pathlib import Path
from millrace_client import BufferFullError, Event, Overflow, Producer, ProducerConfig

address, policy, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

config = ProducerConfig(
    buffer_bytes_max=32 << 20, overflow=policy, max_block_seconds=1.0, timeout_seconds=600.0,
    delivery_timeout_seconds=600.0,
)
producer = Producer(address, "orders", config=config)
for number in range(20_000):
    producer.send(Event(os.urandom(512), {"number": str(number), "host": "a"})).add_callback(lambda result: None)
producer.flush()
before = resident_bytes()
print("begin", flush=True)
sys.stdin.readline()
ends = time.monotonic() + seconds
taken = refused = dropped = most = 0
while time.monotonic() < ends or not (refused or dropped):
    try:
        producer.send(Event(os.urandom(512), {"number": str(taken), "host": "a"}))
        taken += 1
    except BufferFullError:
        refused += 1
        time.sleep(0.001)
    if taken % 1000 == 0:
        most = max(most, resident_bytes())
        dropped = producer.metrics().events_dropped
most = max(most, resident_bytes())
print("stood", flush=True)
sys.stdin.readline()
report = producer.close(120)
metrics = producer.metrics()
print(json.dumps({
    "grown": most - before, "taken": taken + 20_000, "refused": refused, "complete": report.is_complete,
    "stored": metrics.events_stored, "dropped": metrics.events_dropped, "failed": metrics.events_failed,
}), flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Millraced]:
    config, data_dir = tmp_path / "millrace.toml", tmp_path / "data"
    config.write_text(_CONFIG_TOML)
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    server = Millraced(("--config", str(config), "--data-dir", str(data_dir), *free_ports), data_dir)
    yield server
    server.send(signal.SIGCONT)
    server.kill()


def run_standstill(server: Millraced, policy: str, seconds: float) -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, server.grpc, policy, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "begin\n"
        server.send(signal.SIGSTOP)
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "stood\n"
        server.send(signal.SIGCONT)
        program.stdin.write("\n")
        program.stdin.flush()
        reported = json.loads(program.stdout.readline())
    print(reported)  # noqa: T201 - the figures
    assert reported["grown"] < 1.5 * 32 * _MIB
    assert reported["complete"]
    assert reported["failed"] == 0
    assert reported["stored"] + reported["dropped"] == reported["taken"]
    assert (reported["dropped"] > 0) == (policy == "drop_oldest")
    assert (reported["refused"] > 0) == (policy != "drop_oldest")
    with millrace.connect(server.grpc) as client:
        assert client.admin.get_channel("orders").gauges.queued_events == reported["stored"]


@pytest.mark.parametrize("policy", ["block", "raise", "drop_oldest"])
def test_send_to_a_server_that_stands_still_keeps_its_bounds(server: Millraced, policy: str) -> None:
    """Memory stays within 1.5 times the limit, the overflow policy applies, and accepted events are stored later."""
    run_standstill(server, policy, 3.0)


@pytest.mark.torture
@pytest.mark.parametrize("policy", ["block", "raise", "drop_oldest"])
def test_send_to_a_server_that_stands_still_for_long_keeps_its_bounds(server: Millraced, policy: str) -> None:
    """The same for half a minute."""
    run_standstill(server, policy, 30.0)


def test_send_through_a_standstill_is_stored_once(server: Millraced) -> None:
    """A server that was considered dead and continues stores nothing twice."""
    config = millrace.ProducerConfig(linger_seconds=0.001, timeout_seconds=0.5, delivery_timeout_seconds=60.0)
    with millrace.Producer(server.grpc, "orders", config=config) as producer:
        producer.send(b"first").result(60)
        server.send(signal.SIGSTOP)
        futures = [producer.send(b"%d" % index, key=str(index % 3)) for index in range(3000)]
        time.sleep(1.5)
        server.send(signal.SIGCONT)
        results = [future.result(60) for future in futures]
    assert all(result.stored for result in results)
    with millrace.connect(server.grpc) as client:
        assert client.admin.get_channel("orders").gauges.queued_events == 3001
