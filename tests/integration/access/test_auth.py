"""Who may do what: identities, permissions, and what belongs to whom."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

import millrace_client as millrace
import millrace_client.aio
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import Tls
from millrace_server.access.tokens import make_token
from millrace_server.grpc_services.rules import RULES
from tests.access_site import (
    METHODS,
    OF_A_TXN,
    WAIT_SECONDS_MAX,
    Site,
    append_and_consume_with_each_client,
    bearer,
    call,
    request_of,
    start_server,
)
from tests.certificates import Authority
from tests.conftest import StartMillraced
from tests.integration.raw_http2 import FrameKind, call_headers, raw_connection
from tests.millrace_program import run_millrace
from tests.millraced import Millraced

WRONG = "no-such-token"
_NO = "FORBIDDEN"

NEEDED = {
    "append": {"Append", "AppendStream", "Put", "BeginTxn"},
    "take": {"Take", "Consume", "BeginTxn"},
    "read": {"Claim", "Read", "Acknowledge", "Release"},
    "peek": {"PeekEvents"},
    "describe": {"GetChannel", "FindSequence"},
    "operate": {"UpdateChannel", "PurgeChannel", "MoveChannel", "ReleaseClaim", "ForgetProducer"},
    "admin": {"CreateChannel", "DeleteChannel"},
}
"""The calls that each permission allows, on the channels of its pattern."""
FILTERED = {"ListChannels", "WatchChannels", "ListComponents", "WatchComponents"}
ACTIVITY = {"ListTransactions", "ListProducers", "ListConsumers"}
"""These show nothing without `describe`."""
HIDDEN_FROM = {"EndTransaction": "TXN_NOT_FOUND", "RetryComponent": "COMPONENT_NOT_FOUND"}
"""What callers get who may not even see what these concern."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Millraced, Site]]:
    """A server and its identities for tests that change neither."""
    folder = tmp_path_factory.mktemp("auth")
    site = Site.of_permissions(folder)
    server = start_server(folder, site.toml())
    yield server, site
    server.kill()


def get(server: Millraced, path: str, *tokens: str) -> int:
    """Returns the status of a response over HTTP."""
    asked = urllib.request.Request(f"http://{server.http}{path}")
    for token in tokens:
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(asked, timeout=WAIT_SECONDS_MAX) as response:  # noqa: S310 - the same
            return int(response.status)
    except urllib.error.HTTPError as refusal:
        return refusal.code


def test_every_rpc_has_a_rule() -> None:
    """An RPC without a rule is not served with `[auth]`; each belongs to a permission, to a transaction, or filters."""
    assert set(RULES) == set(METHODS)
    assert set(METHODS) == set.union(*NEEDED.values()) | FILTERED | OF_A_TXN | ACTIVITY | set(HIDDEN_FROM)
    assert all(method.input_type.name == f"{name}Request" for name, method in METHODS.items())


def test_each_permission_allows_its_calls_and_no_others(shared: tuple[Millraced, Site]) -> None:
    """The whole matrix; a channel that does not exist is refused alike, and another's transaction is not known."""
    server, site = shared
    begin = pb.BeginTxnRequest(channel="orders")
    _, _, others_txn = call(server.grpc, "BeginTxn", begin, bearer(site.tokens["boss"]))
    for permission, allowed in NEEDED.items():
        metadata = bearer(site.tokens[permission])
        for method in METHODS:
            found = call(server.grpc, method, request_of(method, "orders", others_txn.txn_id), metadata)
            if method in OF_A_TXN:
                assert found[:2] == ("NOT_FOUND", "TXN_NOT_FOUND"), (permission, method)
            elif method in FILTERED:
                assert found[0] == "OK"
                [names] = found[2].ListFields() or [(None, [])]
                assert [one.name for one in names[1]] == ["orders"] * (permission == "describe" and "Ch" in method)
            elif method in ACTIVITY:
                assert found[0] == "OK"
                assert bool(found[2].ListFields()) == (permission == "describe" and method == "ListTransactions")
            elif method in HIDDEN_FROM:
                seen = {"describe": "FORBIDDEN", "operate": ""} if method == "EndTransaction" else {}
                assert found[1] == seen.get(permission, HIDDEN_FROM[method]), (permission, method)
            elif method in allowed:
                assert found[1] != "FORBIDDEN", (permission, method)
            else:
                assert found[1] == "FORBIDDEN", (permission, method)
                absent = call(server.grpc, method, request_of(method, "no-such", ""), metadata)
                assert absent[:2] == found[:2], (permission, method)
    _, _, seen = call(server.grpc, "ListComponents", admin_pb.ListComponentsRequest(), bearer(site.tokens["boss"]))
    assert [component.name for component in seen.components] == ["web"]


