"""Calls that come before their issuer's keys."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access import control, jwt
from millrace_server.access.control import AccessControl
from millrace_server.access.jwt import JwtSettings
from millrace_server.access.settings import AuthSettings
from millrace_server.channels.registry import ChannelRegistry
from tests.access_site import bearer
from tests.forward_targets import served
from tests.rpc import TIMEOUT_SECONDS, connected
from tests.token_issuer import AUDIENCE, ISSUER, Issuer, jwks, key_server

OLD, NEW, FORGED = Issuer(kid="old"), Issuer(kid="new"), Issuer(kid="forged")


async def test_calls_with_a_new_key_wait_for_one_fetch_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They succeed at the first attempt; those with a key that the issuer does not have are refused after a fetch."""
    monkeypatch.setattr(jwt, "_RETRY_SECONDS", 0.0)
    # A fetch that is slower than that, on a busy machine, must not fail the test.
    for module, name in (
        (control, "_PREPARATION_SECONDS"),
        (control, "_FETCH_WAIT_SECONDS"),
        (jwt, "_RESPONSE_SECONDS_MAX"),
    ):
        monkeypatch.setattr(module, name, TIMEOUT_SECONDS)
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
    with key_server(OLD) as issuer:
        settings = AuthSettings(jwt=JwtSettings(issuer=ISSUER, audience=AUDIENCE, jwks_url=issuer.url))
        access = AccessControl(settings, {}, {})
        await access.prepare()
        issuer.content = jwks(NEW)
        async with served(registry, tmp_path, access) as address, connected(address) as rpc:

            async def list_channels(token: str) -> pb.ListChannelsResponse:
                listing = pb.ListChannelsRequest()
                response: pb.ListChannelsResponse = await rpc.admin.ListChannels(
                    listing, metadata=bearer(token), timeout=TIMEOUT_SECONDS
                )
                return response

            await asyncio.gather(*(list_channels(NEW.token()) for _ in range(10)))
            assert len(issuer.authorizations) == 2
            for refused in (OLD, FORGED):
                with pytest.raises(aio.AioRpcError, match="the key of the token is not known") as failure:
                    await list_channels(refused.token())
                assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert len(issuer.authorizations) == 4
