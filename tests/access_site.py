"""A server with tokens, and calls of any RPC on it."""

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import millrace_client
import millrace_client.aio
from millrace.googleapis import error_details_pb2, status_pb2
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import Client, MillraceError
from millrace_server.access.permissions import Permission
from millrace_server.access.tokens import make_token
from millrace_server.files import write_atomically
from tests.millraced import Millraced

WAIT_SECONDS_MAX = 60.0

SERVICES = [admin_pb.DESCRIPTOR.services_by_name["AdminService"], pb.DESCRIPTOR.services_by_name["ChannelService"]]
METHODS = {method.name: method for service in SERVICES for method in service.methods}
OF_A_TXN = {"Put", "Take", "Commit", "Rollback", "RenewTxn"}


def start_server(folder: Path, toml: str) -> Millraced:
    """A server whose configuration and data are in a folder, for several tests."""
    (folder / "millrace.toml").write_text(toml)
    places = ("--config", str(folder / "millrace.toml"), "--data-dir", str(folder / "data"))
    return Millraced((*places, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"), folder / "data")


class Site:
    """A server with tokens: every identity has the role of its own name."""

    def __init__(self, folder: Path, roles: dict[str, list[str]]) -> None:
        self.tokens_file = folder / "tokens"
        self.roles = roles
        self.quotas: dict[str, str] = {}
        """The tables of quotas, by identity."""
        self.further_toml = ""
        self.tokens = {name: make_token(self.tokens_file, name) for name in roles}

    @classmethod
    def of_permissions(cls, folder: Path) -> "Site":
        """A site with an identity for each permission on `orders`, and two with all of them."""
        return cls(folder, {"boss": ["*:*"], "other": ["*:orders"], **{one: [f"{one}:orders"] for one in Permission}})

    def toml(self) -> str:
        tables = [f'auth.tokens_file = "{self.tokens_file}"']
        for name, allow in self.roles.items():
            tables.append(f"roles.{name}.allow = {json.dumps(allow)}\nidentities.{name}.roles = [{json.dumps(name)}]")
        tables += [f"identities.{name}.quota = {{ {quota} }}" for name, quota in self.quotas.items()]
        tables.append(self.further_toml)
        tables.append('[channels.orders]\ntype = "file"\n[channels.other]\ntype = "memory"\n')
        tables.append('[sources.web]\ntype = "http"\nlisten = "127.0.0.1:0"\nchannels = ["other"]\n')
        return "\n".join(tables)

    def reload(self, server: Millraced) -> None:
        """Puts the roles and quotas of now in force."""
        Path(server.arguments[1]).write_text(self.toml(), encoding="utf-8")
        server.send(signal.SIGHUP)

    def revoke(self, name: str, instead: str = "") -> None:
        """Removes the tokens of an identity, in one step with the addition of other lines."""
        lines = [line for line in self.tokens_file.read_text().splitlines() if not line.startswith(f"{name}:")]
        write_atomically(self.tokens_file, "\n".join([*lines, instead]).encode())

    def replace_token(self, name: str) -> None:
        """Replaces the token of an identity by another one of the same name."""
        other_file = self.tokens_file.with_name("other-tokens")
        self.tokens[name] = make_token(other_file, name)
        self.revoke(name, instead=other_file.read_text())


def request_of(method: str, channel: str, txn_id: str) -> Message:
    """A request of the RPC about this channel and transaction, so far as it has them."""
    request: Any = GetMessageClass(METHODS[method].input_type)()
    fields = request.DESCRIPTOR.fields_by_name
    for name in {"channel", "name"} & set(fields):
        setattr(request, name, channel)
    if "txn_id" in fields:
        request.txn_id = txn_id
    if "txn_ids" in fields:
        request.txn_ids.append(txn_id)
    if method == "Consume":
        request.start.channel = channel
    made: Message = request
    return made


def call(address: str, method: str, request: Message, metadata: Any) -> tuple[str, str, Any]:
    """Makes one call; returns the code, the reason, and the first response."""
    descriptor = METHODS[method]
    path = f"/{descriptor.containing_service.full_name}/{method}"
    codec = (type(request).SerializeToString, GetMessageClass(descriptor.output_type).FromString)
    with grpc.insecure_channel(address) as connection:
        try:
            if descriptor.client_streaming:
                responses = connection.stream_stream(path, *codec)(iter([request]), WAIT_SECONDS_MAX, metadata)
                response: Any = next(responses, None)
            elif descriptor.server_streaming:
                responses = connection.unary_stream(path, *codec)(request, WAIT_SECONDS_MAX, metadata)
                response = next(responses, None)
            else:
                response = connection.unary_unary(path, *codec)(request, WAIT_SECONDS_MAX, metadata)
        except grpc.RpcError as failure:
            trailing: Any = failure.trailing_metadata()
            details = dict(trailing).get("grpc-status-details-bin", b"")
            return failure.code().name, reason_of(status_pb2.Status.FromString(details)), None
    if method == "AppendStream" and response is not None and response.HasField("error"):
        return "", reason_of(response.error), response
    return "OK", "", response


def reason_of(status: status_pb2.Status) -> str:
    info = error_details_pb2.ErrorInfo()
    return next((info.reason for detail in status.details if detail.Unpack(info)), "")


def bearer(token: str) -> tuple[tuple[str, str]]:
    return (("authorization", f"Bearer {token}"),)


def check_that_streams_end(
    channel: str, boss: Client, other: Client, end: Callable[[], None], error: type[MillraceError]
) -> None:
    """Checks that `end` ends the streams of one client with an error, and returns its deliveries; others go on."""
    boss.channel(channel).append([b"one"])
    queued_events = boss.admin.get_channel(channel).gauges.queued_events
    kept, watched = (client.admin.watch_channels(interval_seconds=0.1) for client in (boss, other))
    next(kept), next(watched)
    with other.channel(channel).consume() as stream:
        next(stream)
        end()
        with pytest.raises(error):
            next(stream)
    with pytest.raises(error):
        list(watched)
    assert boss.admin.get_channel(channel).gauges.queued_events == queued_events
    next(kept)


def append_and_consume_with_each_client(address: str, channel: str = "orders", **credentials: Any) -> None:
    """Appends to a channel with the client, the producer and the asyncio client, and consumes that."""
    with millrace_client.connect(address, **credentials) as client:
        assert client.channel(channel).append([b"one"]).last_sequence == 1
    with millrace_client.Producer(address, channel=channel, **credentials) as producer:
        assert producer.send(b"two").result(WAIT_SECONDS_MAX).sequence == 2
    asyncio.run(_append_in_asyncio(address, channel, **credentials))
    config = millrace_client.ConsumerConfig(**credentials)
    with millrace_client.Consumer(address, channel, config=config) as consumer:
        bodies: list[bytes] = []
        for delivery in consumer:
            bodies += delivery.bodies()
            if len(bodies) == 3:
                break
    assert bodies == [b"one", b"two", b"three"]


async def _append_in_asyncio(address: str, channel: str, **credentials: Any) -> None:
    async with millrace_client.aio.connect(address, **credentials) as client:
        assert (await client.channel(channel).append([b"three"])).last_sequence == 3
