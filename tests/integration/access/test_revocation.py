"""Tokens and roles that are taken away, or changed, while the server runs."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1.event_pb2 import Event
from millrace_client import ChannelConfig, ComponentState
from millrace_server.files import write_atomically
from tests.access_site import WAIT_SECONDS_MAX, Site, bearer, call, check_that_streams_end, request_of, start_server
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.waiting import wait_until

WRONG = "no-such-token"
WAITING = ("Append", "AppendStream", "Commit")
"""The calls that wait for space."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Millraced, Site]]:
    """A server whose tests take away tokens and roles, each those of identities of its own."""
    folder = tmp_path_factory.mktemp("revocation")
    leavers = [f"{kind}-{number}" for kind in ("token", "role") for number in range(len(WAITING) + 1)]
    site = Site(folder, {"boss": ["*:*"], "changed": ["*:orders"], **{name: ["*:*"] for name in leavers}})
    server = start_server(folder, site.toml())
    yield server, site
    server.kill()


def test_removed_token_ends_open_streams(shared: tuple[Millraced, Site]) -> None:
    """Streams of the identity end with UNAUTHENTICATED and its deliveries return; those of others go on."""
    server, site = shared
    with (
        millrace.connect(server.grpc, token=site.tokens["boss"]) as boss,
        millrace.connect(server.grpc, token=site.tokens["token-0"]) as other,
    ):
        boss.admin.create_channel("streams")
        leave = partial(site.revoke, "token-0")
        check_that_streams_end("streams", boss, other, leave, millrace.UnauthenticatedError)
        with pytest.raises(millrace.UnauthenticatedError):
            other.channel("streams").append([b"two"])


@pytest.mark.parametrize(
    ("lost", "method"), [("token", "Append"), ("token", "Commit"), *(("role", method) for method in WAITING)]
)
def test_call_that_waits_for_space_without_token_or_role_stores_nothing(
    shared: tuple[Millraced, Site], lost: str, method: str
) -> None:
    """It is refused at once, and the transactions of the identity are rolled back."""
    server, site = shared
    leaver = f"{lost}-{WAITING.index(method) + 1}"
    name, token = f"{leaver}.{method.lower()}", bearer(site.tokens[leaver])
    with millrace.connect(server.grpc, token=site.tokens["boss"]) as boss, ThreadPoolExecutor() as thread:
        boss.admin.create_channel(name, ChannelConfig(capacity=1, keep_alive_seconds=WAIT_SECONDS_MAX))
        boss.channel(name).append([b"one"])
        call(server.grpc, "BeginTxn", pb.BeginTxnRequest(channel=name, txn_id=name), token)
        call(server.grpc, "Put", pb.PutRequest(txn_id=name, events=[Event(body=b"two")]), token)
        request = request_of(method, name, name)
        if method != "Commit":
            request.events.append(Event(body=b"two"))  # type: ignore[attr-defined] # both have it
        waiting = thread.submit(call, server.grpc, method, request, token)
        wait_until(lambda: boss.admin.get_channel(name).gauges.waiting_commits == 1)
        if lost == "token":
            site.revoke(leaver)
        else:
            site.roles[leaver] = []
            site.reload(server)
        assert waiting.result()[1] == ("UNAUTHENTICATED" if lost == "token" else "FORBIDDEN")
        gauges = boss.admin.get_channel(name).gauges
        assert (gauges.queued_events, gauges.open_transactions, gauges.waiting_commits) == (1, 0, 0)


