"""Clients after a fork. Each case runs in a process of its own, since pytest's must not be forked."""

import subprocess
import sys
import textwrap

import pytest

from tests.millraced import Millraced

_TIMEOUT_SECONDS = 200.0
_PRELUDE = """
import asyncio, os, sys, threading
import millrace_client
import millrace_client.aio

address = sys.argv[1]

def in_child(work):
    # Returns the result or error of the child's work as text. A child that hangs runs into the test's deadline.
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os.close(writes)
        sys.exit(0)
    os.close(writes)
    with open(reads) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {status}"
    return said

def list_again():
    with millrace_client.connect(address, timeout_seconds=30.0) as client:
        return len(client.admin.list_channels()) >= 0
"""


def run(server: Millraced, script: str) -> list[str]:
    """Runs a script after the prelude; returns the lines it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _PRELUDE + textwrap.dedent(script), server.grpc],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=_TIMEOUT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_fork_of_a_used_client_refuses_it_in_the_child(shared_server: Millraced) -> None:
    """The child gets ClientForkedError; closing the client there does not close the parent's."""
    said = run(
        shared_server,
        """
        client = millrace_client.connect(address)
        client.admin.list_channels()
        def close_and_use():
            client.close()
            client.admin.list_channels()
        print(in_child(lambda: client.channel("orders").append([b"one"])))
        print(in_child(close_and_use))
        print(len(client.admin.list_channels()) >= 0)
        """,
    )
    assert said[0].startswith("ClientForkedError: this client was used in process")
    assert said[1].startswith("ClientClosedError")
    assert said[2] == "True"


def test_fork_of_what_a_used_client_made_refuses_it_too(shared_server: Millraced) -> None:
    """Transactions, claims and iterators belong to the parent; leaving their blocks in the child ends nothing."""
    said = run(
        shared_server,
        """
        client = millrace_client.connect(address)
        client.admin.create_channel("forked")
        channel = client.channel("forked")
        channel.append([b"one"])
        with channel.transaction() as txn:
            assert txn.take(wait_seconds=0)
            print(in_child(lambda: txn.put([b"two"])))
        print(txn.receipt is not None)
        with channel.claim("reader") as claim:
            print(in_child(lambda: claim.renew()))
            print(claim.renew() > 0)
        client.admin.delete_channel("forked")
        """,
    )
    assert said[0].startswith("ClientForkedError")
    assert said[1] == "True"
    assert said[2].startswith("ClientForkedError")
    assert said[3] == "True"


def test_fork_of_a_quiet_client_lets_the_child_connect(shared_server: Millraced) -> None:
    """If no call is in progress, the child may have a client of its own, with numbers of its own."""
    said = run(
        shared_server,
        """
        client = millrace_client.connect(address)
        client.admin.list_channels()
        for _ in range(5):
            print(in_child(list_again))
        print(in_child(lambda: in_child(list_again)))
        with millrace_client.connect(address) as unused:
            print(in_child(lambda: len(unused.admin.list_channels()) >= 0))
        print(len(client.admin.list_channels()) >= 0)
        """,
    )
    assert said == ["True"] * 8


@pytest.mark.parametrize(
    "busy",
    [
        "watched = client.admin.watch_channels(); next(watched)",
        "deliveries = channel.consume(); next(deliveries)",
        "waiting = threading.Thread(target=wait_for_an_event, daemon=True); waiting.start(); has_begun.wait()",
    ],
    ids=["stream", "consume", "call"],
)
def test_fork_of_a_busy_client_refuses_connecting_in_the_child(shared_server: Millraced, busy: str) -> None:
    """In such a child gRPC would block without end, deadlines or not; the error says what to do instead."""
    said = run(
        shared_server,
        f"""
        client = millrace_client.connect(address)
        name = f"busy-{{os.getpid()}}"
        client.admin.create_channel(name)
        channel = client.channel(name)
        channel.append([b"one"])
        has_begun = threading.Event()
        def wait_for_an_event():
            with channel.transaction() as txn:
                txn.take()
                has_begun.set()
                txn.take(wait_seconds=10.0)
        {busy}
        print(in_child(list_again))
        print(in_child(lambda: in_child(list_again)))
        print(len(client.admin.list_channels()) >= 0)
        client.admin.delete_channel(name, force=True)
        """,
    )
    assert said[0].startswith("ClientForkedError: process ")
    assert "had calls in progress" in said[0]
    assert said[1].startswith("ClientForkedError")
    assert said[2] == "True"


def test_fork_with_an_open_aio_client_refuses_connecting_in_the_child(shared_server: Millraced) -> None:
    """A thread of grpc.aio is always inside gRPC; once the client is closed, a child may connect."""
    said = run(
        shared_server,
        """
        async def fork_while_open():
            async with millrace_client.aio.connect(address) as client:
                await client.admin.list_channels()
                print(in_child(list_again))
                await client.admin.list_channels()
        asyncio.run(fork_while_open())
        print(in_child(list_again))
        """,
    )
    assert said[0].startswith("ClientForkedError: process ")
    assert said[1] == "True"
