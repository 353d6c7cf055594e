"""The end and return of a server as Kubernetes brings them about: the same signals and times, with processes."""

import threading
import time
from pathlib import Path

import yaml

import millrace_client as millrace
from millrace_client.errors import RetryAdvice
from tests.conftest import StartMillraced
from tests.unit.repository.checkout import ROOT

ROUNDS = 2
CALLERS = 4


def _grace_seconds() -> float:
    """How long the kubelet waits between SIGTERM and SIGKILL."""
    text = (ROOT / "deploy" / "kubernetes" / "server.yaml").read_text()
    (servers,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "StatefulSet")
    seconds: float = servers["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    return seconds


def test_end_of_a_pod_under_load_loses_no_call(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Calls that clients repeat while a pod ends and comes back all succeed, and each took effect once."""
    server = start_millraced(data_dir=tmp_path / "data")
    address = server.grpc
    with millrace.connect(address) as client:
        client.admin.create_channel("orders", millrace.ChannelConfig(type=millrace.ChannelType.FILE, capacity=100_000))
    stopping = threading.Event()
    appended: dict[str, int] = {}
    failures: list[Exception] = []

    def append(name: str) -> None:
        with millrace.connect(address) as client:
            number = 0
            while not stopping.is_set():
                stamp = millrace.Stamp(name, number, number)
                try:
                    client.channel("orders").append([f"{name} {number}".encode()], stamp=stamp)
                except millrace.MillraceError as error:
                    if error.advice not in {RetryAdvice.LATER, RetryAdvice.UNREACHABLE}:
                        failures.append(error)
                        return
                    continue
                number += 1
                appended[name] = number

    callers = [threading.Thread(target=append, args=(f"caller-{number}",)) for number in range(CALLERS)]
    for caller in callers:
        caller.start()
    for _ in range(ROUNDS):
        before = dict(appended)
        while not appended or any(appended.get(name, 0) <= before.get(name, 0) for name in appended):
            assert failures == []
            time.sleep(0.01)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < _grace_seconds()
        server = start_millraced(data_dir=tmp_path / "data", arguments=("--listen", address))
    stopping.set()
    for caller in callers:
        caller.join()
    assert failures == []
    with millrace.connect(address) as client, client.channel("orders").transaction() as txn:
        stored = [body for batch in txn.take(max_events=100_000) for body in batch.bodies()]
    expected = {f"{name} {number}".encode() for name, count in appended.items() for number in range(count)}
    assert len(stored) == len(set(stored))
    assert set(stored) == expected