def test_changed_roles_act_on_open_streams(shared: tuple[Millraced, Site]) -> None:
    """A role that is taken away ends a Consume, empties a watch, and refuses the next append of an open stream."""
    server, site = shared
    with millrace.connect(server.grpc, token=site.tokens["changed"]) as other:
        watched = other.admin.watch_channels(interval_seconds=0.1)
        assert [channel.name for channel in next(watched)] == ["orders"]
        other.channel("orders").append([b"one"])
        with other.channel("orders").consume() as stream:
            next(stream)
            site.roles["changed"] = ["append:other"]
            # What can only change at the next start holds up nothing else.
            site.further_toml = f'auth.audit_file = "{site.tokens_file}.audit"'
            site.reload(server)
            with pytest.raises(millrace.ForbiddenError, match="take"):
                next(stream)
        assert next(one for one in watched if not one) == []
        with pytest.raises(millrace.ForbiddenError):
            other.channel("orders").append([b"two"])
        assert other.channel("other").append([b"three"]).last_sequence == 1


def test_broken_tokens_file_changes_nothing(shared: tuple[Millraced, Site]) -> None:
    """The former tokens stay in force, and the log says what is wrong."""
    server, site = shared
    former = site.tokens_file.read_bytes()
    # In one step, since a server that looks at an empty file takes it: it is valid.
    write_atomically(site.tokens_file, b"boss:md5:00\n")
    told = server.wait_for("changed tokens are invalid; the previous ones stay in use")
    assert "line 1 is not NAME:sha256:HEX" in told["why"]
    assert call(server.grpc, "ListChannels", admin_pb.ListChannelsRequest(), bearer(site.tokens["boss"]))[0] == "OK"
    write_atomically(site.tokens_file, former)


# Those below count what the server logs, or need a server of their own.


def test_token_file_that_changes_is_read_again(server: Millraced, site: Site, tmp_path: Path) -> None:
    """A client and a producer go on with a new token when the former one is removed, without a failed call."""
    token_file = tmp_path / "token"
    token_file.write_text(site.tokens["boss"])
    with (
        millrace.connect(server.grpc, token_file=token_file) as client,
        millrace.Producer(server.grpc, channel="orders", token_file=token_file) as producer,
    ):
        assert producer.send(b"one").result(WAIT_SECONDS_MAX).sequence == 1
        site.replace_token("boss")
        token_file.write_text(site.tokens["boss"] + "\n")
        server.wait_for("tokens reloaded")
        assert producer.send(b"two").result(WAIT_SECONDS_MAX).sequence == 2
        # Sooner than a changed file is noticed otherwise.
        assert [channel.name for channel in client.admin.list_channels()] == ["orders", "other"]

        def replace() -> None:
            token_file.write_text(site.tokens["admin"])
            site.revoke("boss")
            server.wait_for("tokens reloaded", count=2)

        asyncio.run(list_before_and_after(server, token_file, replace))
        token_file.write_text(WRONG)
        with pytest.raises(millrace.UnauthenticatedError):
            client.admin.list_channels()


async def list_before_and_after(server: Millraced, token_file: Path, replace: Callable[[], None]) -> None:
    async with millrace_client.aio.connect(server.grpc, token_file=token_file) as client:
        assert len(await client.admin.list_channels()) == 2
        replace()
        assert await client.admin.list_channels() == []


def test_sink_with_a_refused_token_keeps_its_events(
    server: Millraced, site: Site, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """It says why, and delivers once it has a valid token."""
    token_file = tmp_path / "token"
    token_file.write_text("wrong")
    edge = start_millraced(
        '[channels.edge]\ntype = "memory"\n[sinks.up]\ntype = "millrace"\nchannel = "edge"\n'
        f'endpoints = ["{server.grpc}"]\ntarget_channel = "orders"\ntoken_file = "{token_file}"\n'
    )
    with (
        millrace.connect(edge.grpc) as client,
        millrace.connect(server.grpc, token=site.tokens["boss"]) as target,
    ):
        client.channel("edge").append([b"one"])
        watched = chain.from_iterable(client.admin.watch_components(0.1))
        failing = next(one for one in watched if one.state is ComponentState.BACKING_OFF)
        assert "the token is not valid" in failing.reason
        token_file.write_text(site.tokens["other"])
        with target.channel("orders").transaction() as txn:
            (batch,) = txn.take(wait_seconds=WAIT_SECONDS_MAX)
            assert [event.body for event in batch] == [b"one"]
