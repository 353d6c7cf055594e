"""Standard services: health, reflection and channelz."""

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc import aio
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.conftest import StartMillraced
from tests.rpc import TIMEOUT_SECONDS, Rpc, connected

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVICES = {
    "grpc.channelz.v1.Channelz",
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "millrace.v1.AdminService",
    "millrace.v1.ChannelService",
}


def stub_of(kind: Any, rpc: Rpc) -> Any:
    return kind(rpc.connection)


def health_of(rpc: Rpc) -> Any:
    return stub_of(health_pb2_grpc.HealthStub, rpc)


async def reflected(rpc: Rpc, *requests: reflection_pb2.ServerReflectionRequest) -> list[Any]:
    stub = stub_of(reflection_pb2_grpc.ServerReflectionStub, rpc)

    async def asked() -> AsyncIterator[reflection_pb2.ServerReflectionRequest]:
        for request in requests:
            yield request

    return [response async for response in stub.ServerReflectionInfo(asked(), timeout=TIMEOUT_SECONDS)]


async def test_health_of_the_server_and_of_each_channel(rpc: Rpc) -> None:
    """The server has the empty name, a channel `channels/NAME`; an unknown name is NOT_FOUND."""
    name = await rpc.make_channel()
    health = health_of(rpc)
    for service in ("", f"channels/{name}"):
        response = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_SECONDS)
        assert response.status == SERVING
    for service in ("channels/none", name, "channels/../x"):
        with pytest.raises(aio.AioRpcError) as raised:
            await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT_SECONDS)
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_health_watched_follows_a_channel(rpc: Rpc) -> None:
    """Watchers are informed when the channel is created and when it is deleted."""
    watched = health_of(rpc).Watch(health_pb2.HealthCheckRequest(service="channels/to-come"), timeout=TIMEOUT_SECONDS)
    assert (await watched.read()).status == SERVICE_UNKNOWN
    name = await rpc.make_channel(name="to-come")
    assert (await watched.read()).status == SERVING
    await rpc.delete(name)
    assert (await watched.read()).status == SERVICE_UNKNOWN
    watched.cancel()


async def test_health_while_the_server_drains_is_not_serving(start_millraced: StartMillraced) -> None:
    """Health is NOT_SERVING while open transactions may still end; peeks and commits continue to work."""
    server = start_millraced("server.shutdown_grace_seconds = 600.0")
    async with connected(server.grpc) as rpc:
        name = await rpc.make_channel()
        txn_id = await rpc.begin(name)
        await rpc.put(txn_id, b"a")
        watched = health_of(rpc).Watch(health_pb2.HealthCheckRequest(service=""), timeout=TIMEOUT_SECONDS)
        assert (await watched.read()).status == SERVING
        server.send(signal.SIGTERM)
        assert (await watched.read()).status == NOT_SERVING
        watched.cancel()
        await asyncio.to_thread(server.wait_for, "stopping")
        assert await rpc.peek(name) == []
        assert (await rpc.commit(txn_id)).first_sequence == 1
    assert await asyncio.to_thread(server.wait) == 0


async def test_reflection_lists_the_services_and_gives_their_protos(rpc: Rpc) -> None:
    """A client without protos can build every message of both services from the responses."""
    listed, *files = await reflected(
        rpc,
        reflection_pb2.ServerReflectionRequest(list_services=""),
        *(
            reflection_pb2.ServerReflectionRequest(file_by_filename=name)
            for name in (
                "google/protobuf/duration.proto",
                "google/protobuf/timestamp.proto",
                "google/protobuf/any.proto",
                "google/rpc/status.proto",
                "millrace/v1/event.proto",
                "millrace/v1/channel_service.proto",
                "millrace/v1/admin_service.proto",
            )
        ),
    )
    assert {service.name for service in listed.list_services_response.service} == SERVICES
    pool = DescriptorPool()
    for response in files:
        for encoded in response.file_descriptor_response.file_descriptor_proto:
            pool.Add(FileDescriptorProto.FromString(encoded))
    assert len(pool.FindServiceByName("millrace.v1.ChannelService").methods) == 14
    assert len(pool.FindServiceByName("millrace.v1.AdminService").methods) == 18


async def test_channelz_shows_the_server(rpc: Rpc) -> None:
    """There is one server, with counted calls."""
    await rpc.make_channel()
    stub = stub_of(channelz_pb2_grpc.ChannelzStub, rpc)
    response = await stub.GetServers(channelz_pb2.GetServersRequest(), timeout=TIMEOUT_SECONDS)
    [server] = response.server
    assert server.data.calls_started > 0
    assert server.listen_socket


async def test_tools_that_are_switched_off_are_not_there(start_millraced: StartMillraced) -> None:
    """Reflection and channelz can be disabled; health stays."""
    server = start_millraced("server.reflection = false\nserver.channelz = false\n")
    async with connected(server.grpc) as rpc:
        stub = stub_of(channelz_pb2_grpc.ChannelzStub, rpc)
        with pytest.raises(aio.AioRpcError) as raised:
            await stub.GetServers(channelz_pb2.GetServersRequest(), timeout=TIMEOUT_SECONDS)
        assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
        # A client that is still sending when the refusal arrives gets INTERNAL from its own gRPC, so nothing is sent.
        call = stub_of(reflection_pb2_grpc.ServerReflectionStub, rpc).ServerReflectionInfo(timeout=TIMEOUT_SECONDS)
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        response = await health_of(rpc).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_SECONDS)
        assert response.status == SERVING