@pytest.mark.parametrize("method", METHODS)
def test_call_without_an_identity_is_refused(shared: tuple[Millraced, Site], method: str) -> None:
    """No call of any RPC gets further, whatever is sent in place of a token."""
    server, _ = shared
    wrong: list[Any] = [(), bearer(WRONG), (("authorization", "Basic Ym9zczo="),), (("authorization", "Bearer "),)]
    for metadata in wrong:
        assert call(server.grpc, method, request_of(method, "orders", "x"), metadata)[1] == "UNAUTHENTICATED"


def test_odd_authorization_headers_are_refused(shared: tuple[Millraced, Site]) -> None:
    """Two headers, even the same, and huge metadata let nobody in, and the server goes on."""
    server, site = shared
    good = bearer(site.tokens["boss"])
    listing = admin_pb.ListChannelsRequest()
    assert call(server.grpc, "ListChannels", listing, good * 2)[1] == "UNAUTHENTICATED"
    assert call(server.grpc, "ListChannels", listing, bearer("x" * 10_000))[1] == "UNAUTHENTICATED"
    assert call(server.grpc, "ListChannels", listing, (*good, ("padding", "x" * 100_000)))[0] == "RESOURCE_EXHAUSTED"
    assert call(server.grpc, "ListChannels", listing, (("authorization-bin", b"\xff"),))[1] == "UNAUTHENTICATED"
    assert call(server.grpc, "ListChannels", listing, good)[0] == "OK"


async def test_strangers_and_identities_forge_no_line_of_the_log(shared: tuple[Millraced, Site]) -> None:
    """Names, paths, Host and headers, and what gRPC itself has to say of them, stay within the entries about them."""
    server, site = shared
    forged = '\r\n{"event": "forged", "level": "error"}\x1b[2J\u2028'
    # What the server says by itself comes before.
    server.wait_for("listening")
    told = len(server.log)
    boss = bearer(site.tokens["boss"])
    for method in ("CreateChannel", "DeleteChannel", "GetChannel"):
        await asyncio.to_thread(call, server.grpc, method, request_of(method, forged, forged), boss)
    await asyncio.to_thread(call, server.grpc, "Append", request_of("Append", forged, "t"), bearer(site.tokens["take"]))
    host, _, port = server.http.rpartition(":")
    for path, host_sent in ((quote(f"/{forged}"), "localhost"), ("/channels", forged[2:].encode().decode("latin-1"))):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host_sent}\r\nConnection: close\r\n\r\n".encode("latin-1"))
        assert (await reader.readline()).split()[1] in {b"400", b"404", b"421"}
        writer.close()
    path = "/millrace.v1.AdminService/ListChannels"
    for path_sent, header in (
        (path + forged, (b"x", b"x")),
        (path, (b"user-agent", forged.encode())),
        (path, (b"authorization", b"Bearer \xff\n" + forged.encode())),
        (path, (forged.encode(), b"x" * 15_000)),
    ):
        async with raw_connection(server.grpc) as abuser:
            await abuser.send(call_headers(1, path_sent, header))
            assert await abuser.receive_kind(FrameKind.HEADERS) is not None
    assert {entry["event"] for entry in server.log[told:]} == {"audit"}
    assert not [entry for entry in server.log[told:] if not str(entry).isprintable()]
    assert server.other_output == []


def test_every_client_sends_its_token(server: Millraced, site: Site, tmp_path: Path) -> None:
    """The asyncio client, the producer, the consumer and the command line do, from a file too."""
    token_file = tmp_path / "token"
    token_file.write_text(site.tokens["boss"] + "\n")
    append_and_consume_with_each_client(server.grpc, token_file=token_file)
    put = run_millrace(server.grpc, "put", "orders", f"--token-file={token_file}", typed=b"four\n")
    assert put.returncode == 0, put.stderr
    both = run_millrace(server.grpc, "bench", "both", "other", "--events=20", f"--token-file={token_file}")
    assert both.returncode == 0, both.stderr
    refused = run_millrace(server.grpc, "channels")
    assert (refused.returncode, b"--token-file or MILLRACE_TOKEN_FILE" in refused.stderr) == (1, True)


def test_http_wants_an_identity_that_may_describe_all(shared: tuple[Millraced, Site]) -> None:
    """401 without an identity, 403 without the right; `/healthz` is open."""
    server, site = shared
    for path in ("/metrics", "/channels", "/components", "/nowhere"):
        assert get(server, path) == 401
        assert get(server, path, "wrong") == 401
        assert get(server, path, site.tokens["describe"]) == 403
        assert get(server, path, site.tokens["boss"]) == (404 if path == "/nowhere" else 200)
    assert get(server, "/healthz") == 200


def test_health_and_tools_follow_the_rules(shared: tuple[Millraced, Site]) -> None:
    """The server's health is open, a channel's is for those who may describe it; reflection is for administrators."""
    server, site = shared
    with grpc.insecure_channel(server.grpc) as connection:
        check = connection.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        reflect = connection.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        servers: Any = connection.unary_unary("/grpc.channelz.v1.Channelz/GetServers")

        def health(service: str, name: str | None) -> str:
            metadata = None if name is None else bearer(site.tokens[name])
            return code(lambda: check(health_pb2.HealthCheckRequest(service=service), metadata=metadata))

        assert health("", None) == "OK"
        assert [health("channels/orders", name) for name in (None, "append", "describe", "boss")] == [
            "UNAUTHENTICATED",
            "PERMISSION_DENIED",
            "OK",
            "OK",
        ]
        assert health("channels/no-such", "append") == "PERMISSION_DENIED"
        assert [health("sources/web", name) for name in ("describe", "boss")] == ["PERMISSION_DENIED", "OK"]
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        for name, expected in (("admin", "PERMISSION_DENIED"), ("boss", "OK")):
            metadata = bearer(site.tokens[name])
            assert code(lambda: next(reflect(iter([listing]), metadata=metadata))) == expected  # noqa: B023 - called here
            assert code(lambda: servers(b"", metadata=metadata)) == expected  # noqa: B023 - called here
        assert code(lambda: next(reflect(iter([listing])))) == "UNAUTHENTICATED"


def test_cancelled_streams_leave_the_server_alone(shared: tuple[Millraced, Site]) -> None:
    """What is noted of a call that its caller has left needs nothing of gRPC's, which has forgotten it."""
    server, site = shared
    listing = reflection_pb2.ServerReflectionRequest(list_services="")
    for _ in range(60):
        with grpc.insecure_channel(server.grpc) as connection:
            reflect = connection.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                reflection_pb2.ServerReflectionRequest.SerializeToString,
                reflection_pb2.ServerReflectionResponse.FromString,
            )
            next(reflect(iter([listing]), metadata=bearer(site.tokens["boss"])))
    assert server.process.poll() is None


def code(act: Any) -> str:
    try:
        act()
    except grpc.RpcError as failure:
        return str(failure.code().name)
    return "OK"


def test_certificates_name_identities(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """The first DNS name counts; with a token, both must be valid and the token's name counts, over HTTP too."""
    authority = Authority()
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.certificate)
    certificate, private_key = authority.issue(tmp_path, "both")
    tls = Tls(ca=ca, certificate=certificate, private_key=private_key)
    token = make_token(tmp_path / "tokens", "reader")
    server = start_millraced(
        f'server.tls = {{ certificate = "{certificate}", private_key = "{private_key}", client_ca = "{ca}", '
        f'client_certificate = "required" }}\nauth.tokens_file = "{tmp_path}/tokens"\n'
        'roles.all.allow = ["*:*"]\nroles.none.allow = []\n'
        'identities."local*".roles = ["all"]\nidentities.reader.roles = ["none"]\nchannels.orders.type = "memory"\n'
    )
    with millrace.connect(server.grpc, tls=tls) as client:
        assert client.channel("orders").append([b"one"]).last_sequence == 1
    with millrace.connect(server.grpc, tls=tls, token=token) as client:
        assert client.admin.list_channels() == []
        with pytest.raises(millrace.ForbiddenError, match=r"no role of 'reader' allows append on channel 'orders'"):
            client.channel("orders").append([b"two"])
    with millrace.connect(server.grpc, tls=tls, token=WRONG) as client, pytest.raises(millrace.UnauthenticatedError):
        client.admin.list_channels()


def test_audit_tells_of_administration_and_denials(server: Millraced, site: Site) -> None:
    """Who, from where, what, which and the outcome; denials once a second, and never a token."""
    with millrace.connect(server.grpc, token=site.tokens["boss"]) as boss:
        boss.admin.create_channel("new")
        with pytest.raises(millrace.ChannelExistsError):
            boss.admin.create_channel("new")
    with millrace.connect(server.grpc, token=site.tokens["append"]) as appender:
        for _ in range(20):
            with pytest.raises(millrace.ForbiddenError):
                appender.admin.delete_channel("new")
    with millrace.connect(server.grpc, token=WRONG) as nobody, pytest.raises(millrace.UnauthenticatedError):
        nobody.admin.list_channels()
    _ = call(server.grpc, "Consume", request_of("Consume", "other", ""), bearer(site.tokens["take"]))
    _ = call(server.grpc, "AppendStream", pb.AppendStreamRequest(channel="other"), bearer(site.tokens["read"]))
    server.stop()
    audit = [entry for entry in server.log if entry["event"] == "audit"]
    assert [(entry["outcome"], entry["identity"], entry["call"], entry.get("name")) for entry in audit[:3]] == [
        ("done", "boss", "CreateChannel", "new"),
        ("failed", "boss", "CreateChannel", "new"),
        ("denied", "append", "DeleteChannel", "new"),
    ]
    assert all(entry["peer"].startswith("ipv4:127.0.0.1:") for entry in audit)
    assert audit[-3]["identity"] is None
    denied = [(entry["call"], entry.get("channel"), entry.get("permission")) for entry in audit[-2:]]
    assert denied == [("Consume", "other", "take"), ("AppendStream", "other", "append")]
    assert len(audit) < 20
    assert not any(secret in str(server.log) for secret in (WRONG, *site.tokens.values()))
